"""Brokers that are killed while their sessions live on (docs/decisions/0016). The session timeout
is so long that no test can pass because of an expired session."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.cluster import Cluster, KavkaCluster, MixedCluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.records]

SESSION_MS = 60_000
SETTINGS: dict[str, object] = {"zookeeper.session.timeout.ms": SESSION_MS, "min.insync.replicas": 2}
# Much shorter than the session, and long enough for a busy machine. `bench` measures the time.
FAILOVER_S = 20


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def tree(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


def leader(tree: KazooClient, topic: str) -> int:
    return int(json.loads(tree.get(f"/brokers/topics/{topic}/partitions/0/state")[0])["leader"])


def isr(tree: KazooClient, topic: str) -> set[int]:
    return set(json.loads(tree.get(f"/brokers/topics/{topic}/partitions/0/state")[0])["isr"])


def controller(tree: KazooClient) -> int:
    return int(json.loads(tree.get("/controller")[0])["brokerid"])


def create_topic(cluster: Cluster, tree: KazooClient, name: str, replicas: list[int]) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, replica_assignments={0: replicas})])
    wait_until(lambda: isr(tree, name) == set(replicas), timeout=60, what="all replicas in sync")


class Load:
    """Sends a record every 10 ms with acks=all. All records must be acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.sent = 0
        self.acknowledged: list[float] = []
        self.errors: list[BaseException] = []
        self._servers, self._topic = cluster.bootstrap_servers, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        def done(metadata: object, error: BaseException | None) -> None:
            if error is None:
                self.acknowledged.append(time.monotonic())
            else:
                self.errors.append(error)

        with Producer(bootstrap_servers=self._servers, acks="all", linger_ms=0) as producer:
            while not self._stopped.wait(0.01):
                producer.send(self._topic, str(self.sent).encode(), callback=done)
                self.sent += 1

    def wait_for_acknowledgement(self, timeout_s: float) -> None:
        start = time.monotonic()
        wait_until(
            lambda: bool(self.acknowledged) and self.acknowledged[-1] > start,
            timeout=timeout_s,
            what="an acknowledged record",
        )

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)


def read_all(cluster: Cluster, topic: str, count: int) -> list[int]:
    values: list[int] = []
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        deadline = time.monotonic() + 60
        while len(values) < count and time.monotonic() < deadline:
            values += [int(record.value) for record in consumer.poll(1.0)]
    return values


def test_killed_leaders_and_controllers_are_replaced_while_their_sessions_live_on(
    zookeeper: ZooKeeper, tree: KazooClient, tmp_path: Path
) -> None:
    with KavkaCluster(tmp_path, zookeeper, overrides=SETTINGS) as cluster:
        first_controller = controller(tree)
        others = [broker for broker in cluster.brokers if broker != first_controller]
        create_topic(cluster, tree, "t", [others[0], first_controller, others[1]])
        load = Load(cluster, "t")
        load.wait_for_acknowledgement(30)
        # First a broker that is not the controller, then the controller that is the new leader.
        for _ in range(2):
            victim = leader(tree, "t")
            czxid = tree.exists(f"/brokers/ids/{victim}").czxid
            cluster.kill(victim)
            load.wait_for_acknowledgement(FAILOVER_S)
            assert tree.exists(f"/brokers/ids/{victim}").czxid == czxid, "the session expired"
            assert leader(tree, "t") != victim
            wait_until(lambda: controller(tree) in cluster.alive(), timeout=FAILOVER_S, what="a live controller")
            cluster.start(victim)
            wait_until(lambda: isr(tree, "t") == {0, 1, 2}, timeout=60, what="all replicas in sync")
        load.stop()
        assert load.errors == []
        assert read_all(cluster, "t", load.sent) == list(range(load.sent))


def test_session_detection_waits_for_the_session(zookeeper: ZooKeeper, tree: KazooClient, tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": 8000, "broker.failure.detection": "session"}
    with KavkaCluster(tmp_path, zookeeper, overrides=settings) as cluster:
        create_topic(cluster, tree, "t", [0, 1, 2])
        cluster.kill(0)
        killed_at = time.monotonic()
        wait_until(lambda: leader(tree, "t") != 0, timeout=60, what="a new leader")
        assert time.monotonic() - killed_at > 2
        assert tree.exists("/brokers/ids/0") is None


@pytest.mark.matrix
def test_a_killed_apache_broker_is_replaced_while_its_session_lives_on(
    zookeeper: ZooKeeper, tree: KazooClient, tmp_path: Path
) -> None:
    """The Apache broker is the leader, and the controller too: Kavka brokers replace both."""
    with MixedCluster(tmp_path, zookeeper, overrides=SETTINGS) as cluster:
        apache = MixedCluster.LAST
        create_topic(cluster, tree, "t", [apache, 0, 1])

        def is_apache_elected() -> bool:
            if tree.exists("/controller") and controller(tree) != apache:
                tree.delete("/controller")
            return bool(tree.exists("/controller")) and controller(tree) == apache

        wait_until(is_apache_elected, timeout=60, what="Apache's controller", interval=0.5)
        load = Load(cluster, "t")
        load.wait_for_acknowledgement(30)
        time.sleep(1)
        assert leader(tree, "t") == apache
        cluster.kill(apache)
        load.wait_for_acknowledgement(FAILOVER_S)
        assert tree.exists(f"/brokers/ids/{apache}") is not None
        assert leader(tree, "t") != apache and controller(tree) != apache
        load.stop()
        assert load.errors == []
        assert read_all(cluster, "t", load.sent) == list(range(load.sent))
