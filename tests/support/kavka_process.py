"""A Kavka broker as a process of its own, for what needs one: kill -9, traces, memory, benchmarks."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from tests.support import wire
from tests.support.apache import write_properties
from tests.support.processes import ManagedProcess, free_port, wait_until


class KavkaProcess:
    """Has the same face as `apache.ApacheKafka`, so that a test can be run on either."""

    version = "kavka"

    def __init__(
        self,
        folder: Path,
        *,
        overrides: Mapping[str, object] | None = None,
        log_dirs: tuple[Path, ...] = (),
        broker_id: int = 0,
        before_exec: Callable[[], None] | None = None,
        start: bool = True,
    ) -> None:
        self.folder = folder
        self.log_dirs = log_dirs or (folder / "logs",)
        self.port = free_port()
        self.start_seconds = 0.0
        self._began = 0.0
        self._before_exec = before_exec
        self._process: ManagedProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.log_dirs:
            path.mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": ",".join(str(path) for path in self.log_dirs),
        }
        self.config = write_properties(folder / "server.properties", settings | dict(overrides or {}))
        if start:
            self.start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> ManagedProcess:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, timeout: float = 60.0) -> None:
        self.launch()
        self.wait_until_ready(timeout)

    def launch(self) -> None:
        """From the main thread: a process ends with the thread that started it."""
        self._began = time.monotonic()
        self._process = ManagedProcess(
            [sys.executable, "-m", "kavka.cli.main", "server", str(self.config)],
            log=self.folder / "kavka.out",
            cwd=self.folder,
            before_exec=self._before_exec,
        )

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        wait_until(self._ready, timeout=timeout, what=f"Kavka at port {self.port}", interval=0.005)
        self.start_seconds = time.monotonic() - self._began
        wait_until(lambda: wire.knows_itself(self.address), timeout=30, what="the broker in its own metadata")

    def _ready(self) -> bool:
        if not self.process.running():
            raise RuntimeError(f"Kavka ended with {self.process.returncode}: {self.process.log_tail()}")
        return wire.answers(self.address)

    def stop(self) -> int:
        return self.process.stop(30)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        self.kill()

    def wipe(self) -> None:
        for path in self.log_dirs:
            shutil.rmtree(path, ignore_errors=True)

    def __enter__(self) -> KavkaProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
