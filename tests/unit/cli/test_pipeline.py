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
    """A fake KafkaStreams. Reading its progress sends the signal `number` to this process."""

    def __init__(self, number: int) -> None:
        self.number, self.in_call, self.ended = number, False, False
        self.query = self

    def __call__(self, topology, config):
        return self

    def start(self):
        # PySpark installs its handler when a session starts.
        signal.signal(signal.SIGINT, lambda *_: pytest.fail("the handler of PySpark"))

    def wait(self, timeout):
        return self.ended

    def state(self):
        return "RUNNING"

    def exception(self):
        return None

    def close(self):
        assert not self.in_call, "close during a call to Spark, whose connection is not reentrant"
        self.ended = True

    @property
    def lastProgress(self):
        self.in_call = True
        os.kill(os.getpid(), self.number)
        self.in_call = False
        return SimpleNamespace(batchId=3, batchDuration=0, sources=[], stateOperators=[])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_a_job_between_calls_to_spark(number, tmp_path, monkeypatch):
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "jobs"))
    monkeypatch.setattr(kavka.streams, "KafkaStreams", Streams(number))
    monkeypatch.setattr(sys, "path", list(sys.path))
    handlers = {handled: signal.getsignal(handled) for handled in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert pipeline.main(["run", str(tmp_path / "job.py")]) == 0
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)
    assert list((tmp_path / "jobs").iterdir()) == []


def test_status_lists_only_running_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path))
    (tmp_path / "gone.json").write_text(json.dumps({"pid": 2**22 + 1, "state": "RUNNING"}))
    (tmp_path / "here.json").write_text(json.dumps({"pid": os.getpid(), "state": "RUNNING", "batch": 7}))
    assert pipeline.main(["status", "--json"]) == 0
    assert [job["application.id"] for job in json.loads(capsys.readouterr().out)] == ["here"]


def test_progress_counts_offsets_instead_of_spark_rows():
    first = SimpleNamespace(
        startOffset=None,
        endOffset='{"a": {"0": 7, "1": 3}, "$initial": {"a": {"0": 2, "1": 3}}}',
        latestOffset='{"a": {"0": 9, "1": 4}}',
    )
    later = SimpleNamespace(startOffset='{"b": {"0": 5}}', endOffset='{"b": {"0": 8, "1": 2}}', latestOffset=None)
    other = SimpleNamespace(startOffset="another source", endOffset="1", latestOffset="2")
    progress = SimpleNamespace(
        batchId=4, batchDuration=500, sources=[first, later, other], stateOperators=[SimpleNamespace(numRowsTotal=6)]
    )
    assert pipeline._progress_record(progress) == {"batch": 4, "rows_per_second": 20.0, "lag": 3, "state_rows": 6}
