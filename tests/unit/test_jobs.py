"""The records of running, failed and killed streams jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from kavka import jobs


@pytest.fixture(autouse=True)
def jobs_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "jobs"))


def test_record_of_running_job_has_its_progress():
    jobs.write("words", {"state": "RUNNING", "lag": 7})
    record = jobs.read("words")
    assert record is not None
    assert (record["running"], record["state"], record["lag"], record["pid"]) == (True, "RUNNING", 7, os.getpid())
    assert [job["application.id"] for job in jobs.all_jobs()] == ["words"]
    jobs.remove("words")
    assert jobs.read("words") is None


def test_killed_job_is_reported_as_gone_and_failed_job_as_failed():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    jobs.write("killed", {"state": "RUNNING", "pid": process.pid})
    jobs.write("failed", {"state": jobs.FAILED, "error": "no such topic", "pid": process.pid})
    assert [(j["application.id"], j["running"], j["state"]) for j in jobs.all_jobs()] == [
        ("failed", False, jobs.FAILED),
        ("killed", False, jobs.GONE),
    ]
    with pytest.raises(jobs.JobError, match="is not running"):
        jobs.stop("killed")


def test_process_that_reuses_the_pid_is_not_the_job():
    jobs.write("old", {"state": "RUNNING", "begun": 1})
    assert jobs.read("old")["state"] == jobs.GONE
    with pytest.raises(jobs.JobError, match="is not running"):
        jobs.stop("old")


def test_stop_ends_the_process_and_waits_for_it():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    jobs.write("long", {"state": "RUNNING", "pid": process.pid, "begun": jobs.start_ticks(process.pid)})
    jobs.stop("long")
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0b"])
def test_names_with_path_components_are_rejected(name):
    with pytest.raises(jobs.JobError):
        jobs.read(name)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"state": "RUNNING"}', "null"])
def test_corrupt_record_is_ignored(text):
    (jobs.folder() / "bad.json").write_text(text)
    assert jobs.read("bad") is None
    assert jobs.all_jobs() == []


def test_restart_uses_the_arguments_and_folder_of_the_record(tmp_path):
    (jobs.folder() / "again.json").write_text(
        json.dumps({"pid": 2**22 + 1, "arguments": ["there-is-no-such-job.py"], "folder": str(tmp_path)})
    )
    pid = jobs.restart("again")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert "there-is-no-such-job.py" in (jobs.folder() / "again.log").read_text()
    (jobs.folder() / "lost.json").write_text(json.dumps({"pid": 2**22 + 1}))
    with pytest.raises(jobs.JobError, match="does not contain its arguments"):
        jobs.restart("lost")


def test_link_in_the_temporary_folder_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.delenv("KAVKA_PIPELINE_DIR")
    monkeypatch.setattr(jobs.tempfile, "gettempdir", lambda: str(tmp_path))
    planted = tmp_path / "planted"
    planted.mkdir()
    (tmp_path / f"kavka-pipeline-{os.getuid()}").symlink_to(planted)
    with pytest.raises(jobs.JobError, match="belongs to another user; set KAVKA_PIPELINE_DIR"):
        jobs.folder()
