"""Child processes of the tests. The kernel kills them when the test process ends, and their output
is written to files."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_DIES_WITH_PARENT = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Prefix of a command with the effect of `die_with_parent`. It avoids running Python code between
fork and exec: in the child, Python may free a librdkafka client, which then waits forever for a
lock of a thread that exists only in the parent."""


def dying_with_parent(argv: Sequence[str]) -> list[str]:
    """Wrap a command so that the kernel kills its process when the thread that started it ends."""
    return [*_DIES_WITH_PARENT, *argv]


_FIRST_PORT = 15_000
_random = random.SystemRandom()


def free_port() -> int:
    """Return a free port outside the ephemeral range, so that the port of a stopped server is still
    free when the server restarts."""
    last = _first_ephemeral_port() - 1
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", _random.randint(_FIRST_PORT, last) if last > _FIRST_PORT + 1000 else 0))
            return int(probe.getsockname()[1])


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 0


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        [kilobytes] = [line.split()[1] for line in status if line.startswith("VmRSS")]
    return int(kilobytes) * 1024


def wait_until(condition: Callable[[], bool], *, timeout: float, what: str, interval: float = 0.02) -> float:
    """Wait until the condition is true, and return the seconds waited. An exception of the
    condition counts as false, since a broker that has just started may lack metadata. The
    TimeoutError contains `what`, and the last exception is its cause."""
    start = time.monotonic()
    while True:
        last_error: Exception | None = None
        try:
            if condition():
                return time.monotonic() - start
        except Exception as error:
            last_error = error
        if time.monotonic() - start > timeout:
            raise TimeoutError(f"{what}: not within {timeout:.0f} s") from last_error
        time.sleep(interval)


class ManagedProcess:
    """A child process. Signals go to this process only, not to its children."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        def prepare() -> None:
            assert before_exec is not None
            die_with_parent()
            before_exec()

        self.argv = list(argv)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                dying_with_parent(self.argv) if before_exec is None else self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
                preexec_fn=None if before_exec is None else prepare,
            )
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def log_tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def signal(self, number: int) -> None:
        if self.running():
            self._process.send_signal(number)

    def stop(self, timeout: float = 30.0) -> int:
        """Send SIGTERM, and SIGKILL after the timeout. Return the exit code."""
        self.signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        atexit.unregister(self.kill)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        atexit.unregister(self.kill)

    def wait(self, timeout: float) -> int:
        return self._process.wait(timeout)

    def cpu_seconds(self) -> float:
        """Return the user and system time of all threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        return self._status_kib("VmRSS") * 1024

    def peak_rss_bytes(self) -> int:
        return self._status_kib("VmHWM") * 1024

    def _status_kib(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise KeyError(name)

    def __enter__(self) -> ManagedProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Server:
    """A process that listens on a port of this machine and can be stopped and restarted."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._process: ManagedProcess | None = None

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def process(self) -> ManagedProcess:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
