"""One segment of a log: the file of batches and its three indexes."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kavka.common.errors import KafkaError
from kavka.records.batch import LOG_OVERHEAD, BatchHeader
from kavka.storage.file_slice import LogFile
from kavka.storage.files import SEGMENT_SUFFIXES, file_name, remove_if_exists
from kavka.storage.index_file import CorruptIndexError
from kavka.storage.log_config import MAX_LONG, LogConfig
from kavka.storage.offset_index import OffsetIndex
from kavka.storage.time_index import TimeIndex
from kavka.storage.transaction_index import TransactionIndex
from kavka.storage.walk import SEGMENT_CHUNK_BYTES, header_at, walk

MAX_RELATIVE_OFFSET = 2**31 - 1
"""The largest distance of an offset from the base offset of its segment."""

ROLL_TIME_UNKNOWN = -(2**63)

SegmentMark = tuple[int, int, int, int, int, int | None, int, int | None, int, bool]
"""An earlier state of a segment, for `LogSegment.restore`."""

RECENT_BATCHES = 1024
"""A segment keeps the positions of at least this many of its last batches in memory, and of at most
twice as many."""


@dataclass(slots=True, eq=False, repr=False)
class LogSegment:
    """The files `<base offset>.log`, `.index`, `.timeindex` and, if a transaction was aborted,
    `.txnindex`.

    Only the loop thread changes a segment that belongs to a log. A segment that the cleaner creates
    (`suffix=".cleaned"`) belongs to the worker thread until `Log.replace_segments`. Any thread may
    read an inactive segment (`file.read`, `batches`): its bytes do not change, and its descriptor
    stays open while a thread uses it (LogFile). A crash may leave an incomplete batch at the
    end of the file, and invalid indexes. Recovery truncates the file and rebuilds the indexes.

    `recent_last_offsets` and `recent_positions` are the last offsets and the positions of the last
    batches of the file, without a gap. They may be empty. Reads near the end of the log use them
    instead of the file.

    `max_timestamp_so_far` is None until its first use, which reads it from the last entry of the
    time index. That entry is exact for a segment that was closed or rolled.

    The next append rolls if its max timestamp, or with `rolls_by_clock` the current time, is later
    than `roll_at`. ROLL_TIME_UNKNOWN, which is earlier than all times, means that `set_roll_time`
    must compute `roll_at`.
    """

    dir: str
    base_offset: int
    config: LogConfig
    created_ms: int
    file: LogFile
    offset_index: OffsetIndex
    time_index: TimeIndex
    txn_index: TransactionIndex
    max_timestamp_so_far: int | None = None
    max_timestamp_offset: int = field(init=False)
    bytes_since_index: int = 0
    recent_last_offsets: array[int] = field(default_factory=lambda: array("q"))
    recent_positions: array[int] = field(default_factory=lambda: array("q"))
    first_timestamp: int | None = None
    roll_at: int = ROLL_TIME_UNKNOWN
    rolls_by_clock: bool = False
    roll_jitter_ms: int = field(init=False)
    indexes_missing: bool = False

    def __post_init__(self) -> None:
        self.max_timestamp_offset = self.base_offset
        self.roll_jitter_ms = self.config.random_segment_jitter()

    @classmethod
    def create(cls, dir: str, base_offset: int, config: LogConfig, now_ms: int, *, suffix: str = "") -> LogSegment:
        """Create a segment with empty files (`suffix` ".cleaned" for the cleaner). Overwrites
        existing files. Raises OSError."""
        log, index, time_index, txn_index = _paths(dir, base_offset, suffix)
        remove_if_exists(txn_index)
        segment = cls(
            dir,
            base_offset,
            config,
            now_ms,
            LogFile.create(log, config.segment_bytes if config.preallocate else 0),
            OffsetIndex(index, base_offset, config.segment_index_bytes),
            TimeIndex(time_index, base_offset, config.segment_index_bytes),
            TransactionIndex(txn_index, base_offset),
        )
        segment.offset_index.create()
        segment.time_index.create()
        segment.max_timestamp_so_far = -1
        segment.roll_at = MAX_LONG
        return segment

    @classmethod
    def open(
        cls,
        dir: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        *,
        suffix: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> LogSegment:
        """Open a segment with existing files. Reads no data; indexes are mapped at their first use.
        `sizes` maps file names to lengths; None looks them up. A missing index counts as empty
        until `check`. Raises FileNotFoundError if the .log file is missing."""
        paths = _paths(dir, base_offset, suffix)
        if sizes is None:
            sizes = {os.path.basename(path): os.stat(path).st_size for path in paths if os.path.exists(path)}
        lengths = [sizes.get(os.path.basename(path), -1) for path in paths]
        if lengths[0] < 0:
            raise FileNotFoundError(paths[0])
        index_bytes = config.segment_index_bytes
        segment = cls(
            dir,
            base_offset,
            config,
            now_ms,
            LogFile(paths[0], lengths[0]),
            OffsetIndex(paths[1], base_offset, index_bytes, max(0, lengths[1])),
            TimeIndex(paths[2], base_offset, index_bytes, max(0, lengths[2])),
            TransactionIndex(paths[3], base_offset, lengths[3] >= 0),
        )
        segment.indexes_missing = lengths[1] < 0 or lengths[2] < 0
        return segment

    @property
    def size(self) -> int:
        """The number of bytes of complete batches in the .log file."""
        return self.file.size

    # --- timestamps

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, or -1. The first use reads it and its offset from
        the time index."""
        timestamp = self.max_timestamp_so_far
        if timestamp is None:
            timestamp, self.max_timestamp_offset = self.time_index.last_entry
            self.max_timestamp_so_far = timestamp
        return timestamp

    @property
    def largest_timestamp(self) -> int:
        """The timestamp of the segment for retention: `max_timestamp`, or the modification time of
        the file (ms) if no record has a timestamp."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.last_modified_ms()

    def last_modified_ms(self) -> int:
        return os.stat(self.file.path).st_mtime_ns // 1_000_000

    def set_last_modified_ms(self, time_ms: int) -> None:
        for path in (self.file.path, self.offset_index.path, self.time_index.path):
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch, from which segment.ms is counted, or None if
        the segment is empty."""
        if self.first_timestamp is None and self.file.size:
            for _, header in walk(self.file, 0, self.file.size):
                self.first_timestamp = header.max_timestamp
                break
        return self.first_timestamp

    def set_roll_time(self) -> None:
        """Set `roll_at` to segment.ms after the timestamp of the first batch. If that batch has no
        timestamp, `roll_at` is segment.ms after the segment was created or opened. An empty segment
        does not roll."""
        first = self.first_batch_timestamp()
        max_age_ms = self.config.max_segment_ms - self.roll_jitter_ms
        self.rolls_by_clock = first is not None and first < 0
        if first is None:
            self.roll_at = MAX_LONG
        else:
            self.roll_at = (self.created_ms if first < 0 else first) + max_age_ms

    # --- lookup

    def find(self, offset: int, nowait: bool = False) -> tuple[int, int] | None:
        """Return (position, size) of the first batch whose last offset is `offset` or later, or
        None. With `nowait`, raises BlockingIOError instead of waiting for the disk."""
        last = self.recent_last_offsets
        if last and (offset > last[0] or not self.recent_positions[0]):
            n = bisect_left(last, offset)
            if n == len(last):
                return None
            positions = self.recent_positions
            position = positions[n]
            n += 1
            return position, (positions[n] if n < len(positions) else self.file.size) - position
        for position, header in walk(self.file, self.offset_index.lookup(offset)[1], self.file.size, nowait=nowait):
            if header[0] + header[6] >= offset:
                return position, header[1] + LOG_OVERHEAD
        return None

    def nearest_position(self, offset: int) -> int:
        """Estimate the position of `offset` from memory and the index, without reading the .log
        file."""
        last = self.recent_last_offsets
        if last and offset > last[0]:
            n = bisect_left(last, offset)
            return self.recent_positions[n] if n < len(last) else self.file.size
        return self.offset_index.lookup(offset)[1]

    def upper_offset(self, position: int) -> int | None:
        """Return an offset past all records before `position`, from memory and the index, without
        reading the .log file. Return None if the end of the segment is the best estimate."""
        positions = self.recent_positions
        if positions and position >= positions[0]:
            n = bisect_left(positions, position)
            return self.recent_last_offsets[n] if n < len(positions) else None
        index = self.offset_index
        n = bisect_left(range(index.entries), position, key=lambda entry: index.entry(entry)[1])
        return index.entry(n)[0] if n < index.entries else None

    def last_offset_before(self, position: int) -> int | None:
        """Return the last offset of the batches that end at or before `position`, or None. The
        offset is exact if it is in memory, and an estimate if it is from the index."""
        positions = self.recent_positions
        if positions and position > positions[0]:
            n = bisect_left(positions, position)
            is_batch_end = position >= self.file.size if n == len(positions) else positions[n] == position
            n -= 1 if is_batch_end else 2
            return self.recent_last_offsets[n] if n >= 0 else None
        index = self.offset_index
        n = bisect_left(range(index.entries), position, key=lambda entry: index.entry(entry)[1])
        return index.entry(n - 1)[0] if n else None

    def batches(self, position: int = 0, chunk: int = SEGMENT_CHUNK_BYTES) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batch at `position` and of all later batches. Raises
        CORRUPT_MESSAGE for an invalid header."""
        return walk(self.file, position, self.file.size, chunk=chunk)

    def load_tail(self) -> int:
        """Read the batches after the last index entry, and set the state that appends need from
        them. Returns the offset after the last record.

        Raises CorruptIndexError if the index does not match the log, or the log does not end with a
        complete batch.
        """
        end = self.file.size
        indexed_offset, position = self.offset_index.last_entry
        is_indexed = self.offset_index.entries > 0
        if position > end or (is_indexed and position == end):
            raise CorruptIndexError(f"{self.offset_index.path}: the last entry is past the end of the log")
        next_offset = self.base_offset
        largest, largest_offset = self.time_index.last_entry
        self.recent_last_offsets = array("q")
        self.recent_positions = array("q")
        try:
            for at, header in walk(self.file, position, end):
                last = header[0] + header[6]
                if last < next_offset or (is_indexed and not self.recent_last_offsets and last > indexed_offset):
                    raise CorruptIndexError(
                        f"{self.offset_index.path}: the last entry does not match the batch at position {at}"
                    )
                next_offset = last + 1
                if header[8] > largest:
                    largest, largest_offset = header[8], last
                position = at + header[1] + LOG_OVERHEAD
                self.recent_last_offsets.append(last)
                self.recent_positions.append(at)
        except KafkaError as error:
            raise CorruptIndexError(f"{self.file.path}: {error}") from error
        if position != end:
            raise CorruptIndexError(f"{self.file.path}: the last {end - position} bytes are not a complete batch")
        self.max_timestamp_so_far, self.max_timestamp_offset = largest, largest_offset
        self.bytes_since_index = end - self.recent_positions[0] if self.recent_positions else 0
        return next_offset

    def next_offset(self) -> int:
        """Return the offset after the last record. Raises CorruptIndexError (`load_tail`)."""
        if self.recent_last_offsets:
            return self.recent_last_offsets[-1] + 1
        return self.load_tail() if self.file.size else self.base_offset

    # --- writing

    def append_batches(self, buffer: memoryview | bytes | bytearray) -> None:
        """Append complete batches, which have their offsets, and index them. Only for the cleaner:
        LogAppender has separate code for the hot path, which writes the same bytes."""
        start = self.file.size
        self.file.append([buffer], len(buffer))
        position = 0
        while position < len(buffer):
            header = header_at(buffer, position)
            assert header is not None
            self.index_batch(header, start + position)
            position += header.size
        self.forget_recent()

    def index_batch(self, header: BatchHeader, position: int) -> None:
        """Update the timestamps for a batch that is in the file, and add an index entry if one is
        due."""
        last = header[0] + header[6]
        if header[8] > self.max_timestamp:
            self.max_timestamp_so_far, self.max_timestamp_offset = header[8], last
        if not position:
            self.first_timestamp = header[8]
        is_full = self.offset_index.is_full or self.time_index.is_full
        if self.bytes_since_index > self.config.index_interval_bytes and not is_full:
            self.add_index_entries([(last, position, self.max_timestamp, self.max_timestamp_offset)])
            self.bytes_since_index = 0
        self.bytes_since_index += header[1] + LOG_OVERHEAD

    def add_index_entries(self, entries: Sequence[tuple[int, int, int, int]]) -> None:
        """Add entries of (last offset, position, largest timestamp so far, last offset of the batch
        with that timestamp)."""
        offset_index, time_index = self.offset_index, self.time_index
        for last_offset, position, timestamp, timestamp_offset in entries:
            offset_index.append(last_offset, position)
            time_index.maybe_append(timestamp, timestamp_offset)

    def remember(self, last_offsets: list[int], positions: list[int]) -> None:
        """Add batches to `recent_last_offsets` and `recent_positions`."""
        recent_last_offsets, recent_positions = self.recent_last_offsets, self.recent_positions
        recent_last_offsets.fromlist(last_offsets)
        recent_positions.fromlist(positions)
        if len(recent_last_offsets) > 2 * RECENT_BATCHES:
            del recent_last_offsets[:-RECENT_BATCHES], recent_positions[:-RECENT_BATCHES]

    def forget_recent(self) -> None:
        """Clear `recent_last_offsets` and `recent_positions`."""
        del self.recent_last_offsets[:], self.recent_positions[:]

    def mark(self) -> SegmentMark:
        """Return the current state, for `restore`. The state is a tuple, which is cheap to create:
        every write of staged batches needs one."""
        return (
            self.file.size,
            self.offset_index.entries,
            self.time_index.entries,
            len(self.txn_index.entries),
            self.bytes_since_index,
            self.max_timestamp_so_far,
            self.max_timestamp_offset,
            self.first_timestamp,
            self.roll_at,
            self.rolls_by_clock,
        )

    def restore(self, mark: SegmentMark) -> None:
        """Remove all batches and index entries added since `mark`. If it raises OSError, the state
        in memory is restored, but the files may not be."""
        (
            size,
            index_entries,
            time_entries,
            txn_entries,
            self.bytes_since_index,
            self.max_timestamp_so_far,
            self.max_timestamp_offset,
            self.first_timestamp,
            self.roll_at,
            self.rolls_by_clock,
        ) = mark
        self.forget_recent()
        self.offset_index.restore(index_entries)
        self.time_index.restore(time_entries)
        self.txn_index.restore(txn_entries)
        if size != self.file.size:
            self.file.truncate(size)

    def reset(self) -> None:
        """Empty the indexes, before recovery reads the batches again."""
        self.offset_index.create()
        self.time_index.create()
        self.txn_index.reset()
        self.indexes_missing = False
        self._set_empty()

    def _set_empty(self) -> None:
        self.forget_recent()
        self.first_timestamp = None
        self.max_timestamp_so_far, self.max_timestamp_offset = -1, self.base_offset
        self.bytes_since_index = 0

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove the first batch whose last offset is `offset` or later, and all batches after it.
        Raises OSError."""
        first = self.find(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if first is not None:
            self.file.truncate(first[0])
        if self.file.size:
            self.load_tail()
        else:
            self.created_ms = now_ms
            self._set_empty()
        self.set_roll_time()

    # --- the files

    def check(self) -> None:
        """Raise CorruptIndexError if an index is missing or cannot belong to the .log file. Reads
        no batch."""
        if self.indexes_missing:
            raise CorruptIndexError(f"{self.offset_index.path} or {self.time_index.path} is missing")
        self.offset_index.check()
        self.time_index.check()
        self.txn_index.check()
        if self.offset_index.entries and self.offset_index.last_entry[1] >= self.file.size:
            raise CorruptIndexError(f"{self.offset_index.path}: the last entry is past the end of the log")

    def become_inactive(self) -> None:
        """Write the last entry of the time index and trim the files, when the log rolls or closes.
        Raises OSError."""
        largest = self.max_timestamp
        if largest >= 0:
            self.time_index.maybe_append(largest, self.max_timestamp_offset, at_end=True)
        self.offset_index.trim()
        self.time_index.trim()
        self.file.trim()

    def change_suffix(self, suffix: str, new_suffix: str) -> None:
        """Replace `suffix`, which may be empty, at the end of the names of all files. Raises
        OSError."""
        for part in (self.file, self.offset_index, self.time_index, self.txn_index):
            path = part.path
            if not path.endswith(suffix):
                raise ValueError(f"cannot rename {path}: its name does not end with {suffix}")
            new_path = path.removesuffix(suffix) + new_suffix
            try:
                os.rename(path, new_path)
            except FileNotFoundError:
                if part is self.file:
                    raise
            part.path = new_path

    def move(self, dir: str) -> None:
        """Update all paths after the folder was renamed to `dir`."""
        self.dir = dir
        for part in (self.file, self.offset_index, self.time_index, self.txn_index):
            part.path = f"{dir}/{os.path.basename(part.path)}"

    @property
    def paths(self) -> list[str]:
        """The paths of the four files of the segment, whether they exist or not."""
        return [self.file.path, self.offset_index.path, self.time_index.path, self.txn_index.path]

    def flush(self) -> None:
        """fsync all files. Blocks. Any thread may call it. Raises OSError and FileClosed."""
        with self.file.in_use() as fd:
            os.fdatasync(fd)
        self.offset_index.sync()
        self.time_index.sync()
        self.txn_index.sync()

    @staticmethod
    def remove_files(dir: str, base_offset: int) -> None:
        """Remove the files of a segment whose creation failed."""
        for path in _paths(dir, base_offset, ""):
            remove_if_exists(path)

    def unmap(self) -> None:
        """Unmap the indexes, but leave their files."""
        self.offset_index.close()
        self.time_index.close()

    def delete(self) -> None:
        """Remove the files at once. The descriptor is closed when its last user releases it."""
        self.unmap()
        self.file.close()
        for path in self.paths:
            remove_if_exists(path)

    def abandon(self) -> None:
        """Close the descriptors and leave the files as they are."""
        self.unmap()
        self.file.close()

    def __repr__(self) -> str:
        return f"LogSegment({self.file.path!r}, size={self.file.size})"


def _paths(dir: str, base_offset: int, suffix: str) -> list[str]:
    """The paths of the .log, .index, .timeindex and .txnindex files."""
    return [f"{dir}/{file_name(base_offset, segment_suffix)}{suffix}" for segment_suffix in SEGMENT_SUFFIXES]
