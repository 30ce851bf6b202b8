"""A ZooKeeper server as a process. Tests can stop, kill, pause and restart it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from kavka.cli import zookeeper_jars
from tests.support import jars
from tests.support.processes import ManagedProcess, Server, free_port, wait_until

TICK_MS = 500
"""The minimum session timeout is two ticks. Sessions expire at a multiple of a tick."""


class ZooKeeper(Server):
    def __init__(
        self,
        folder: Path,
        *,
        overrides: Mapping[str, object] | None = None,
        port: int | None = None,
        start: bool = True,
    ) -> None:
        super().__init__(port or free_port())
        self.folder = folder
        (folder / "data").mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "dataDir": folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "tickTime": TICK_MS,
            "minSessionTimeout": 2 * TICK_MS,
            "maxSessionTimeout": 60_000,
            "4lw.commands.whitelist": "*",
            # The tests simulate no power failures, so fsync is not necessary.
            "forceSync": "no",
        } | dict(overrides or {})
        self.config = folder / "zoo.cfg"
        self.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if start:
            self.start()

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server. Call it from the main thread, since the kernel kills the server when
        the thread that started it ends."""
        jars.java()
        self._process = ManagedProcess(
            zookeeper_jars.server_command(self.config), log=self.folder / "zookeeper.out", cwd=self.folder
        )
        wait_until(self._is_ready, timeout=60, what=f"ZooKeeper at port {self.port}")

    def _is_ready(self) -> bool:
        if not self.process.running():
            raise RuntimeError(f"ZooKeeper ended: {self.process.log_tail()}")
        return self.command("srvr").startswith("Zookeeper version")

    def command(self, word: str) -> str:
        """Return the response to a four-letter word; "" if there is none."""
        try:
            with socket.create_connection(self.address, 2) as connection:
                connection.sendall(word.encode())
                response = b""
                while piece := connection.recv(1 << 16):
                    response += piece
                return response.decode()
        except OSError:
            return ""

    def stop(self) -> None:
        if self._process is not None:
            self.resume()
            self._process.stop(30)

    def pause(self) -> None:
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()
