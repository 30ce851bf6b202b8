"""Child processes with their output in a file. A detached process outlives the command that starts
it. A broker with `stops_with_parent` stops when this process ends, even if it is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kavka.cli.tool import ToolError

STOP_TIMEOUT_S = 60
"""How long a broker may take to stop before it is killed."""


class Daemon:
    """A process in a separate session, so that it receives no signal from the terminal. Raises
    ToolError if it cannot start."""

    def __init__(
        self,
        argv: Sequence[str],
        output: Path,
        *,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        has_stdin: bool = False,
    ) -> None:
        self.output = output
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("ab") as file:
                self._output_start = file.tell()
                self._child = subprocess.Popen(
                    argv,
                    # Nothing is written to the pipe. It is closed when this process ends.
                    stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=pass_fds,
                    start_new_session=True,
                    env=None if environment is None else {**os.environ, **environment},
                )
        except OSError as error:
            raise ToolError(f"{error.filename or output}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether the process is ready. A process without a sign of it is ready at once."""
        return True

    @property
    def exit_code(self) -> int | None:
        """The exit code; negative for a signal, None while the process is running."""
        return self._child.poll()

    def output_lines(self) -> list[str]:
        """Return the lines that this process has written so far."""
        return self.output.read_bytes()[self._output_start :].decode(errors="replace").strip().splitlines()

    def exit_reason(self) -> str:
        """Wait until the process has ended. Return the signal that killed it, the last line of its
        output, or its exit code if there is no output."""
        code = self._child.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        lines = self.output_lines()
        return lines[-1] if lines else f"ended with exit code {code}, see {self.output}"

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def detach(self) -> None:
        """Leave the process running. Python neither waits for it nor warns about it."""
        self._child.returncode = 0


class BrokerDaemon(Daemon):
    """A `kavka server` process.

    `listeners` are its listeners as texts, empty until it is ready. The broker writes them to a
    pipe, which is closed when it is ready or has ended. With `stops_with_parent` it stops with a
    controlled shutdown when this process ends.
    """

    def __init__(self, arguments: Sequence[str], output: Path, *, stops_with_parent: bool = False) -> None:
        self.listeners: list[str] = []
        self._received = b""
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        command = [sys.executable, "-m", "kavka.cli.main", "server", *arguments, "--ready-fd", str(write_end)]
        if stops_with_parent:
            command += ["--stop-on-eof", str(STOP_TIMEOUT_S)]
        try:
            super().__init__(command, output, pass_fds=(write_end,), has_stdin=stops_with_parent)
        except BaseException:
            os.close(self._read_end)
            raise
        finally:
            os.close(write_end)

    @property
    def is_ready(self) -> bool:
        self._read()
        return bool(self.listeners)

    def wait_until_ready(self) -> list[str]:
        """Return the listeners; empty if the broker ended before it was ready."""
        while self._read_end >= 0:
            select.select([self._read_end], [], [])
            self._read()
        return self.listeners

    def _read(self) -> None:
        """Read what the broker has written. Does not block."""
        while self._read_end >= 0:
            try:
                piece = os.read(self._read_end, 4096)
            except BlockingIOError:
                return
            self._received += piece
            if not piece:
                os.close(self._read_end)
                self._read_end = -1
                self.listeners = self._received.decode().split()
