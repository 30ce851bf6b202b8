"""Which partition a record goes to, when it names none.

The default needs no class: by the hash of the key, and without one to a partition that is kept until `batch.size` bytes
went there (`_append.py` does both). A partitioner of one's own is an object with

    partition(topic, key, key_bytes, value, value_bytes, metadata) -> int

where `metadata` is the topic's TopicMetadata (`.partitions`, `.available`), or a function `(key_bytes, all, available)
-> int` of the serialised key and two lists of partition ids. `configure(configs)` and `close()` are called where they
exist.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from kavka.client import classes
from kavka.client.metadata import TopicMetadata
from kavka.client.producer._append import TopicQueues, murmur2
from kavka.common.config import ConfigError

HERE = "kavka.client.producer.partitioners"


class DefaultPartitioner:
    """Stands for the built-in way; never asked."""


class UniformStickyPartitioner:
    """The built-in way, with keys left out of it."""


class KeyPartitioner:
    """By the key's hash alone; records without a key all go to the partition of an empty one."""

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        metadata: TopicMetadata,
    ) -> int:
        return partition_of_key(bytes(key_bytes or b""), len(metadata.partitions))


class RoundRobinPartitioner:
    """One partition after the other, whatever the key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        metadata: TopicMetadata,
    ) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        if metadata.available:
            return metadata.available[turn % len(metadata.available)]
        return turn % len(metadata.partitions)


class RandomPartitioner:
    """Any partition that has a leader, whatever the key."""

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        metadata: TopicMetadata,
    ) -> int:
        if metadata.available:
            return random.choice(metadata.available)
        return random.randrange(len(metadata.partitions))


class _Function:
    def __init__(self, function: Callable[[bytes | None, list[int], list[int]], int]) -> None:
        self._function = function

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        metadata: TopicMetadata,
    ) -> int:
        return self._function(key_bytes, [p.partition for p in metadata.partitions], list(metadata.available))


KNOWN = {
    name: f"{HERE}:{name}"
    for name in (
        "DefaultPartitioner",
        "UniformStickyPartitioner",
        "RoundRobinPartitioner",
        "RandomPartitioner",
        "KeyPartitioner",
    )
} | {
    "StickyPartitioner": f"{HERE}:UniformStickyPartitioner",
    "ByteArrayPartitioner": f"{HERE}:KeyPartitioner",
    "default": f"{HERE}:DefaultPartitioner",
    "sticky": f"{HERE}:UniformStickyPartitioner",
    "roundrobin": f"{HERE}:RoundRobinPartitioner",
    "random": f"{HERE}:RandomPartitioner",
    "key": f"{HERE}:KeyPartitioner",
}


def make_partitioner(value: Any, configs: Mapping[str, Any]) -> Any:
    """The object behind `partitioner.class`; None for the built-in way, `UniformStickyPartitioner` for it without
    keys."""
    if value is None:
        return None
    found = classes.make("partitioner.class", value, KNOWN, "a partitioner", configs)
    if isinstance(found, DefaultPartitioner):
        return None
    if hasattr(found, "partition") or isinstance(found, UniformStickyPartitioner):
        return found
    if callable(found):
        return _Function(found)
    raise ConfigError("partitioner.class", f"a {type(found).__name__} has no method partition and cannot be called")


def partition_of_key(key: bytes, partitions: int) -> int:
    """Where Kafka's own clients put a record with that key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def next_sticky(topic: TopicQueues) -> int:
    """Another partition for records without a key: any that has a leader, rather not the same again."""
    choices = topic.available or range(topic.count)
    if len(choices) > 1:
        found = random.choice(choices)
        return found if found != topic.sticky else random.choice([p for p in choices if p != topic.sticky])
    return choices[0] if choices else 0
