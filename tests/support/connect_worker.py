"""A distributed Connect worker as a process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.apache import write_properties
from tests.support.connect_requests import request
from tests.support.processes import ManagedProcess, free_port, wait_until
from tests.support.spark import light_home

# On a busy machine, a JVM and the Python processes of Spark start slowly.
TIMEOUT_S = 240.0


class ConnectWorker:
    """A worker process. Workers with the same `group` and `shared` folder form a cluster. The
    methods that send requests support HTTP only."""

    def __init__(
        self, folder: Path, servers: str, group: str, shared: Path, scheme: str = "http", **overrides: object
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.name = f"127.0.0.1:{self.port}"
        settings: dict[str, object] = {
            "bootstrap.servers": servers,
            "group.id": group,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": self.url,
            "file.connectors.enable": "true",
            "checkpoint.dir": shared / "checkpoints",
            "heartbeat.interval.ms": 500,
            "offset.storage.partitions": 1,
            "status.storage.partitions": 1,
            **{f"{topic_role}.storage.topic": f"{group}-{topic_role}" for topic_role in ("config", "offset", "status")},
            **{f"{topic_role}.storage.replication.factor": 1 for topic_role in ("config", "offset", "status")},
            **spark_settings(folder),
            **overrides,
        }
        self.config = write_properties(folder / "worker.properties", settings)
        self._folder = folder
        self._starts = 0
        self.process = self._start()

    def _start(self) -> ManagedProcess:
        self._starts += 1
        command = [sys.executable, "-m", "kavka.cli.main", "connect-distributed", str(self.config)]
        environment = {"SPARK_HOME": str(light_home(self._folder / "home"))}
        log = self._folder / f"worker-{self._starts}.out"
        return ManagedProcess(command, log=log, env=environment, cwd=self._folder)

    def kill_and_start(self) -> None:
        """Kill with SIGKILL and start again with the same settings, port and folders."""
        self.process.kill()
        self.process = self._start()

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.running(), self.process.log_tail()
            return "the leader is" in self.log()

        wait_until(is_ready, timeout=TIMEOUT_S, what="the worker to join its group", interval=0.2)

    def log(self) -> str:
        return self.process.log.read_text(errors="replace")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return request(self.url, method, path, body)

    def status(self, name: str) -> dict[str, Any]:
        code, body = self.request("GET", f"/connectors/{name}/status")
        return body if code == 200 else {}

    def create(self, name: str, config: Mapping[str, object]) -> None:
        """Create a connector. Retry while a rebalance is in progress."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            code, body = self.request("POST", "/connectors", {"name": name, "config": config})
            if code == 201:
                return
            assert "conflicting operation" in str(body) and time.monotonic() < deadline, (code, body)
            time.sleep(0.5)

    def wait_for(self, name: str, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        status: dict[str, Any] = {}

        def holds() -> bool:
            status.clear()
            status.update(self.status(name))
            return bool(status) and condition(status)

        try:
            wait_until(holds, timeout=TIMEOUT_S, what=what, interval=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {status}\n{self.process.log_tail()}") from None
        return status

    def wait_for_task(self, name: str, state: str) -> dict[str, Any]:
        return self.wait_for(name, lambda s: [t["state"] for t in s["tasks"]] == [state], f"{name} is {state}")


def spark_settings(folder: Path) -> dict[str, object]:
    """Return the settings of a small local Spark session, as in the other tests."""
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.sql.shuffle.partitions": "2",
    }
