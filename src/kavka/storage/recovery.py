"""Loads a log from its folder, and recovers it after a crash.

After a clean shutdown the state is read from the names and lengths of the files, the batches after
the last index entry, and the last producer snapshot. After a crash, all data before the recovery
point is on disk and its batches are not checked; only malformed indexes are rebuilt. The segment
that contains the recovery point and all later segments are read from their start. Every batch must
be complete and have a valid CRC and increasing offsets; the log is truncated at the first invalid
batch. The indexes of these segments are rebuilt. Files are read in chunks, and the CRC of a batch
that is larger than a chunk is computed incrementally.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from kavka.common.clock import Clock
from kavka.common.errors import KafkaError
from kavka.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MIN_HEADER_TO_MAGIC,
    BatchHeader,
    batch_at,
    corrupt,
)
from kavka.records.control import EndMarker, parse_end_marker
from kavka.storage.checkpoint import CheckpointError
from kavka.storage.file_slice import LogFile
from kavka.storage.files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    offset_of,
    remove_if_exists,
)
from kavka.storage.index_file import CorruptIndexError
from kavka.storage.leader_epochs import FILE_NAME as EPOCHS_FILE
from kavka.storage.leader_epochs import LeaderEpochs
from kavka.storage.log_config import LogConfig
from kavka.storage.producer_replay import reload_producers, replay_batch
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.producer_state import ProducerStates
from kavka.storage.segment import MAX_RELATIVE_OFFSET, LogSegment
from kavka.storage.segments import LogSegments
from kavka.storage.walk import header_at

CHUNK_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedLog:
    """The parts and the offsets of a log, as loaded from disk."""

    segments: LogSegments
    start_offset: int
    end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    producers: ProducerStates


class LogLoader:
    """Loads one log from its folder, which must exist. The calling thread owns the parts of the
    log."""

    def __init__(self, dir: str, config: LogConfig, clock: Clock, producer_id_expiration_ms: int) -> None:
        self.dir = dir
        self.config = config
        self.now_ms = clock.now_ms()
        self.segments = LogSegments(dir, config, clock)
        self.snapshots = SnapshotFiles(dir)
        self.states = ProducerStates(producer_id_expiration_ms, self.snapshots)
        self.epochs = LeaderEpochs(f"{dir}/{EPOCHS_FILE}")

    def load(self, recovery_point: int, start_offset: int, clean_shutdown: bool) -> LoadedLog:
        """Load the log. An empty folder becomes an empty log that begins at `start_offset`. Raises
        OSError and KafkaError."""
        sizes = _sizes(self.dir)
        if any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")) for name in sizes):
            finish_interrupted_changes(self.dir, self.config, sizes)
            sizes = _sizes(self.dir)
        self._open_segments(sizes)
        self._load_epochs()
        first = self.segments[0].base_offset if self.segments else start_offset
        start = max(start_offset, first)
        if clean_shutdown:
            self._check_indexes(len(self.segments), start)
            end = self._end_offset(start)
        else:
            first_unflushed = max(0, self.segments.floor_index(recovery_point))
            self._check_indexes(first_unflushed, start)
            end = self._recover_from(first_unflushed, start)
        if end < start_offset:
            if self.segments:
                logger.warning(
                    "Removing all segments of %s: the log ends at %d, before its start offset %d",
                    self.dir,
                    end,
                    start_offset,
                )
            self._drop_segments(0)
            self.epochs.clear()
            self.states.clear()
            end = start = start_offset
        if not self.segments:
            self.segments.create(start)
            end = start
        # This order leaves no epoch in a log without batches, whatever a crash left in the file.
        # LeaderEpochJob or the next flush writes the file, because two fsyncs for each of thousands
        # of logs would delay the start. After another crash the same changes are made again.
        self.epochs.truncate_from_start(start)
        self.epochs.truncate_from_end(end)
        self.snapshots.remove_strays(segment.base_offset for segment in self.segments)
        if clean_shutdown:
            self._load_producers(start, end)
        for segment in self.segments:
            segment.file.suspend()
        if not clean_shutdown:
            self.segments.has_unsynced_dir_entries = True
        flushed = end if clean_shutdown else min(recovery_point, end)
        return LoadedLog(self.segments, start, end, flushed, self.epochs, self.states)

    def _open_segments(self, sizes: dict[str, int]) -> None:
        for name in sizes:
            offset = offset_of(name)
            if offset is None:
                if name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)):
                    logger.warning("Ignoring %s/%s: its name has no offset", self.dir, name)
                continue
            if name.endswith(LOG_SUFFIX):
                self.segments.add(LogSegment.open(self.dir, offset, self.config, self.now_ms, sizes=sizes))
            elif name.endswith(SNAPSHOT_SUFFIX):
                self.snapshots.add(offset)
            elif name.endswith(SEGMENT_SUFFIXES) and name.split(".", 1)[0] + LOG_SUFFIX not in sizes:
                logger.warning("Removing %s/%s: it belongs to no segment", self.dir, name)
                remove_if_exists(f"{self.dir}/{name}")

    def _load_epochs(self) -> None:
        """Load the leader epochs. If the file is empty or malformed, rebuild them from all batches.
        (Kafka creates an empty file for a new log.)"""
        try:
            self.epochs = LeaderEpochs.load(self.epochs.path)
        except CheckpointError as error:
            self.epochs.mark_dirty()
            if any(segment.size for segment in self.segments):
                logger.warning("Rebuilding the leader epochs from the batches: %s", error)
            for segment in self.segments:
                try:
                    for _, header in segment.batches():
                        self.epochs.recover_batch(header.leader_epoch, header.base_offset, header.last_offset)
                except KafkaError:
                    break

    def _check_indexes(self, count: int, start: int) -> None:
        """Rebuild invalid indexes of the first `count` segments."""
        for segment in self.segments[:count]:
            try:
                segment.check()
            except (CorruptIndexError, OSError) as error:
                logger.warning("Rebuilding the indexes of segment %d: %s", segment.base_offset, error)
                self._rebuild(segment, start)

    def _rebuild(self, segment: LogSegment, start: int) -> int:
        """Rebuild the indexes of a segment. Returns the offset after its last batch. The
        transaction index needs the producer states at the start of the segment. They are read from
        the snapshot at that offset, or computed from an earlier snapshot."""
        base_offset = segment.base_offset
        snapshots = SnapshotFiles(self.dir, [offset for offset in self.snapshots.offsets if offset <= base_offset])
        states = ProducerStates(self.states.expiration_ms, snapshots)
        latest = snapshots.read_latest()
        if latest is not None and latest[0] == base_offset:
            states.load(latest[1], self.now_ms)
        elif base_offset > start:
            reload_producers(states, self.segments, start, base_offset, self.now_ms)
        return recover_segment(segment, states, self.epochs)[0]

    def _end_offset(self, start: int) -> int:
        """Return the end offset of the log after a clean shutdown."""
        if not self.segments:
            return start
        last = self.segments[-1]
        try:
            return last.next_offset()
        except CorruptIndexError as error:
            logger.warning("Recovering segment %d although the shutdown was clean: %s", last.base_offset, error)
            return self._rebuild(last, start)

    def _recover_from(self, index: int, start: int) -> int:
        """Recover the segment at `index` and all later segments. Returns the end offset of the
        valid batches."""
        if not self.segments:
            return start
        first = self.segments[index]
        end = first.base_offset
        self.snapshots.remove_outside(0, end)
        if end > start or end in self.snapshots.offsets:
            reload_producers(self.states, self.segments, min(start, end), end, self.now_ms)
        while index < len(self.segments):
            segment = self.segments[index]
            if segment.base_offset < end:
                logger.warning(
                    "Removing segment %d of %s: it begins before offset %d", segment.base_offset, self.dir, end
                )
                break
            if segment is not first:
                self.states.take_snapshot(segment.base_offset)
            end, removed_bytes = recover_segment(segment, self.states, self.epochs)
            index += 1
            if removed_bytes:
                logger.warning("Truncated %s at offset %d: removed %d bytes", segment.file.path, end, removed_bytes)
                break
        self._drop_segments(index)
        if end > start:
            self.states.take_snapshot(end)
        return end

    def _drop_segments(self, first_index: int) -> None:
        for segment in self.segments[first_index:][::-1]:
            self.segments.remove(segment)
            self.snapshots.remove(segment.base_offset)
            segment.delete()

    def _load_producers(self, start: int, end: int) -> None:
        if self.snapshots.latest is None:
            # A log without a snapshot has no batch with a producer id, or predates producer ids.
            if end > start:
                self.states.take_snapshot(end)
        else:
            reload_producers(self.states, self.segments, start, end, self.now_ms)


def _sizes(dir: str) -> dict[str, int]:
    with os.scandir(dir) as entries:
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}


def finish_interrupted_changes(dir: str, config: LogConfig, sizes: dict[str, int]) -> None:
    """Finish the file operations that a crash interrupted: remove incomplete files and files that
    were pending deletion, and complete the swap of `.swap` segments. Raises OSError."""
    # Kafka splits a segment whose relative offsets overflow. If `.cleaned` files of a split remain,
    # the split segment still exists, and the `.swap` files of the split are removed as well.
    first_unfinished = min(
        (offset for name in sizes if name.endswith(CLEANED_SUFFIX) and (offset := offset_of(name)) is not None),
        default=None,
    )
    swaps = []
    for name in sizes:
        offset = offset_of(name)
        if (
            name.endswith(SWAP_SUFFIX)
            and offset is not None
            and (first_unfinished is None or offset < first_unfinished)
        ):
            swaps.append((name, offset))
        elif name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")):
            remove_if_exists(f"{dir}/{name}")
    replaced_from, replaced_to = None, 0
    for name, offset in swaps:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            segment = LogSegment.open(dir, offset, config, 0, suffix=SWAP_SUFFIX)
            try:
                replaced_to = max(replaced_to, segment.next_offset())
            except CorruptIndexError:
                replaced_to = max(replaced_to, *(header.last_offset + 1 for _, header in segment.batches()))
            segment.file.close()
            replaced_from = offset if replaced_from is None else min(replaced_from, offset)
    if replaced_from is not None:
        for name in sizes:
            offset = offset_of(name)
            if name.endswith(SEGMENT_SUFFIXES) and offset is not None and replaced_from <= offset < replaced_to:
                remove_if_exists(f"{dir}/{name}")
    for name, _ in swaps:
        os.rename(f"{dir}/{name}", f"{dir}/{name[: -len(SWAP_SUFFIX)]}")


def recover_segment(segment: LogSegment, states: ProducerStates, epochs: LeaderEpochs) -> tuple[int, int]:
    """Read a segment from its start, rebuild its indexes, and truncate it at the first invalid
    batch. Returns the offset after the last valid batch and the number of bytes removed.

    `states` are the producer states at the start of the segment. `states` and `epochs` are updated
    to the end of the segment.
    """
    length = segment.size
    segment.reset()
    end = 0
    next_offset = segment.base_offset
    try:
        for position, header, marker in _valid_batches(segment.file, length):
            last = header.last_offset
            if header.base_offset < next_offset and header.magic == 2:
                raise corrupt(f"base offset {header.base_offset} is not after offset {next_offset - 1}")
            if last < next_offset or last - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise corrupt(f"last offset {last} is not valid after offset {next_offset - 1}")
            segment.index_batch(header, position)
            epochs.recover_batch(header.leader_epoch, header.base_offset, last)
            if header.producer_id >= 0:
                aborted = replay_batch(states, header, marker)
                if aborted is not None:
                    segment.txn_index.append(aborted)
            next_offset = last + 1
            end = position + header.size
    except KafkaError as error:
        logger.warning("Found a corrupt batch in %s at position %d: %s", segment.file.path, end, error)
    if end < length:
        segment.file.truncate(end)
    segment.become_inactive()
    return next_offset, length - end


def _valid_batches(file: LogFile, end: int) -> Iterator[tuple[int, BatchHeader, EndMarker | None]]:
    """Yield (position, header, end marker) of every batch, up to the first incomplete batch. The
    end marker is None if the batch has none. Raises CORRUPT_MESSAGE for an invalid batch."""
    buffer = memoryview(bytearray(min(CHUNK_BYTES, end)))
    start = filled = position = 0

    def fill() -> None:
        nonlocal start, filled
        start = position
        filled = os.preadv(file.fd, [buffer[: min(len(buffer), end - position)]], position)

    while end - position >= MIN_HEADER_TO_MAGIC:
        if position + HEADER_SIZE > start + filled:
            fill()
        at = position - start
        if not any(buffer[at : at + LOG_OVERHEAD]):
            return  # The rest is preallocated space.
        header = header_at(buffer[:filled], at)
        if header is None or position + header.size > end:
            return
        size = header.size
        if at + size > filled and at:
            fill()
            at = 0
        data = buffer[at : at + size] if at + size <= filled else None
        if _crc(header, file, position, data) != header.crc & 0xFFFFFFFF:
            raise corrupt(f"the CRC of the batch at offset {header.base_offset} does not match its bytes")
        batch = batch_at(data, 0, size) if data is not None and header.is_control and header.magic == 2 else None
        yield position, header, None if batch is None else parse_end_marker(batch, verify_crc=False)
        position += size


def _crc(header: BatchHeader, file: LogFile, position: int, data: memoryview | None) -> int:
    """Compute the CRC of a batch. If `data` is None, because the batch is larger than a chunk, the
    bytes are read from the file in chunks."""
    checksum: Callable[..., int] = crc32c if header.magic == 2 else zlib.crc32
    first = ATTRIBUTES_POSITION if header.magic == 2 else MAGIC_POSITION
    if data is not None:
        return checksum(data[first:])
    crc = 0
    end = position + header.size
    for at in range(position + first, end, CHUNK_BYTES):
        crc = checksum(file.read(at, min(CHUNK_BYTES, end - at)), crc)
    return crc
