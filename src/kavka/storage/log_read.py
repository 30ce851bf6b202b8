"""Reading: the slice of a file for a fetch, and offsets by timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.records.batch import batch_at, corrupt
from kavka.records.compression import DecompressedTooLarge
from kavka.records.limits import MAX_UNPACKED_BYTES, SMALL_BATCH_BYTES, SMALL_UNPACKED_BYTES
from kavka.records.reader import batch_records
from kavka.storage.file_slice import FileSlice
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.segment import LogSegment
from kavka.storage.segments import LogSegments
from kavka.storage.transaction_index import AbortedTxn

# A search by time decompresses one batch, unless headers claim timestamps that no record has.
OPENED_ON_LOOP = 8


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class StoredBatch(NamedTuple):
    """A batch in a file in which a record is searched: the first record at offset `start` or later
    with a timestamp of at least `timestamp`.

    It does not depend on its log, so a worker thread may read and decompress it. The bytes are read
    only then, because a request may name thousands of partitions.
    """

    piece: FileSlice
    last_offset: int
    leader_epoch: int
    timestamp: int
    start: int

    def first_record(self, max_unpacked: int = MAX_UNPACKED_BYTES) -> TimestampOffset | None:
        """The matching record, or the start of the batch if it is too large to decompress
        (kavka.records.limits)."""
        data = self.piece.read()
        batch = batch_at(data, 0, len(data))
        if batch is None:
            raise corrupt(f"There is no complete batch with last offset {self.last_offset}.")
        try:
            for record in batch_records(batch, max_decompressed=max_unpacked, limited=True):
                if record.timestamp >= self.timestamp and record.offset >= self.start:
                    return TimestampOffset(record.timestamp, record.offset, self.leader_epoch)
        except KafkaError as error:
            may_be_opened = isinstance(error, DecompressedTooLarge) and max_unpacked < MAX_UNPACKED_BYTES
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or may_be_opened:
                raise
            # The start of the batch is never after the matching record.
            return TimestampOffset(batch.max_timestamp, max(batch.base_offset, self.start), self.leader_epoch)
        return None

    def first_record_if_small(self) -> TimestampOffset | None:
        """Like `first_record`, but raises UnopenedBatch if that may take more than a few
        milliseconds."""
        if len(self.piece) > SMALL_BATCH_BYTES:
            raise UnopenedBatch(self)
        try:
            return self.first_record(SMALL_UNPACKED_BYTES)
        except DecompressedTooLarge:
            raise UnopenedBatch(self) from None


class UnopenedBatch(Exception):
    """The search reached a batch that must not be decompressed on the event loop. The caller
    searches it in a worker thread (`first_record`), then continues after its last offset."""

    def __init__(self, batch: StoredBatch) -> None:
        super().__init__("a batch must be decompressed in a worker thread")
        self.batch = batch


def _first_record(batches: Iterator[StoredBatch], max_opened: int | None) -> TimestampOffset | None:
    for opened, batch in enumerate(batches):
        if max_opened is None:
            record = batch.first_record()
        elif opened >= max_opened:
            raise UnopenedBatch(batch)
        else:
            record = batch.first_record_if_small()
        if record is not None:
            return record
    return None


class ColdRead(Exception):
    """The batch headers before an offset are not in the page cache. The caller warms `slice` in a
    worker thread and reads again."""

    def __init__(self, slice: FileSlice) -> None:
        super().__init__("not in the page cache")
        self.slice = slice


@dataclass(slots=True, eq=False)
class LogRead:
    """The bytes for a fetch. All batches are complete, except possibly the last one.

    `first_batch_size` is the size of the complete first batch. `recent` is True if the position
    came from memory: the batch was written recently and is almost certainly in the page cache.
    """

    slice: FileSlice
    first_batch_size: int
    recent: bool
    _segment: LogSegment
    _limit: int
    _is_partial: bool

    @property
    def position(self) -> int:
        return self.slice.position

    @property
    def first_batch_complete(self) -> bool:
        return self.slice.size >= self.first_batch_size

    def end_offset(self) -> int:
        """The offset after the last complete batch of the slice, or -1 if there is none. It is an
        estimate if the slice is not recent and ends before the limit of the read."""
        if not self._is_partial:
            return self._limit
        last = self._segment.last_offset_before(self.slice.position + self.slice.size)
        return -1 if last is None else last + 1

    def upper_bound(self) -> int:
        """An offset past all records of the slice, near its end. The aborted transactions of the
        response end there."""
        upper = self._segment.upper_offset(self.slice.position + self.slice.size)
        return self._limit if upper is None or upper > self._limit else upper


class LogReader:
    """Reads of one log, which change only a cached position. A read returns batches up to the last
    `write_staged`. Only the thread that owns the log may call the methods."""

    __slots__ = ("_limit_position", "_offsets", "_segments", "_topic_partition")

    def __init__(self, offsets: LogOffsets, segments: LogSegments, topic_partition: TopicPartition) -> None:
        self._offsets = offsets
        self._segments = segments
        self._topic_partition = topic_partition
        # (segment, limit, position): the last result of `_end_position`.
        self._limit_position: tuple[LogSegment, int, int] | None = None

    def forget_position(self) -> None:
        """Drop the cached position, after segments were removed or truncated."""
        self._limit_position = None

    def read(
        self, offset: int, max_bytes: int, *, limit: int, min_one_batch: bool, nowait: bool = False
    ) -> LogRead | None:
        """At most `max_bytes` of batches, beginning with the batch that contains `offset` (or the
        next one, if compaction left a gap); None if there is no record from `offset` to `limit`.

        `limit` is the high watermark, the last stable offset or the end of the log. With
        `min_one_batch` the first batch is complete whatever its size. Raises OFFSET_OUT_OF_RANGE if
        `offset` is not in [start_offset, end_offset]. With `nowait`, raises ColdRead instead of
        waiting for the disk. Only batch headers are read, and none near the end of the log.
        """
        offsets = self._offsets
        if not offsets.start_offset <= offset <= offsets.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._topic_partition} has offsets from {offsets.start_offset} to {offsets.end_offset}, "
                f"not {offset}.",
            )
        written = offsets.written_end
        if limit > written:
            limit = written
        if offset >= limit:
            return None
        segments = self._segments
        segment = segments.active
        number = -1
        if offset < segment.base_offset:
            number = segments.floor_index(offset) - len(segments)
            segment = segments[number]
        try:
            while (first := segment.find(offset, nowait)) is None:
                number += 1
                if not number:
                    return None
                segment = segments[number]
                if segment.base_offset >= limit:
                    return None
            end = self._end_position(segment, number, limit, nowait)
        except BlockingIOError:
            position = segment.nearest_position(offset)
            raise ColdRead(FileSlice(segment.file, position, min(1 << 16, segment.size - position))) from None
        position, first_size = first
        if min_one_batch and max_bytes < first_size:
            max_bytes = first_size
        available = size = end - position
        if size > max_bytes:
            size = max_bytes
        if size <= 0:
            return None
        recent = segment.recent_positions
        file = segment.file
        file.fd  # noqa: B018  opens the file: its path may change before a worker reads the slice
        return LogRead(
            FileSlice(file, position, size),
            first_size,
            bool(recent) and position >= recent[0],
            segment,
            limit if number == -1 else min(limit, segments[number + 1].base_offset),
            size < available,
        )

    def _end_position(self, segment: LogSegment, number: int, limit: int, nowait: bool) -> int:
        """The position in the segment at which the batches before `limit` end. `number` counts
        segments from the end: -1 is the active segment."""
        if limit >= (self._offsets.written_end if number == -1 else self._segments[number + 1].base_offset):
            return segment.file.size
        cached = self._limit_position
        if cached is not None and cached[0] is segment and cached[1] == limit:
            return cached[2]
        batch = segment.find(limit, nowait)
        end = segment.file.size if batch is None else batch[0]
        self._limit_position = (segment, limit, end)
        return end

    def bytes_between(self, from_offset: int, to_offset: int) -> int:
        """Estimate the number of bytes between two offsets, without reading a .log file."""
        written_end = self._offsets.written_end
        to_offset = min(to_offset, written_end)
        if from_offset >= to_offset:
            return 0
        active = self._segments.active
        if from_offset >= active.base_offset:
            end = active.file.size if to_offset >= written_end else active.nearest_position(to_offset)
            return max(0, end - active.nearest_position(from_offset))
        total = 0
        for segment in self._segments.from_offset(from_offset):
            if segment.base_offset >= to_offset:
                break
            begin = segment.nearest_position(from_offset) if segment.base_offset < from_offset else 0
            total += segment.file.size - begin
            last = segment
        if to_offset < written_end:
            total -= last.file.size - last.nearest_position(to_offset)
        return max(0, total)

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that overlap [from_offset, to_offset)."""
        aborted: list[AbortedTxn] = []
        for segment in self._segments.from_offset(from_offset):
            in_segment, is_complete = segment.txn_index.aborted_between(from_offset, to_offset)
            aborted += in_segment
            if is_complete:
                break
        return aborted

    # --- by time

    def offset_for_timestamp(
        self, timestamp: int, *, after: int = -1, max_opened: int | None = None
    ) -> TimestampOffset | None:
        """The first record past offset `after` whose timestamp is `timestamp` or later.

        It decompresses the batch that contains the record, and rarely others. With `max_opened`,
        for the event loop, it raises UnopenedBatch at a large batch and after that many batches.
        """
        return _first_record(
            (
                batch
                for segment in self._segments
                if segment.max_timestamp >= timestamp
                for batch in self._batches_at(segment, segment.time_index.lookup(timestamp)[1], timestamp, after)
            ),
            max_opened,
        )

    def offset_of_max_timestamp(self, *, after: int = -1, max_opened: int | None = None) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log; None if no record has a
        timestamp. The options are those of `offset_for_timestamp`."""
        # `max` returns the first of equal segments.
        segment = max(self._segments, key=lambda segment: segment.max_timestamp)
        if segment.max_timestamp < 0:
            return None
        batches = self._batches_at(segment, segment.max_timestamp_offset, segment.max_timestamp, after)
        return _first_record(batches, max_opened)

    def _batches_at(self, segment: LogSegment, from_offset: int, timestamp: int, after: int) -> Iterator[StoredBatch]:
        """The batches that, by their headers, have a record of `timestamp` or later."""
        start = max(self._offsets.start_offset, after + 1)
        _, position = segment.offset_index.lookup(max(from_offset, start))
        for at, header in segment.batches(position):
            if header.max_timestamp >= timestamp and header.last_offset >= start:
                piece = FileSlice(segment.file, at, header.size)
                yield StoredBatch(piece, header.last_offset, header.leader_epoch, timestamp, start)
