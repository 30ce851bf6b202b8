"""An Apache Kafka 3.9.1 cluster continues where ours stopped, on the same log directories and
ZooKeeper, and vice versa: every record, every group's offsets, every setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kazoo.client import KazooClient

from tests.support.cluster import ApacheCluster, Cluster, KavkaCluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(420), pytest.mark.records]

PARTITIONS = 3
GROUPS = {"first": 5, "second": 11}
# The last broker to stop has no other broker to take over, so a short timeout suffices.
SETTINGS = {"controlled.shutdown.retry.backoff.ms": 200}

Records = dict[tuple[str, int], list[tuple[Any, ...]]]


def make_topics(cluster: Cluster, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(60)


def produce(cluster: Cluster, topic: str, count: int, **settings: Any) -> None:
    """Some with keys, some with headers, in batches; settings may ask for compression or a
    transaction."""
    failed: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        | settings
    )
    rounds: list[bool | None] = [None]
    if "transactional.id" in settings:
        producer.init_transactions(60)
        rounds = [True, False]
    for keep in rounds:
        if keep is not None:
            producer.begin_transaction()
        for number in range(count):
            producer.produce(
                topic,
                f"{keep}-{number}".encode() * 20,
                key=None if number % 3 else str(number % 7).encode(),
                headers=[("n", str(number).encode())] if number % 5 == 0 else [],
                partition=number % PARTITIONS,
                on_delivery=lambda error, _message: failed.append(error) if error else None,
            )
        assert producer.flush(120) == 0
        if keep is not None:
            (producer.commit_transaction if keep else producer.abort_transaction)(60)
    assert not failed


def read_all(cluster: Cluster, topics: list[str]) -> Records:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "reads-and-never-commits",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = [TopicPartition(topic, p, 0) for topic in topics for p in range(PARTITIONS)]
    consumer.assign(partitions)
    records: Records = {(each.topic, each.partition): [] for each in partitions}
    at_end: set[tuple[str, int]] = set()

    def done() -> bool:
        for message in consumer.consume(500, 1.0):
            place = (message.topic(), message.partition())
            if message.error():
                at_end.add(place)
            else:
                value = (message.offset(), message.key(), message.value(), message.headers(), message.timestamp())
                records[place].append(value)
        return len(at_end) == len(partitions)

    wait_until(done, timeout=120, what=f"the end of {topics}", interval=0)
    consumer.close()
    return records


def commit(cluster: Cluster, topic: str) -> None:
    for group, offset in GROUPS.items():
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
        offsets = [TopicPartition(topic, p, offset + p, metadata=f"by {group}") for p in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()


def committed(cluster: Cluster, topic: str) -> dict[str, list[tuple[int, str | None]]]:
    offsets = {}
    for group in GROUPS:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
        partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        offsets[group] = [(each.offset, each.metadata) for each in consumer.committed(partitions, 90)]
        consumer.close()
    return offsets


def retention(cluster: Cluster, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(60)["retention.ms"].value)


def wait_for_all_in_sync(cluster: Cluster, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def in_sync() -> bool:
        listed = admin.list_topics(timeout=60).topics
        return all(
            len(partition.isrs) == len(cluster.brokers) and partition.leader >= 0
            for topic in topics
            for partition in listed[topic].partitions.values()
        )

    wait_until(in_sync, timeout=90, what="every replica in sync", interval=0.3)


def wait_for_the_sessions_to_end(zookeeper: ZooKeeper) -> None:
    tree = KazooClient(zookeeper.connect)
    tree.start(30)
    wait_until(lambda: tree.get_children("/brokers/ids") == [], timeout=60, what="no broker registered", interval=0.1)
    tree.stop()
    tree.close()


def test_apache_and_kavka_clusters_continue_where_the_other_stopped(java_parts: None, tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        with KavkaCluster(tmp_path / "ours", zookeeper, overrides=SETTINGS) as ours:
            make_topics(ours, "plain", "packed", "transactions")
            produce(ours, "plain", 300)
            produce(ours, "packed", 300, **{"compression.type": "zstd"})
            produce(ours, "transactions", 60, **{"transactional.id": "t"})
            # Leaders of a second epoch, and followers that were behind for a while.
            ours.kill(1)
            produce(ours, "plain", 300)
            ours.start(1)
            produce(ours, "packed", 300, **{"compression.type": "lz4"})
            commit(ours, "plain")
            admin = AdminClient({"bootstrap.servers": ours.bootstrap_servers})
            change = ConfigEntry("retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, "plain", incremental_configs=[change])
            admin.incremental_alter_configs([resource])[resource].result(60)
            wait_for_all_in_sync(ours, ["plain", "packed", "transactions"])
            written = read_all(ours, ["plain", "packed", "transactions"])
            assert sum(map(len, written.values())) == 600 + 600 + 60
            offsets = committed(ours, "plain")
            # Two end well, one does not: what it left in memory only, the others have on disk.
            ours.stop(0)
            ours.kill(2)
            ours.stop(1)
        wait_for_the_sessions_to_end(zookeeper)

        with ApacheCluster(tmp_path / "theirs", zookeeper, overrides=SETTINGS, log_dirs=ours.log_dirs) as theirs:
            wait_for_all_in_sync(theirs, ["plain", "packed", "transactions", "__consumer_offsets"])
            assert read_all(theirs, ["plain", "packed", "transactions"]) == written
            assert committed(theirs, "plain") == offsets
            assert retention(theirs, "plain") == "123456789"
            make_topics(theirs, "made-by-apache")
            produce(theirs, "made-by-apache", 150, **{"compression.type": "gzip"})
            produce(theirs, "plain", 150)
            produce(theirs, "transactions", 30, **{"transactional.id": "t"})
            commit(theirs, "made-by-apache")
            topics = ["plain", "packed", "transactions", "made-by-apache"]
            wait_for_all_in_sync(theirs, topics)
            written = read_all(theirs, topics)
            assert sum(map(len, written.values())) == 1260 + 150 + 150 + 30
            offsets_there = committed(theirs, "made-by-apache")
            theirs.stop_all()
        wait_for_the_sessions_to_end(zookeeper)

        with KavkaCluster(tmp_path / "again", zookeeper, overrides=SETTINGS, log_dirs=ours.log_dirs) as again:
            wait_for_all_in_sync(again, [*topics, "__consumer_offsets"])
            assert read_all(again, topics) == written
            assert committed(again, "plain") == offsets
            assert committed(again, "made-by-apache") == offsets_there
            assert retention(again, "plain") == "123456789"
            produce(again, "plain", 30)
            produce(again, "transactions", 30, **{"transactional.id": "t"})
            assert sum(map(len, read_all(again, topics).values())) == 1590 + 30 + 30
