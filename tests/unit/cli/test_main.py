from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kavka
from kavka.cli import main as cli
from kavka.cli import run_class
from kavka.cli.catalogue import MISSING, table_of


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("server", "server"),
        ("server-start", "server"),
        ("kafka-server-start", "server"),
        ("kafka-server-start.sh", "server"),
        ("kafka-server-stop.sh", "server-stop"),
        ("server-stop", "server-stop"),
    ],
)
def test_a_tool_is_found_by_every_name_it_has(name, tool):
    assert cli.find(name).name == tool


def test_every_tool_points_to_a_function_that_is_there():
    for tool in cli.TOOLS:
        assert callable(getattr(import_module(tool.module), tool.main))


def test_every_tool_has_a_table_under_its_own_name():
    for tool in cli.TOOLS:
        assert table_of(tool).name == tool.name


def test_no_name_stands_for_two_tools():
    names = [name for tool in cli.TOOLS for name in {tool.name, *tool.aliases, *tool.script_names}]
    assert len(names) == len(set(names))


def test_every_tool_has_its_scripts_with_and_without_sh():
    bin_folder = Path(__file__).parents[3] / "bin"
    for tool in cli.TOOLS:
        for script in tool.script_names:
            assert (bin_folder / f"{script}.sh").resolve() == (bin_folder / "kavka").resolve()
            if script != "zkServer":
                assert (bin_folder / script).resolve() == (bin_folder / "kavka").resolve()


def test_help_lists_all_tools_under_their_groups(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for tool in cli.TOOLS:
        assert tool.name in shown
        assert tool.group in shown


def test_without_a_tool_the_help_is_shown_and_it_counts_as_an_error(capsys):
    assert cli.main([]) == 1
    assert "usage:" in capsys.readouterr().out


def test_a_typo_gets_the_nearest_name_in_one_line(capsys):
    assert cli.main(["kafka-servr-start.sh"]) == 1
    shown = capsys.readouterr()
    assert "did you mean server-start?" in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("kafka-storage.sh", "nothing has to be formatted"),
        ("storage", "nothing has to be formatted"),
        ("kafka-acls", "no security here yet"),
        ("share-groups", "no share groups here"),
        ("kafka-metadata-quorum.sh", "zookeeper-shell HOST get /controller"),
        ("trogdor.sh", "tests of Kafka itself"),
    ],
)
def test_a_tool_of_kafkas_that_is_not_here_says_why_and_what_to_do_instead(capsys, name, why):
    assert cli.main([name, "random-uuid"]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"kavka: there is no tool '{name}': ")
    assert why in shown.err
    assert "did you mean" not in shown.err
    assert shown.err.count("\n") == 1


def test_tools_of_kafkas_that_are_not_here_have_a_script_that_says_so_and_are_in_the_list_of_gaps():
    root = Path(__file__).parents[3]
    gaps = (root / "docs" / "gaps.md").read_text()
    for name in MISSING:
        assert cli.find(name) is None
        assert (root / "bin" / f"{name}.sh").resolve() == (root / "bin" / "kavka").resolve()
        assert f"`{name}`" in gaps


def test_a_name_like_no_other_gets_no_hint(capsys):
    assert cli.main(["zzzz"]) == 1
    assert "did you mean" not in capsys.readouterr().err


def test_the_version_is_shown(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"kavka {kavka.__version__}\n"


def test_a_missing_package_is_one_line(monkeypatch, capsys):
    def missing(name: str):
        raise ModuleNotFoundError("No module named 'uvloop'", name="uvloop")

    monkeypatch.setattr(cli, "import_module", missing)
    assert cli.main(["server"]) == 1
    assert "'uvloop' is missing" in capsys.readouterr().err


def test_help_imports_no_tool():
    code = "import sys; from kavka.cli import main; main.main(['--help']); sys.exit('kavka.cli.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_every_tool_and_sub_command_has_help(capsys):
    for tool in cli.TOOLS:
        for words in ((), *((sub.name,) for sub in table_of(tool).subcommands)):
            assert cli.main([tool.name, *words, "--help"]) == 0
            shown = capsys.readouterr()
            assert shown.out.startswith(f"usage: kavka {tool.name}")
            assert shown.err == ""


def test_a_tool_may_be_run_by_the_name_of_its_java_class(capsys):
    for name, tool in run_class.CLASSES.items():
        assert cli.main(["kafka-run-class.sh", f"kafka.any.{name}", "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: kavka {tool}")
    assert cli.main(["run-class", "kafka.Nothing"]) == 1
    assert capsys.readouterr().err == "kavka run-class: no tool here stands for kafka.Nothing\n"
    assert cli.main(["run-class"]) == 1


def test_two_words_for_the_consoles(capsys):
    for word in ("producer", "consumer.sh"):
        assert cli.main(["kafka-console", word, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: kavka console-{word.removesuffix('.sh')}")
    assert cli.main(["console", "other"]) == 1
