"""The notes of pipelines: what is told of jobs that run, failed, or were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from kavka import jobs


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "jobs"))


def test_a_running_job_is_told_with_its_progress():
    jobs.write("words", {"state": "RUNNING", "lag": 7})
    found = jobs.read("words")
    assert found is not None
    assert (found["running"], found["state"], found["lag"], found["pid"]) == (True, "RUNNING", 7, os.getpid())
    assert [job["application.id"] for job in jobs.all_jobs()] == ["words"]
    jobs.forget("words")
    assert jobs.read("words") is None


def test_a_killed_job_is_gone_and_a_failed_one_keeps_its_error():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    jobs.write("killed", {"state": "RUNNING", "pid": process.pid})
    jobs.write("failed", {"state": jobs.FAILED, "error": "no such topic", "pid": process.pid})
    assert [(j["application.id"], j["running"], j["state"]) for j in jobs.all_jobs()] == [
        ("failed", False, jobs.FAILED),
        ("killed", False, jobs.GONE),
    ]
    with pytest.raises(jobs.JobError, match="does not run"):
        jobs.stop("killed")


def test_a_process_that_took_over_the_number_is_not_the_job():
    jobs.write("old", {"state": "RUNNING", "begun": 1})
    assert jobs.read("old")["state"] == jobs.GONE
    with pytest.raises(jobs.JobError, match="does not run"):
        jobs.stop("old")


def test_stop_ends_the_process_and_waits_for_it():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    jobs.write("long", {"state": "RUNNING", "pid": process.pid, "begun": jobs.begun(process.pid)})
    jobs.stop("long")
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0b"])
def test_names_that_lead_out_of_the_folder_are_refused(name):
    with pytest.raises(jobs.JobError):
        jobs.read(name)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"state": "RUNNING"}', "null"])
def test_a_note_that_is_broken_is_none(text):
    (jobs.folder() / "bad.json").write_text(text)
    assert jobs.read("bad") is None
    assert jobs.all_jobs() == []


def test_a_job_is_started_again_as_it_was_started(tmp_path):
    """With arguments that end at once: what is started is `kavka pipeline run`, in the folder of the note."""
    (jobs.folder() / "again.json").write_text(
        json.dumps({"pid": 2**22 + 1, "arguments": ["there-is-no-such-job.py"], "folder": str(tmp_path)})
    )
    pid = jobs.start_again("again")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert "there-is-no-such-job.py" in (jobs.folder() / "again.log").read_text()
    (jobs.folder() / "lost.json").write_text(json.dumps({"pid": 2**22 + 1}))
    with pytest.raises(jobs.JobError, match="how it was started"):
        jobs.start_again("lost")


def test_a_link_in_the_folder_for_temporary_files_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.delenv("KAVKA_PIPELINE_DIR")
    monkeypatch.setattr(jobs.tempfile, "gettempdir", lambda: str(tmp_path))
    planted = tmp_path / "planted"
    planted.mkdir()
    (tmp_path / f"kavka-pipeline-{os.getuid()}").symlink_to(planted)
    with pytest.raises(jobs.JobError, match="belongs to somebody else; set KAVKA_PIPELINE_DIR"):
        jobs.folder()
