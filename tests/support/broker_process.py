"""The base class of broker processes, Kavka's and Apache's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support import wire
from tests.support.processes import Server, free_port, wait_until


class BrokerProcess(Server):
    """A broker process. `start_seconds` is the time from its start to its first response."""

    version: str
    config: Path
    timeout = 60.0

    def __init__(self, folder: Path, log_dirs: tuple[Path, ...]) -> None:
        super().__init__(free_port())
        self.folder = folder
        self.log_dirs = log_dirs or (folder / "logs",)
        self.start_seconds = 0.0
        self._start_time = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.log_dirs:
            path.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_listeners(self, protocols: Mapping[str, str]) -> dict[str, int]:
        """Add listeners with these security protocols to the properties file, before the start.
        Returns their ports."""
        ports = {listener: free_port() for listener in protocols}
        lines = [line.partition("=") for line in self.config.read_text().splitlines()]
        settings = {name: value for name, separator, value in lines if separator}
        plaintext = f"PLAINTEXT://127.0.0.1:{self.port}"
        added = ",".join(f"{listener}://127.0.0.1:{port}" for listener, port in ports.items())
        protocol_map = settings.get("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT")
        added_map = ",".join(f"{listener}:{protocol}" for listener, protocol in protocols.items())
        with self.config.open("a") as file:
            file.write(f"\nlisteners={settings.get('listeners', plaintext)},{added}\n")
            file.write(f"advertised.listeners={plaintext},{added}\n")
            file.write(f"listener.security.protocol.map={protocol_map},{added_map}\n")
        return ports

    def launch(self) -> None:
        """Start the process. Call it from the main thread, since the kernel kills a process when
        the thread that started it ends."""
        raise NotImplementedError

    def start(self, timeout: float | None = None) -> None:
        self.launch()
        self.wait_until_ready(timeout)

    def wait_until_ready(self, timeout: float | None = None) -> None:
        what = f"the broker ({self.version}) at port {self.port}"
        wait_until(self._is_ready, timeout=timeout or self.timeout, what=what, interval=0.005)
        self.start_seconds = time.monotonic() - self._start_time
        wait_until(lambda: wire.lists_itself(self.address), timeout=30, what="the broker in its own metadata")

    def _is_ready(self) -> bool:
        if not self.process.running():
            raise RuntimeError(
                f"the broker ({self.version}) ended with exit code {self.process.returncode}: {self.process.log_tail()}"
            )
        return wire.responds(self.address)

    def wipe(self) -> None:
        for path in self.log_dirs:
            shutil.rmtree(path, ignore_errors=True)
