"""The registry of running brokers, supervisors and ZooKeeper servers, which `server-stop` and
`zookeeper-server-stop` read.

Each process has a file named after its pid in a per-user folder. The files of supervisors and of
ZooKeeper servers are in subfolders. A file contains the start time of the process, so that a
process that reuses the pid is never stopped. A killed broker leaves its file, and a ZooKeeper
server always does; the next read removes the files of processes that have ended.
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
class RunningProcess:
    """A process. `started` is its start time as `start_time` returns it; `home` is the folder of
    its installation."""

    pid: int
    started: str
    home: str

    @property
    def is_alive(self) -> bool:
        return bool(self.started) and start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class RunningBroker(RunningProcess):
    broker_id: int
    log_dirs: list[str]


@dataclass(frozen=True, slots=True)
class RunningSupervisor(RunningProcess):
    """The process of `kavka server --shards`. `log_dirs` have a folder for each broker."""

    log_dirs: list[str]

    def has_broker(self, broker: RunningBroker) -> bool:
        return bool(broker.log_dirs) and all(str(Path(path).parent) in self.log_dirs for path in broker.log_dirs)


@dataclass(frozen=True, slots=True)
class RunningZooKeeper(RunningProcess):
    config: str


R = TypeVar("R", bound=RunningProcess)


def home() -> str:
    """Return the folder of this installation."""
    return str(Path(kavka.__file__).resolve().parent)


def run_dir() -> Path:
    """Return the folder of the registry, which may not exist yet."""
    if configured := os.environ.get(RUN_DIR_VARIABLE):
        return Path(configured)
    with contextlib.suppress(RuntimeError):
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state) / "kavka" / "run"
    from tempfile import gettempdir

    return Path(gettempdir()) / f"kavka-{os.getuid()}"


@contextlib.contextmanager
def registered(broker_id: int, log_dirs: Sequence[Path]) -> Iterator[None]:
    """Register this process as a broker inside the block. Write errors are ignored."""
    pid = os.getpid()
    with _registered(run_dir(), RunningBroker(pid, start_time(pid), home(), broker_id, [str(p) for p in log_dirs])):
        yield


@contextlib.contextmanager
def registered_supervisor(log_dirs: Sequence[Path]) -> Iterator[None]:
    """Register this process as a supervisor inside the block. Write errors are ignored."""
    pid = os.getpid()
    with _registered(
        _supervisor_dir(), RunningSupervisor(pid, start_time(pid), home(), [str(path) for path in log_dirs])
    ):
        yield


@contextlib.contextmanager
def _registered(folder: Path, entry: RunningProcess) -> Iterator[None]:
    path = _write(folder, entry)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def register_zookeeper(pid: int, config: Path) -> None:
    """Register a process that is a ZooKeeper server or is about to become one."""
    _write(_zookeeper_dir(), RunningZooKeeper(pid, start_time(pid), home(), str(config)))


def brokers() -> list[RunningBroker]:
    """Return the running brokers of this installation, and remove the files of brokers that have
    ended."""
    return _read(run_dir(), RunningBroker)


def supervisors() -> list[RunningSupervisor]:
    """Return the running supervisors of this installation, and remove the files of those that have
    ended."""
    return _read(_supervisor_dir(), RunningSupervisor)


def zookeepers() -> list[RunningZooKeeper]:
    """Return the running ZooKeeper servers of this installation, and remove the files of servers
    that have ended."""
    return _read(_zookeeper_dir(), RunningZooKeeper)


def _supervisor_dir() -> Path:
    return run_dir() / "supervisors"


def _zookeeper_dir() -> Path:
    return run_dir() / "zookeeper"


def _write(folder: Path, entry: RunningProcess) -> Path:
    path = folder / f"{entry.pid}.json"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(asdict(entry)))
    return path


def _read(folder: Path, entry_class: type[R]) -> list[R]:
    entries = []
    for path in sorted(folder.glob("*.json")):
        try:
            entry = entry_class(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if not entry.is_alive:
            with contextlib.suppress(OSError):
                path.unlink()
        elif entry.home == home():
            entries.append(entry)
    return entries


def stop(entries: Sequence[RunningProcess], timeout_s: float) -> list[RunningProcess]:
    """Send SIGTERM to all processes and wait. Return those that are still running after the
    timeout."""
    for entry in entries:
        if entry.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    alive = [entry for entry in entries if entry.is_alive]
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = [entry for entry in alive if entry.is_alive]
    return alive


def start_time(pid: int) -> str:
    """Return the start time of a process: clock ticks since boot on Linux, the date from `ps`
    elsewhere. Empty if the process does not exist or, on Linux, is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if Path("/proc/self").exists() else _start_time_by_ps(pid)
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _start_time_by_ps(pid: int) -> str:
    import subprocess

    result = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return result.stdout.strip()
