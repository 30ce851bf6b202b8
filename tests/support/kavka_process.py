"""A Kavka broker as a separate process, for tests with kill -9, traces, memory limits and
benchmarks."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kavka.metadata.embedded import EmbeddedStore
from tests.support.apache import write_properties
from tests.support.broker_process import BrokerProcess
from tests.support.processes import ManagedProcess


class KavkaProcess(BrokerProcess):
    """Has the same interface as `apache.ApacheKafka`, so that a test can run on either."""

    version = "kavka"
    environment: Mapping[str, str] | None = None

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
        super().__init__(folder, log_dirs)
        self._before_exec = before_exec
        settings: dict[str, object] = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": ",".join(str(path) for path in self.log_dirs),
        }
        self.config = write_properties(folder / "server.properties", settings | dict(overrides or {}))
        if start:
            self.start()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "kavka.cli.main", "server", str(self.config)]

    def launch(self) -> None:
        self._start_time = time.monotonic()
        self._process = ManagedProcess(
            self.command(),
            log=self.folder / "kavka.out",
            cwd=self.folder,
            env=self.environment,
            before_exec=self._before_exec,
        )

    def stop(self) -> int:
        return self.process.stop(30)


def create_znodes(log_dir: Path, nodes: Mapping[str, bytes]) -> None:
    """Create znodes in the embedded store of a broker that is not started yet."""

    async def create() -> None:
        store = EmbeddedStore.open(log_dir / "metadata.db")
        for path, data in nodes.items():
            await store.ensure(path.rpartition("/")[0])
            await store.create(path, data)
        await store.close()

    asyncio.run(create())
