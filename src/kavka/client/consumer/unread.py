"""Records that an iteration has polled but not yielded yet and, after an error, records that the
application was processing. Both count as not consumed: commits and positions stop before them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from kavka.client.consumer.records import ConsumerRecord, Records
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition


class Unread:
    """Owns the records of an iteration that were not yielded yet, and the offsets in progress.

    A record is in progress from the time the application gets it until the application polls
    again or its iteration continues. Records in progress count as consumed, because the application
    may commit after processing them. After `put_back` they count as not consumed. Only the
    application's thread may call this object."""

    def __init__(self) -> None:
        self._records: list[ConsumerRecord] = []
        self._next = 0
        self.in_progress: dict[TopicPartition, int] = {}
        """By partition: the first offset that the last poll returned."""
        self._current: ConsumerRecord | None = None
        """The record that the iteration yielded last."""
        self._committed: dict[TopicPartition, int] = {}
        self._put_back: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        return self._next < len(self._records)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield each record once. A later iteration continues after the last yielded record."""
        records = self._records
        while self._next < len(records) and records is self._records:
            record = records[self._next]
            self._next += 1
            self._current = record
            yield record

    def set(self, records: Records) -> None:
        """Continue the iteration with these records."""
        self._records = list(records)
        self._next = 0
        self.in_progress.clear()

    def clear(self) -> None:
        self._records = []
        self._next = 0

    def take(self, limit: int) -> Records:
        """Return up to `limit` of the records that were not yielded yet, as the result of a
        poll."""
        taken = self._records[self._next : self._next + limit]
        self._next += len(taken)
        records: dict[TopicPartition, list[ConsumerRecord]] = {}
        next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for record in taken:
            tp = TopicPartition(record.topic, record.partition)
            records.setdefault(tp, []).append(record)
            epoch = record.leader_epoch
            next_offsets[tp] = OffsetAndMetadata(record.offset + 1, "", epoch if epoch >= 0 else None)
            self.in_progress.setdefault(tp, record.offset)
        return Records(records, next_offsets)

    def first(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that does not count as consumed."""
        offsets = dict(self._put_back)
        for record in self._records[self._next :]:
            offsets.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return offsets

    # --- records in progress

    def on_poll(self) -> None:
        """The application has polled again: it has processed the records of earlier polls."""
        self.in_progress.clear()
        self._committed.clear()
        self._current = None

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The application has committed these offsets: it has processed the records before them."""
        for tp, position in offsets.items():
            self._committed[tp] = position.offset

    def put_back(self) -> None:
        """Count the records in progress as not consumed, except those that the application has
        committed. Called when the application fails."""
        if self._current is not None:
            tp = TopicPartition(self._current.topic, self._current.partition)
            self.in_progress.setdefault(tp, self._current.offset)
        self._put_back = {tp: max(offset, self._committed.get(tp, 0)) for tp, offset in self.in_progress.items()}

    # --- changes of positions

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Remove these partitions, because their positions were changed."""
        self._remove(set(partitions).__contains__)

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Remove all other partitions, because only these stay assigned."""
        remaining = set(partitions)
        self._remove(lambda tp: tp not in remaining)

    def _remove(self, is_removed: Callable[[TopicPartition], bool]) -> None:
        for tp in [tp for tp in self.in_progress if is_removed(tp)]:
            del self.in_progress[tp]
        current = self._current
        if current is not None and is_removed(TopicPartition(current.topic, current.partition)):
            self._current = None
        self._records = [r for r in self._records[self._next :] if not is_removed(TopicPartition(r.topic, r.partition))]
        self._next = 0
