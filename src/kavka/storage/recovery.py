"""Opening the folder of a log: quickly after a clean stop, with a look at every doubtful batch after any other.

After a clean stop, names and lengths of files, the batches after the last index entry and the last producer snapshot
say all there is to know. After a crash, everything before the recovery point is on disk and is left alone (but for
indexes that cannot be right); the segment that holds the recovery point, and all after it, are read from their start:
every batch must be whole, with the right CRC and offsets that grow. The first one that is not ends the log. Their
indexes are made anew. Files are read in chunks; batches larger than one are checked piece by piece.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator

from crc32c import crc32c

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
    remove_if_there,
)
from kavka.storage.index_file import CorruptIndex
from kavka.storage.leader_epochs import FILE_NAME as EPOCHS_FILE
from kavka.storage.leader_epochs import LeaderEpochs
from kavka.storage.log_config import LogConfig
from kavka.storage.log_state import LoadedLog
from kavka.storage.producer_replay import reload_producers, take_batch
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.producer_state import ProducerStates
from kavka.storage.segment import MAX_RELATIVE_OFFSET, LogSegment
from kavka.storage.segments import Segments
from kavka.storage.walk import header_at

CHUNK = 1024 * 1024

log = logging.getLogger(__name__)


def load_log(
    dir: str,
    config: LogConfig,
    now_ms: int,
    *,
    recovery_point: int,
    start_offset: int,
    clean_shutdown: bool,
    producer_id_expiration_ms: int,
) -> LoadedLog:
    """All that a Log begins with. The folder must be there; an empty one gives an empty log that begins at
    `start_offset`."""
    loader = _Loader(dir, config, now_ms, producer_id_expiration_ms)
    return loader.load(recovery_point, start_offset, clean_shutdown)


class _Loader:
    def __init__(self, dir: str, config: LogConfig, now_ms: int, producer_id_expiration_ms: int) -> None:
        self.dir = dir
        self.config = config
        self.now_ms = now_ms
        self.segments = Segments()
        self.states = ProducerStates(producer_id_expiration_ms)
        self.snapshots = SnapshotFiles(dir)
        self.epochs = LeaderEpochs(f"{dir}/{EPOCHS_FILE}")

    def load(self, recovery_point: int, start_offset: int, clean_shutdown: bool) -> LoadedLog:
        sizes = _sizes(self.dir)
        if any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")) for name in sizes):
            finish_interrupted(self.dir, self.config, sizes)
            sizes = _sizes(self.dir)
        self._open_segments(sizes)
        self._load_epochs()
        first = self.segments[0].base_offset if self.segments else start_offset
        start = max(start_offset, first)
        if clean_shutdown:
            self._check_indexes(len(self.segments), start)
            end = self._end_offset(start)
        else:
            doubtful = max(0, self.segments.floor_index(recovery_point))
            self._check_indexes(doubtful, start)
            end = self._recover_from(doubtful, start)
        if end < start_offset:
            if self.segments:
                log.warning("%s ends at %d, before its start offset %d: it is emptied", self.dir, end, start_offset)
            self._drop_segments(0)
            self.epochs.clear()
            self.states.clear()
            end = start = start_offset
        if not self.segments:
            self.segments.add(LogSegment.create(self.dir, start, self.config, self.now_ms))
            end = start
        # In this order, so that a log without batches knows of no epoch, whatever a crash has left in the file.
        self.epochs.truncate_from_start(start)
        self.epochs.truncate_from_end(end)
        self.epochs.save()
        self.snapshots.keep_for_segments(segment.base_offset for segment in self.segments)
        if clean_shutdown:
            self._load_producers(start, end)
        for segment in self.segments:
            segment.file.suspend()
        flushed = end if clean_shutdown else min(recovery_point, end)
        return LoadedLog(self.segments, start, end, flushed, self.epochs, self.states, self.snapshots)

    def _open_segments(self, sizes: dict[str, int]) -> None:
        snapshots = []
        for name in sizes:
            offset = offset_of(name)
            if offset is None:
                if name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)):
                    log.warning("%s/%s is not named by an offset: it is ignored", self.dir, name)
                continue
            if name.endswith(LOG_SUFFIX):
                self.segments.add(LogSegment.open(self.dir, offset, self.config, self.now_ms, sizes=sizes))
            elif name.endswith(SNAPSHOT_SUFFIX):
                snapshots.append(offset)
            elif name.endswith(SEGMENT_SUFFIXES) and name.split(".", 1)[0] + LOG_SUFFIX not in sizes:
                log.warning("%s/%s belongs to no segment: it is removed", self.dir, name)
                remove_if_there(f"{self.dir}/{name}")
        self.snapshots = SnapshotFiles(self.dir, snapshots)

    def _load_epochs(self) -> None:
        """A file that is empty or malformed is rebuilt from all batches. Kafka creates an empty one for a new log."""
        try:
            self.epochs = LeaderEpochs.load(self.epochs.path)
        except CheckpointError as error:
            self.epochs.rebuilt()
            if any(segment.size for segment in self.segments):
                log.warning("%s: it is rebuilt from the batches", error)
            for segment in self.segments:
                try:
                    for _, header in segment.batches():
                        self.epochs.note_batch(header.leader_epoch, header.base_offset, header.last_offset)
                except KafkaError:
                    break

    def _check_indexes(self, count: int, start: int) -> None:
        """Of the first `count` segments: those that cannot be right are made anew."""
        for segment in self.segments[:count]:
            try:
                segment.check()
            except (CorruptIndex, OSError) as error:
                log.warning("%s: the indexes of segment %d are made anew", error, segment.base_offset)
                self._rebuild(segment, start)

    def _rebuild(self, segment: LogSegment, start: int) -> int:
        """Indexes of a segment whose batches are held to be good; returns its next offset. For the transaction index,
        the state of producers at its start is needed: from the snapshot that was taken then, or one before."""
        states = ProducerStates(self.states.expiration_ms)
        before = SnapshotFiles(self.dir, [offset for offset in self.snapshots.offsets if offset <= segment.base_offset])
        latest = before.read_latest()
        if latest is not None and latest[0] == segment.base_offset:
            states.load(latest[1], self.now_ms)
        elif segment.base_offset > start:
            reload_producers(states, before, self.segments, start, segment.base_offset, self.now_ms)
        next_offset, _ = recover_segment(segment, states, self.epochs)
        return next_offset

    def _end_offset(self, start: int) -> int:
        if not self.segments:
            return start
        last = self.segments[-1]
        try:
            return last.next_offset()
        except CorruptIndex as error:
            log.warning("%s: segment %d is recovered, although the last stop was clean", error, last.base_offset)
            return self._rebuild(last, start)

    def _recover_from(self, number: int, start: int) -> int:
        """Recover the segments from `number` on; returns the end offset of what is good."""
        if not self.segments:
            return start
        first = self.segments[number]
        end = first.base_offset
        self.snapshots.remove_outside(0, end)
        if end > start or end in self.snapshots.offsets:
            reload_producers(self.states, self.snapshots, self.segments, min(start, end), end, self.now_ms)
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset < end:
                log.warning("%s: segment %d begins before %d: it is dropped", self.dir, segment.base_offset, end)
                break
            if segment is not first:
                self.snapshots.write(segment.base_offset, self.states.entries.values())
            end, cut = recover_segment(segment, self.states, self.epochs)
            number += 1
            if cut:
                log.warning("%s: %d bytes were cut off at offset %d", segment.file.path, cut, end)
                break
        self._drop_segments(number)
        if end > start:
            self.snapshots.write(end, self.states.entries.values())
        return end

    def _drop_segments(self, number: int) -> None:
        for segment in self.segments[number:][::-1]:
            self.segments.remove(segment)
            self.snapshots.remove(segment.base_offset)
            segment.delete()

    def _load_producers(self, start: int, end: int) -> None:
        if self.snapshots.latest is None:
            # A folder without any snapshot has never known a producer id (or comes from before there were some).
            if end > start:
                self.snapshots.write(end, ())
            return
        reload_producers(self.states, self.snapshots, self.segments, start, end, self.now_ms)


def _sizes(dir: str) -> dict[str, int]:
    with os.scandir(dir) as entries:
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}


def finish_interrupted(dir: str, config: LogConfig, sizes: dict[str, int]) -> None:
    """Remove what waited for its deletion or was half written; put `.swap` segments in place of those they were made
    from."""
    unfinished = min(
        (offset for name in sizes if name.endswith(CLEANED_SUFFIX) and (offset := offset_of(name)) is not None),
        default=None,
    )
    swaps = []
    for name in sizes:
        offset = offset_of(name)
        if name.endswith(SWAP_SUFFIX) and offset is not None and (unfinished is None or offset < unfinished):
            swaps.append((name, offset))
        elif name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")):
            remove_if_there(f"{dir}/{name}")
    replaced_from, replaced_to = None, 0
    for name, offset in swaps:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            segment = LogSegment.open(dir, offset, config, 0, suffix=SWAP_SUFFIX)
            try:
                replaced_to = max(replaced_to, segment.next_offset())
            except CorruptIndex:
                replaced_to = max(replaced_to, *(header.last_offset + 1 for _, header in segment.batches()))
            segment.file.close()
            replaced_from = offset if replaced_from is None else min(replaced_from, offset)
    if replaced_from is not None:
        for name in sizes:
            offset = offset_of(name)
            if name.endswith(SEGMENT_SUFFIXES) and offset is not None and replaced_from <= offset < replaced_to:
                remove_if_there(f"{dir}/{name}")
    for name, _ in swaps:
        os.rename(f"{dir}/{name}", f"{dir}/{name[: -len(SWAP_SUFFIX)]}")


def recover_segment(segment: LogSegment, states: ProducerStates, epochs: LeaderEpochs) -> tuple[int, int]:
    """Read a segment from its start, make its indexes anew, cut it where it stops being good.

    Returns (next offset, bytes cut off). `states` must be those at its start; they, and `epochs`, are brought to its
    end.
    """
    length = segment.size
    segment.start_over()
    end = 0
    next_offset = segment.base_offset
    try:
        for position, header, marker in _good_batches(segment.file, length):
            last = header.last_offset
            if header.base_offset < next_offset and header.magic == 2:
                raise corrupt(f"offset {header.base_offset} after {next_offset - 1}")
            if last < next_offset or last - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise corrupt(f"offset {last} after {next_offset - 1}")
            segment.index_batch(header, position)
            epochs.note_batch(header.leader_epoch, header.base_offset, last)
            if header.producer_id >= 0:
                aborted = take_batch(states, header, marker)
                if aborted is not None:
                    segment.txn_index.append(aborted)
            next_offset = last + 1
            end = position + header.size
    except KafkaError as error:
        log.warning("%s is not good from position %d on: %s", segment.file.path, end, error)
    if end < length:
        segment.file.cut(end)
    segment.become_inactive()
    return next_offset, length - end


def _good_batches(file: LogFile, end: int) -> Iterator[tuple[int, BatchHeader, EndMarker | None]]:
    """(position, header, what a control batch says) of whole batches with a good CRC, up to the first that is not
    whole. CORRUPT_MESSAGE at one that is not good."""
    buffer = memoryview(bytearray(min(CHUNK, end)))
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
            return  # Room that was preallocated and never written to.
        header = header_at(buffer[:filled], at)
        if header is None or position + header.size > end:
            return
        size = header.size
        if at + size > filled and at:
            fill()
            at = 0
        marker = None
        if at + size <= filled:
            check_crc(header, _crc(header.magic, buffer[at : at + size]))
            if header.is_control and header.magic == 2:
                batch = batch_at(buffer, at, at + size)
                marker = parse_end_marker(batch, verify_crc=False) if batch is not None else None
        else:
            check_crc(header, _crc_of_large(file, position, header))
        yield position, header, marker
        position += size


def check_crc(header: BatchHeader, crc: int) -> None:
    if crc != header.crc & 0xFFFFFFFF:
        raise corrupt(f"the checksum of the batch at offset {header.base_offset} does not match its bytes")


def _crc(magic: int, data: memoryview) -> int:
    return int(crc32c(data[ATTRIBUTES_POSITION:])) if magic == 2 else zlib.crc32(data[MAGIC_POSITION:])


def _crc_of_large(file: LogFile, position: int, header: BatchHeader) -> int:
    """Of a batch that is larger than a chunk, read in chunks."""
    crc = 0
    at = position + (ATTRIBUTES_POSITION if header.magic == 2 else MAGIC_POSITION)
    end = position + header.size
    while at < end:
        data = file.read(at, min(CHUNK, end - at))
        if not data:
            break
        crc = crc32c(data, crc) if header.magic == 2 else zlib.crc32(data, crc)
        at += len(data)
    return crc
