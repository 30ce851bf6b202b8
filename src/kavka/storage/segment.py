"""One segment of a log: the file of batches and its three indexes."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from kavka.common.errors import KafkaError
from kavka.records.batch import LOG_OVERHEAD, BatchHeader
from kavka.storage.file_slice import LogFile
from kavka.storage.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    remove_if_there,
)
from kavka.storage.index_file import CorruptIndex
from kavka.storage.log_config import MAX_LONG, LogConfig
from kavka.storage.offset_index import OffsetIndex
from kavka.storage.time_index import TimeIndex
from kavka.storage.transaction_index import AbortedTxn, TransactionIndex
from kavka.storage.walk import FAR, walk

MAX_RELATIVE_OFFSET = 2**31 - 1
"""The farthest an offset may lie from its segment's base offset: what four bytes of an index hold."""

ROLL_TIME_UNKNOWN = -(2**63)

RECENT = 1024
"""At least as many of the last batches have their positions in memory, at most twice as many."""


class LogSegment:
    """`<base offset>.log` with `.index`, `.timeindex` and, where a transaction was aborted, `.txnindex`.

    Only the loop thread changes a segment that belongs to a log. A segment made by the cleaner (`suffix=".cleaned"`)
    belongs to the cleaner's thread until `Log.replace_segments` takes it. Reading a segment that is not active
    (`file.read`, `batches`) is safe in any thread: its bytes do not change, and its descriptor is not closed under a
    reader (see LogFile).

    `recent_last` and `recent_positions` are the last offsets and the positions of the batches written last, without a
    gap up to the end of the file: readers near the end of the log are served from them with no look at a file. They
    may be empty.

    `max_timestamp_so_far` is None until it is needed: then it comes from the last entry of the time index, which is
    exact for a segment that was closed or rolled.

    `roll_at` is the time (of `max_timestamp` of a batch, or with `rolls_by_clock` of the clock) after which the next
    append rolls; ROLL_TIME_UNKNOWN, before all times, where that is still to be worked out (`set_roll_time`).
    """

    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "config",
        "created_ms",
        "dir",
        "file",
        "first_timestamp",
        "indexes_missing",
        "max_timestamp_offset",
        "max_timestamp_so_far",
        "offset_index",
        "recent_last",
        "recent_positions",
        "roll_at",
        "roll_jitter_ms",
        "rolls_by_clock",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        dir: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        file: LogFile,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        txn_index: TransactionIndex,
    ) -> None:
        self.dir = dir
        self.base_offset = base_offset
        self.config = config
        self.created_ms = now_ms
        self.file = file
        self.offset_index = offset_index
        self.time_index = time_index
        self.txn_index = txn_index
        self.bytes_since_index = 0
        self.max_timestamp_so_far: int | None = None
        self.max_timestamp_offset = base_offset
        self.recent_last = array("q")
        self.recent_positions = array("q")
        self.roll_jitter_ms = config.random_segment_jitter()
        self.first_timestamp: int | None = None
        self.roll_at = ROLL_TIME_UNKNOWN
        self.rolls_by_clock = False
        self.indexes_missing = False

    @classmethod
    def create(cls, dir: str, base_offset: int, config: LogConfig, now_ms: int, *, suffix: str = "") -> LogSegment:
        """New empty files (`suffix` ".cleaned" for the cleaner); files of the same name are overwritten."""
        log, index, time_index, txn_index = _paths(dir, base_offset, suffix)
        remove_if_there(txn_index)
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
        """Existing files. Reads no data; indexes are mapped when they are first asked. `sizes`: file lengths by name,
        where they are known already. A missing index is an empty one here; `check` finds it out."""
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
        """Bytes of whole batches in the .log file."""
        return self.file.size

    # --- timestamps

    def load_max_timestamp(self) -> int:
        """`max_timestamp_so_far` and its offset, read from the time index where they are not known yet."""
        known = self.max_timestamp_so_far
        if known is None:
            known, self.max_timestamp_offset = self.time_index.last_entry
            self.max_timestamp_so_far = known
        return known

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp in the segment, -1 where there is none."""
        return self.load_max_timestamp()

    @property
    def offset_of_max_timestamp(self) -> int:
        """Last offset of the batch that has it."""
        self.load_max_timestamp()
        return self.max_timestamp_offset

    @property
    def largest_timestamp(self) -> int:
        """`max_timestamp`, or the file's time of modification in ms where no record has one: the segment's age for
        retention."""
        largest = self.load_max_timestamp()
        return largest if largest >= 0 else self.last_modified_ms()

    def last_modified_ms(self) -> int:
        return os.stat(self.file.path).st_mtime_ns // 1_000_000

    def set_last_modified_ms(self, time_ms: int) -> None:
        for path in (self.file.path, self.offset_index.path, self.time_index.path):
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def first_batch_timestamp(self) -> int | None:
        """Max timestamp of the first batch (what segment.ms counts from); None for an empty segment."""
        if self.first_timestamp is None and self.file.size:
            for _, header in walk(self.file, 0, self.file.size):
                self.first_timestamp = header.max_timestamp
                break
        return self.first_timestamp

    def set_roll_time(self) -> None:
        """Work out when the segment has been active for long enough: by the time of its first batch, or, where that has
        none, by the clock since it was made or opened. An empty one never has."""
        first = self.first_batch_timestamp()
        wait = self.config.max_segment_ms - self.roll_jitter_ms
        self.rolls_by_clock = first is not None and first < 0
        if first is None:
            self.roll_at = MAX_LONG
        else:
            self.roll_at = (self.created_ms if first < 0 else first) + wait

    # --- finding batches

    def find(self, offset: int, nowait: bool = False) -> tuple[int, int] | None:
        """(position, size) of the first batch that reaches `offset` or lies after it; None if there is none."""
        last = self.recent_last
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
        """About where `offset` lies in the file, from memory and index alone."""
        last = self.recent_last
        if last and offset > last[0]:
            n = bisect_left(last, offset)
            return self.recent_positions[n] if n < len(last) else self.file.size
        return self.offset_index.lookup(offset)[1]

    def upper_offset(self, position: int) -> int | None:
        """An offset that no record before `position` reaches, from memory and index alone; None where the end of the
        segment is the best answer."""
        positions = self.recent_positions
        if positions and position >= positions[0]:
            n = bisect_left(positions, position)
            return self.recent_last[n] if n < len(positions) else None
        index = self.offset_index
        n = bisect_left(range(index.entries), position, key=lambda entry: index.entry(entry)[1])
        return index.entry(n)[0] if n < index.entries else None

    def last_offset_before(self, position: int) -> int | None:
        """The last offset of the batches that end at or before `position`, from memory; from the index, about that."""
        positions = self.recent_positions
        if positions and position > positions[0]:
            n = bisect_left(positions, position)
            whole = position >= self.file.size if n == len(positions) else positions[n] == position
            n -= 1 if whole else 2
            return self.recent_last[n] if n >= 0 else None
        index = self.offset_index
        n = bisect_left(range(index.entries), position, key=lambda entry: index.entry(entry)[1])
        return index.entry(n - 1)[0] if n else None

    def batches(self, position: int = 0, chunk: int = FAR) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from the one at `position` on."""
        return walk(self.file, position, self.file.size, chunk=chunk)

    def load_tail(self) -> int:
        """Walk over what lies after the last index entry; returns the next offset and fills what an append needs to
        know.

        CorruptIndex where index and log do not fit together, or the log does not end with a whole batch.
        """
        end = self.file.size
        indexed_offset, position = self.offset_index.last_entry()
        indexed = self.offset_index.entries > 0
        if position > end or (indexed and position == end):
            raise CorruptIndex(f"{self.offset_index.path}: its last entry lies behind the end of the log")
        next_offset = self.base_offset
        largest, largest_offset = self.time_index.last_entry
        self.recent_last = array("q")
        self.recent_positions = array("q")
        try:
            for at, header in walk(self.file, position, end):
                last = header[0] + header[6]
                if last < next_offset or (indexed and not self.recent_last and last > indexed_offset):
                    raise CorruptIndex(f"{self.offset_index.path}: its last entry does not fit the batch at {at}")
                next_offset = last + 1
                if header[8] > largest:
                    largest, largest_offset = header[8], last
                position = at + header[1] + LOG_OVERHEAD
                self.recent_last.append(last)
                self.recent_positions.append(at)
        except KafkaError as error:
            raise CorruptIndex(f"{self.file.path}: {error}") from error
        if position != end:
            raise CorruptIndex(f"{self.file.path}: the last {end - position} bytes are no whole batch")
        self.max_timestamp_so_far, self.max_timestamp_offset = largest, largest_offset
        self.bytes_since_index = end - self.recent_positions[0] if self.recent_positions else 0
        return next_offset

    def next_offset(self) -> int:
        """The offset after the last record."""
        if self.recent_last:
            return self.recent_last[-1] + 1
        return self.load_tail() if self.file.size else self.base_offset

    def aborted_transactions(self, from_offset: int, to_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Those that overlap [from_offset, to_offset), and whether later segments need not be asked."""
        return self.txn_index.aborted_between(from_offset, to_offset)

    # --- writing

    def append_batches(self, buffer: memoryview | bytes | bytearray) -> None:
        """Write whole batches (offsets already in them) at the end and index them: for the cleaner, and for rebuilding.

        The hot path of a leader is in log_append.py; it leaves the same bytes.
        """
        data = bytes(buffer)
        headers = list(walk(_Bytes(data), 0, len(data), chunk=len(data)))  # type: ignore[arg-type]
        start = self.file.size
        self.file.append([data], len(data))
        for position, header in headers:
            self.index_batch(header, start + position)
        del self.recent_last[:], self.recent_positions[:]

    def index_batch(self, header: BatchHeader, position: int) -> None:
        """Take one batch that has been written into account, with an index entry where one is due."""
        last = header[0] + header[6]
        if header[8] > self.load_max_timestamp():
            self.max_timestamp_so_far, self.max_timestamp_offset = header[8], last
        if not position:
            self.first_timestamp = header[8]
        if self.bytes_since_index > self.config.index_interval_bytes and not self.indexes_full:
            self.add_index_entries([(last, position, self.load_max_timestamp(), self.max_timestamp_offset)])
            self.bytes_since_index = 0
        self.bytes_since_index += header[1] + LOG_OVERHEAD

    def reserve_index_entries(self, count: int) -> None:
        """So that the same number of `add_index_entries` cannot fail. OSError where the disk is full."""
        self.offset_index.reserve(count)
        self.time_index.reserve(count)

    def add_index_entries(self, entries: Sequence[tuple[int, int, int, int]]) -> None:
        """Of (last offset, position, largest timestamp so far, last offset of the batch that has it)."""
        offset_index, time_index = self.offset_index, self.time_index
        for last_offset, position, timestamp, timestamp_offset in entries:
            offset_index.append(last_offset, position)
            time_index.maybe_append(timestamp, timestamp_offset)

    @property
    def indexes_full(self) -> bool:
        return self.offset_index.is_full or self.time_index.is_full

    def remember(self, last_offsets: list[int], positions: list[int]) -> None:
        """Keep where the batches written last are, and no more of them than is useful."""
        last, kept = self.recent_last, self.recent_positions
        last.fromlist(last_offsets)
        kept.fromlist(positions)
        if len(last) > 2 * RECENT:
            del last[:-RECENT], kept[:-RECENT]

    def forget_recent(self) -> None:
        del self.recent_last[:], self.recent_positions[:]

    def restore(self, size: int, index_entries: int, time_entries: int, txn_entries: int) -> None:
        """Go back to an earlier, shorter state (`txn_entries` -1: nothing was added there)."""
        self.forget_recent()
        self.offset_index.restore(index_entries)
        self.time_index.restore(time_entries)
        if txn_entries >= 0:
            self.txn_index.restore(txn_entries)
        if size != self.file.size:
            self.file.cut(size)

    def start_over(self) -> None:
        """Forget all that is known of the batches: they are about to be read again."""
        self.offset_index.create()
        self.time_index.create()
        self.txn_index.reset()
        self.forget_recent()
        self.indexes_missing = False
        self.first_timestamp = None
        self.max_timestamp_so_far, self.max_timestamp_offset = -1, self.base_offset
        self.bytes_since_index = 0

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drop the batches that reach `offset`, whole, and all after them."""
        found = self.find(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if found is not None:
            self.file.cut(found[0])
        if self.file.size:
            self.load_tail()
        else:
            self.forget_recent()
            self.created_ms = now_ms
            self.first_timestamp = None
            self.max_timestamp_so_far, self.max_timestamp_offset = -1, self.base_offset
            self.bytes_since_index = 0
        self.set_roll_time()

    # --- the files

    def check(self) -> None:
        """Raises CorruptIndex where an index is missing or cannot belong to the .log file. Looks at no batch."""
        if self.indexes_missing:
            raise CorruptIndex(f"{self.offset_index.path} or {self.time_index.path} is missing")
        self.offset_index.check()
        self.time_index.check()
        self.txn_index.check()
        if self.offset_index.entries and self.offset_index.last_entry()[1] >= self.file.size:
            raise CorruptIndex(f"{self.offset_index.path}: its last entry lies behind the end of the log")

    def become_inactive(self) -> None:
        """The last time index entry, indexes and file cut to their real size: when a log rolls (and by the cleaner at
        the end)."""
        largest = self.load_max_timestamp()
        if largest >= 0:
            self.time_index.maybe_append(largest, self.max_timestamp_offset, at_end=True)
        self.offset_index.trim()
        self.time_index.trim()
        self.file.trim()

    def change_suffix(self, old: str, new: str) -> None:
        """Rename the files (.log, .index, .timeindex, .txnindex) from one suffix to another."""
        for part in (self.file, self.offset_index, self.time_index, self.txn_index):
            path = part.path
            if old and not path.endswith(old):
                raise ValueError(f"{path} does not end with {old}")
            renamed = path[: len(path) - len(old)] + new
            try:
                os.rename(path, renamed)
            except FileNotFoundError:
                if part is self.file:
                    raise
            part.path = renamed

    def move(self, dir: str) -> None:
        """The folder was renamed."""
        self.dir = dir
        for part in (self.file, self.offset_index, self.time_index, self.txn_index):
            part.path = f"{dir}/{os.path.basename(part.path)}"

    @property
    def paths(self) -> list[str]:
        """Of all its files, there or not."""
        return [self.file.path, self.offset_index.path, self.time_index.path, self.txn_index.path]

    def flush(self) -> None:
        """fsync all the segment's files. Blocks; safe in any thread."""
        with self.file.in_use() as fd:
            os.fdatasync(fd)
        self.sync_indexes()

    def sync_indexes(self) -> None:
        self.offset_index.sync()
        self.time_index.sync()
        self.txn_index.sync()

    @staticmethod
    def remove_files(dir: str, base_offset: int) -> None:
        """What an attempt to make a segment may have left."""
        for path in _paths(dir, base_offset, ""):
            remove_if_there(path)

    def unmap(self) -> None:
        """Let go of the maps and of this segment's hold on the descriptor (slices being sent keep theirs), the files
        as they are."""
        self.offset_index.close()
        self.time_index.close()

    def delete(self) -> None:
        """Remove the files at once; the descriptor is closed by its last user."""
        self.unmap()
        self.file.close()
        for path in self.paths:
            remove_if_there(path)

    def close(self) -> None:
        """Last time index entry, indexes trimmed, descriptors closed."""
        self.become_inactive()
        self.file.close()

    def abandon(self) -> None:
        """Close descriptors, the files left as they are."""
        self.unmap()
        self.file.close()

    def __repr__(self) -> str:
        return f"LogSegment({self.file.path!r}, size={self.file.size})"


class _Bytes:
    """Bytes in memory that `walk` reads as it does a file."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]

    read_nowait = read


def _paths(dir: str, base_offset: int, suffix: str) -> list[str]:
    assert SEGMENT_SUFFIXES == (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
    return [f"{dir}/{file_name(base_offset, part)}{suffix}" for part in SEGMENT_SUFFIXES]
