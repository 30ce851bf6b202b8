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
    """A process that is no broker."""
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def note(folder, pid: int, **changes):
    entry = {"pid": pid, "started": running.start_time(pid), "home": running.home(), "broker_id": 0, "log_dirs": []}
    (folder / f"{pid}.json").write_text(json.dumps(entry | changes))


def test_a_broker_is_known_while_it_runs(run_dir, tmp_path):
    with running.registered(3, [tmp_path / "a"]):
        [entry] = running.brokers()
        assert (entry.pid, entry.broker_id, entry.log_dirs) == (os.getpid(), 3, [str(tmp_path / "a")])
    assert running.brokers() == []


def test_a_broker_is_asked_to_stop_and_waited_for(run_dir, sleeper):
    note(run_dir, sleeper.pid)
    assert running.stop(running.brokers(), 10) == []
    assert sleeper.wait(1) == -15


def test_one_that_does_not_stop_is_named(run_dir):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1) as stubborn:
        stubborn.stdout.readline()
        note(run_dir, stubborn.pid)
        entries = running.brokers()
        assert running.stop(entries, 0.2) == entries
        stubborn.kill()


def test_another_process_with_the_same_id_is_never_touched(run_dir, sleeper):
    note(run_dir, sleeper.pid, started="1")
    assert running.brokers() == []
    assert not (run_dir / f"{sleeper.pid}.json").exists()
    assert sleeper.poll() is None


def test_a_broker_of_another_installation_is_left_alone(run_dir, sleeper):
    note(run_dir, sleeper.pid, home="/elsewhere/kavka")
    assert running.brokers() == []
    assert (run_dir / f"{sleeper.pid}.json").exists()


def test_what_a_killed_broker_left_is_cleared_away(run_dir):
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    note(run_dir, process.pid, started="1")
    process.wait()
    assert running.brokers() == []
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"pid": 1, "more": 2}'])
def test_a_damaged_file_is_ignored(run_dir, text):
    (run_dir / "1.json").write_text(text)
    assert running.brokers() == []


def test_a_broker_runs_where_nothing_can_be_written_down(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(running.RUN_DIR_VARIABLE, str(blocked / "run"))
    with running.registered(0, []):
        pass
    assert running.brokers() == []
