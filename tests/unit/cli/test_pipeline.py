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
        return SimpleNamespace(batchId=3, batchDuration=0, sources=[], stateOperators=[])


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


def test_progress_counts_offsets_and_not_rows_of_spark():
    first = SimpleNamespace(
        startOffset=None,
        endOffset='{"a": {"0": 7, "1": 3}, "$initial": {"a": {"0": 2, "1": 3}}}',
        latestOffset='{"a": {"0": 9, "1": 4}}',
    )
    later = SimpleNamespace(startOffset='{"b": {"0": 5}}', endOffset='{"b": {"0": 8, "1": 2}}', latestOffset=None)
    other = SimpleNamespace(startOffset="none of ours", endOffset="1", latestOffset="2")
    progress = SimpleNamespace(
        batchId=4, batchDuration=500, sources=[first, later, other], stateOperators=[SimpleNamespace(numRowsTotal=6)]
    )
    assert pipeline._told(progress) == {"batch": 4, "rows_per_second": 20.0, "lag": 3, "state_rows": 6}
