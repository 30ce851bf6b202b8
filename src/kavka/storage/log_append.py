"""Appends to a log. The batches of one iteration of the event loop are staged, then written with
one system call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import Batch, assign_offsets, batch_at, batches, corrupt
from kavka.records.compression import CODEC_NAMES
from kavka.records.control import EndMarker, parse_end_marker
from kavka.records.rules import LATEST_API_VERSION, ProduceRules, ValidatedBatch
from kavka.records.validate import validate_produce
from kavka.storage.file_slice import FileClosed
from kavka.storage.files import storage_error
from kavka.storage.leader_epochs import LeaderEpochs
from kavka.storage.log_config import LOG_APPEND_TIME, LogConfig
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.producer_state import BatchMeta, ProducerStates
from kavka.storage.segment import MAX_RELATIVE_OFFSET, ROLL_TIME_UNKNOWN, LogSegment, SegmentMark
from kavka.storage.segments import LogSegments
from kavka.storage.transaction_index import AbortedTxn


class AppendOrigin(Enum):
    """The writer of the records. For a client, the sequence numbers are checked and control records
    are rejected."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


CLIENT = AppendOrigin.CLIENT
COORDINATOR = AppendOrigin.COORDINATOR


class UnexpectedOffset(KafkaError):
    """A follower received batches that begin before the end of its log."""

    def __init__(self, first_offset: int, last_offset: int, end_offset: int) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Batches from offset {first_offset} to {last_offset} begin before {end_offset}, the end of the log.",
        )
        self.first_offset = first_offset
        self.last_offset = last_offset


class AppendInfo(NamedTuple):
    """The result of an append. `append_time` is -1 under CreateTime. For a duplicate, the offsets
    and timestamps are those of the original batch."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    append_time: int
    log_start_offset: int
    leader_epoch: int
    size: int
    count: int  # type: ignore[assignment]
    duplicate: bool = False


@dataclass(slots=True)
class Undo:
    """The state of the log before the first staged batch, for `LogAppender.roll_back`. `epochs` is
    None while no staged batch has begun a leader epoch. ProducerStates keeps its previous state
    itself."""

    segment: LogSegment
    mark: SegmentMark
    end_offset: int
    epochs: list[tuple[int, int]] | None = None


class LogAppender:
    """Stages batches and writes them.

    Callers stage any number of batches with `stage_as_leader`, then write them with one
    `write_staged`. A staged batch is neither in the file nor visible to readers, but `end_offset`,
    the producer states and the leader epochs already include it. A failed write reverts all staged
    batches, including those that a roll has already written. A crash loses the staged batches, none
    of which has been acknowledged. Only the thread that owns the log may call the methods.
    """

    def __init__(
        self,
        offsets: LogOffsets,
        segments: LogSegments,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        self._offsets = offsets
        self._segments = segments
        self._producers = producers
        self._epochs = epochs
        self._clock = clock
        self._config = config
        self.rules = _produce_rules(config)
        self.on_roll: Callable[[], None] | None = None
        self._buffers: list[memoryview | bytearray] = []
        self._last_offsets: list[int] = []
        self._positions: list[int] = []
        self._index_entries: list[tuple[int, int, int, int]] = []
        self._aborted: list[AbortedTxn] = []
        self._size = 0
        self._undo: Undo | None = None
        # The error of a roll that could not write the batches staged before it. `write_staged`
        # raises the error again for the callers that staged them.
        self._failure: KafkaError | None = None

    def update_config(self, config: LogConfig) -> None:
        self._config = config
        self.rules = _produce_rules(config)

    # --- staging as the leader: check, place, record

    def stage_as_leader(
        self,
        records: memoryview | ValidatedBatch,
        leader_epoch: int,
        *,
        origin: AppendOrigin = CLIENT,
        api_version: int | None = None,
        on_loop: bool = False,
    ) -> AppendInfo:
        """Check the single batch in `records`, assign its offsets in place, and stage it.

        Raises KafkaError if the batch is invalid; the log is then unchanged. A duplicate of one of
        the producer's last five batches is not staged; the result then has the offsets of the
        original. `records` must be writable, and the caller must not change it until
        `write_staged`.

        With `on_loop`, raises MustDecompressInWorker if the batch must be decompressed in a worker
        thread. The worker thread then calls `validate_produce` with the `rules` of this log, and
        the caller passes the result as `records`.
        """
        if self._failure is not None:
            raise self._failure
        now = self._clock.now_ms()
        if isinstance(records, ValidatedBatch):
            batch = records
        else:
            api_version = LATEST_API_VERSION if api_version is None else api_version
            batch = validate_produce(records, self.rules, now, api_version, origin is CLIENT, on_loop)
        # A slice of a named tuple is a plain tuple, which is unpacked faster.
        (
            buffer, size, count, delta, max_timestamp, append_time, _, producer_id, producer_epoch, sequence,
            is_transactional, is_control, _,
        ) = batch[:]  # fmt: skip
        if size > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"A batch of {size} bytes is larger than segment.bytes, {self._config.segment_bytes}.",
            )
        marker = None
        if producer_id >= 0:
            original, marker = self._check_producer(batch, origin)
            if original is not None:
                return self._duplicate_info(original, leader_epoch)
        elif is_transactional and origin is CLIENT:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "A transactional batch must have a producer id."
            )
        base = self._offsets.end_offset
        last = base + delta
        segment, position = self._place(size, base, last, max_timestamp, now)
        assign_offsets(buffer, base, leader_epoch, append_time)
        if is_control:
            self._end_transaction(producer_id, producer_epoch, marker, base, max_timestamp)
        elif producer_id >= 0:
            final_sequence = (sequence + delta) & 0x7FFFFFFF if sequence >= 0 else -1
            self._producers.append_batch(
                producer_id, producer_epoch, sequence, final_sequence, last, delta, max_timestamp, is_transactional
            )
        self._record(segment, position, buffer, size, base, last, max_timestamp, leader_epoch)
        time = -1 if append_time is None else append_time
        start_offset = self._offsets.start_offset
        info = (base, last, max_timestamp, time, start_offset, leader_epoch, size, count, False)
        return tuple.__new__(AppendInfo, info)

    def _check_producer(self, batch: ValidatedBatch, origin: AppendOrigin) -> tuple[BatchMeta | None, EndMarker | None]:
        """Check a batch against the state of its producer. Returns the original batch if the batch
        is a duplicate, and the end marker if it is a control batch. Raises KafkaError."""
        buffer, size, _, delta, _, _, _, producer_id, epoch, sequence, is_transactional, is_control, _ = batch[:]
        if is_control:
            control = batch_at(buffer, 0, size)
            assert control is not None
            marker = parse_end_marker(control, verify_crc=False)
            if marker is not None:
                self._producers.check_marker(producer_id, epoch, marker)
            return None, marker
        if origin is CLIENT:
            final_sequence = (sequence + delta) & 0x7FFFFFFF
            check = self._producers.check_client_batch
            return check(producer_id, epoch, sequence, final_sequence, is_transactional), None
        self._producers.check_coordinator_batch(producer_id, epoch, is_transactional)
        return None, None

    def _duplicate_info(self, original: BatchMeta, leader_epoch: int) -> AppendInfo:
        first, last, timestamp = original.first_offset, original.last_offset, original.timestamp
        start_offset, count = self._offsets.start_offset, original.offset_delta + 1
        return AppendInfo(first, last, timestamp, timestamp, start_offset, leader_epoch, 0, count, duplicate=True)

    # --- appending as a follower

    def append_as_follower(
        self, records: memoryview | bytes | bytearray, leader_epoch: int | None = None
    ) -> AppendInfo:
        """Append and write batches from the leader, with their offsets and leader epochs. An
        incomplete batch at the end is ignored.

        Raises UnexpectedOffset if the batches begin before the end of the log. Raises
        CORRUPT_MESSAGE if a CRC or the order of offsets is wrong, or if a batch has a later leader
        epoch than `leader_epoch`, the epoch of the fetch. A leader can send such a batch if it
        truncates the file and appends to it while sendfile reads it. Both errors leave the log
        unchanged.
        """
        received_batches = self._check_from_leader(records, leader_epoch)
        start_offset = self._offsets.start_offset
        if not received_batches:
            end = self._offsets.end_offset
            return AppendInfo(end, end - 1, -1, -1, start_offset, self._epochs.latest, 0, 0)
        if self._failure is not None:
            raise self._failure
        view = memoryview(records)
        now = self._clock.now_ms()
        try:
            for batch in received_batches:
                self._stage_from_leader(batch, view[batch.start : batch.end], now)
        except KafkaError:
            self.roll_back()
            self._failure = None
            raise
        self.write_staged()
        first, last = received_batches[0].base_offset, received_batches[-1].last_offset
        max_timestamp = max(batch.max_timestamp for batch in received_batches)
        count = sum(batch.count or 1 for batch in received_batches)
        epoch, size = received_batches[-1].leader_epoch, received_batches[-1].end
        return AppendInfo(first, last, max_timestamp, -1, start_offset, epoch, size, count)

    def _check_from_leader(self, records: memoryview | bytes | bytearray, leader_epoch: int | None) -> list[Batch]:
        received_batches = list(batches(records))
        end_offset = self._offsets.end_offset
        if received_batches and received_batches[0].base_offset < end_offset:
            raise UnexpectedOffset(received_batches[0].base_offset, received_batches[-1].last_offset, end_offset)
        previous_offset = end_offset - 1
        for batch in received_batches:
            first, last = batch.base_offset, batch.last_offset
            if first <= previous_offset or last < first:
                raise corrupt(
                    f"A batch has the offsets {first} to {last}, but the previous offset is {previous_offset}."
                )
            if last - first > MAX_RELATIVE_OFFSET:
                raise corrupt(f"The batch at offset {first} has more offsets than a segment can have.")
            if leader_epoch is not None and batch.leader_epoch > leader_epoch:
                raise corrupt(
                    f"The batch at offset {first} has leader epoch {batch.leader_epoch}, later than {leader_epoch}."
                )
            batch.ensure_crc()
            previous_offset = last
        return received_batches

    def _stage_from_leader(self, batch: Batch, data: memoryview, now: int) -> None:
        base, last, max_timestamp = batch.base_offset, batch.last_offset, batch.max_timestamp
        segment, position = self._place(batch.size, base, last, max_timestamp, now)
        if batch.is_control:
            marker = parse_end_marker(batch, verify_crc=False)
            self._end_transaction(batch.producer_id, batch.producer_epoch, marker, base, max_timestamp)
        elif batch.producer_id >= 0:
            producer = batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence
            self._producers.append_batch(*producer, last, last - base, max_timestamp, batch.is_transactional)
        self._record(segment, position, data, batch.size, base, last, max_timestamp, batch.leader_epoch)

    # --- shared by leader and follower

    def _place(
        self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now: int
    ) -> tuple[LogSegment, int]:
        """Return the segment and the position for the next batch. The log rolls if the active
        segment is too large or too old, has a full index, or begins too far before
        `last_offset`."""
        segment = self._segments.active
        position = segment.file.size + self._size
        if segment.roll_at == ROLL_TIME_UNKNOWN:
            segment.set_roll_time()
        staged_entries = len(self._index_entries)
        if (
            position > self._config.segment_bytes - size
            or ((now if segment.rolls_by_clock else max_timestamp) > segment.roll_at and position)
            or segment.offset_index.entries + staged_entries >= segment.offset_index.max_entries
            or segment.time_index.entries + staged_entries >= segment.time_index.max_entries - 1
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            self._roll_while_staging(base_offset)
            segment, position = self._segments.active, 0
        if self._undo is None:
            self._undo = Undo(segment, segment.mark(), self._offsets.end_offset)
        return segment, position

    def _end_transaction(
        self, producer_id: int, epoch: int, marker: EndMarker | None, offset: int, timestamp: int
    ) -> None:
        if marker is not None and producer_id >= 0:
            aborted = self._producers.append_marker(producer_id, epoch, marker, offset, timestamp)
            if aborted is not None:
                self._aborted.append(aborted)

    def _record(
        self,
        segment: LogSegment,
        position: int,
        buffer: memoryview | bytearray,
        size: int,
        base: int,
        last: int,
        max_timestamp: int,
        leader_epoch: int,
    ) -> None:
        """Stage a batch at `position`. Begins a leader epoch if the batch has a new one, and stages
        an index entry if one is due."""
        if leader_epoch != self._epochs.latest and leader_epoch >= 0:
            self._begin_epoch(leader_epoch, base)
        self._buffers.append(buffer)
        self._last_offsets.append(last)
        self._positions.append(position)
        self._size += size
        self._offsets.end_offset = last + 1
        if not position:
            segment.first_timestamp = max_timestamp
            segment.set_roll_time()
        largest = segment.max_timestamp_so_far
        if largest is None:
            largest = segment.max_timestamp
        if max_timestamp > largest:
            segment.max_timestamp_so_far = largest = max_timestamp
            segment.max_timestamp_offset = last
        if segment.bytes_since_index > self._config.index_interval_bytes:
            self._index_entries.append((last, position, largest, segment.max_timestamp_offset))
            segment.bytes_since_index = size
        else:
            segment.bytes_since_index += size

    def _begin_epoch(self, epoch: int, offset: int) -> None:
        assert self._undo is not None
        if self._undo.epochs is None:
            self._undo.epochs = self._epochs.entries
        self._epochs.assign(epoch, offset)

    # --- writing

    def write_staged(self) -> None:
        """Write all staged batches with one system call, then their index entries.

        If the write fails, for example on a full disk, raises KAFKA_STORAGE_ERROR with the OSError
        as its cause. The file is then truncated to its previous size, and the offsets, producer
        states and leader epochs are restored to their values before the first staged batch.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._undo is None:
            return
        if self._buffers:
            self._write_out()
        self._undo = None
        self._producers.commit()
        offsets = self._offsets
        offsets.written_end = offsets.end_offset

    def _write_out(self) -> None:
        segment = self._segments.active
        entries = self._index_entries
        try:
            segment.file.append(self._buffers, self._size)
            if self._aborted:
                segment.txn_index.append(*self._aborted)
        except FileClosed:
            self.roll_back()
            raise
        except OSError as error:
            self.roll_back()
            raise storage_error(f"Cannot append to {segment.file.path}: {error.strerror or error}") from error
        if entries:
            segment.add_index_entries(entries)
        segment.remember(self._last_offsets, self._positions)
        self._clear()

    def _clear(self) -> None:
        self._buffers.clear()
        self._last_offsets.clear()
        self._positions.clear()
        self._index_entries.clear()
        self._aborted.clear()
        self._size = 0

    def roll_back(self) -> None:
        """Drop all batches staged since the last `write_staged`, including those that a roll has
        already written."""
        self._clear()
        undo, self._undo = self._undo, None
        if undo is None:
            return
        segments = self._segments
        while segments.active is not undo.segment:
            rolled_segment = segments.active
            segments.remove(rolled_segment)
            with contextlib.suppress(OSError):
                self._producers.snapshots.remove(rolled_segment.base_offset)
                rolled_segment.delete()
        self._producers.roll_back()
        if undo.epochs is not None:
            self._epochs.restore(undo.epochs)
        self._offsets.end_offset = undo.end_offset
        with contextlib.suppress(OSError):
            # If the truncation fails, LogFile repeats it before the next append.
            undo.segment.restore(undo.mark)

    # --- rolling

    def roll(self) -> None:
        """Begin a new segment at the end of the log, unless the active segment is empty. Raises
        KAFKA_STORAGE_ERROR."""
        self.write_staged()
        if self._segments.active.file.size:
            self._roll_at(self._offsets.end_offset)

    def _roll_while_staging(self, base_offset: int) -> None:
        """Begin a new segment while batches are staged. The staged batches are first written to the
        active segment; if that fails, all of them are dropped. Raises KafkaError."""
        if self._buffers:
            try:
                self._write_out()
            except KafkaError as error:
                self._failure = error
                raise
        self._roll_at(base_offset)

    def _roll_at(self, base_offset: int) -> None:
        """Begin a segment at `base_offset`. All staged batches must have been written. If it raises
        KAFKA_STORAGE_ERROR, the active segment is unchanged."""
        segments = self._segments
        if base_offset <= segments.active.base_offset:
            # The active segment is empty, so the batch can be appended to it.
            return
        try:
            self._producers.take_snapshot(base_offset)
            segments.active.become_inactive()
            segments.create(base_offset)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._producers.snapshots.remove(base_offset)
                LogSegment.remove_files(segments.dir, base_offset)
            raise storage_error(
                f"Cannot create segment {base_offset} in {segments.dir}: {error.strerror or error}"
            ) from error
        if len(segments) > 2:
            segments[-3].forget_recent()
        segments.active.set_roll_time()
        if self.on_roll is not None:
            self.on_roll()


def _produce_rules(config: LogConfig) -> ProduceRules:
    compression = config.compression_type
    codec = (
        None
        if compression == "producer"
        else CODEC_NAMES.index("none" if compression == "uncompressed" else compression)
    )
    return ProduceRules(
        codec=codec,
        level=config.compression_level,
        timestamp_type=int(config.message_timestamp_type == LOG_APPEND_TIME),
        max_message_bytes=config.max_message_bytes,
        compacted=config.compact,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
    )
