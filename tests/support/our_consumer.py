"""Helpers for tests of our consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kavka import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tests.support.targets import APACHE_39, Target

# Short times, so that tests of groups do not wait for nothing.
GROUPS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": 2000,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


def group_overrides(target_name: str) -> dict[str, object]:
    """GROUPS, as far as that broker knows them."""
    return {key: value for key, value in GROUPS.items() if target_name != APACHE_39 or "group.consumer" not in key}


def make_topic(servers: str, name: str, partitions: int = 1, **configs: str) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, configs=settings)])


def fill(servers: str, topic: str, values: Iterable[bytes], partition: int | None = None, **settings: Any) -> None:
    with Producer(bootstrap_servers=servers, **settings) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


def read(consumer: Consumer, count: int, timeout: float = 30.0) -> list[ConsumerRecord]:
    """At least so many records."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came in time"
        records += consumer.poll(0.2)
    return records


def read_all(target: Target, topic: str, isolation_level: str = "read_committed") -> list[Any]:
    """Every record up to the end of the log as it is now."""
    with Consumer(
        bootstrap_servers=target.bootstrap_servers, isolation_level=isolation_level, auto_offset_reset="earliest"
    ) as consumer:
        partitions = [TopicPartition(topic, p.partition) for p in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        records: list[Any] = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            records += consumer.poll(0.2)
        return records


def poll_until(
    consumers: Iterable[Consumer], done: Callable[[], bool], timeout: float = 30.0
) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Poll all of them in turn until it is so; returns what came."""
    deadline = time.monotonic() + timeout
    by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
    members = list(consumers)
    while not done():
        assert time.monotonic() < deadline, f"not so in time: {[sorted(c.assignment()) for c in members]}"
        for consumer in members:
            for tp, records in consumer.poll(0.05).by_partition().items():
                by_partition.setdefault(tp, []).extend(records)
    return by_partition


class Heard:
    """A rebalance listener that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, set[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.events.append(("lost", partitions))

    def all(self, what: str) -> list[set[TopicPartition]]:
        return [partitions for kind, partitions in self.events if kind == what]

    def now(self) -> set[TopicPartition]:
        """The assignment that results from the events."""
        held: set[TopicPartition] = set()
        for kind, partitions in self.events:
            held = held | partitions if kind == "assigned" else held - partitions
        return held


def fair(consumers: Iterable[Consumer], total: int) -> Callable[[], bool]:
    """All partitions are read, each by one, and shares differ by one at most."""

    def check() -> bool:
        shares = [consumer.assignment() for consumer in consumers]
        sizes = [len(share) for share in shares]
        return sum(sizes) == total == len(set().union(*shares)) and max(sizes) - min(sizes) <= 1

    return check


def group_settings(protocol: str, strategy: str | None = None) -> Mapping[str, Any]:
    settings: dict[str, Any] = {"group_protocol": protocol, "auto_offset_reset": "earliest"}
    if protocol == "classic":
        settings |= {"heartbeat_interval_ms": 100, "session_timeout_ms": 3000}
        if strategy is not None:
            settings["partition_assignment_strategy"] = strategy
    return settings
