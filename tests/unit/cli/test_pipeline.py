from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

import kavka.streams
from kavka.cli import job_status, pipeline
from kavka.cli.job_log import recorded_output
from tests.support.processes import wait_until

JOB = """
from kavka.streams import StreamsBuilder
CONFIG = {"application.id": "app", "bootstrap.servers": "nowhere:1", "status.topic": ""}
def build():
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()
"""


class Streams:
    """A fake KafkaStreams. Reading its status sends the signal `number` to this process."""

    def __init__(self, number: int) -> None:
        self.number, self.in_call, self.ended = number, False, False

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

    def clients(self):
        return {"bootstrap.servers": "nowhere:1"}

    def status(self):
        self.in_call = True
        os.kill(os.getpid(), self.number)
        self.in_call = False
        return {"state": "RUNNING", "batch": 3, "rows_per_second": 0.0, "lag": 0, "state_rows": 0}


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
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["app.log"]


def test_status_lists_only_running_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path))
    (tmp_path / "gone.json").write_text(json.dumps({"pid": 2**22 + 1, "state": "RUNNING"}))
    (tmp_path / "here.json").write_text(json.dumps({"pid": os.getpid(), "state": "RUNNING", "batch": 7}))
    assert pipeline.main(["status", "--json"]) == 0
    assert [job["application.id"] for job in json.loads(capsys.readouterr().out)] == ["here"]


def test_a_bounded_run_ends_when_everything_is_processed(tmp_path, monkeypatch):
    class Bounded(Streams):
        def start(self, from_timestamp=None):
            self.started_at = from_timestamp

        def process_all_available(self):
            self.has_processed = True

        def status(self):
            return {"state": "RUNNING", "batch": 3, "rows_per_second": 0.0, "lag": 0, "state_rows": 0}

    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "jobs"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    streams = Bounded(0)
    monkeypatch.setattr(kavka.streams, "KafkaStreams", streams)
    handlers = {handled: signal.getsignal(handled) for handled in (signal.SIGTERM, signal.SIGINT)}
    try:
        arguments = ["--available-now", "--from-timestamp", "2026-01-01T00:00:00"]
        assert pipeline.main(["run", str(tmp_path / "job.py"), *arguments]) == 0
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)
    assert streams.has_processed
    assert streams.started_at == 1767225600000
    assert pipeline.main(["run", str(tmp_path / "job.py"), "--from-timestamp", "yesterday"]) != 0


def test_logs_prints_the_last_lines_of_a_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path))
    (tmp_path / "app.log").write_text("".join(f"line {number}\n" for number in range(20_000)))
    assert pipeline.main(["logs", "app", "--lines", "2"]) == 0
    assert capsys.readouterr().out == "line 19998\nline 19999\n"
    assert pipeline.main(["logs", "other"]) == 1
    assert "there is no log of other on this machine" in capsys.readouterr().err
    assert pipeline.main(["logs", "../app"]) == 1


def test_the_output_of_a_job_is_recorded_and_stderr_is_restored(tmp_path):
    path = tmp_path / "app.log"
    before = os.fstat(2)
    with recorded_output(path):
        os.write(2, b"from the job\n")
    assert os.fstat(2).st_ino == before.st_ino
    wait_until(lambda: path.read_text() == "from the job\n", timeout=10, what="the copy of the output")
    assert path.stat().st_mode & 0o077 == 0


def test_a_status_of_a_topic_is_printed_without_control_characters(monkeypatch, capsys):
    statuses = {}
    now = time.time() * 1000
    for key, value in (
        (b"here", {"state": "RUNNING", "updated": now, "lag_seconds": 1.25, "tasks": [{"task": "0_0", "records": 5}]}),
        (b"evil\x1b[2J", {"state": "RUNNING", "updated": now}),
        (b"lost", {"state": "RUNNING", "updated": now - 61_000}),
        (b"failed", {"state": "FAILED", "updated": 0}),
        (b"no status", []),
        (b"ended", {"state": "RUNNING", "updated": now}),
        (b"ended", None),
    ):
        job_status._apply(statuses, key, None if value is None else json.dumps(value).encode())
    job_status._apply(statuses, b"no json", b"{")
    assert {name: status["state"] for name, status in statuses.items()} == {
        "here": "RUNNING", "evil\x1b[2J": "RUNNING", "lost": "GONE", "failed": "FAILED",
    }  # fmt: skip
    monkeypatch.setattr(job_status, "read_statuses", lambda settings, topic: list(statuses.values()))
    assert pipeline.main(["status", "--bootstrap-server", "x:1", "--tasks"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "0_0" in printed
    assert "1.2" in printed
