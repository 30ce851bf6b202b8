"""Runs the console as a child process of a broker, so that it does not slow the broker down."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

STOP_TIMEOUT_S = 5.0


class ConsoleChild:
    """The console process.

    The process exits at the end of its standard input, so it never outlives the broker. If it
    cannot start, for example because its port is in use, it prints the error and the broker
    continues.
    """

    def __init__(self, port: int, data_dir: Path) -> None:
        self.port = port
        self.data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, servers: str) -> None:
        command = [sys.executable, "-m", "kavka.cli.main", "console", "--bootstrap-server", servers]
        command += ["--port", str(self.port), "--data", str(self.data_dir), "--stop-on-eof"]
        try:
            # In a separate session, so that Ctrl-C reaches only the broker, which stops the
            # console.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            print(f"kavka: cannot start the console: {error}", file=sys.stderr)

    def stop(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
