from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kavka.cli import running


@pytest.fixture(autouse=True)
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv(running.RUN_DIR_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def sleeper():
    """A process that is not a broker."""
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def write_entry(folder, pid: int, **changes):
    entry = {"pid": pid, "started": running.start_time(pid), "home": running.home(), "broker_id": 0, "log_dirs": []}
    (folder / f"{pid}.json").write_text(json.dumps(entry | changes))


def test_broker_is_registered_while_it_runs(run_dir, tmp_path):
    with running.registered(3, [tmp_path / "a"]):
        [entry] = running.brokers()
        assert (entry.pid, entry.broker_id, entry.log_dirs) == (os.getpid(), 3, [str(tmp_path / "a")])
    assert running.brokers() == []


def test_stop_sends_sigterm_and_waits(run_dir, sleeper):
    write_entry(run_dir, sleeper.pid)
    assert running.stop(running.brokers(), 10) == []
    assert sleeper.wait(1) == -15


def test_stop_returns_processes_that_do_not_stop(run_dir):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1) as stubborn:
        stubborn.stdout.readline()
        write_entry(run_dir, stubborn.pid)
        entries = running.brokers()
        assert running.stop(entries, 0.2) == entries
        stubborn.kill()


def test_process_that_reuses_the_pid_is_not_stopped(run_dir, sleeper):
    write_entry(run_dir, sleeper.pid, started="1")
    assert running.brokers() == []
    assert not (run_dir / f"{sleeper.pid}.json").exists()
    assert sleeper.poll() is None


def test_broker_of_another_installation_is_ignored(run_dir, sleeper):
    write_entry(run_dir, sleeper.pid, home="/elsewhere/kavka")
    assert running.brokers() == []
    assert (run_dir / f"{sleeper.pid}.json").exists()


def test_file_of_a_killed_broker_is_removed(run_dir):
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    write_entry(run_dir, process.pid, started="1")
    process.wait()
    assert running.brokers() == []
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"pid": 1, "more": 2}'])
def test_corrupt_file_is_ignored(run_dir, text):
    (run_dir / "1.json").write_text(text)
    assert running.brokers() == []


def test_broker_runs_if_the_run_dir_is_not_writable(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(running.RUN_DIR_VARIABLE, str(blocked / "run"))
    with running.registered(0, []):
        pass
    assert running.brokers() == []
