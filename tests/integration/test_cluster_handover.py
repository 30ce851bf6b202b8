"""An Apache Kafka 3.9.1 cluster starts on the log directories and the ZooKeeper of a Kavka cluster,
and vice versa. All records, committed offsets and topic settings are preserved."""

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
# The last broker cannot move its leaders to another broker, so its retries should be short.
SETTINGS = {"controlled.shutdown.retry.backoff.ms": 200}

Records = dict[tuple[str, int], list[tuple[Any, ...]]]


def create_topics(cluster: Cluster, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(60)


def produce(cluster: Cluster, topic: str, count: int, **settings: Any) -> None:
    """Produce records of which some have a key or headers. With a `transactional.id`, produce one
    committed and one aborted transaction."""
    errors: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        | settings
    )
    transactions: list[bool | None] = [None]
    if "transactional.id" in settings:
        producer.init_transactions(60)
        transactions = [True, False]
    for should_commit in transactions:
        if should_commit is not None:
            producer.begin_transaction()
        for number in range(count):
            producer.produce(
                topic,
                f"{should_commit}-{number}".encode() * 20,
                key=None if number % 3 else str(number % 7).encode(),
                headers=[("n", str(number).encode())] if number % 5 == 0 else [],
                partition=number % PARTITIONS,
                on_delivery=lambda error, _message: errors.append(error) if error else None,
            )
        assert producer.flush(120) == 0
        if should_commit is not None:
            (producer.commit_transaction if should_commit else producer.abort_transaction)(60)
    assert not errors


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
    records: Records = {(partition.topic, partition.partition): [] for partition in partitions}
    finished: set[tuple[str, int]] = set()

    def is_finished() -> bool:
        for message in consumer.consume(500, 1.0):
            partition = (message.topic(), message.partition())
            if message.error():
                finished.add(partition)
            else:
                value = (message.offset(), message.key(), message.value(), message.headers(), message.timestamp())
                records[partition].append(value)
        return len(finished) == len(partitions)

    wait_until(is_finished, timeout=120, what=f"the end of {topics}", interval=0)
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
        offsets[group] = [(entry.offset, entry.metadata) for entry in consumer.committed(partitions, 90)]
        consumer.close()
    return offsets


def retention(cluster: Cluster, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(60)["retention.ms"].value)


def wait_for_all_in_sync(cluster: Cluster, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def is_in_sync() -> bool:
        descriptions = admin.list_topics(timeout=60).topics
        return all(
            len(partition.isrs) == len(cluster.brokers) and partition.leader >= 0
            for topic in topics
            for partition in descriptions[topic].partitions.values()
        )

    wait_until(is_in_sync, timeout=90, what="every replica in sync", interval=0.3)


def wait_for_deregistration(zookeeper: ZooKeeper) -> None:
    client = KazooClient(zookeeper.connect)
    client.start(30)
    wait_until(lambda: client.get_children("/brokers/ids") == [], timeout=60, what="no broker registered", interval=0.1)
    client.stop()
    client.close()


def test_apache_and_kavka_clusters_read_the_data_of_each_other(java_parts: None, tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        with KavkaCluster(tmp_path / "kavka", zookeeper, overrides=SETTINGS) as kavka:
            create_topics(kavka, "plain", "compressed", "transactions")
            produce(kavka, "plain", 300)
            produce(kavka, "compressed", 300, **{"compression.type": "zstd"})
            produce(kavka, "transactions", 60, **{"transactional.id": "t"})
            # Create a second leader epoch and followers that lagged for a while.
            kavka.kill(1)
            produce(kavka, "plain", 300)
            kavka.start(1)
            produce(kavka, "compressed", 300, **{"compression.type": "lz4"})
            commit(kavka, "plain")
            admin = AdminClient({"bootstrap.servers": kavka.bootstrap_servers})
            change = ConfigEntry("retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, "plain", incremental_configs=[change])
            admin.incremental_alter_configs([resource])[resource].result(60)
            wait_for_all_in_sync(kavka, ["plain", "compressed", "transactions"])
            records = read_all(kavka, ["plain", "compressed", "transactions"])
            assert sum(map(len, records.values())) == 600 + 600 + 60
            kavka_offsets = committed(kavka, "plain")
            # Broker 2 stops uncleanly. The other brokers have all of its records on disk.
            kavka.stop(0)
            kavka.kill(2)
            kavka.stop(1)
        wait_for_deregistration(zookeeper)

        with ApacheCluster(tmp_path / "apache", zookeeper, overrides=SETTINGS, log_dirs=kavka.log_dirs) as apache:
            wait_for_all_in_sync(apache, ["plain", "compressed", "transactions", "__consumer_offsets"])
            assert read_all(apache, ["plain", "compressed", "transactions"]) == records
            assert committed(apache, "plain") == kavka_offsets
            assert retention(apache, "plain") == "123456789"
            create_topics(apache, "created-by-apache")
            produce(apache, "created-by-apache", 150, **{"compression.type": "gzip"})
            produce(apache, "plain", 150)
            produce(apache, "transactions", 30, **{"transactional.id": "t"})
            commit(apache, "created-by-apache")
            topics = ["plain", "compressed", "transactions", "created-by-apache"]
            wait_for_all_in_sync(apache, topics)
            records = read_all(apache, topics)
            assert sum(map(len, records.values())) == 1260 + 150 + 150 + 30
            apache_offsets = committed(apache, "created-by-apache")
            apache.stop_all()
        wait_for_deregistration(zookeeper)

        with KavkaCluster(tmp_path / "restarted", zookeeper, overrides=SETTINGS, log_dirs=kavka.log_dirs) as restarted:
            wait_for_all_in_sync(restarted, [*topics, "__consumer_offsets"])
            assert read_all(restarted, topics) == records
            assert committed(restarted, "plain") == kavka_offsets
            assert committed(restarted, "created-by-apache") == apache_offsets
            assert retention(restarted, "plain") == "123456789"
            produce(restarted, "plain", 30)
            produce(restarted, "transactions", 30, **{"transactional.id": "t"})
            assert sum(map(len, read_all(restarted, topics).values())) == 1590 + 30 + 30
