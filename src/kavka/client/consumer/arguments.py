"""Types and conversions of the arguments of the blocking and the asyncio consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition

OnPartitions = Callable[[set[TopicPartition]], object]
Partition: TypeAlias = tuple[str, int]
"""A TopicPartition, or (topic, number)."""
Partitions: TypeAlias = TopicPartition | Iterable[Partition]
"""Several partitions, or a single TopicPartition."""
Offsets: TypeAlias = (
    Mapping[TopicPartition, OffsetAndMetadata | int]
    | Mapping[Partition, OffsetAndMetadata | int]
    | TopicPartition
    | Sequence[Partition]
    | Set[Partition]
)
"""The argument of a commit: offsets by partition, or partitions whose positions are committed."""


class RebalanceListener:
    """Receives assignment changes. The methods are called inside `poll`, `close` and `unsubscribe`.
    Every method is optional.

    In `on_partitions_revoked` the consumer still owns the partitions and may commit. Partitions are
    lost if the consumer was removed from the group; other members may already read them. If a
    listener has no `on_partitions_lost`, `on_partitions_revoked` is called instead.
    """

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> object:
        return None

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> object:
        return None

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> object:
        return self.on_partitions_revoked(partitions)


class _Functions:
    """A rebalance listener with the given functions; a function that is None is absent."""

    def __init__(self, assigned: OnPartitions | None, revoked: OnPartitions | None, lost: OnPartitions | None) -> None:
        if assigned is not None:
            self.on_partitions_assigned = assigned
        if revoked is not None:
            self.on_partitions_revoked = revoked
        if lost is not None:
            self.on_partitions_lost = lost


def make_listener(
    listener: Any, assigned: OnPartitions | None, revoked: OnPartitions | None, lost: OnPartitions | None
) -> Any:
    functions = (assigned, revoked, lost)
    if listener is None:
        return None if all(function is None for function in functions) else _Functions(*functions)
    if any(function is not None for function in functions):
        raise TypeError("pass either a listener or on_assigned, on_revoked and on_lost, not both")
    names = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")
    if not any(callable(getattr(listener, name, None)) for name in names):
        raise TypeError(f"{type(listener).__name__} is not a rebalance listener: it has none of {', '.join(names)}")
    return listener


def to_partition(partition: Any) -> TopicPartition:
    if isinstance(partition, TopicPartition):
        return partition
    try:
        topic, index = partition
    except (TypeError, ValueError):
        raise TypeError(f"a partition must be a TopicPartition or (topic, number), not {partition!r}") from None
    if not isinstance(topic, str) or not isinstance(index, int):
        raise TypeError(f"a partition must be a TopicPartition or (topic, number), not {partition!r}")
    if index < 0:
        raise ValueError(f"a partition number cannot be negative: {index}")
    return TopicPartition(topic, index)


def to_partitions(partitions: Iterable[Any]) -> list[TopicPartition]:
    """Convert partitions or a single TopicPartition to a list without duplicates, in order."""
    if isinstance(partitions, TopicPartition):
        return [partitions]
    if isinstance(partitions, str):
        raise TypeError(f"partitions are required, not the topic {partitions!r}")
    return list(dict.fromkeys(map(to_partition, partitions)))
