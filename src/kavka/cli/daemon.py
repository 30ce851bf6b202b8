"""Background processes that outlive the command that starts them, with their output in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kavka.cli.tool import ToolError


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
    ) -> None:
        self.output = output
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("ab") as file:
                self._output_start = file.tell()
                self._child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
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

    def output_lines(self) -> list[str]:
        """Return the lines that this process has written so far."""
        return self.output.read_bytes()[self._output_start :].decode(errors="replace").strip().splitlines()

    def exit_reason(self) -> str:
        """Wait until the process has ended. Return the last line of its output, or its exit code if
        there is no output."""
        code = self._child.wait()
        lines = self.output_lines()
        return lines[-1] if lines else f"ended with exit code {code}, see {self.output}"

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def detach(self) -> None:
        """Leave the process running. Python neither waits for it nor warns about it."""
        self._child.returncode = 0


class BrokerDaemon(Daemon):
    """A `kavka server` process. Call `wait_until_ready` once: it closes the pipe from the
    broker."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self._read_end, write_end = os.pipe()
        try:
            super().__init__(
                [sys.executable, "-m", "kavka.cli.main", "server", *arguments, "--ready-fd", str(write_end)],
                output,
                pass_fds=(write_end,),
            )
        except BaseException:
            os.close(self._read_end)
            raise
        finally:
            os.close(write_end)

    def wait_until_ready(self) -> list[str]:
        """Return the broker's listeners, or an empty list if it ended before it was ready."""
        pieces = []
        try:
            while piece := os.read(self._read_end, 4096):
                pieces.append(piece)
        finally:
            os.close(self._read_end)
        return b"".join(pieces).decode().split()
