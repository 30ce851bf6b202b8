"""Reads of one log: the slice of a file for a fetch, and the lookup of offsets by timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.records.batch import BatchHeader, batch_at, corrupt
from kavka.records.compression import DecompressedTooLarge
from kavka.records.limits import MAX_UNPACKED_BYTES, SMALL_BATCH_BYTES, SMALL_UNPACKED_BYTES
from kavka.records.reader import batch_records
from kavka.storage.file_slice import FileSlice, LogFile
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.page_cache import is_resident
from kavka.storage.segment import LogSegment
from kavka.storage.segments import LogSegments
from kavka.storage.transaction_index import AbortedTxn
from kavka.storage.walk import SEGMENT_CHUNK_BYTES, walk

# The number of batches that a timestamp lookup may decompress on the event loop. A lookup
# decompresses one batch, unless batch headers have timestamps that no record has.
MAX_OPENED_ON_LOOP = 8
# The number of batches that a worker thread decompresses before it lets other requests decompress.
MAX_OPENED_IN_WORKER = 64
# The number of batch headers that a timestamp lookup may read on the event loop. A lookup reads the
# headers of one index interval, unless timestamps are out of order or the index is incomplete.
MAX_HEADERS_ON_LOOP = 500


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class StoredBatch(NamedTuple):
    """A batch in a file, to be searched for the first record at offset `start` or later whose
    timestamp is `timestamp` or later.

    The batch does not depend on its log, so a worker thread may read and decompress it. Its bytes
    are read only then, because a request may name thousands of partitions.
    """

    slice: FileSlice
    last_offset: int
    leader_epoch: int
    timestamp: int
    start: int

    def first_record(self, max_unpacked: int = MAX_UNPACKED_BYTES) -> TimestampOffset | None:
        """Return the matching record, or None. If the batch is too large to decompress
        (kavka.records.limits), return the start of the batch. Raises DecompressedTooLarge if
        `max_unpacked` is below the default and the batch exceeds it, and CORRUPT_MESSAGE."""
        data = self.slice.read()
        batch = batch_at(data, 0, len(data))
        if batch is None:
            raise corrupt(f"Cannot read the batch with last offset {self.last_offset}: it is incomplete.")
        try:
            for record in batch_records(batch, max_decompressed=max_unpacked, limited=True):
                if record.timestamp >= self.timestamp and record.offset >= self.start:
                    return TimestampOffset(record.timestamp, record.offset, self.leader_epoch)
        except KafkaError as error:
            fits_larger_limit = isinstance(error, DecompressedTooLarge) and max_unpacked < MAX_UNPACKED_BYTES
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or fits_larger_limit:
                raise
            # The start of the batch is never after the matching record.
            return TimestampOffset(batch.max_timestamp, max(batch.base_offset, self.start), self.leader_epoch)
        return None

    def first_record_if_small(self) -> TimestampOffset | None:
        """Like `first_record`, but raises MustSearchInWorker if the search may take more than a few
        milliseconds."""
        if len(self.slice) > SMALL_BATCH_BYTES or not is_resident(self.slice):
            raise MustSearchInWorker(self)
        try:
            return self.first_record(SMALL_UNPACKED_BYTES)
        except DecompressedTooLarge:
            raise MustSearchInWorker(self) from None


class StoredBatches(NamedTuple):
    """The batches from a position to the end of a file, to be searched like a `StoredBatch`.
    `last_offset` is the last offset of the file."""

    slice: FileSlice
    last_offset: int
    timestamp: int
    start: int

    def first_record(self) -> TimestampOffset | None:
        """Return the matching record, or None. Raises KafkaError, OSError, and MustSearchInWorker
        after `MAX_OPENED_IN_WORKER` batches. Only for worker threads."""
        file, position, end = self.slice.file, self.slice.position, self.slice.position + len(self.slice)
        headers = walk(file, position, end, chunk=SEGMENT_CHUNK_BYTES)
        for opened, batch in enumerate(matching_batches(file, headers, self.timestamp, self.start), 1):
            record = batch.first_record()
            if record is not None:
                return record
            if opened == MAX_OPENED_IN_WORKER:
                rest = self.slice.tail(batch.slice.position + len(batch.slice) - position)
                raise MustSearchInWorker(self._replace(slice=rest))
        return None


def matching_batches(
    file: LogFile, headers: Iterator[tuple[int, BatchHeader]], timestamp: int, start: int
) -> Iterator[StoredBatch]:
    """Yield the batches whose headers have a max timestamp of `timestamp` or later."""
    for position, header in headers:
        if header.max_timestamp >= timestamp and header.last_offset >= start:
            batch_slice = FileSlice(file, position, header.size)
            yield StoredBatch(batch_slice, header.last_offset, header.leader_epoch, timestamp, start)


class MustSearchInWorker(Exception):
    """A timestamp lookup reached batches that must not be read or decompressed on the event loop.
    The caller searches `batches` in a worker thread (`first_record`). If no record matches, the
    caller continues the lookup after the last offset of `batches`."""

    def __init__(self, batches: StoredBatch | StoredBatches) -> None:
        super().__init__("batches must be searched in a worker thread")
        self.batches = batches


def _first_record(batches: Iterator[StoredBatch], max_opened: int | None) -> TimestampOffset | None:
    for opened, batch in enumerate(batches):
        if max_opened is None:
            record = batch.first_record()
        elif opened >= max_opened:
            raise MustSearchInWorker(batch)
        else:
            record = batch.first_record_if_small()
        if record is not None:
            return record
    return None


class PageCacheMiss(Exception):
    """The batch headers that a read needs are not in the page cache. The caller warms `slice` in a
    worker thread and repeats the read."""

    def __init__(self, slice: FileSlice) -> None:
        super().__init__("not in the page cache")
        self.slice = slice


@dataclass(slots=True, eq=False)
class LogRead:
    """The bytes for a fetch. All batches are complete, except possibly the last one.

    `first_batch_size` is the size of the complete first batch. `is_recent` is True if the position
    came from memory: the batch was written recently and is almost certainly in the page cache.
    """

    slice: FileSlice
    first_batch_size: int
    is_recent: bool
    _segment: LogSegment
    _limit: int
    _is_partial: bool

    @property
    def position(self) -> int:
        return self.slice.position

    @property
    def is_first_batch_complete(self) -> bool:
        return self.slice.size >= self.first_batch_size

    def end_offset(self) -> int:
        """The offset after the last complete batch of the slice, or -1 if no batch is complete. The
        offset is an estimate if the slice is not recent and ends before the limit of the read."""
        if not self._is_partial:
            return self._limit
        last = self._segment.last_offset_before(self.slice.position + self.slice.size)
        return -1 if last is None else last + 1

    def upper_bound(self) -> int:
        """An offset past the last record of the slice. The response lists the aborted transactions
        up to this offset."""
        upper = self._segment.upper_offset(self.slice.position + self.slice.size)
        return self._limit if upper is None or upper > self._limit else upper


class LogReader:
    """Reads one log. The only state that a read changes is a cached position. A read returns only
    batches that `write_staged` has written. Only the thread that owns the log may call the
    methods."""

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
        """Return at most `max_bytes` of batches, beginning with the batch that contains `offset`,
        or with the next batch if compaction left a gap. Return None if there is no record from
        `offset` to `limit`.

        `limit` is the high watermark, the last stable offset or the end of the log. With
        `min_one_batch` the first batch is complete, whatever its size. Raises OFFSET_OUT_OF_RANGE
        if `offset` is not in [start_offset, end_offset]. With `nowait`, raises PageCacheMiss
        instead of waiting for the disk. The read loads only batch headers, and none near the end of
        the log.
        """
        offsets = self._offsets
        if not offsets.start_offset <= offset <= offsets.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot read {self._topic_partition} at offset {offset}: its offsets are {offsets.start_offset} to "
                f"{offsets.end_offset}.",
            )
        written_end = offsets.written_end
        if limit > written_end:
            limit = written_end
        if offset >= limit:
            return None
        segments = self._segments
        segment = segments.active
        segment_index = -1
        if offset < segment.base_offset:
            segment_index = segments.floor_index(offset) - len(segments)
            segment = segments[segment_index]
        try:
            while (first := segment.find(offset, nowait)) is None:
                segment_index += 1
                if not segment_index:
                    return None
                segment = segments[segment_index]
                if segment.base_offset >= limit:
                    return None
            end = self._end_position(segment, segment_index, limit, nowait)
        except BlockingIOError:
            position = segment.nearest_position(offset)
            raise PageCacheMiss(FileSlice(segment.file, position, min(1 << 16, segment.size - position))) from None
        position, first_size = first
        if min_one_batch and max_bytes < first_size:
            max_bytes = first_size
        available = size = end - position
        if size > max_bytes:
            size = max_bytes
        if size <= 0:
            return None
        recent_positions = segment.recent_positions
        file = segment.file
        file.fd  # noqa: B018  opens the file: its path may change before a worker reads the slice
        return LogRead(
            FileSlice(file, position, size),
            first_size,
            bool(recent_positions) and position >= recent_positions[0],
            segment,
            limit if segment_index == -1 else min(limit, segments[segment_index + 1].base_offset),
            size < available,
        )

    def _end_position(self, segment: LogSegment, segment_index: int, limit: int, nowait: bool) -> int:
        """Return the position in the segment at which the batches before `limit` end.
        `segment_index` counts segments from the end: -1 is the active segment."""
        if limit >= (
            self._offsets.written_end if segment_index == -1 else self._segments[segment_index + 1].base_offset
        ):
            return segment.file.size
        cached_position = self._limit_position
        if cached_position is not None and cached_position[0] is segment and cached_position[1] == limit:
            return cached_position[2]
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
        """Return the aborted transactions that overlap [from_offset, to_offset)."""
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
        """Return the first record past offset `after` whose timestamp is `timestamp` or later, or
        None.

        The lookup decompresses the batch that contains the record, and rarely others. With
        `max_opened`, for the event loop, the lookup raises MustSearchInWorker at a large batch,
        after `max_opened` batches, after many batch headers, and instead of waiting for the disk.
        """
        return _first_record(
            (
                batch
                for segment in self._segments
                if segment.max_timestamp >= timestamp
                for batch in self._batches_at(
                    segment, segment.time_index.lookup(timestamp)[1], timestamp, after, max_opened
                )
            ),
            max_opened,
        )

    def offset_of_max_timestamp(self, *, after: int = -1, max_opened: int | None = None) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of the log, or None if no record has a
        timestamp. `after` and `max_opened` are those of `offset_for_timestamp`."""
        # `max` returns the first of equal segments.
        segment = max(self._segments, key=lambda segment: segment.max_timestamp)
        if segment.max_timestamp < 0:
            return None
        batches = self._batches_at(segment, segment.max_timestamp_offset, segment.max_timestamp, after, max_opened)
        return _first_record(batches, max_opened)

    def _batches_at(
        self, segment: LogSegment, from_offset: int, timestamp: int, after: int, max_opened: int | None
    ) -> Iterator[StoredBatch]:
        """Yield the batches whose headers have a max timestamp of `timestamp` or later."""
        start = max(self._offsets.start_offset, after + 1)
        is_active = segment is self._segments.active
        last_offset = (self._offsets.written_end if is_active else self._segments.base_after(segment)) - 1
        if last_offset < start:
            return iter(())
        _, position = segment.offset_index.lookup(max(from_offset, start))
        if max_opened is None:
            headers = segment.batches(position)
        else:
            rest = StoredBatches(
                FileSlice(segment.file, position, segment.size - position), last_offset, timestamp, start
            )
            headers = _headers_on_loop(rest, MAX_HEADERS_ON_LOOP if max_opened else 0)
        return matching_batches(segment.file, headers, timestamp, start)


def _headers_on_loop(batches: StoredBatches, max_headers: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield up to `max_headers` headers that are in the page cache. Raises MustSearchInWorker at
    the next header."""
    file, first_position, end = batches.slice.file, batches.slice.position, batches.slice.position + len(batches.slice)
    position, count = first_position, 0
    try:
        for position, header in walk(file, first_position, end, nowait=True):
            if count == max_headers:
                break
            count += 1
            yield position, header
        else:
            return
    except BlockingIOError:
        pass
    raise MustSearchInWorker(batches._replace(slice=batches.slice.tail(position - first_position)))
