"""What was started from this installation and still runs: `server-stop` and `zookeeper-server-stop` end those and no
other process.

A broker leaves one small file, named by its process id, in a folder of the user's, and a ZooKeeper one in a folder
below; the file also holds the time the process was started, so that another process that got the same id later is never
taken for it.
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
from typing import TypeVar

import kavka

RUN_DIR_VARIABLE = "KAVKA_RUN_DIR"


@dataclass(frozen=True, slots=True)
class Running:
    """`started` is the moment that the process began, as the kernel counts; `home` the installation it is of."""

    pid: int
    started: str
    home: str

    @property
    def alive(self) -> bool:
        return bool(self.started) and start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class RunningBroker(Running):
    broker_id: int
    log_dirs: list[str]


@dataclass(frozen=True, slots=True)
class RunningZooKeeper(Running):
    config: str


R = TypeVar("R", bound=Running)


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
    path = _write(run_dir(), RunningBroker(pid, start_time(pid), home(), broker_id, [str(path) for path in log_dirs]))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def register_zookeeper(pid: int, config: Path) -> None:
    """That process is, or is about to become, a ZooKeeper server."""
    _write(_zookeeper_dir(), RunningZooKeeper(pid, start_time(pid), home(), str(config)))


def brokers() -> list[RunningBroker]:
    """Those of this installation. Files that a killed broker left are removed."""
    return _read(run_dir(), RunningBroker)


def zookeepers() -> list[RunningZooKeeper]:
    return _read(_zookeeper_dir(), RunningZooKeeper)


def _zookeeper_dir() -> Path:
    return run_dir() / "zookeeper"


def _write(folder: Path, entry: Running) -> Path:
    path = folder / f"{entry.pid}.json"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(asdict(entry)))
    return path


def _read(folder: Path, kind: type[R]) -> list[R]:
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            entry = kind(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if not entry.alive:
            with contextlib.suppress(OSError):
                path.unlink()
        elif entry.home == home():
            found.append(entry)
    return found


def stop(entries: Sequence[R], timeout_s: float) -> list[R]:
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


def start_time(pid: int) -> str:
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
