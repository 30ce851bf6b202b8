"""Compaction of one log: segments are replaced by new segments with the last record of every key.

A cleaning has several steps. The loop thread prepares and finishes each step, and a worker thread
runs it:

1. Read the keys of the dirty part, from the first dirty offset on, into an offset map, until the
   map is full or the first uncleanable offset is reached.
2. Group the segments below the end of the map, clean segments included, so that each group fits
   into one segment. Filter each group into a new segment, `<first base offset>.log.cleaned`.
3. When the new segment is on disk, the loop thread calls `Log.replace_segments`, which renames
   `.cleaned` to `.swap`, the source files to `.deleted`, and `.swap` to the plain name. If a crash
   happens before the last `.cleaned` file is renamed, opening the log keeps the source segments.
   After a later crash, opening the log completes the swap.

The worker thread opens the source files by name, so the loop thread may close or delete them in the
meantime. A cleaning whose source segments were removed is aborted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kavka.common.clock import Clock
from kavka.common.errors import KafkaError
from kavka.records.batch import HEADER_SIZE, LENGTH_AND_MAGIC, LOG_OVERHEAD, Batch, Buffer, batch_at, corrupt
from kavka.storage.compaction import BatchFilter, CleanedTransactions, CleanerStats, LastRecord, index_batch
from kavka.storage.files import CLEANED_SUFFIX, fsync_dir
from kavka.storage.log import Log
from kavka.storage.offset_map import OffsetMap, make_offset_map
from kavka.storage.pace import Pace, WorkAborted
from kavka.storage.segment import LogSegment
from kavka.storage.transaction_index import AbortedTxn

MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The broker's settings `log.cleaner.*`, with Kafka's defaults."""

    enable: bool = True
    threads: int = 1
    dedupe_buffer_size: int = 128 * 1024 * 1024
    io_buffer_size: int = 512 * 1024
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float | None = None
    backoff_ms: int = 15_000


class UncleanableLogError(Exception):
    """The log cannot be cleaned. The cleaner ignores the log until the broker restarts."""


@dataclass(slots=True)
class _Source:
    """A copy of the state of a segment, for the worker thread. `position` is the first byte to
    read."""

    segment: LogSegment
    path: str
    base_offset: int
    size: int
    next_base: int
    modified_ms: int
    position: int = 0
    aborted: Sequence[AbortedTxn] = ()


@dataclass(slots=True)
class _MapStep:
    """Build the offset map from the dirty segments."""

    sources: list[_Source]
    aborted: Sequence[AbortedTxn]


@dataclass(slots=True)
class _GroupStep:
    """Filter a group of segments into `cleaned`. `changed` is True if a batch was removed or
    rewritten or there are several sources. A single unchanged segment is not replaced."""

    sources: list[_Source]
    producers: dict[int, LastRecord]
    cleaned: LogSegment | None = None
    changed: bool = False


@dataclass(slots=True)
class CleaningResult:
    """The result of a cleaning. `end_offset` is the first offset that is still dirty."""

    end_offset: int
    stats: CleanerStats = field(default_factory=CleanerStats)


class LogCleaning:
    """One cleaning of one log.

    The loop thread calls `prepare`, a worker thread `run`, the loop thread `finish`, repeatedly
    until `finish` returns a result. After an error the loop thread calls `fail`. It may call
    `abort` at any time. A crash leaves `.cleaned` files, which opening the log removes.
    """

    def __init__(
        self,
        log: Log,
        first_dirty_offset: int,
        upper_bound: int,
        settings: CleanerSettings,
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self.log = log
        self.first_dirty_offset = first_dirty_offset
        self.upper_bound = upper_bound
        self.settings = settings
        self.clock = clock
        self.pace = pace or Pace(settings.io_max_bytes_per_second)
        self.now_ms = clock.now_ms()
        self.stats = CleanerStats()
        self.aborted = False
        self.end_offset = first_dirty_offset
        self._directory = str(log.dir)
        self._config = log.config
        self._transactions = CleanedTransactions()
        self._groups: list[list[LogSegment]] | None = None
        self._step: _MapStep | _GroupStep | None = None
        self._map: OffsetMap | None = None
        # Tombstones of magic 0 and 1 have no delete horizon. They are removed by the age of their
        # segment.
        clean = [segment for segment in log.segments if segment.base_offset < first_dirty_offset]
        self._legacy_horizon_ms = clean[-1].last_modified_ms() - self._config.delete_retention_ms if clean else 0

    def abort(self) -> None:
        """Abort the cleaning, because the log is about to be truncated, deleted or moved. A running
        `run` raises WorkAborted soon."""
        self.aborted = True
        self.pace.stop()

    # --- on the loop thread

    def prepare(self) -> None:
        """Collect the input of the next `run`. Raises WorkAborted if the cleaning was aborted or
        the segments were removed."""
        if self.aborted:
            raise WorkAborted
        if self._map is None:
            segments = self.log.segments.between(self.first_dirty_offset, self.upper_bound)
            sources = self._sources(segments, self.upper_bound)
            if sources and sources[0].base_offset < self.first_dirty_offset:
                sources[0].position = segments[0].offset_index.lookup(self.first_dirty_offset)[1]
            aborted = self.log.aborted_transactions(self.first_dirty_offset, self.upper_bound)
            self._step = _MapStep(sources, aborted)
            return
        if self._groups is None:
            self._groups = group_segments(
                [segment for segment in self.log.segments if segment.base_offset < self.end_offset],
                self._config.segment_bytes,
                self._config.segment_index_bytes,
                self.upper_bound,
            )
        group = self._groups[0]
        if not self._has_segments(group):
            raise WorkAborted
        sources = self._sources(group, self.log.segments.base_after(group[-1]))
        for source in sources:
            source.aborted = self.log.aborted_transactions(source.base_offset, source.next_base)
        entries = self.log.producer_states.entries.items()
        last_records = {producer_id: LastRecord(entry.last_offset, entry.epoch) for producer_id, entry in entries}
        self._step = _GroupStep(sources, last_records)

    def _sources(self, segments: Sequence[LogSegment], end: int) -> list[_Source]:
        next_bases = [segment.base_offset for segment in segments[1:]] + [end]
        return [
            _Source(s, s.file.path, s.base_offset, s.size, next_base, s.last_modified_ms())
            for s, next_base in zip(segments, next_bases, strict=True)
        ]

    def _has_segments(self, group: list[LogSegment]) -> bool:
        """Whether the log still has all segments of the group."""
        inactive = {id(segment) for segment in self.log.segments[:-1]}
        return all(id(segment) in inactive for segment in group)

    def finish(self) -> CleaningResult | None:
        """Finish a step. After a group was cleaned, replace its segments. Returns the result after
        the last step, else None. Raises WorkAborted, UncleanableLogError and OSError."""
        step, self._step = self._step, None
        if isinstance(step, _GroupStep):
            cleaned, step.cleaned = step.cleaned, None
            assert cleaned is not None and self._groups is not None
            group = [source.segment for source in step.sources]
            if self.aborted or not self._has_segments(group):
                cleaned.delete()
                raise WorkAborted
            if step.changed:
                self.log.replace_segments([cleaned], group)
            else:
                cleaned.delete()
            self._groups.pop(0)
        elif self.aborted:
            raise WorkAborted
        elif self.end_offset <= self.first_dirty_offset:
            raise UncleanableLogError(
                f"a batch of {self.log.topic_partition} has more keys than fit into log.cleaner.dedupe.buffer.size"
            )
        if self._groups is None or self._groups:
            return None
        return CleaningResult(self.end_offset, self.stats)

    def fail(self) -> None:
        """Remove the incomplete segment after an error in any step."""
        step, self._step = self._step, None
        if isinstance(step, _GroupStep) and step.cleaned is not None:
            with contextlib.suppress(OSError):
                step.cleaned.delete()

    # --- in the worker thread

    def run(self) -> None:
        """Run the step that `prepare` created. Raises WorkAborted if the cleaning was aborted or
        the log was truncated or deleted."""
        step = self._step
        assert step is not None
        try:
            if isinstance(step, _MapStep):
                self._build_map(step)
            else:
                self._clean_group(step)
        except (FileNotFoundError, KafkaError) as error:
            # The loop thread may have renamed, removed or truncated a source since `prepare`. A
            # file that was truncated and then appended to may look corrupt.
            is_missing = isinstance(error, FileNotFoundError)
            if self.aborted or (is_missing and not all(os.path.exists(source.path) for source in step.sources)):
                raise WorkAborted from None
            raise

    def _build_map(self, step: _MapStep) -> None:
        span = self.upper_bound - self.first_dirty_offset
        settings = self.settings
        offset_map = self._map = make_offset_map(settings.dedupe_buffer_size, settings.io_buffer_load_factor, span)
        transactions = CleanedTransactions()
        transactions.add(step.aborted)
        pause_if_due = self.pace.pause_if_due
        for source in step.sources:
            for batch in self._batches(source):
                with _naming_batch(batch):
                    fits = index_batch(batch, self.first_dirty_offset, offset_map, transactions, pause_if_due)
                if not fits:
                    self.end_offset = offset_map.latest_offset + 1
                    return
                pause_if_due()
            # An earlier cleaning may have removed the last batches of the segment.
            offset_map.latest_offset = max(offset_map.latest_offset, source.next_base - 1)
        self.end_offset = offset_map.latest_offset + 1

    def _clean_group(self, step: _GroupStep) -> None:
        assert self._map is not None
        cleaned = step.cleaned = LogSegment.create(
            self._directory, step.sources[0].base_offset, self._config, self.now_ms, suffix=CLEANED_SUFFIX
        )
        self._transactions.write = cleaned.txn_index.append
        out: list[Buffer] = []
        pending = 0
        for source in step.sources:
            self._transactions.add(source.aborted)
            batch_filter = BatchFilter(
                self._map,
                self._transactions,
                step.producers,
                self.upper_bound,
                self.now_ms,
                self._config.delete_retention_ms,
                keep_legacy_tombstones=source.modified_ms > self._legacy_horizon_ms,
                stats=self.stats,
                pause_if_due=self.pace.pause_if_due,
            )
            for batch in self._batches(source):
                with _naming_batch(batch):
                    cleaned_batch = batch_filter.clean(batch)
                step.changed |= not isinstance(cleaned_batch, memoryview)
                if cleaned_batch is not None:
                    out.append(cleaned_batch)
                    pending += len(cleaned_batch)
                    if pending >= self.settings.io_buffer_size // 2:
                        self._write(cleaned, out)
                        pending = 0
                self.pace.pause_if_due()
        self._write(cleaned, out)
        cleaned.become_inactive()
        step.changed |= len(step.sources) > 1
        if step.changed:
            cleaned.flush()
            fsync_dir(self._directory)
            cleaned.set_last_modified_ms(step.sources[-1].modified_ms)

    def _write(self, cleaned: LogSegment, out: list[Buffer]) -> None:
        if out:
            data = b"".join(out)
            out.clear()
            cleaned.append_batches(data)
            self.pace.add_bytes(len(data))

    def _batches(self, source: _Source) -> Iterator[Batch]:
        """Yield the batches of a segment from `source.position` on, read in chunks of half of
        `log.cleaner.io.buffer.size`. Raises CORRUPT_MESSAGE and WorkAborted."""
        position = source.position
        chunk_size = max(self.settings.io_buffer_size // 2, HEADER_SIZE)
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while position < source.size:
                chunk = _pread(fd, min(chunk_size, source.size - position), position)
                self.pace.add_bytes(len(chunk))
                pos = 0
                batch = batch_at(chunk, 0, len(chunk))
                if batch is None:
                    chunk = _pread(fd, _batch_size(chunk, source, position), position)
                    self.pace.add_bytes(len(chunk))
                    batch = batch_at(chunk, 0, len(chunk))
                    if batch is None:
                        raise corrupt(f"{source.path}: no complete batch at position {position}")
                while batch is not None:
                    yield batch
                    pos = batch.end
                    batch = batch_at(chunk, pos, len(chunk))
                position += pos
        finally:
            os.close(fd)


@contextlib.contextmanager
def _naming_batch(batch: Batch) -> Iterator[None]:
    """Add the offset of the batch to the message of a KafkaError."""
    try:
        yield
    except KafkaError as error:
        raise KafkaError(error.code, f"cannot clean the batch at offset {batch.base_offset}: {error}") from None


def _pread(fd: int, size: int, position: int) -> bytes:
    """Read `size` bytes. Raises WorkAborted if the file was truncated."""
    data = os.pread(fd, size, position)
    if len(data) != size:
        raise WorkAborted
    return data


def _batch_size(chunk: bytes, source: _Source, position: int) -> int:
    """Return the size of a batch that does not fit into the chunk. Raises CORRUPT_MESSAGE if it
    extends past the end of the segment."""
    remaining = source.size - position
    if len(chunk) >= LENGTH_AND_MAGIC.size:
        size: int = LOG_OVERHEAD + LENGTH_AND_MAGIC.unpack_from(chunk, 0)[1]
        if len(chunk) < size <= remaining:
            return size
    raise corrupt(f"{source.path}: the batch at position {position} extends past the remaining {remaining} bytes")


def group_segments(
    segments: Sequence[LogSegment], max_bytes: int, max_index_bytes: int, upper_bound: int
) -> list[list[LogSegment]]:
    """Group adjacent segments so that each group fits into one segment. The limits are the size of
    the .log file, the size of each index, and the largest relative offset."""
    groups: list[list[LogSegment]] = []
    size = index = time_index = 0
    for n, segment in enumerate(segments):
        index_bytes = segment.offset_index.entries * segment.offset_index.ENTRY
        time_bytes = segment.time_index.entries * segment.time_index.ENTRY
        last = (segments[n + 1].base_offset if n + 1 < len(segments) else upper_bound) - 1
        if (
            groups
            and size + segment.size <= max_bytes
            and index + index_bytes <= max_index_bytes
            and time_index + time_bytes <= max_index_bytes
            and last - groups[-1][0].base_offset <= MAX_INT
        ):
            groups[-1].append(segment)
            size += segment.size
            index += index_bytes
            time_index += time_bytes
        else:
            groups.append([segment])
            size, index, time_index = segment.size, index_bytes, time_bytes
    return groups
