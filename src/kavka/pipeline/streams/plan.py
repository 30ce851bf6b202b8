"""How a topology is distributed over Spark. No I/O.

A topology is one query with at most one stateful step. Sub-topologies are Kafka's. A stateless
sub-topology runs where its records are read. A stateful sub-topology has a task per partition, as
in Kafka, and each task is a group of Spark's stateful step, which shuffles its records to it and
stores its state. That shuffle replaces the repartition topics of stateless sub-topologies. The
topics of `repartition` and of stateful sub-topologies are real, because Spark does not chain
stateful steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.topology import SourceNode, Subtopology, Topology


@dataclass(frozen=True)
class TaskSlot:
    """A task of a stateful sub-topology. Spark groups its rows by `key`."""

    key: int
    sub: int
    partition: int


@dataclass(frozen=True)
class Plan:
    stateless: tuple[Subtopology, ...]
    """Run where records are read, in a query without stateful sub-topologies."""
    feeding: tuple[Subtopology, ...]
    """Stateless sub-topologies beside stateful ones. They run where records are read, and what they
    send passes the tasks, so that the query always has one source."""
    stateful: tuple[Subtopology, ...]
    globals: tuple[Subtopology, ...]
    shuffled: Mapping[str, int]
    """Repartition topics that the shuffle replaces, and the sub-topology that reads each."""
    internal: tuple[str, ...]
    """Repartition topics that are real."""
    partitions: Mapping[str, int]
    """Of all topics that are read, including shuffled topics."""
    tasks: tuple[TaskSlot, ...]
    width: int
    """The partitions of the shuffle."""


def has_users(topology: Topology) -> bool:
    """Whether the topology may have punctuators. Processors of global stores may not."""
    return any(sub.has_user_processors for sub in topology.subtopologies() if not sub.global_)


def stateless_ids(topology: Topology) -> set[int]:
    """Sub-topologies without stores, global stores and processors of the user."""
    if topology.global_stores:
        return set()
    return {sub.id for sub in topology.subtopologies() if not sub.stores and not sub.has_user_processors}


def internal_topics(topology: Topology) -> tuple[set[str], set[str]]:
    """Repartition topics that the shuffle replaces, and real repartition topics."""
    stateless = stateless_ids(topology)
    writers = {
        sink.topic: sub.id for sub in topology.subtopologies() for sink in sub.sinks if isinstance(sink.topic, str)
    }
    shuffled = {
        name
        for name, topic in topology.internal_topics.items()
        if not topic.is_explicit and writers.get(name) in stateless
    }
    return shuffled, set(topology.internal_topics) - shuffled


def source_topics(topology: Topology) -> set[str]:
    """The user's topics that are read."""
    topics = {topic for node in topology.nodes.values() if isinstance(node, SourceNode) for topic in node.topics}
    return topics - set(topology.internal_topics)


def internal_partitions(topology: Topology, source_counts: Mapping[str, int]) -> dict[str, int]:
    """The partitions of all topics that are read. A repartition topic has as many as the user sets,
    or as the topics above it."""
    counts = dict(source_counts)
    subs = topology.subtopologies()
    followers = {topic.name for topic in topology.internal_topics.values() if topic.follows_reader}
    pending = dict(topology.internal_topics)
    while pending:
        pending_before = len(pending)
        for name, topic in list(pending.items()):
            sub = next(sub for sub in subs if any(sink.topic == name for sink in sub.sinks))
            if topic.follows_reader:
                sub = next(sub for sub in subs if name in sub.topics)
            above = [other for other in sub.topics if other != name and other not in followers]
            if topic.partitions is not None:
                counts[name] = topic.partitions
            elif all(other in counts for other in above):
                counts[name] = max((counts[other] for other in above), default=1)
            else:
                continue
            del pending[name]
        if len(pending) == pending_before:
            raise TopologyException(f"the repartition topics {', '.join(sorted(pending))} feed one another")
    # Topics that are read together must have the same number of partitions.
    for sub in subs:
        _align(topology, sub.topics, counts)
    for group in topology.copartitioned_topics():
        fixed = {topic for topic in group if not _is_adjustable(topology, topic)}
        _align(topology, group, counts, fixed)
    return counts


def _is_adjustable(topology: Topology, topic: str) -> bool:
    """Whether it is a repartition topic whose number of partitions the user did not set."""
    internal = topology.internal_topics.get(topic)
    return internal is not None and internal.partitions is None


def _align(topology: Topology, topics: Collection[str], counts: dict[str, int], leading: Collection[str] = ()) -> None:
    """Give repartition topics as many partitions as the largest of the `leading` topics, or of all
    topics, has."""
    count = max((counts[topic] for topic in leading or topics), default=1)
    counts.update({topic: count for topic in topics if _is_adjustable(topology, topic)})


def make_plan(topology: Topology, source_counts: Mapping[str, int], width: int | None = None) -> Plan:
    """`source_counts` are the partitions of the user's topics. `width` is that of the state, if the
    application has state; otherwise the shuffle has as many partitions as the largest stateful
    source."""
    subs = topology.subtopologies()
    if not any(not sub.global_ for sub in subs):
        raise TopologyException("Topology has no stream threads and no global threads: nothing is read")
    partitions = internal_partitions(topology, source_counts)
    shuffled, real = internal_topics(topology)
    readers = {topic: sub.id for sub in subs for topic in sub.topics if topic in shuffled}
    without_state = stateless_ids(topology) - set(readers.values())
    stateful = [sub for sub in subs if not sub.global_ and sub.id not in without_state]
    stateless = [sub for sub in subs if not sub.global_ and sub.id in without_state]
    slots = [
        (sub.id, number)
        for sub in stateful
        for number in range(max((partitions[topic] for topic in sub.topics), default=1))
    ]
    width = width or max((number + 1 for _, number in slots), default=1)
    keys = unused_keys(len(slots), width, ())
    return Plan(
        stateless=() if stateful else tuple(stateless),
        feeding=tuple(stateless) if stateful else (),
        stateful=tuple(stateful),
        globals=tuple(sub for sub in subs if sub.global_),
        shuffled=readers,
        internal=tuple(sorted(real)),
        partitions=partitions,
        tasks=tuple(TaskSlot(key, *slot) for key, slot in zip(keys, slots, strict=True)),
        width=width,
    )


def check_copartitioned(topology: Topology, partitions: Mapping[str, int]) -> None:
    """Topics whose records are joined or grouped together must have the same number of partitions,
    as in Kafka. Otherwise records of a key would be in different tasks."""
    for group in topology.copartitioned_topics():
        counts = {topic: partitions[topic] for topic in sorted(group)}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{topic}={count}" for topic, count in counts.items())
            raise TopologyException(
                f"Invalid topology: Following topics do not have the same number of partitions: [{{{listed}}}]. "
                "Use repartition(Repartitioned.number_of_partitions(…)) before they are joined or grouped together"
            )


def unused_keys(count: int, width: int, used: Collection[int]) -> list[int]:
    """Numbers that Spark's hash spreads evenly over `width` partitions, which a few arbitrary
    numbers would not be."""
    keys: list[int] = []
    candidates: dict[int, list[int]] = {partition: [] for partition in range(width)}
    number = 0
    for index in range(count):
        partition = index % width
        while not candidates[partition]:
            if number not in used:
                candidates[spark_hash(number) % width].append(number)
            number += 1
        keys.append(candidates[partition].pop(0))
    return keys


def spark_hash(value: int) -> int:
    """Spark's hash of an int column: Murmur3, 32 bits, seed 42."""
    mask = 0xFFFFFFFF

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & mask

    k = rotated((value & mask) * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (rotated(42 ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & mask
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h
