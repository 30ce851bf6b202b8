"""What both faces of the consumer take as arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kavka.common.types import TopicPartition

OnPartitions = Callable[[set[TopicPartition]], object]


class RebalanceListener:
    """Told of partitions that come and go; called inside `poll`, `close` and `unsubscribe`. Methods may be missing.

    In `on_partitions_revoked` the consumer still has them and may commit. When they are lost (the consumer was thrown
    out of the group), others may be reading them already; without `on_partitions_lost`, revoked is called.
    """

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> object:
        return None

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> object:
        return None

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> object:
        return self.on_partitions_revoked(partitions)


class _Functions:
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
        return None if all(one is None for one in functions) else _Functions(*functions)
    if any(one is not None for one in functions):
        raise TypeError("either a listener or functions, not both")
    names = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")
    if not any(callable(getattr(listener, name, None)) for name in names):
        raise TypeError(f"a {type(listener).__name__} is no rebalance listener: it has none of {', '.join(names)}")
    return listener


def one_partition(partition: Any) -> TopicPartition:
    if isinstance(partition, TopicPartition):
        return partition
    try:
        topic, index = partition
    except (TypeError, ValueError):
        raise TypeError(f"a partition is a TopicPartition or (topic, number), not {partition!r}") from None
    if not isinstance(topic, str) or not isinstance(index, int):
        raise TypeError(f"a partition is a TopicPartition or (topic, number), not {partition!r}")
    if index < 0:
        raise ValueError(f"there is no partition {index}")
    return TopicPartition(topic, index)


def many_partitions(partitions: Iterable[Any]) -> list[TopicPartition]:
    """In their order, each once; a single one will do too."""
    if isinstance(partitions, TopicPartition):
        return [partitions]
    if isinstance(partitions, str):
        raise TypeError(f"partitions are wanted, not the topic {partitions!r}")
    return list(dict.fromkeys(map(one_partition, partitions)))
