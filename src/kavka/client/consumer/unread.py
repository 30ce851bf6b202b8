"""What an iteration has polled and not given out yet. It counts as not consumed: commits and positions stop before
it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.records import Records
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition


class Unread:
    def __init__(self) -> None:
        self._records: list[ConsumerRecord] = []
        self._next = 0

    def __bool__(self) -> bool:
        return self._next < len(self._records)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Each is given out once; may be left and taken up again."""
        records = self._records
        while self._next < len(records) and records is self._records:
            record = records[self._next]
            self._next += 1
            yield record

    def set(self, records: Records) -> None:
        self._records = list(records)
        self._next = 0

    def clear(self) -> None:
        self._records = []
        self._next = 0

    def take(self, limit: int) -> Records:
        """The next of them, as a poll returns them."""
        taken = self._records[self._next : self._next + limit]
        self._next += len(taken)
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        after: dict[TopicPartition, OffsetAndMetadata] = {}
        for record in taken:
            tp = TopicPartition(record.topic, record.partition)
            found.setdefault(tp, []).append(record)
            epoch = record.leader_epoch
            after[tp] = OffsetAndMetadata(record.offset + 1, "", epoch if epoch >= 0 else None)
        return Records(found, after)

    def first(self) -> dict[TopicPartition, int]:
        """By partition the offset of the first of them."""
        found: dict[TopicPartition, int] = {}
        for record in self._records[self._next :]:
            found.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return found

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        if self:
            gone = set(partitions)
            self._records = [r for r in self._records[self._next :] if TopicPartition(r.topic, r.partition) not in gone]
            self._next = 0

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        if self:
            stay = set(partitions)
            self._records = [r for r in self._records[self._next :] if TopicPartition(r.topic, r.partition) in stay]
            self._next = 0
