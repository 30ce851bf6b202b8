"""A broker of Apache Kafka 3.9.1 in a Kavka cluster is a follower, a leader and the controller."""

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

APACHE_BROKER = MixedCluster.LAST


class Scenario:
    """Operations on a mixed cluster. `produced` counts the records of the topic `t`."""

    def __init__(self, cluster: Cluster, zookeeper: KazooClient) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.produced = 0

    def controller(self) -> int | None:
        try:
            return int(json.loads(self.zookeeper.get("/controller")[0])["brokerid"])
        except NoNodeError:
            return None

    def elect_controller(self, is_kavka: bool) -> None:
        """Delete the controller znode until a Kavka broker (or the Apache broker) is elected."""

        def is_elected() -> bool:
            controller_id = self.controller()
            if controller_id is None or (controller_id != APACHE_BROKER) == is_kavka:
                return controller_id is not None
            with contextlib.suppress(NoNodeError):
                self.zookeeper.delete("/controller")
            return False

        wait_until(is_elected, timeout=60, what="the expected controller", interval=0.3)

    def create_topic(self, name: str) -> None:
        topic = NewTopic(name, replica_assignments={p: [p, (p + 1) % 3, (p + 2) % 3] for p in range(3)})
        with Admin({"bootstrap.servers": self.cluster.bootstrap_servers}) as admin:
            admin.create_topics([topic])
        self.wait_for_isr(name, [0, 1, 2])

    def wait_for_isr(self, topic: str, expected: list[int]) -> None:
        def has_isr() -> bool:
            states = []
            for partition in range(3):
                try:
                    states.append(
                        json.loads(self.zookeeper.get(f"/brokers/topics/{topic}/partitions/{partition}/state")[0])
                    )
                except NoNodeError:
                    return False
            return all(sorted(state["isr"]) == expected and state["leader"] in expected for state in states)

        wait_until(has_isr, timeout=60, what=f"{topic} with the ISR {expected}", interval=0.1)

    def produce(self, count: int = 300) -> None:
        errors: list[object] = []
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True}
        producer = Producer(settings)
        for number in range(self.produced, self.produced + count):
            producer.produce(
                "t", str(number).encode(), on_delivery=lambda error, _message: errors.append(error) if error else None
            )
        assert producer.flush(60) == 0 and errors == []
        self.produced += count

    def read_all(self, group: str) -> list[int]:
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings | {"group.id": group})
        consumer.subscribe(["t"])
        values: list[int] = []

        def has_enough() -> bool:
            values.extend(int(message.value()) for message in consumer.consume(500, 0.5) if not message.error())
            return len(values) >= self.produced

        wait_until(has_enough, timeout=90, what=f"{self.produced} records", interval=0)
        consumer.commit(asynchronous=False)
        consumer.close()
        return sorted(values)


def test_an_apache_broker_works_in_a_kavka_cluster_in_every_role(java_parts: None, tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper, MixedCluster(tmp_path, zookeeper, start=False) as cluster:
        cluster.start(0, 1)
        with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            # Kafka 3.9.1 does not support a higher transaction.version and would not start.
            admin.update_features({"transaction.version": 1}, allow_downgrade=True)
        cluster.start(APACHE_BROKER)
        client = KazooClient(zookeeper.connect)
        client.start(30)
        scenario = Scenario(cluster, client)
        scenario.elect_controller(is_kavka=True)
        scenario.create_topic("t")
        scenario.produce()
        assert scenario.read_all("first") == list(range(scenario.produced))

        scenario.elect_controller(is_kavka=False)
        scenario.create_topic("created-by-apache")
        cluster.kill(0)
        cluster.wait_for_metadata({1, 2})
        scenario.wait_for_isr("t", [1, 2])
        scenario.produce()
        cluster.start(0)
        scenario.wait_for_isr("t", [0, 1, 2])
        cluster.stop(1)
        scenario.wait_for_isr("t", [0, 2])
        scenario.produce()
        cluster.start(1)
        scenario.wait_for_isr("t", [0, 1, 2])

        cluster.stop(APACHE_BROKER)
        scenario.wait_for_isr("t", [0, 1])
        scenario.produce()
        cluster.start(APACHE_BROKER)
        scenario.wait_for_isr("t", [0, 1, 2])
        scenario.wait_for_isr("created-by-apache", [0, 1, 2])
        assert scenario.read_all("second") == list(range(scenario.produced))
        client.stop()
        client.close()
