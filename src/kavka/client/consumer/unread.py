"""What an iteration has polled and not given out yet, and, after an error, what the program was handling. Both count
as not consumed: commits and positions stop before them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.records import Records
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition


class Unread:
    """Records are under way from when the program gets them until it polls again, or its iteration goes on. They count
    as consumed, since a program may commit when it has handled them, until `put_back` says that it failed."""

    def __init__(self) -> None:
        self._records: list[ConsumerRecord] = []
        self._next = 0
        self.under_way: dict[TopicPartition, int] = {}
        """By partition the first offset that the last poll returned."""
        self._current: ConsumerRecord | None = None
        """The record that an iteration gave out last."""
        self._committed: dict[TopicPartition, int] = {}
        self._put_back: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        return self._next < len(self._records)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Each is given out once; may be left and taken up again."""
        records = self._records
        while self._next < len(records) and records is self._records:
            record = records[self._next]
            self._next += 1
            self._current = record
            yield record

    def set(self, records: Records) -> None:
        """An iteration goes on with these."""
        self._records = list(records)
        self._next = 0
        self.under_way.clear()

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
            self.under_way.setdefault(tp, record.offset)
        return Records(found, after)

    def first(self) -> dict[TopicPartition, int]:
        """By partition the offset of the first of them."""
        found = dict(self._put_back)
        for record in self._records[self._next :]:
            found.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return found

    # --- what is under way

    def polled(self) -> None:
        """The program polls again: it has handled what it got before."""
        self.under_way.clear()
        self._committed.clear()
        self._current = None

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The program commits these itself: it has handled what is before them."""
        for tp, position in offsets.items():
            self._committed[tp] = position.offset

    def put_back(self) -> None:
        """The program failed: what is under way was not handled, but for what it has committed itself."""
        if self._current is not None:
            tp = TopicPartition(self._current.topic, self._current.partition)
            self.under_way.setdefault(tp, self._current.offset)
        self._put_back = {tp: max(offset, self._committed.get(tp, 0)) for tp, offset in self.under_way.items()}

    # --- other positions

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """The program chose other positions for these."""
        self._forget(set(partitions).__contains__)
        if self:
            gone = set(partitions)
            self._records = [r for r in self._records[self._next :] if TopicPartition(r.topic, r.partition) not in gone]
            self._next = 0

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        stays = set(partitions)
        self._forget(lambda tp: tp not in stays)
        if self:
            stay = set(partitions)
            self._records = [r for r in self._records[self._next :] if TopicPartition(r.topic, r.partition) in stay]
            self._next = 0

    def _forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        for tp in [tp for tp in self.under_way if is_gone(tp)]:
            del self.under_way[tp]
        current = self._current
        if current is not None and is_gone(TopicPartition(current.topic, current.partition)):
            self._current = None
