from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.chaos.__main__ import main
from tests.chaos.faults import KINDS, every_fault, named

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "faults.md").read_text()


def test_a_kind_stands_for_all_of_its_roles() -> None:
    assert [fault.name for fault in named("kill")] == ["kill-leader", "kill-controller", "kill-any"]
    assert [fault.name for fault in named("kill-any,zookeeper-restart,kill-any")] == ["kill-any", "zookeeper-restart"]
    assert [fault.name for fault in named("all")] == list(every_fault())


def test_every_fault_that_is_asked_for_has_a_name() -> None:
    brokers = {"stop", "kill", "pause", "bounce", "hard-bounce"}
    assert set(KINDS) >= brokers | {"zookeeper-restart", "cut-brokers", "cut-zookeeper", "disk-full"}


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no fault flood"):
        named("flood")


def test_the_documented_commands_name_faults_and_options_that_are_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []

    def only_note(faults: list[object], **options: object) -> list[object]:
        names.append((len(faults), options["rounds"], options["apache"]))
        return []

    monkeypatch.setattr("tests.chaos.__main__.run", only_note)
    for arguments in re.findall(r'^make chaos ARGS="(.*?)"', DOCS, re.MULTILINE):
        assert main(shlex.split(arguments)) == 0
    assert names == [(4, 20, False), (len(every_fault()), 1_000_000, False), (3, 1, True)]
    assert "kill-leader" in capsys.readouterr().out


def test_the_documentation_names_every_kind() -> None:
    assert [kind for kind in KINDS if f"`{kind}`" not in DOCS] == []
