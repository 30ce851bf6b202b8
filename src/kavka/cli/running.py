"""Which brokers were started from this installation and still run: `server-stop` ends those and no other process.

A broker leaves one small file, named by its process id, in a folder of the user's; the file also holds the time the
process was started, so that another process that got the same id later is never taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import kavka

RUN_DIR_VARIABLE = "KAVKA_RUN_DIR"


@dataclass(frozen=True, slots=True)
class RunningBroker:
    pid: int
    started: str
    home: str
    broker_id: int
    log_dirs: list[str]

    @property
    def alive(self) -> bool:
        return bool(self.started) and _start_time(self.pid) == self.started


def home() -> str:
    """The installation that this code belongs to."""
    return str(Path(kavka.__file__).resolve().parent)


def run_dir() -> Path:
    if given := os.environ.get(RUN_DIR_VARIABLE):
        return Path(given)
    with contextlib.suppress(RuntimeError):
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state) / "kavka" / "run"
    from tempfile import gettempdir

    return Path(gettempdir()) / f"kavka-{os.getuid()}"


@contextlib.contextmanager
def registered(broker_id: int, log_dirs: Sequence[Path]) -> Iterator[None]:
    """This process is a broker, while the block runs. If that cannot be written down the broker runs all the same."""
    pid = os.getpid()
    entry = RunningBroker(pid, _start_time(pid), home(), broker_id, [str(path) for path in log_dirs])
    path = run_dir() / f"{pid}.json"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(asdict(entry)))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def brokers() -> list[RunningBroker]:
    """Those of this installation. Files that a killed broker left are removed."""
    found = []
    for path in sorted(run_dir().glob("*.json")):
        try:
            entry = RunningBroker(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if not entry.alive:
            with contextlib.suppress(OSError):
                path.unlink()
        elif entry.home == home():
            found.append(entry)
    return found


def stop(entries: Sequence[RunningBroker], timeout_s: float) -> list[RunningBroker]:
    """Ask each to stop and wait; returns those that still run after the time."""
    for entry in entries:
        if entry.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    left = [entry for entry in entries if entry.alive]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [entry for entry in left if entry.alive]
    return left


def _start_time(pid: int) -> str:
    """When the process began, in the kernel's own count; empty if there is no such process (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if Path("/proc/self").exists() else _start_time_by_ps(pid)
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _start_time_by_ps(pid: int) -> str:
    import subprocess

    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()
