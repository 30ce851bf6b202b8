from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from kavka.client.metadata import PartitionMetadata, TopicMetadata
from kavka.client.producer._append import TopicQueues
from kavka.client.producer.partitioners import (
    KeyPartitioner,
    RandomPartitioner,
    RoundRobinPartitioner,
    UniformStickyPartitioner,
    make_partitioner,
    next_sticky,
    partition_of_key,
)
from kavka.common.config import ConfigError


def topic(count: int, available: tuple[int, ...] | None = None) -> TopicMetadata:
    partitions = tuple(PartitionMetadata("t", p, 0, 0, (0,), (0,), ()) for p in range(count))
    return TopicMetadata("t", UUID(int=1), False, partitions, tuple(range(count)) if available is None else available)


def choose(partitioner: Any, metadata: TopicMetadata, key: bytes | None = None) -> int:
    return int(partitioner.partition("t", key, key, None, None, metadata))


def test_round_robin_uses_partitions_with_a_leader_in_turn() -> None:
    partitioner = RoundRobinPartitioner()
    assert [choose(partitioner, topic(3), b"k") for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert {choose(partitioner, topic(3, (0, 2))) for _ in range(9)} == {0, 2}
    assert {choose(partitioner, topic(3, ())) for _ in range(9)} == {0, 1, 2}


def test_random_uses_all_partitions_with_a_leader() -> None:
    assert {choose(RandomPartitioner(), topic(4, (1, 3))) for _ in range(100)} == {1, 3}


def test_key_partitioner_ignores_leaders() -> None:
    # Kafka's hash of "foobar" is -790332482.
    assert partition_of_key(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10
    assert choose(KeyPartitioner(), topic(10, ()), b"foobar") == partition_of_key(b"foobar", 10)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", RoundRobinPartitioner),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", UniformStickyPartitioner),
        ("RandomPartitioner", RandomPartitioner),
        ("random", RandomPartitioner),
        ("kavka.client.producer.partitioners.KeyPartitioner", KeyPartitioner),
        (RoundRobinPartitioner, RoundRobinPartitioner),
    ],
)
def test_partitioners_are_found_by_name_and_class(value: Any, expected: type) -> None:
    assert isinstance(make_partitioner(value, {}), expected)


def test_default_partitioner_by_name_is_the_built_in_one() -> None:
    assert make_partitioner("org.apache.kafka.clients.producer.internals.DefaultPartitioner", {}) is None
    assert make_partitioner(None, {}) is None


def test_function_of_key_and_partitions_is_a_partitioner() -> None:
    partitioner = make_partitioner(
        lambda key, all_partitions, available: available[-1] if key else len(all_partitions) - 3, {}
    )
    assert choose(partitioner, topic(5, (1, 2)), b"k") == 2
    assert choose(partitioner, topic(5, (1, 2))) == 2


def test_invalid_partitioner_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"partitioner\.class"):
        make_partitioner(17, {})
    with pytest.raises(ConfigError, match=r"partitioner\.class"):
        make_partitioner("org.example.Unknown", {})


def test_next_sticky_partition_differs_and_all_are_used() -> None:
    queues = TopicQueues("t")
    queues.count, queues.available = 4, (0, 1, 2, 3)
    counts: Counter[int] = Counter()
    for _ in range(4000):
        partition = next_sticky(queues)
        assert partition != queues.sticky
        queues.sticky = partition
        counts[partition] += 1
    assert min(counts.values()) > 800
    queues.available = (2,)
    assert next_sticky(queues) == 2
    queues.available = ()
    assert next_sticky(queues) in range(4)
