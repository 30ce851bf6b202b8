"""A broker of Apache Kafka 3.9.1 in a cluster of ours: as a follower, as a leader, as the
controller."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kavka.client.admin import Admin
from kavka.client.admin.types import NewTopic
from tests.support.cluster import Cluster, MixedCluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.records]

APACHES = MixedCluster.LAST


class World:
    def __init__(self, cluster: Cluster, tree: KazooClient) -> None:
        self.cluster = cluster
        self.tree = tree
        self.written = 0

    def controller(self) -> int | None:
        try:
            return int(json.loads(self.tree.get("/controller")[0])["brokerid"])
        except NoNodeError:
            return None

    def make_controller(self, ours: bool) -> None:
        """Delete the controller znode until a broker of the right kind is elected."""

        def right() -> bool:
            controller_id = self.controller()
            if controller_id is None or (controller_id != APACHES) == ours:
                return controller_id is not None
            with contextlib.suppress(NoNodeError):
                self.tree.delete("/controller")
            return False

        wait_until(right, timeout=60, what="a controller of the other kind", interval=0.3)

    def make_topic(self, name: str) -> None:
        topic = NewTopic(name, replica_assignments={p: [p, (p + 1) % 3, (p + 2) % 3] for p in range(3)})
        with Admin({"bootstrap.servers": self.cluster.bootstrap_servers}) as admin:
            admin.create_topics([topic])
        self.wait_for_isr(name, [0, 1, 2])

    def wait_for_isr(self, topic: str, expected: list[int]) -> None:
        def there() -> bool:
            isrs = []
            for partition in range(3):
                try:
                    isrs.append(json.loads(self.tree.get(f"/brokers/topics/{topic}/partitions/{partition}/state")[0]))
                except NoNodeError:
                    return False
            return all(sorted(each["isr"]) == expected and each["leader"] in expected for each in isrs)

        wait_until(there, timeout=60, what=f"{topic} with the ISR {expected}", interval=0.1)

    def produce(self, count: int = 300) -> None:
        failed: list[object] = []
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True}
        producer = Producer(settings)
        for number in range(self.written, self.written + count):
            producer.produce(
                "t", str(number).encode(), on_delivery=lambda error, _message: failed.append(error) if error else None
            )
        assert producer.flush(60) == 0 and failed == []
        self.written += count

    def read_all(self, group: str) -> list[int]:
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings | {"group.id": group})
        consumer.subscribe(["t"])
        values: list[int] = []

        def enough() -> bool:
            values.extend(int(message.value()) for message in consumer.consume(500, 0.5) if not message.error())
            return len(values) >= self.written

        wait_until(enough, timeout=90, what=f"{self.written} records", interval=0)
        consumer.commit(asynchronous=False)
        consumer.close()
        return sorted(values)


def test_a_broker_of_apaches_works_in_our_cluster_in_every_role(java_parts: None, tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper, MixedCluster(tmp_path, zookeeper, start=False) as cluster:
        cluster.start(0, 1)
        with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            # Apache's broker does not know these settings and would not start with them.
            admin.update_features({"transaction.version": 1}, allow_downgrade=True)
        cluster.start(APACHES)
        tree = KazooClient(zookeeper.connect)
        tree.start(30)
        world = World(cluster, tree)
        world.make_controller(ours=True)
        world.make_topic("t")
        world.produce()
        assert world.read_all("first") == list(range(world.written))

        world.make_controller(ours=False)
        world.make_topic("made-by-apaches-controller")
        cluster.kill(0)
        cluster.wait_until_known({1, 2})
        world.wait_for_isr("t", [1, 2])
        world.produce()
        cluster.start(0)
        world.wait_for_isr("t", [0, 1, 2])
        cluster.stop(1)
        world.wait_for_isr("t", [0, 2])
        world.produce()
        cluster.start(1)
        world.wait_for_isr("t", [0, 1, 2])

        cluster.stop(APACHES)
        world.wait_for_isr("t", [0, 1])
        world.produce()
        cluster.start(APACHES)
        world.wait_for_isr("t", [0, 1, 2])
        world.wait_for_isr("made-by-apaches-controller", [0, 1, 2])
        assert world.read_all("second") == list(range(world.written))
        tree.stop()
        tree.close()
