from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.chaos.__main__ import main
from tests.chaos.faults import KINDS, every_fault, faults_by_name

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "faults.md").read_text()


def test_a_kind_selects_all_its_roles() -> None:
    assert [fault.name for fault in faults_by_name("kill")] == ["kill-leader", "kill-controller", "kill-any"]
    assert [fault.name for fault in faults_by_name("kill-any,zookeeper-restart,kill-any")] == [
        "kill-any",
        "zookeeper-restart",
    ]
    assert [fault.name for fault in faults_by_name("all")] == list(every_fault())


def test_all_required_faults_exist() -> None:
    brokers = {"stop", "kill", "pause", "bounce", "hard-bounce"}
    assert set(KINDS) >= brokers | {"zookeeper-restart", "cut-brokers", "cut-zookeeper", "disk-full"}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no fault flood"):
        faults_by_name("flood")


def test_the_documented_commands_use_existing_faults_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []

    def record_run(faults: list[object], **options: object) -> list[object]:
        runs.append((len(faults), options["rounds"], options["apache"]))
        return []

    monkeypatch.setattr("tests.chaos.__main__.run", record_run)
    for arguments in re.findall(r'^make chaos ARGS="(.*?)"', DOCS, re.MULTILINE):
        assert main(shlex.split(arguments)) == 0
    assert runs == [(4, 20, False), (len(every_fault()), 1_000_000, False), (3, 1, True)]
    assert "kill-leader" in capsys.readouterr().out


def test_the_documentation_names_every_kind() -> None:
    assert [kind for kind in KINDS if f"`{kind}`" not in DOCS] == []
