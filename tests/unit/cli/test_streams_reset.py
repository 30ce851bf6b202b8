from __future__ import annotations

import json
import os

import pytest

from kavka.cli import streams_reset
from kavka.cli.streams_reset import is_own


@pytest.mark.parametrize(
    "name",
    [
        "by-word-repartition",
        "Counts-changelog",
        "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic",
        "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic",
        "named-subscription-registration-topic",
        "named-subscription-response-topic",
    ],
)
def test_topics_of_an_application_bear_its_id_and_kafkas_endings(name: str) -> None:
    assert is_own(f"app-{name}", "app")
    assert not is_own(f"application-{name}", "app")
    assert not is_own(name, "app")
    assert not is_own(f"app-{name}-2", "app")


def test_other_topics_are_not_an_applications_own() -> None:
    assert not is_own("app-output", "app")
    assert not is_own("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-x-topic", "app")
    assert not is_own("app-Counts-changelog\n", "app")


def test_an_application_that_runs_on_this_machine_is_not_reset(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path))
    (tmp_path / "app.json").write_text(json.dumps({"pid": os.getpid(), "state": "RUNNING"}))
    argv = ["--application-id", "app", "--bootstrap-server", "localhost:1", "--input-topics", "a", "--force"]
    assert streams_reset.main(argv) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"ERROR: app runs on this machine (process {os.getpid()}): stop it first, kavka pipeline stop app\n"
    )


def test_one_way_of_resetting_is_chosen(capsys) -> None:
    assert streams_reset.main(["--application-id", "app", "--shift-by", "3", "--from-file", "x"]) == 1
    assert 'Option "[from-file]" can\'t be used with option "[shift-by]"' in capsys.readouterr().err
