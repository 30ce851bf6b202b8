"""What of a topology runs where in Spark. No I/O.

One query does all of it, with at most one stateful step. Sub-topologies are as in Kafka. One that
remembers nothing runs where its records are read. One that does is cut into tasks by partition, as
in Kafka, and each task is a group of Spark's stateful step: Spark keeps its state and brings it its
records. What a stateless sub-topology would write to a repartition topic goes to the tasks by that
shuffle, without a topic. Real topics remain for `repartition`, which the user asked for, and for
what a stateful sub-topology regroups: Spark does not chain stateful steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.topology import ProcessorNode, Subtopology, Topology


@dataclass(frozen=True)
class TaskSlot:
    """A task of a stateful sub-topology. `key` is what Spark groups by."""

    key: int
    sub: int
    partition: int


@dataclass(frozen=True)
class Plan:
    stateless: tuple[Subtopology, ...]
    """Those that write to topics alone: they never meet the shuffle."""
    feeding: tuple[Subtopology, ...]
    """Stateless, but what they write goes to tasks."""
    stateful: tuple[Subtopology, ...]
    globals: tuple[Subtopology, ...]
    shuffled: Mapping[str, int]
    """Repartition topics that are none: the name, and the sub-topology that reads it."""
    internal: tuple[str, ...]
    """Repartition topics that are real."""
    partitions: Mapping[str, int]
    """Of all topics that are read, shuffled ones included."""
    tasks: tuple[TaskSlot, ...]
    width: int
    """How many partitions the shuffle has."""
    native: tuple[int, ...] = ()
    """Stateless sub-topologies that Spark runs by itself (`native.py`), in the order of their
    sources in the checkpoint."""
    summed: bool = False
    """Whether Spark itself adds up what the tasks would count (`summing.py`)."""


def is_users(node: ProcessorNode) -> bool:
    """Whether it holds something of the user's that may remember, forward and be called by time."""
    made = node.supplier.func if isinstance(node.supplier, partial) else getattr(node.supplier, "__self__", None)
    return node.users or bool(getattr(made, "users", False))


def has_users(topology: Topology) -> bool:
    """Whether something may be called by time; what keeps a global store may not."""
    return any(is_users(node) for sub in topology.subtopologies() if not sub.global_ for node in sub.processors)


def stateless_ids(topology: Topology) -> set[int]:
    """Sub-topologies that remember nothing: no stores, none of every task's, no processors of the
    user's own."""
    if topology.global_stores:
        return set()
    return {sub.id for sub in topology.subtopologies() if not sub.stores and not any(map(is_users, sub.processors))}


def internal_topics(topology: Topology) -> tuple[set[str], set[str]]:
    """Repartition topics that are shuffled, and those that are real."""
    stateless = stateless_ids(topology)
    writers = {
        sink.topic: sub.id for sub in topology.subtopologies() for sink in sub.sinks if isinstance(sink.topic, str)
    }
    shuffled = {
        name for name, topic in topology.internal_topics.items() if not topic.users and writers.get(name) in stateless
    }
    return shuffled, set(topology.internal_topics) - shuffled


def source_topics(topology: Topology) -> set[str]:
    """The user's topics that are read."""
    subs = topology.subtopologies()
    return {t for sub in subs for source in sub.sources for t in source.topics} - set(topology.internal_topics)


def internal_partitions(topology: Topology, known: Mapping[str, int]) -> dict[str, int]:
    """How many partitions repartition topics have: what the user said, or as many as the topics
    have that feed them."""
    found = dict(known)
    subs = topology.subtopologies()
    waiting = dict(topology.internal_topics)
    while waiting:
        before = len(waiting)
        for name, topic in list(waiting.items()):
            writer = next(sub for sub in subs if any(sink.topic == name for sink in sub.sinks))
            if topic.follows:
                writer = next(sub for sub in subs if any(name in source.topics for source in sub.sources))
            followers = {one.name for one in topology.internal_topics.values() if one.follows}
            feeding = [t for source in writer.sources for t in source.topics if t != name and t not in followers]
            if topic.partitions is not None:
                found[name] = topic.partitions
            elif all(one in found for one in feeding):
                found[name] = max((found[one] for one in feeding), default=1)
            else:
                continue
            del waiting[name]
        if len(waiting) == before:
            raise TopologyException(f"the repartition topics {', '.join(sorted(waiting))} feed one another")
    # What is read together must have as many partitions: a topic of ours follows the others.
    for sub in subs:
        _follow(topology, {t for source in sub.sources for t in source.topics}, found)
    for group in topology.copartitioned_topics():
        fixed = {topic for topic in group if not _may_follow(topology, topic)}
        _follow(topology, group, found, fixed)
    return found


def _may_follow(topology: Topology, topic: str) -> bool:
    """Whether it is a repartition topic whose number of partitions the user did not give."""
    internal = topology.internal_topics.get(topic)
    return internal is not None and internal.partitions is None


def _follow(topology: Topology, topics: set[str], found: dict[str, int], leading: set[str] | None = None) -> None:
    """Give repartition topics as many partitions as the largest of the `leading` topics has, or of
    all."""
    count = max((found[topic] for topic in leading or topics), default=1)
    found.update({topic: count for topic in topics if _may_follow(topology, topic)})


def make_plan(topology: Topology, known: Mapping[str, int], width: int | None = None) -> Plan:
    """`known` are the partitions of the user's topics; `width` is given when there is state
    already. Otherwise the shuffle has as many partitions as the largest stateful source."""
    subs = topology.subtopologies()
    if not any(not sub.global_ for sub in subs):
        raise TopologyException("Topology has no stream threads and no global threads: nothing is read")
    partitions = internal_partitions(topology, known)
    shuffled, real = internal_topics(topology)
    readers = {t: sub.id for sub in subs for source in sub.sources for t in source.topics if t in shuffled}
    quiet = stateless_ids(topology) - set(readers.values())
    stateless, feeding, stateful = [], [], []
    for sub in subs:
        if sub.global_:
            continue
        if sub.id not in quiet:
            stateful.append(sub)
        elif any(sink.topic in shuffled for sink in sub.sinks):
            feeding.append(sub)
        else:
            stateless.append(sub)
    slots = [
        (sub.id, number)
        for sub in stateful
        for number in range(max((partitions[t] for source in sub.sources for t in source.topics), default=1))
    ]
    wide = width or max((number + 1 for _, number in slots), default=1)
    keys = unused_keys(len(slots), wide, ())
    return Plan(
        stateless=tuple(stateless),
        feeding=tuple(feeding),
        stateful=tuple(stateful),
        globals=tuple(sub for sub in subs if sub.global_),
        shuffled=readers,
        internal=tuple(sorted(real)),
        partitions=partitions,
        tasks=tuple(TaskSlot(key, *slot) for key, slot in zip(keys, slots, strict=True)),
        width=wide,
    )


def check_copartitioned(topology: Topology, partitions: Mapping[str, int]) -> None:
    """Topics whose records are joined or grouped together must have the same number of partitions,
    as in Kafka: records of one key would be in different tasks otherwise."""
    for group in topology.copartitioned_topics():
        counts = {topic: partitions[topic] for topic in sorted(group)}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{topic}={count}" for topic, count in counts.items())
            raise TopologyException(
                f"Invalid topology: Following topics do not have the same number of partitions: [{{{listed}}}]. "
                "Use repartition(Repartitioned.number_of_partitions(…)) before they are joined or grouped together"
            )


def unused_keys(count: int, width: int, used: Collection[int]) -> list[int]:
    """Numbers that Spark's hash spreads evenly over `width` partitions: few groups left to chance
    would not be."""
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

    def turn(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & mask

    k = turn((value & mask) * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (turn(42 ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & mask
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h
