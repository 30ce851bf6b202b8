"""What a poll returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition


class Records:
    """Records by partition, in the order of each. Iterating gives all of them, one partition after the other."""

    __slots__ = ("_by_partition", "next_offsets")

    def __init__(
        self,
        by_partition: dict[TopicPartition, list[ConsumerRecord]] | None = None,
        next_offsets: dict[TopicPartition, OffsetAndMetadata] | None = None,
    ) -> None:
        self._by_partition = by_partition or {}
        self.next_offsets = next_offsets or {}
        """What to commit when all of these are done."""

    def by_partition(self) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        return self._by_partition

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self._by_partition)

    def records(self, of: TopicPartition | str) -> list[ConsumerRecord]:
        """Those of one partition, or of one topic."""
        if isinstance(of, str):
            return [record for tp, records in self._by_partition.items() if tp.topic == of for record in records]
        return self._by_partition.get(TopicPartition(*of), [])

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return chain.from_iterable(self._by_partition.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_partition.values()))

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def __repr__(self) -> str:
        return f"Records({', '.join(f'{tp}: {len(records)}' for tp, records in self._by_partition.items())})"


EMPTY = Records()
