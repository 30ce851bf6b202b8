from __future__ import annotations

import json
import os

import pytest

from kavka.cli import streams_reset
from kavka.cli.streams_reset import is_internal_topic


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
def test_internal_topics_have_the_application_id_and_a_kafka_suffix(name: str) -> None:
    assert is_internal_topic(f"app-{name}", "app")
    assert not is_internal_topic(f"application-{name}", "app")
    assert not is_internal_topic(name, "app")
    assert not is_internal_topic(f"app-{name}-2", "app")


def test_other_topics_are_not_internal() -> None:
    assert not is_internal_topic("app-output", "app")
    assert not is_internal_topic("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-x-topic", "app")
    assert not is_internal_topic("app-Counts-changelog\n", "app")


def test_running_application_is_not_reset(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path))
    (tmp_path / "app.json").write_text(json.dumps({"pid": os.getpid(), "state": "RUNNING"}))
    argv = ["--application-id", "app", "--bootstrap-server", "localhost:1", "--input-topics", "a", "--force"]
    assert streams_reset.main(argv) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"ERROR: app is running on this machine (process {os.getpid()}): stop it first with kavka pipeline stop app\n"
    )


def test_reset_options_are_exclusive(capsys) -> None:
    assert streams_reset.main(["--application-id", "app", "--shift-by", "3", "--from-file", "x"]) == 1
    assert 'Option "[from-file]" can\'t be used with option "[shift-by]"' in capsys.readouterr().err
