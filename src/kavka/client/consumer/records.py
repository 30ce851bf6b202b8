"""The result of a poll."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic

from kavka.client.types import K, OffsetAndMetadata, V
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.consumer import _decode

    class ConsumerRecord(_decode.ConsumerRecord, Generic[K, V]):
        """A record with the types that the deserializers return. A compiled class cannot be
        generic, so this class exists only for type checkers."""

        key: K
        value: V

else:
    from kavka.client.consumer._decode import ConsumerRecord


class Records(Generic[K, V]):
    """Records by partition, in offset order. Iteration yields the records of one partition after
    the other."""

    __slots__ = ("_by_partition", "next_offsets")

    def __init__(
        self,
        by_partition: dict[TopicPartition, list[ConsumerRecord[K, V]]] | None = None,
        next_offsets: dict[TopicPartition, OffsetAndMetadata] | None = None,
    ) -> None:
        self._by_partition = by_partition or {}
        self.next_offsets = next_offsets or {}
        """The offsets to commit after processing all records."""

    def by_partition(self) -> Mapping[TopicPartition, list[ConsumerRecord[K, V]]]:
        return self._by_partition

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self._by_partition)

    def records(self, of: TopicPartition | str) -> list[ConsumerRecord[K, V]]:
        """Return the records of a partition or of a topic."""
        if isinstance(of, str):
            return [record for tp, records in self._by_partition.items() if tp.topic == of for record in records]
        return self._by_partition.get(TopicPartition(*of), [])

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        return chain.from_iterable(self._by_partition.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_partition.values()))

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def __repr__(self) -> str:
        return f"Records({', '.join(f'{tp}: {len(records)}' for tp, records in self._by_partition.items())})"


EMPTY: Records[Any, Any] = Records()
