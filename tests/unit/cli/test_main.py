from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kavka
from kavka.cli import main as cli
from kavka.cli import run_class
from kavka.cli.catalogue import MISSING, commands, table_of


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
def test_tool_has_several_names(name, tool):
    assert cli.find(name).name == tool


def test_main_function_of_every_tool_exists():
    for tool in cli.TOOLS:
        assert callable(getattr(import_module(tool.module), tool.main))


def test_every_tool_has_an_option_table_with_its_name():
    for tool in cli.TOOLS:
        assert table_of(tool).name == tool.name


def test_tool_names_are_unique():
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
    output = capsys.readouterr().out
    for tool in cli.TOOLS:
        assert tool.name in output
        assert tool.group in output


def test_help_is_printed_with_exit_code_1_without_a_tool(capsys):
    assert cli.main([]) == 1
    assert "usage:" in capsys.readouterr().out


def test_typo_gets_a_suggestion_in_one_line(capsys):
    assert cli.main(["kafka-servr-start.sh"]) == 1
    output = capsys.readouterr()
    assert "did you mean server-start?" in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka-storage.sh", "no formatting is needed"),
        ("storage", "no formatting is needed"),
        ("zookeeper-security-migration", "zookeeper.set.acl=true"),
        ("share-groups", "no share groups"),
        ("kafka-metadata-quorum.sh", "zookeeper-shell HOST get /controller"),
        ("trogdor.sh", "it tests Kafka itself"),
    ],
)
def test_missing_kafka_tool_prints_the_reason_and_an_alternative(capsys, name, hint):
    assert cli.main([name, "random-uuid"]) == 1
    output = capsys.readouterr()
    assert output.err.startswith(f"kavka: there is no tool '{name}': ")
    assert hint in output.err
    assert "did you mean" not in output.err
    assert output.err.count("\n") == 1


def test_missing_kafka_tools_have_a_script_and_are_listed_in_gaps():
    root = Path(__file__).parents[3]
    gaps = (root / "docs" / "gaps.md").read_text()
    for name in MISSING:
        assert cli.find(name) is None
        assert (root / "bin" / f"{name}.sh").resolve() == (root / "bin" / "kavka").resolve()
        assert f"`{name}`" in gaps


def test_unknown_name_without_a_close_match_gets_no_suggestion(capsys):
    assert cli.main(["zzzz"]) == 1
    assert "did you mean" not in capsys.readouterr().err


def test_version_is_printed(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"kavka {kavka.__version__}\n"


def test_help_imports_no_tool():
    code = "import sys; from kavka.cli import main; main.main(['--help']); sys.exit('kavka.cli.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_every_tool_and_subcommand_has_help(capsys):
    for tool in cli.TOOLS:
        for words in ((), *((sub.name,) for sub in table_of(tool).subcommands)):
            assert cli.main([tool.name, *words, "--help"]) == 0
            output = capsys.readouterr()
            assert output.out.startswith(f"usage: kavka {tool.name}")
            assert output.err == ""


def test_run_class_runs_a_tool_by_its_java_class_name(capsys):
    for name, tool in run_class.CLASSES.items():
        assert cli.main(["kafka-run-class.sh", f"kafka.any.{name}", "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: kavka {tool}")
    assert cli.main(["run-class", "kafka.Nothing"]) == 1
    assert capsys.readouterr().err == "kavka run-class: there is no tool for kafka.Nothing\n"
    assert cli.main(["run-class"]) == 1


def test_console_with_producer_or_consumer_runs_the_console_tools(capsys):
    for word in ("producer", "consumer.sh"):
        assert cli.main(["kafka-console", word, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: kavka console-{word.removesuffix('.sh')}")
    assert cli.main(["console", "other"]) == 1


def test_bin_has_the_commands_of_the_catalogue():
    bin_folder = Path(__file__).parents[3] / "bin"
    assert sorted(path.name for path in bin_folder.iterdir() if path.name != "kavka") == commands()


def test_a_script_runs_the_tool_with_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kafka-topics.sh", "--help"])
    assert cli.script_main() == 0
    assert "kavka topics" in capsys.readouterr().out


def test_a_missing_module_names_its_extra(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(cli, "import_module", missing)
    for module, package in (("kazoo.client", "kavka[cluster]"), ("other", "other")):
        assert cli.main(["cluster"]) == 1
        assert capsys.readouterr().err == f"kavka cluster: the module {module} is missing: pip install '{package}'\n"
