"""ZooKeeper is down for longer than a session: records are still produced and consumed, and the
cluster is healthy when it returns."""

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
AWAY_S = 8


class Flow:
    """Writes numbers and reads them back all the time; the lists are what was acknowledged and what
    was seen. A number may be seen twice: the group's coordinator dies, too."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[int] = []
        self.failed: list[object] = []
        self.seen: list[int] = []
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
        while not self._all_written.is_set() or not set(self.acknowledged) <= set(self.seen):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.seen.append(int(message.value()))
        consumer.close()

    def goes_on(self, records: int = 50) -> None:
        """So many more are acknowledged, and as many more are seen."""
        written, read = len(self.acknowledged), len(self.seen)
        wait_until(lambda: len(self.acknowledged) >= written + records, timeout=30, what="more acknowledged")
        wait_until(lambda: len(self.seen) >= read + records, timeout=30, what="more seen")

    def end(self) -> None:
        self._stop.set()
        self._producer.join(90)
        self._all_written.set()
        self._consumer.join(90)
        assert not self._producer.is_alive()
        assert not self._consumer.is_alive(), f"not seen: {set(self.acknowledged) - set(self.seen)}"
        assert self.failed == []
        assert set(self.seen) == set(self.acknowledged)


@pytest.fixture(scope="module")
def world(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KavkaCluster, Proxy]]:
    """A cluster that reaches its ZooKeeper through a proxy."""
    folder = tmp_path_factory.mktemp("cluster")
    with ZooKeeper(folder / "zookeeper") as zookeeper, Proxy(zookeeper.address) as proxy:
        settings = {"zookeeper.session.timeout.ms": SESSION_S * 1000, "zookeeper.connect": proxy.address}
        with KavkaCluster(folder, zookeeper, overrides=settings) as cluster:
            yield cluster, proxy


def make_topic(cluster: KavkaCluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = NewTopic(name, 3, 3, config={"min.insync.replicas": "2"})

    def made() -> bool:
        """While a new controller is elected, the response may name none."""
        try:
            admin.create_topics([topic])[name].result(30)
        except KafkaException as error:
            return error.args[0].name() == "TOPIC_ALREADY_EXISTS"
        return True

    wait_until(made, timeout=60, what=f"topic {name}", interval=0.5)


def wait_for_full_isr(cluster: KavkaCluster, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def full() -> bool:
        listed = admin.list_topics(timeout=60).topics
        return all(len(p.isrs) == 3 for topic in topics for p in listed[topic].partitions.values())

    wait_until(full, timeout=60, what="every replica in sync", interval=0.2)


def restart(cluster: KavkaCluster, _proxy: Proxy, meanwhile: Callable[[], None]) -> None:
    """The sessions stay alive: a new server waits for its clients."""
    cluster.zookeeper.kill()
    meanwhile()
    cluster.zookeeper.start()


def cut(cluster: KavkaCluster, proxy: Proxy, meanwhile: Callable[[], None]) -> None:
    """The server sees every session run out: each broker has to come back with a new one."""
    proxy.refuse(True)
    meanwhile()
    proxy.refuse(False)
    wait_until(
        lambda: all("with a new session" in cluster.log_file(number).read_text() for number in cluster.brokers),
        timeout=60,
        what="new sessions",
    )


Away = Callable[[KavkaCluster, Proxy, Callable[[], None]], None]


@pytest.mark.parametrize("go_away", [cut, restart])
def test_records_flow_while_zookeeper_is_away_and_all_works_when_it_is_back(
    world: tuple[KavkaCluster, Proxy], go_away: Away
) -> None:
    cluster, proxy = world
    topic = f"flow-{go_away.__name__}"
    make_topic(cluster, topic)
    flow = Flow(cluster.bootstrap_servers, topic)
    try:
        flow.goes_on()

        def meanwhile() -> None:
            deadline = time.monotonic() + AWAY_S
            while time.monotonic() < deadline:
                flow.goes_on()

        go_away(cluster, proxy, meanwhile)
        flow.goes_on()

        # Topics are made, a death is noticed, leaders are elected, and the dead comes back.
        made = f"made-after-{go_away.__name__}"
        make_topic(cluster, made)
        cluster.wait_until_known({0, 1, 2})
        cluster.kill(1)
        cluster.wait_until_known({0, 2})
        flow.goes_on()
        cluster.start(1)
        wait_for_full_isr(cluster, topic, made)
        flow.goes_on()
    finally:
        flow.end()
