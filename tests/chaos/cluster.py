"""A cluster of three brokers and ZooKeeper, and queries of its state."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)

from tests.chaos.network import ZOOKEEPER, Network
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import free_port, wait_until
from tests.support.zookeeper import ZooKeeper

BROKERS = (1, 2, 3)
TOPIC = "chaos"
PARTITIONS = 6
SESSION_MS = 6000
LAG_MS = 4000
FAILURE_MS = 2000
DISK_SIZE = "256m"

SETTINGS: dict[str, object] = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": LAG_MS,
    # The proxy between the brokers accepts connections for a dead broker: only this timeout detects
    # the failure.
    "broker.failure.timeout.ms": FAILURE_MS,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "unclean.leader.election.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    # Small segments, so that faults also occur in logs with several segments.
    "log.segment.bytes": 1 << 19,
}

Broker = ApacheKafka | KavkaProcess


class Cluster:
    """Three brokers and ZooKeeper. With `network`, the traffic between brokers and to ZooKeeper
    goes through a `Network` that can interrupt it. With `small_disks`, each broker's log folder is
    a separate file system (needs root)."""

    def __init__(
        self, folder: Path, *, apache: bool, network: bool, small_disks: bool, overrides: Mapping[str, object] = {}
    ) -> None:
        self.folder = folder
        self.brokers: dict[int, Broker] = {}
        self.network = Network(folder / "network.out") if network else None
        self._mounts: list[Path] = []
        self._zk: KazooClient | None = None
        self.zookeeper = ZooKeeper(folder / "zookeeper")
        try:
            for number in BROKERS:
                self.brokers[number] = self._broker(number, apache, small_disks, overrides)
            for number in BROKERS:
                self.brokers[number].launch()
            for number in BROKERS:
                self.brokers[number].wait_until_ready(120)
            self._zk = KazooClient(self.zookeeper.connect, timeout=SESSION_MS / 1000)
            self._zk.start(30)
        except BaseException:
            self.close()
            raise

    def _broker(self, number: int, apache: bool, small_disk: bool, overrides: Mapping[str, object]) -> Broker:
        folder = self.folder / f"broker-{number}"
        logs = folder / "logs"
        logs.mkdir(parents=True)
        if small_disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(logs)], check=True)
            self._mounts.append(logs)
        client_port, internal_port = free_port(), free_port()
        advertised_port = internal_port
        zookeeper = self.zookeeper.port
        if self.network is not None:
            self.network.assign_folder(str(number), folder)
            advertised_port = self.network.listen(str(number), ("127.0.0.1", internal_port))
            zookeeper = self.network.listen(ZOOKEEPER, self.zookeeper.address, comes_from=str(number))
        settings = SETTINGS | {
            "listeners": f"PLAINTEXT://127.0.0.1:{client_port},INTERNAL://127.0.0.1:{internal_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port},INTERNAL://127.0.0.1:{advertised_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "zookeeper.connect": f"127.0.0.1:{zookeeper}",
        }
        settings |= dict(overrides)
        kind: Any = ApacheKafka if apache else KavkaProcess
        options: dict[str, Any] = {"version": LAST_WITH_ZOOKEEPER, "zookeeper": self.zookeeper} if apache else {}
        broker: Broker = kind(folder, overrides=settings, log_dirs=(logs,), broker_id=number, start=False, **options)
        broker.port = client_port
        return broker

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    # --- starting brokers. Only the thread that created the cluster may call this: a broker ends
    # with the thread that started it.

    def start(self, number: int, timeout: float = 120.0) -> None:
        """Start a broker, like a supervisor. Apache's broker exits while the znode of its previous
        session exists, so it is started again until the session has expired."""
        broker = self.brokers[number]
        deadline = time.monotonic() + SESSION_MS / 1000 * 3
        while True:
            try:
                return broker.start(timeout)
            except RuntimeError:
                if time.monotonic() > deadline or "NodeExists" not in broker.process.log_tail():
                    raise
            time.sleep(0.5)

    def alive(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if broker.process.running()]

    # --- state in ZooKeeper

    def controller(self) -> int | None:
        document = self._read("/controller")
        return None if document is None else int(document["brokerid"])

    def state(self, topic: str, partition: int) -> dict[str, Any] | None:
        return self._read(f"/brokers/topics/{topic}/partitions/{partition}/state")

    def leaders(self, topic: str = TOPIC) -> dict[int, int]:
        states = {p: self.state(topic, p) for p in self.partitions(topic)}
        return {partition: state["leader"] if state else -1 for partition, state in states.items()}

    def partitions(self, topic: str) -> list[int]:
        document = self._read(f"/brokers/topics/{topic}")
        return [] if document is None else sorted(map(int, document["partitions"]))

    def topics(self) -> list[str]:
        return sorted(self._retry(lambda zk: zk.get_children("/brokers/topics")))

    def registered(self) -> set[int]:
        return {int(name) for name in self._retry(lambda zk: zk.get_children("/brokers/ids"))}

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            data, _ = self._retry(lambda zk: zk.get(path))
        except NoNodeError:
            return None
        document: dict[str, Any] = json.loads(data)
        return document

    def _retry(self, query: Callable[[KazooClient], Any]) -> Any:
        """Run a query, and retry while ZooKeeper is unavailable because of a fault."""
        assert self._zk is not None
        deadline = time.monotonic() + 60
        while True:
            try:
                return query(self._zk)
            except (ConnectionLoss, SessionExpiredError, OperationTimeoutError, ConnectionClosedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def out_of_sync(self) -> list[str]:
        """Return the partitions without a leader or with an incomplete ISR, from ZooKeeper."""
        partitions = []
        for topic in self.topics():
            for partition in self.partitions(topic):
                state = self.state(topic, partition)
                if state is None or state["leader"] < 0 or len(state["isr"]) < len(BROKERS):
                    partitions.append(f"{topic}-{partition}: {state and (state['leader'], state['isr'])}")
        return partitions

    def wait_in_sync(self, timeout: float) -> float:
        """Wait until every replica of every partition is in the ISR. Return the seconds."""
        out_of_sync: list[str] = []

        def done() -> bool:
            nonlocal out_of_sync
            out_of_sync = self.out_of_sync()
            return not out_of_sync and self.registered() == set(BROKERS) and self.controller() is not None

        try:
            return wait_until(done, timeout=timeout, what="all replicas in sync", interval=0.1)
        except TimeoutError as error:
            missing = sorted(set(BROKERS) - self.registered())
            raise TimeoutError(
                f"{error}: {', '.join(out_of_sync)}; not registered: {missing}; controller {self.controller()}"
            )

    # --- requests of an admin client

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 5000, "log_level": 0})

    def create_topic(self, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
        deadline = time.monotonic() + 60
        while True:
            admin = self._admin()
            futures = admin.create_topics([NewTopic(topic, partitions, 3)], operation_timeout=10)
            try:
                futures[topic].result(30)
                break
            except KafkaException as error:
                if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                    break
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        self.wait_in_sync(60)

    def elect_preferred(self) -> None:
        """Elect the preferred leaders, so that each round starts with balanced leaders."""
        partitions = [TopicPartition(topic, p) for topic in self.topics() for p in self.partitions(topic)]
        admin = self._admin()
        with contextlib.suppress(KafkaException):
            admin.elect_leaders(ElectionType.PREFERRED, partitions).result(30)

    def metadata_disagreements(self) -> list[str]:
        """Return the differences in leaders and ISRs between the brokers' metadata and
        ZooKeeper."""
        disagreements = []
        for number, broker in self.brokers.items():
            client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            for topic in self.topics():
                for partition, info in client.list_topics(topic, timeout=10).topics[topic].partitions.items():
                    state = self.state(topic, partition)
                    if state is None or info.leader != state["leader"] or sorted(info.isrs) != sorted(state["isr"]):
                        metadata = f"leader {info.leader}, ISR {info.isrs}"
                        disagreements.append(f"broker {number} on {topic}-{partition}: {metadata}; ZooKeeper: {state}")
        return disagreements

    # --- the end

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        if self._zk is not None:
            with contextlib.suppress(Exception):
                self._zk.stop()
                self._zk.close()
        self.zookeeper.kill()
        if self.network is not None:
            self.network.close()

    def remove(self, *, keep: bool) -> None:
        """Unmount the small disks and delete the files. With `keep`, the files remain, and those on
        small disks are moved to the mount point."""
        for path in self._mounts:
            if keep:
                shutil.copytree(path, path.with_name("logs.kept"), dirs_exist_ok=True)
            subprocess.run(["umount", str(path)], check=False)
            if keep:
                path.rmdir()
                path.with_name("logs.kept").rename(path)
        self._mounts.clear()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
