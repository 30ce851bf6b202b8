from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest

import kavka.streams
from kavka.cli import pipeline

JOB = """
from kavka.streams import StreamsBuilder
CONFIG = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
def build():
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()
"""


class Streams:
    """As if it ran; being asked for its progress, it is told to stop."""

    def __init__(self, number: int) -> None:
        self.number, self.asking, self.ended = number, False, False
        self.query = self

    def __call__(self, topology, config):
        return self

    def start(self):
        # As PySpark does when a session begins.
        signal.signal(signal.SIGINT, lambda *_: pytest.fail("the handler of PySpark"))

    def wait(self, timeout):
        return self.ended

    def state(self):
        return "RUNNING"

    def exception(self):
        return None

    def close(self):
        assert not self.asking, "in the middle of a call to Spark, whose connection takes one at a time"
        self.ended = True

    @property
    def lastProgress(self):
        self.asking = True
        os.kill(os.getpid(), self.number)
        self.asking = False
        return SimpleNamespace(batchId=3, processedRowsPerSecond=None, sources=[], stateOperators=[])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_job_between_two_calls_to_spark(number, tmp_path, monkeypatch):
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "jobs"))
    monkeypatch.setattr(kavka.streams, "KafkaStreams", Streams(number))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert pipeline.main(["run", str(tmp_path / "job.py")]) == 0
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_note_of_a_process_that_is_gone_is_no_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path))
    (tmp_path / "gone.json").write_text(json.dumps({"pid": 2**22 + 1, "state": "RUNNING"}))
    (tmp_path / "here.json").write_text(json.dumps({"pid": os.getpid(), "state": "RUNNING", "batch": 7}))
    assert pipeline.main(["status", "--json"]) == 0
    assert [job["application.id"] for job in json.loads(capsys.readouterr().out)] == ["here"]
