"""Apache Kafka brokers as processes: 4.3.0 (KRaft, combined mode) and 3.9.1 (with ZooKeeper)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from kavka.common.types import uuid_text
from kavka.metadata.paths import random_topic_id
from tests.support import jars
from tests.support.broker_process import BrokerProcess
from tests.support.processes import ManagedProcess, free_port
from tests.support.zookeeper import ZooKeeper

NEWEST = "4.3.0"
LAST_WITH_ZOOKEEPER = "3.9.1"

SMALL_HEAP = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# The JVM options of Kafka's start script.
KAFKA_DEFAULTS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)

_LOG4J2 = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""
_LOG4J1 = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def random_kafka_uuid() -> str:
    """Return a random id as Kafka generates it. It never starts with a dash, which a command line
    would parse as an option."""
    return uuid_text(random_topic_id())


def _logging_option(folder: Path, version: str) -> str:
    if version.startswith("3."):
        path = folder / "log4j.properties"
        path.write_text(_LOG4J1)
        return f"-Dlog4j.configuration=file:{path}"
    path = folder / "log4j2.properties"
    path.write_text(_LOG4J2)
    return f"-Dlog4j2.configurationFile={path}"


class ApacheKafka(BrokerProcess):
    """An Apache Kafka broker. After `stop`, `start` uses the same folder and port."""

    timeout = 120.0

    def __init__(
        self,
        folder: Path,
        *,
        version: str = NEWEST,
        overrides: Mapping[str, object] | None = None,
        jvm: tuple[str, ...] = SMALL_HEAP,
        log_dirs: tuple[Path, ...] = (),
        zookeeper: ZooKeeper | None = None,
        broker_id: int = 0,
        start: bool = True,
    ) -> None:
        super().__init__(folder, log_dirs)
        self.version = version
        self.jvm = jvm
        self._overrides = dict(overrides or {})
        self._broker_id = broker_id
        self._controller_port = free_port()
        self._owns_zookeeper = False
        self.zookeeper = zookeeper
        if self._needs_zookeeper and zookeeper is None:
            self.zookeeper = ZooKeeper(folder / "zookeeper")
            self._owns_zookeeper = True
        self.config = write_properties(folder / "server.properties", self._settings())
        if start:
            self.start()

    @property
    def _needs_zookeeper(self) -> bool:
        return self.version.startswith("3.")

    def _settings(self) -> dict[str, object]:
        common: dict[str, object] = {
            "log.dirs": ",".join(str(path) for path in self.log_dirs),
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        if self._needs_zookeeper:
            assert self.zookeeper is not None
            mode: dict[str, object] = {
                "broker.id": self._broker_id,
                "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
                "zookeeper.connect": self.zookeeper.connect,
            }
        else:
            mode = {
                "process.roles": "broker,controller",
                "node.id": max(self._broker_id, 1),
                "controller.quorum.voters": f"{max(self._broker_id, 1)}@127.0.0.1:{self._controller_port}",
                "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "share.coordinator.state.topic.replication.factor": 1,
                "share.coordinator.state.topic.min.isr": 1,
            }
        return common | mode | self._overrides

    def command(self, main_class: str, *args: str, jvm: tuple[str, ...] | None = None) -> list[str]:
        options = self.jvm if jvm is None else jvm
        return [
            jars.java(),
            *options,
            _logging_option(self.folder, self.version),
            "-cp",
            jars.class_path(f"server-{self.version}"),
            main_class,
            *args,
        ]

    def format(self) -> None:
        """Format the log directories of a new KRaft node. Formatted directories do not change."""
        if self._needs_zookeeper or (self.log_dirs[0] / "meta.properties").exists():
            return
        argv = self.command(
            "kafka.tools.StorageTool", "format", "-t", random_kafka_uuid(), "-c", str(self.config), jvm=SMALL_HEAP
        )
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"StorageTool: {result.stdout}{result.stderr}")

    def launch(self) -> None:
        self.format()
        self._start_time = time.monotonic()
        self._process = ManagedProcess(
            self.command("kafka.Kafka", str(self.config)), log=self.folder / "kafka.out", cwd=self.folder
        )

    def stop(self) -> None:
        """Stop the broker cleanly. ZooKeeper runs until `close`."""
        if self._process is not None:
            self._process.stop(60)

    def close(self) -> None:
        self.kill()
        if self._owns_zookeeper and self.zookeeper is not None:
            self.zookeeper.stop()
