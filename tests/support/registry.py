"""A schema registry: Apicurio Registry in Java, with its schemas in memory."""

from __future__ import annotations

import sys
from pathlib import Path

from kavka import SchemaRegistry
from kavka.cli.registry_files import API_PATH
from tests.support import jars
from tests.support.processes import ManagedProcess, free_port, wait_until


class Registry:
    """Started with `kavka registry`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}{API_PATH}"
        self.start()

    def start(self) -> None:
        self._process = process = ManagedProcess(
            [sys.executable, "-m", "kavka.cli.main", "registry", "--host", "127.0.0.1", "--port", str(self.port)],
            log=self._folder / "registry.log",
            env={"APICURIO_HOME": str(jars.apicurio_home())},
        )

        def responds() -> bool:
            return not process.running() or self.client(**{"max.retries": 0}).subjects() is not None

        wait_until(responds, timeout=120, what="Apicurio Registry", interval=0.2)
        assert process.running(), process.log_tail()

    def client(self, **settings: object) -> SchemaRegistry:
        return SchemaRegistry(self.url, settings=settings)

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
