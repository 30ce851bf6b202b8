"""Helpers for tests of Kavka's consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kavka import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tests.support.targets import APACHE_39, Target

# Short intervals, so that tests of groups are fast.
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
    """Return the settings in GROUPS that the broker supports."""
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
    """Poll until at least `count` records are read."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout
    while len(records) < count:
        assert time.monotonic() < deadline, f"only {len(records)} of {count} records were read in time"
        records += consumer.poll(0.2)
    return records


def read_all(target: Target, topic: str, isolation_level: str = "read_committed") -> list[Any]:
    """Read all records up to the current end of the log."""
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
    consumers: Iterable[Consumer], condition: Callable[[], bool], timeout: float = 30.0
) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Poll the consumers in turn until `condition` returns True. Return the records by
    partition."""
    deadline = time.monotonic() + timeout
    records_by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
    members = list(consumers)
    while not condition():
        assert time.monotonic() < deadline, (
            f"the condition was not true in time; assignments: {[sorted(c.assignment()) for c in members]}"
        )
        for consumer in members:
            for tp, records in consumer.poll(0.05).by_partition().items():
                records_by_partition.setdefault(tp, []).extend(records)
    return records_by_partition


class RecordingListener:
    """A rebalance listener that records its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, set[TopicPartition]]] = []

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.events.append(("lost", partitions))

    def all(self, kind: str) -> list[set[TopicPartition]]:
        return [partitions for event, partitions in self.events if event == kind]

    def assignment(self) -> set[TopicPartition]:
        """Return the assignment that results from the events."""
        assignment: set[TopicPartition] = set()
        for kind, partitions in self.events:
            assignment = assignment | partitions if kind == "assigned" else assignment - partitions
        return assignment


def balanced(consumers: Iterable[Consumer], total: int) -> Callable[[], bool]:
    """Return a condition: every partition is assigned to one consumer, and the numbers of
    partitions differ by one at most."""

    def check() -> bool:
        assignments = [consumer.assignment() for consumer in consumers]
        sizes = [len(assignment) for assignment in assignments]
        return sum(sizes) == total == len(set().union(*assignments)) and max(sizes) - min(sizes) <= 1

    return check


def group_settings(protocol: str, strategy: str | None = None) -> Mapping[str, Any]:
    settings: dict[str, Any] = {"group_protocol": protocol, "auto_offset_reset": "earliest"}
    if protocol == "classic":
        settings |= {"heartbeat_interval_ms": 100, "session_timeout_ms": 3000}
        if strategy is not None:
            settings["partition_assignment_strategy"] = strategy
    return settings
