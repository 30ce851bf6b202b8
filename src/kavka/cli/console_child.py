"""The console beside a broker: a process of its own, so that the broker stays as quick and as small as it is."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 5.0


class ConsoleChild:
    """Ends when its standard input does: that is when the broker ends, in whatever way. What is wrong with it (a port
    that is taken) it says itself, in a line, and the broker goes on without it."""

    def __init__(self, port: int, data: Path) -> None:
        self.port = port
        self.data = data
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, servers: str) -> None:
        command = [sys.executable, "-m", "kavka.cli.main", "console", "--bootstrap-server", servers]
        command += ["--port", str(self.port), "--data", str(self.data), "--stop-on-eof"]
        try:
            # A session of its own: Ctrl-C is for the broker, which then ends it.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            print(f"kavka: the console could not be started: {error}", file=sys.stderr)

    def stop(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
