"""An Apache Kafka 3.9.1 broker and two of Kavka's in one cluster, with either as the controller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.cluster import HEAP, KavkaCluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]

APACHE = 2
SETTINGS = {
    # A Java broker on a busy machine needs some patience of ZooKeeper's.
    "zookeeper.session.timeout.ms": 18000,
    "zookeeper.connection.timeout.ms": 60000,
    "auto.leader.rebalance.enable": "false",
}


class Mixed:
    def __init__(self, folder: Path, zookeeper: ZooKeeper) -> None:
        self.kavka = KavkaCluster(folder, zookeeper, brokers=2, overrides=SETTINGS, start=False)
        self.apache = ApacheKafka(
            folder / "apache",
            version=LAST_WITH_ZOOKEEPER,
            overrides=SETTINGS,
            jvm=HEAP,
            zookeeper=zookeeper,
            broker_id=APACHE,
            start=False,
        )
        self.tree = KazooClient(zookeeper.connect)
        self.tree.start(30)

    def start_apache(self) -> None:
        self.apache.launch()
        self.apache.wait_until_ready(180)

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.kavka.bootstrap_servers},{self.apache.bootstrap_servers}"

    @property
    def controller(self) -> int:
        if not self.tree.exists("/controller"):
            return -1
        return int(json.loads(self.tree.get("/controller")[0])["brokerid"])

    def close(self) -> None:
        self.tree.stop()
        self.tree.close()
        self.kavka.close()
        self.apache.kill()


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        brokers = Mixed(tmp_path, zookeeper)
        try:
            yield brokers
        finally:
            brokers.close()


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, timeout=90, what=what, interval=0.1)


def use(mixed: Mixed, name: str) -> None:
    """Everything that needs the controller and replicas of both kinds to understand each other."""
    tps = [TopicPartition(name, p) for p in range(3)]
    with Admin(bootstrap_servers=mixed.bootstrap_servers) as admin:

        def layout() -> list[tuple[int, list[int], set[int]]]:
            found = admin.describe_topics([name])[name]
            return [
                (-1 if p.leader is None else p.leader.id, [n.id for n in p.replicas], {n.id for n in p.isr})
                for p in found.partitions
            ]

        def settled() -> bool:
            return all(set(replicas) == isr and leader in isr for leader, replicas, isr in layout())

        admin.create_topics([NewTopic(name, replica_assignments={0: [0, 2], 1: [2, 1], 2: [2, 0]})])
        with Producer(bootstrap_servers=mixed.bootstrap_servers, acks="all") as producer:
            for part in range(2):
                sent = [
                    producer.send(name, value=b"%d" % n, partition=n % 3) for n in range(part * 150, part * 150 + 150)
                ]
                for future in sent:
                    future.get(60)
                if part == 0:
                    admin.alter_partition_reassignments({tps[0]: [1, 2], tps[1]: [2, 0]})
                    until(lambda: not admin.list_partition_reassignments(), "the moves to be done")
        until(lambda: [replicas for _, replicas, _ in layout()] == [[1, 2], [2, 0], [2, 0]], "the new holders")
        until(settled, "all in sync")
        # The leader of one kind stops, cleanly; the other kind takes over, and gives back.
        mixed.kavka.stop(0)
        until(lambda: all(0 not in isr and leader != -1 for leader, _, isr in layout()), "the ISRs without it")
        mixed.kavka.brokers[0].start()
        until(settled, "all in sync again")
        admin.elect_leaders()
        until(lambda: [leader for leader, _, _ in layout()] == [1, 2, 2], "the preferred leaders")
        with Consumer(bootstrap_servers=mixed.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign(tps)
            consumer.seek_to_beginning()
            values: list[int] = []

            def read() -> bool:
                values.extend(int(record.value) for record in consumer.poll(0.5))
                return len(values) >= 300

            until(read, "all records")
        assert sorted(values) == list(range(300))
        admin.delete_topics([name])
        until(lambda: not mixed.tree.exists(f"/brokers/topics/{name}"), "the topic to be deleted")


def test_brokers_of_both_kinds_are_one_cluster_under_either_controller(mixed: Mixed) -> None:
    mixed.start_apache()
    mixed.kavka.brokers[0].start()
    mixed.kavka.brokers[1].start()
    assert mixed.controller == APACHE
    use(mixed, "under-apache")
    mixed.apache.stop()
    until(lambda: mixed.controller in (0, 1), "another controller")
    mixed.start_apache()
    until(lambda: mixed.controller in (0, 1), "a controller")
    use(mixed, "under-kavka")
