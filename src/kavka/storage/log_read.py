"""Reading: which bytes of which file answer a fetch, and which offset answers a question about time or epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import LOG_OVERHEAD, batch_at
from kavka.records.compression import UnpacksToTooMuch
from kavka.records.limits import MAX_UNPACKED_BYTES, SMALL_BATCH_BYTES, SMALL_UNPACKED_BYTES
from kavka.records.reader import batch_records
from kavka.storage.file_slice import FileSlice
from kavka.storage.log_state import LogState
from kavka.storage.segment import LogSegment
from kavka.storage.transaction_index import AbortedTxn

# A search by time opens one batch, unless headers claim timestamps that no record has.
OPENED_ON_LOOP = 8


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class StoredBatch(NamedTuple):
    """Where a batch is, and which of its records is searched: the first one of at least `timestamp` at offset `start`
    or later. Needs nothing of its log, and may be read and opened in a worker thread: a request may be about thousands
    of partitions, whose batches must not be in memory all at once."""

    piece: FileSlice
    last_offset: int
    leader_epoch: int
    timestamp: int
    start: int

    def first_record(self, max_unpacked: int = MAX_UNPACKED_BYTES) -> TimestampOffset | None:
        """The record; the start of a batch that kavka.records.limits does not let be opened."""
        data = self.piece.read()
        batch = batch_at(data, 0, len(data))
        if batch is None:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"There is no whole batch before offset {self.last_offset}.")
        try:
            for record in batch_records(batch, max_decompressed=max_unpacked, limited=True):
                if record.timestamp >= self.timestamp and record.offset >= self.start:
                    return TimestampOffset(record.timestamp, record.offset, self.leader_epoch)
        except KafkaError as error:
            may_be_opened = isinstance(error, UnpacksToTooMuch) and max_unpacked < MAX_UNPACKED_BYTES
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or may_be_opened:
                raise
            # It is never opened. Its start is not after the record that is searched.
            return TimestampOffset(batch.max_timestamp, max(batch.base_offset, self.start), self.leader_epoch)
        return None

    def first_record_if_small(self) -> TimestampOffset | None:
        """UnopenedBatch where opening may take more than a few milliseconds."""
        if len(self.piece) > SMALL_BATCH_BYTES:
            raise UnopenedBatch(self)
        try:
            return self.first_record(SMALL_UNPACKED_BYTES)
        except UnpacksToTooMuch:
            raise UnopenedBatch(self) from None


class UnopenedBatch(Exception):
    """The search came to a batch that is not opened on the event loop. Search it in a worker thread (`first_record`),
    then go on after its last offset."""

    def __init__(self, batch: StoredBatch) -> None:
        super().__init__("a batch has to be opened in a worker thread")
        self.batch = batch


def _first_record(batches: Iterator[StoredBatch], max_opened: int | None) -> TimestampOffset | None:
    for opened, batch in enumerate(batches):
        if max_opened is None:
            found = batch.first_record()
        elif opened >= max_opened:
            raise UnopenedBatch(batch)
        else:
            found = batch.first_record_if_small()
        if found is not None:
            return found
    return None


class ColdRead(Exception):
    """The headers that lead to an offset are not in the page cache: warm `slice` in a worker thread and read again."""

    def __init__(self, slice: FileSlice) -> None:
        super().__init__("not in the page cache")
        self.slice = slice


class LogRead:
    """The bytes that answer a fetch: whole batches, but the last one may be cut off.

    `first_batch_size` is that of the first batch, whether the slice has all of it or not. `recent`: found from
    memory, so written lately and almost surely still in the page cache.
    """

    __slots__ = ("_is_cut", "_limit", "_segment", "first_batch_size", "recent", "slice")

    def __init__(
        self, slice: FileSlice, first_batch_size: int, recent: bool, segment: LogSegment, limit: int, is_cut: bool
    ) -> None:
        self.slice = slice
        self.first_batch_size = first_batch_size
        self.recent = recent
        self._segment = segment
        self._limit = limit
        self._is_cut = is_cut

    @property
    def position(self) -> int:
        return self.slice.position

    @property
    def first_batch_complete(self) -> bool:
        return self.slice.size >= self.first_batch_size

    def end_offset(self) -> int:
        """The offset after the last whole batch of the slice. For what is neither recent nor read to its end, about
        that; -1 where nothing can be said."""
        if not self._is_cut:
            return self._limit
        last = self._segment.last_offset_before(self.slice.position + self.slice.size)
        return -1 if last is None else last + 1

    def upper_bound(self) -> int:
        """An offset that no record of the slice reaches, near its end: what aborted transactions are asked for with."""
        upper = self._segment.upper_offset(self.slice.position + self.slice.size)
        return self._limit if upper is None or upper > self._limit else upper

    def __repr__(self) -> str:
        return f"LogRead({self.slice!r})"


class LogReading(LogState):
    """Nothing here changes the log. A read sees what was written up to the last `write_staged`, never a turn half
    done."""

    def read(
        self, offset: int, max_bytes: int, *, limit: int, min_one_batch: bool, nowait: bool = False
    ) -> LogRead | None:
        """The batches from the one that holds `offset` (or the next one, where compaction left a gap) up to
        `max_bytes`.

        `limit` is the offset to stop before: the high watermark, the last stable offset or the end. None where there
        is nothing to read yet. OFFSET_OUT_OF_RANGE outside of [start_offset, end_offset]. With `min_one_batch` the
        first batch comes whole whatever its size. With `nowait`, ColdRead instead of waiting for the disk. Reads
        headers only, and those only far from the end of the log.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has offsets from {self.start_offset} to {self.end_offset}, not {offset}.",
            )
        written = self.written_end
        if limit > written:
            limit = written
        if offset >= limit:
            return None
        segment = self.active
        number = -1
        if offset < segment.base_offset:
            number = self.segments.floor_index(offset) - len(self.segments)
            segment = self.segments[number]
        try:
            while (found := segment.find(offset, nowait)) is None:
                number += 1
                if not number:
                    return None
                segment = self.segments[number]
                if segment.base_offset >= limit:
                    return None
            end = self._end_position(segment, number, limit, nowait)
        except BlockingIOError:
            position = segment.nearest_position(offset)
            raise ColdRead(FileSlice(segment.file, position, min(1 << 16, segment.size - position))) from None
        position, first_size = found
        if min_one_batch and max_bytes < first_size:
            max_bytes = first_size
        available = size = end - position
        if size > max_bytes:
            size = max_bytes
        if size <= 0:
            return None
        recent = segment.recent_positions
        file = segment.file
        file.fd  # noqa: B018  opened here: a worker may read the slice when the path has changed
        return LogRead(
            FileSlice(file, position, size),
            first_size,
            bool(recent) and position >= recent[0],
            segment,
            limit if number == -1 else min(limit, self.segments[number + 1].base_offset),
            size < available,
        )

    def _end_position(self, segment: LogSegment, number: int, limit: int, nowait: bool) -> int:
        """Where the bytes before `limit` end in the segment (`number` counts from the end: -1 is the active one)."""
        if limit >= (self.written_end if number == -1 else self.segments[number + 1].base_offset):
            return segment.file.size
        known = self.limit_found
        if known is not None and known[0] is segment and known[1] == limit:
            return known[2]
        found = segment.find(limit, nowait)
        end = segment.file.size if found is None else found[0]
        self.limit_found = (segment, limit, end)
        return end

    def bytes_between(self, from_offset: int, to_offset: int) -> int:
        """About how many bytes lie between two offsets, without any look at the .log files."""
        to_offset = min(to_offset, self.written_end)
        if from_offset >= to_offset:
            return 0
        active = self.active
        if from_offset >= active.base_offset:
            end = active.file.size if to_offset >= self.written_end else active.nearest_position(to_offset)
            return max(0, end - active.nearest_position(from_offset))
        total = 0
        for segment in self.segments.from_offset(from_offset):
            if segment.base_offset >= to_offset:
                break
            begin = segment.nearest_position(from_offset) if segment.base_offset < from_offset else 0
            total += segment.file.size - begin
            last = segment
        if to_offset < self.written_end:
            total -= last.file.size - last.nearest_position(to_offset)
        return max(0, total)

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that overlap [from_offset, to_offset)."""
        found: list[AbortedTxn] = []
        for segment in self.segments.from_offset(from_offset):
            here, complete = segment.aborted_transactions(from_offset, to_offset)
            found += here
            if complete:
                break
        return found

    # --- by time

    def offset_for_timestamp(
        self, timestamp: int, *, after: int = -1, max_opened: int | None = None
    ) -> TimestampOffset | None:
        """The first record whose timestamp is `timestamp` or later, in batches that end past offset `after`.

        Opens batches: the one that has it, rarely more. With `max_opened`, for the event loop: UnopenedBatch at a large
        batch, and where more than that have to be opened.
        """
        return _first_record(
            (
                batch
                for segment in self.segments
                if segment.max_timestamp >= timestamp
                for batch in self._batches_at(segment, segment.time_index.lookup(timestamp)[1], timestamp, after)
            ),
            max_opened,
        )

    def offset_of_max_timestamp(self, *, after: int = -1, max_opened: int | None = None) -> TimestampOffset | None:
        """The first record that has the largest timestamp of the log; None where no record has a timestamp.
        Otherwise as `offset_for_timestamp`."""
        best: LogSegment | None = None
        for segment in self.segments:
            if segment.max_timestamp >= 0 and (best is None or segment.max_timestamp > best.max_timestamp):
                best = segment
        if best is None:
            return None
        return _first_record(
            self._batches_at(best, best.offset_of_max_timestamp, best.max_timestamp, after), max_opened
        )

    def _batches_at(self, segment: LogSegment, from_offset: int, timestamp: int, after: int) -> Iterator[StoredBatch]:
        """The batches whose headers say that they have a record of `timestamp` or later."""
        start = max(self.start_offset, after + 1)
        _, position = segment.offset_index.lookup(max(from_offset, start))
        for at, header in segment.batches(position):
            if header.max_timestamp >= timestamp and header.last_offset >= start:
                piece = FileSlice(segment.file, at, header.size)
                yield StoredBatch(piece, header.last_offset, header.leader_epoch, timestamp, start)

    # --- by epoch

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch that something is known of; -1 where there is none."""
        return self.epochs.latest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch up to `epoch`, where it ends); (-1, -1) where that cannot be said."""
        return self.epochs.end_offset_for(epoch, self.written_end)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch that the record at `offset` was written in; -1 where that is not known."""
        return self.epochs.epoch_for(offset)

    def read_batches(self, offset: int, max_bytes: int, *, limit: int | None = None) -> bytes:
        """The bytes of whole batches from `offset` on, at least one if there is one: for the broker's own topics.
        Blocks on the disk."""
        found = self.read(offset, max_bytes, limit=self.written_end if limit is None else limit, min_one_batch=True)
        if found is None:
            return b""
        data = found.slice.read()
        end = 0
        while len(data) - end >= LOG_OVERHEAD:
            after = end + LOG_OVERHEAD + int.from_bytes(data[end + 8 : end + 12])
            if after > len(data):
                break
            end = after
        return data[:end]
