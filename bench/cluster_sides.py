"""The two clusters that are compared: three brokers and a ZooKeeper server each, with the same
settings."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bench.measure import Row
from bench.sides import KAVKA
from tests.support.apache import KAFKA_DEFAULTS
from tests.support.cluster import ApacheCluster, KavkaCluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

SESSION_TIMEOUT_MS = 6000

# Settings of both clusters that are not defaults.
SETTINGS: dict[str, object] = {
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "min.insync.replicas": 2,
    "log.segment.delete.delay.ms": 500,
}


class _DefaultHeapCluster(ApacheCluster):
    """Apache Kafka with the JVM options of its start script."""

    jvm = KAFKA_DEFAULTS


class ClusterRow(Row):
    """A row of the table of clusters."""


class ClusterSide:
    """A cluster with its ZooKeeper server, and the topics that a benchmark creates."""

    def __init__(self, name: str, folder: Path, brokers: int = 3) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.zookeeper = ZooKeeper(folder / "zookeeper")
        cluster_class = KavkaCluster if name == KAVKA else _DefaultHeapCluster
        self.cluster = cluster_class(folder, self.zookeeper, brokers=brokers, overrides=SETTINGS, start=False)
        self._zk = KazooClient(self.zookeeper.connect, timeout=60)

    @property
    def title(self) -> str:
        return "Kavka" if self.name == KAVKA else "Apache Kafka"

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers

    def start(self) -> None:
        self._zk.start(30)
        self.cluster.start(timeout=300)

    # --- topics

    def new_topic(self, topic: str, partitions: int, replicas: int = 3) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + 60
        while True:
            try:
                admin.create_topics([NewTopic(topic, partitions, replicas)], operation_timeout=50)[topic].result(60)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        self.wait_in_sync(topic, partitions, replicas)

    def drop_topic(self, topic: str) -> None:
        """Delete a topic and wait until all brokers have deleted its files."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([topic], operation_timeout=30)[topic].result(60)
        folders = [path for paths in self.cluster.log_dirs.values() for path in paths]
        wait_until(
            lambda: not any(any(path.glob(f"{topic}-[0-9]*")) for path in folders), timeout=60, what=f"{topic} deleted"
        )

    def wait_in_sync(self, prefix: str, partitions: int, replicas: int = 3, timeout: float = 300.0) -> float:
        """Wait until all replicas of the topics with this prefix are in sync. Return the seconds
        waited."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def is_in_sync() -> bool:
            with contextlib.suppress(KafkaException):
                topics = admin.list_topics(timeout=10).topics
                matching = [topic for name, topic in topics.items() if name.startswith(prefix)]
                metadata = [p for topic in matching for p in topic.partitions.values()]
                return len(metadata) == partitions and all(len(p.isrs) == replicas and p.leader >= 0 for p in metadata)
            return False

        return wait_until(is_in_sync, timeout=timeout, what=f"{prefix} in sync", interval=0.05)

    # --- znodes

    def controller(self) -> int | None:
        node = self._read("/controller")
        return None if node is None else int(node["brokerid"])

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker id of the leader; -1 if there is none."""
        node = self._read(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return -1 if node is None else int(node["leader"])

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            node: dict[str, Any] = json.loads(self._zk.get(path)[0])
        except NoNodeError:
            return None
        return node

    # --- resources

    def cpu_seconds(self) -> float:
        return sum(self.cluster.brokers[broker_id].process.cpu_seconds() for broker_id in self.cluster.alive())

    def rss_mib(self) -> float:
        return sum(self.cluster.brokers[broker_id].process.rss_bytes() for broker_id in self.cluster.alive()) / (
            1 << 20
        )

    def close(self) -> None:
        self.cluster.close()
        with contextlib.suppress(Exception):
            self._zk.stop()
            self._zk.close()
        self.zookeeper.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
