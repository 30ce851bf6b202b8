"""ZooKeeper is unavailable for longer than a session: records are still produced and consumed, and
the cluster is healthy when ZooKeeper returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.cluster import KavkaCluster
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.records]

SESSION_S = 4
OUTAGE_S = 8


class Flow:
    """Continuously produces numbers and consumes them. The lists have the acknowledged, failed and
    consumed numbers. A number may be consumed twice, since the group's coordinator is also
    killed."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[int] = []
        self.failed: list[object] = []
        self.consumed: list[int] = []
        self._stop, self._all_written = threading.Event(), threading.Event()
        self._producer, self._consumer = (
            threading.Thread(target=function, args=(servers,), daemon=True)
            for function in (self._produce, self._consume)
        )
        self._producer.start()
        self._consumer.start()

    def _produce(self, servers: str) -> None:
        producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._stop.is_set():
            producer.produce(self.topic, str(number).encode(), on_delivery=self._delivered(number))
            number += 1
            producer.poll(0)
            time.sleep(0.01)
        assert producer.flush(60) == 0

    def _delivered(self, number: int) -> Callable[[object, object], None]:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.failed.append(error)

        return delivered

    def _consume(self, servers: str) -> None:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": self.topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.topic])
        while not self._all_written.is_set() or not set(self.acknowledged) <= set(self.consumed):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.consumed.append(int(message.value()))
        consumer.close()

    def wait_for_records(self, count: int = 50) -> None:
        """Waits until this many more records are acknowledged and consumed."""
        acknowledged, consumed = len(self.acknowledged) + count, len(self.consumed) + count
        wait_until(lambda: len(self.acknowledged) >= acknowledged, timeout=30, what="acknowledged records")
        wait_until(lambda: len(self.consumed) >= consumed, timeout=30, what="consumed records")

    def end(self) -> None:
        self._stop.set()
        self._producer.join(90)
        self._all_written.set()
        self._consumer.join(90)
        assert not self._producer.is_alive()
        assert not self._consumer.is_alive(), f"not consumed: {set(self.acknowledged) - set(self.consumed)}"
        assert self.failed == []
        assert set(self.consumed) == set(self.acknowledged)


@pytest.fixture(scope="module")
def cluster_and_proxy(
    java_parts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KavkaCluster, Proxy]]:
    """A cluster that reaches its ZooKeeper through a proxy."""
    folder = tmp_path_factory.mktemp("cluster")
    with ZooKeeper(folder / "zookeeper") as zookeeper, Proxy(zookeeper.address) as proxy:
        settings = {"zookeeper.session.timeout.ms": SESSION_S * 1000, "zookeeper.connect": proxy.address}
        with KavkaCluster(folder, zookeeper, overrides=settings) as cluster:
            yield cluster, proxy


def create_topic(cluster: KavkaCluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = NewTopic(name, 3, 3, config={"min.insync.replicas": "2"})

    def is_created() -> bool:
        """The first requests may fail while a new controller is elected."""
        try:
            admin.create_topics([topic])[name].result(30)
        except KafkaException as error:
            return error.args[0].name() == "TOPIC_ALREADY_EXISTS"
        return True

    wait_until(is_created, timeout=60, what=f"topic {name}", interval=0.5)


def wait_for_full_isr(cluster: KavkaCluster, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def is_full() -> bool:
        metadata = admin.list_topics(timeout=60).topics
        return all(len(p.isrs) == 3 for topic in topics for p in metadata[topic].partitions.values())

    wait_until(is_full, timeout=60, what="every replica in sync", interval=0.2)


def restart(cluster: KavkaCluster, _proxy: Proxy, meanwhile: Callable[[], None]) -> None:
    """The sessions survive: the restarted server waits for its clients."""
    cluster.zookeeper.kill()
    meanwhile()
    cluster.zookeeper.start()


def disconnect(cluster: KavkaCluster, proxy: Proxy, meanwhile: Callable[[], None]) -> None:
    """Every session expires: each broker must register again with a new session."""
    proxy.refuse(True)
    meanwhile()
    proxy.refuse(False)
    wait_until(
        lambda: all("with a new session" in cluster.log_file(number).read_text() for number in cluster.brokers),
        timeout=60,
        what="new sessions",
    )


Outage = Callable[[KavkaCluster, Proxy, Callable[[], None]], None]


@pytest.mark.parametrize("outage", [disconnect, restart])
def test_records_flow_during_an_outage_of_zookeeper_and_the_cluster_recovers(
    cluster_and_proxy: tuple[KavkaCluster, Proxy], outage: Outage
) -> None:
    cluster, proxy = cluster_and_proxy
    topic = f"flow-{outage.__name__}"
    create_topic(cluster, topic)
    flow = Flow(cluster.bootstrap_servers, topic)
    try:
        flow.wait_for_records()

        def meanwhile() -> None:
            deadline = time.monotonic() + OUTAGE_S
            while time.monotonic() < deadline:
                flow.wait_for_records()

        outage(cluster, proxy, meanwhile)
        flow.wait_for_records()

        # Topics are created, a killed broker is detected, leaders are elected, and the broker
        # rejoins.
        new_topic = f"created-after-{outage.__name__}"
        create_topic(cluster, new_topic)
        cluster.wait_for_metadata({0, 1, 2})
        cluster.kill(1)
        cluster.wait_for_metadata({0, 2})
        flow.wait_for_records()
        cluster.start(1)
        wait_for_full_isr(cluster, topic, new_topic)
        flow.wait_for_records()
    finally:
        flow.end()
