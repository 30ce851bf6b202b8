"""The pipelines that run on this machine: the notes that `kavka pipeline` leaves, for its own `status` and `stop` and
for the console.

A job's note is a JSON file named after its application.id, in a folder that only its user may enter. It has the process
id, when that process began (a number can belong to another process later), how to start the job again, and its last
progress. It is replaced in one go, and removed when the job ends well. One that failed leaves its note with the error;
one that was killed leaves it as it was: nobody is there, and that is what is told of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STOP_TIMEOUT = 60.0
FAILED = "FAILED"
GONE = "GONE"
MOST_OF_AN_ERROR = 4000


# In the offsets of a source of ours, where its first batch began. No topic can have such a name.
INITIAL = "$initial"


class JobError(Exception):
    """What was asked for cannot be done; `str()` says why."""


def folder() -> Path:
    """Where jobs of this user leave their notes."""
    named = os.environ.get("KAVKA_PIPELINE_DIR")
    found = Path(named or Path(tempfile.gettempdir()) / f"kavka-pipeline-{os.getuid()}")
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In the folder for temporary files anybody may have made it, or a link: notes say what `start_again` runs.
    if found.stat().st_uid != os.getuid() or (not named and found.is_symlink()):
        raise JobError(f"{found} belongs to somebody else; set KAVKA_PIPELINE_DIR")
    return found


def note_of(name: str) -> Path:
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise JobError(f"{name!r} is not the name of a job")
    return folder() / f"{name}.json"


def begun(pid: int) -> int | None:
    """When a process began, in the kernel's ticks; None where that cannot be known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def write(name: str, told: dict[str, Any]) -> None:
    note = note_of(name)
    temporary = note.with_suffix(".tmp")
    temporary.write_text(json.dumps({"pid": os.getpid(), "begun": begun(os.getpid()), **told}))
    temporary.replace(note)


def forget(name: str) -> None:
    note_of(name).unlink(missing_ok=True)


def read(name: str) -> dict[str, Any] | None:
    """What a job's note says, with `running`; None where there is none, or none that can be read. The state of one that
    did not end well and is not there any more is GONE."""
    try:
        found = json.loads(note_of(name).read_text())
        pid = int(found["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    running = _is_there(pid) and found.get("begun") in (None, begun(pid))
    state = found.get("state", "")
    if not running and state != FAILED:
        state = GONE
    return {**found, "application.id": name, "running": running, "state": state}


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    try:
        # One that ended and that nobody has asked for yet is as good as gone.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def all_jobs() -> list[dict[str, Any]]:
    """Every note of this user, also of jobs that ended badly."""
    return [found for note in sorted(folder().glob("*.json")) if (found := read(note.stem)) is not None]


def stop(name: str, timeout: float = STOP_TIMEOUT) -> None:
    """Tell a job to end, and wait until it has."""
    found = read(name)
    if found is None or not found["running"]:
        raise JobError(f"{name} does not run on this machine")
    os.kill(found["pid"], signal.SIGTERM)
    limit = time.monotonic() + timeout
    while (now := read(name)) is not None and now["running"] and now["pid"] == found["pid"]:
        if time.monotonic() > limit:
            raise JobError(f"{name} (process {found['pid']}) has not ended within {timeout:.0f} s")
        time.sleep(0.1)


def start_again(name: str) -> int:
    """Start a job as it was started before, in a process of its own, after stopping it if it runs; its process id."""
    found = read(name)
    if found is None:
        raise JobError(f"nothing is known of {name} on this machine")
    arguments = found.get("arguments")
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments):
        raise JobError(f"the note of {name} does not say how it was started")
    if found["running"]:
        stop(name)
    output = note_of(name).with_suffix(".log").open("wb")
    with output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kavka.cli.main", "pipeline", "run", *arguments],
            cwd=found.get("folder") or None,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return process.pid


# --- what Spark says of a source's offsets in its progress


def offsets_between(start: Any, end: Any) -> dict[tuple[str, int], int]:
    """By topic and partition, how many offsets there are from the one to the other, as Spark tells them: text, or
    nothing. Of topics that both have; the first batch says itself where it begins."""
    until = _offsets(end)
    begin = _offsets(start) or until.get(INITIAL, {})
    return {
        (topic, int(name)): max(0, at - begin[topic].get(name, 0))
        for topic, partitions in until.items()
        if not topic.startswith("$") and topic in begin
        for name, at in partitions.items()
    }


def _offsets(text: Any) -> dict[str, Any]:
    """Without any where the source is not ours."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
