"""Partitioners choose the partition of a record if `send` was called without a partition.

The default partitioner is in `_append.py`: it uses the hash of the key, and for records without a
key a sticky partition that changes after `batch.size` bytes. A custom partitioner is a function
`(key_bytes, all, available) -> int` of the serialized key and two lists of partition ids, or an
object with the method

    partition(topic, key, key_bytes, value, value_bytes, metadata) -> int

where `metadata` is the topic's TopicMetadata (`.partitions`, `.available`). The producer calls
`configure(configs)` and `close()` if they exist.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kavka.client import classes
from kavka.client.metadata import TopicMetadata
from kavka.client.producer._append import TopicQueues, murmur2
from kavka.common.config import ConfigError

Bytes: TypeAlias = bytes | None

_HERE = "kavka.client.producer.partitioners"


class DefaultPartitioner:
    """Selects the default partitioner, which has no class."""


class UniformStickyPartitioner:
    """Selects the default partitioner without the use of keys: all records are sticky."""


class KeyPartitioner:
    """Uses the hash of the key. A record without a key gets the partition of an empty key."""

    def partition(
        self, topic: str, key: Any, key_bytes: Bytes, value: Any, value_bytes: Bytes, metadata: TopicMetadata
    ) -> int:
        return partition_of_key(bytes(key_bytes or b""), len(metadata.partitions))


class RoundRobinPartitioner:
    """Uses all partitions in turn, regardless of the key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(
        self, topic: str, key: Any, key_bytes: Bytes, value: Any, value_bytes: Bytes, metadata: TopicMetadata
    ) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        if metadata.available:
            return metadata.available[turn % len(metadata.available)]
        return turn % len(metadata.partitions)


class RandomPartitioner:
    """Chooses a random partition with a leader, regardless of the key."""

    def partition(
        self, topic: str, key: Any, key_bytes: Bytes, value: Any, value_bytes: Bytes, metadata: TopicMetadata
    ) -> int:
        if metadata.available:
            return random.choice(metadata.available)
        return random.randrange(len(metadata.partitions))


class _Function:
    def __init__(self, function: Callable[[bytes | None, list[int], list[int]], int]) -> None:
        self._function = function

    def partition(
        self, topic: str, key: Any, key_bytes: Bytes, value: Any, value_bytes: Bytes, metadata: TopicMetadata
    ) -> int:
        return self._function(key_bytes, [p.partition for p in metadata.partitions], list(metadata.available))


PARTITIONERS = {
    name: f"{_HERE}:{name}"
    for name in (
        "DefaultPartitioner",
        "UniformStickyPartitioner",
        "RoundRobinPartitioner",
        "RandomPartitioner",
        "KeyPartitioner",
    )
} | {
    "StickyPartitioner": f"{_HERE}:UniformStickyPartitioner",
    "ByteArrayPartitioner": f"{_HERE}:KeyPartitioner",
    "default": f"{_HERE}:DefaultPartitioner",
    "sticky": f"{_HERE}:UniformStickyPartitioner",
    "roundrobin": f"{_HERE}:RoundRobinPartitioner",
    "random": f"{_HERE}:RandomPartitioner",
    "key": f"{_HERE}:KeyPartitioner",
}


def make_partitioner(value: Any, configs: Mapping[str, Any]) -> Any:
    """Create the partitioner that `partitioner.class` names. Returns None for the default
    partitioner, and a `UniformStickyPartitioner` for the default partitioner without keys."""
    if value is None:
        return None
    partitioner = classes.make("partitioner.class", value, PARTITIONERS, "a partitioner", configs)
    if isinstance(partitioner, DefaultPartitioner):
        return None
    if hasattr(partitioner, "partition") or isinstance(partitioner, UniformStickyPartitioner):
        return partitioner
    if callable(partitioner):
        return _Function(partitioner)
    raise ConfigError(
        "partitioner.class", f"a {type(partitioner).__name__} has no method partition and cannot be called"
    )


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's clients choose for the key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def next_sticky(topic: TopicQueues) -> int:
    """Return the next partition for records without a key: a random partition with a leader, if
    possible not the current partition."""
    choices = topic.available or range(topic.count)
    if len(choices) > 1:
        partition = random.choice(choices)
        return partition if partition != topic.sticky else random.choice([p for p in choices if p != topic.sticky])
    return choices[0] if choices else 0
