"""The records of the streams jobs on this machine. `kavka pipeline run` writes them; `status`,
`stop` and the console read them.

The record of a job is a JSON file named after its application.id, in a folder that only its user
can access. The record contains the pid, the start time of the process (pids are reused), the
arguments of the job and its last progress. The file is replaced atomically, and removed when the
job ends normally. A failed job leaves its record with the error. A killed job leaves its last
record, and is reported with the state GONE. The log of a job is beside its record, and remains when
the job ends.
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

STOP_TIMEOUT_S = 60.0
FAILED = "FAILED"
GONE = "GONE"
MAX_ERROR_LENGTH = 4000

# Key of the start offsets of the first batch, in the offsets of Kavka's Spark source. It is not a
# valid topic name.
INITIAL = "$initial"


class JobError(Exception):
    """An operation on a job failed. `str()` is a message for the user."""


def folder() -> Path:
    """Return the folder with the records of this user's jobs, and create it if necessary. Raise
    JobError if it belongs to another user."""
    configured = os.environ.get("KAVKA_PIPELINE_DIR")
    path = Path(configured or Path(tempfile.gettempdir()) / f"kavka-pipeline-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # `restart` runs the commands in the records. Reject a folder or a link that another user
    # created in the temporary folder.
    if path.stat().st_uid != os.getuid() or (not configured and path.is_symlink()):
        raise JobError(f"{path} belongs to another user; set KAVKA_PIPELINE_DIR")
    return path


def _record_path(name: str) -> Path:
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise JobError(f"{name!r} is not a valid job name")
    return folder() / f"{name}.json"


def log_path(name: str) -> Path:
    """Return the file with the output of a job, which may not exist."""
    return _record_path(name).with_suffix(".log")


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def write(name: str, record: dict[str, Any]) -> None:
    """Replace the record of a job that runs in this process."""
    path = _record_path(name)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"pid": os.getpid(), "begun": start_ticks(os.getpid()), **record}))
    temporary.replace(path)


def remove(name: str) -> None:
    """Remove the record of a job, if there is one."""
    _record_path(name).unlink(missing_ok=True)


def read(name: str) -> dict[str, Any] | None:
    """Return the record of a job; None if there is no readable record.

    The result also has the fields `application.id` and `running`. A job that ended without an error
    and without removing its record has the state GONE.
    """
    try:
        record = json.loads(_record_path(name).read_text())
        pid = int(record["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    running = _is_alive(pid) and record.get("begun") in (None, start_ticks(pid))
    state = record.get("state", "")
    if not running and state != FAILED:
        state = GONE
    return {**record, "application.id": name, "running": running, "state": state}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    try:
        # A zombie has ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def all_jobs() -> list[dict[str, Any]]:
    """Return all records of this user, including those of failed and killed jobs."""
    return [record for path in sorted(folder().glob("*.json")) if (record := read(path.stem)) is not None]


def stop(name: str, timeout: float = STOP_TIMEOUT_S) -> None:
    """Send SIGTERM to a job and wait until it has ended. Raise JobError if it is not running, or
    still runs after the timeout."""
    record = read(name)
    if record is None or not record["running"]:
        raise JobError(f"{name} is not running on this machine")
    os.kill(record["pid"], signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while (current := read(name)) is not None and current["running"] and current["pid"] == record["pid"]:
        if time.monotonic() > deadline:
            raise JobError(f"{name} (process {record['pid']}) has not ended within {timeout:.0f} s")
        time.sleep(0.1)


def restart(name: str) -> int:
    """Stop a job if it is running, and start it with the arguments in its record, in a new session.
    Return the pid. Raise JobError if there is no complete record or the job does not stop."""
    record = read(name)
    if record is None:
        raise JobError(f"there is no record of {name} on this machine")
    arguments = record.get("arguments")
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise JobError(f"the record of {name} does not contain its arguments")
    if record["running"]:
        stop(name)
    # The new process writes nothing to the log itself.
    environment = {**os.environ, "KAVKA_PIPELINE_LOGGED": "1"}
    with log_path(name).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kavka.cli.main", "pipeline", "run", *arguments],
            cwd=record.get("folder") or None,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return process.pid


# --- offsets in the progress that Spark reports for a source


def offsets_between(start: Any, end: Any) -> dict[tuple[str, int], int]:
    """Return the number of offsets from `start` to `end`, by topic and partition.

    `start` and `end` are offsets of a Spark source as JSON text, or None. Only topics in both are
    counted. The end offsets of the first batch contain its start offsets.
    """
    ends = _offsets(end)
    starts = _offsets(start) or ends.get(INITIAL, {})
    return {
        (topic, int(name)): max(0, offset - starts[topic].get(name, 0))
        for topic, partitions in ends.items()
        if not topic.startswith("$") and topic in starts
        for name, offset in partitions.items()
    }


def _offsets(text: Any) -> dict[str, Any]:
    """Parse the offsets of Kavka's Spark source. Return an empty dict for other sources."""
    try:
        offsets = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return offsets if isinstance(offsets, dict) else {}
