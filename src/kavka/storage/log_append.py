"""Appending: batches of one turn of the loop are staged one by one, then written with one system call."""

from __future__ import annotations

import contextlib
from enum import Enum

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import Batch, assign_offsets, batch_at, batches, last_sequence
from kavka.records.control import EndMarker, parse_end_marker
from kavka.records.rules import LATEST_API_VERSION, ValidatedBatch
from kavka.records.validate import validate_produce
from kavka.storage.file_slice import FileClosed
from kavka.storage.log_state import LogState, storage_error
from kavka.storage.producer_state import BatchMeta, ProducerEntry
from kavka.storage.segment import MAX_RELATIVE_OFFSET, ROLL_TIME_UNKNOWN, LogSegment


class AppendOrigin(Enum):
    """Whose records they are: a client's are checked for sequence and must be no control records."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


CLIENT = AppendOrigin.CLIENT
COORDINATOR = AppendOrigin.COORDINATOR


class UnexpectedOffset(KafkaError):
    """A follower was given batches that begin before its log ends."""

    def __init__(self, first_offset: int, last_offset: int, end_offset: int) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Batches from offset {first_offset} to {last_offset} do not follow on a log that ends at {end_offset}.",
        )
        self.first_offset = first_offset
        self.last_offset = last_offset


class AppendInfo:
    """What became of an append. `append_time` is -1 under CreateTime; of a duplicate it is all that the first one
    got."""

    __slots__ = (
        "append_time",
        "count",
        "duplicate",
        "first_offset",
        "last_offset",
        "leader_epoch",
        "log_start_offset",
        "max_timestamp",
        "size",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        append_time: int,
        log_start_offset: int,
        leader_epoch: int,
        size: int,
        count: int,
        duplicate: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.append_time = append_time
        self.log_start_offset = log_start_offset
        self.leader_epoch = leader_epoch
        self.size = size
        self.count = count
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return "AppendInfo(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__) + ")"


class Undo:
    """The way back to before the first batch of a turn was staged, also over a roll in between."""

    __slots__ = (
        "bytes_since_index",
        "end_offset",
        "epochs",
        "first_timestamp",
        "index_entries",
        "max_timestamp",
        "max_timestamp_offset",
        "producers",
        "roll_at",
        "rolls_by_clock",
        "segment",
        "size",
        "time_entries",
        "transactions",
        "txn_entries",
    )

    def __init__(self, segment: LogSegment, end_offset: int) -> None:
        self.segment = segment
        self.end_offset = end_offset
        self.size = segment.file.size
        self.index_entries = segment.offset_index.entries
        self.time_entries = segment.time_index.entries
        self.txn_entries = -1
        self.bytes_since_index = segment.bytes_since_index
        self.max_timestamp = segment.max_timestamp_so_far
        self.max_timestamp_offset = segment.max_timestamp_offset
        self.first_timestamp = segment.first_timestamp
        self.roll_at = segment.roll_at
        self.rolls_by_clock = segment.rolls_by_clock
        self.producers: list[tuple[int, ProducerEntry | None]] = []
        self.epochs: list[tuple[int, int]] | None = None
        self.transactions: tuple[dict[int, int], dict[int, int]] | None = None


class LogAppending(LogState):
    """`stage_*` any number of times, then `write_staged` once. Nothing staged is in the file, or visible, before
    that."""

    def stage_as_leader(
        self,
        records: memoryview | ValidatedBatch,
        leader_epoch: int,
        *,
        origin: AppendOrigin = CLIENT,
        api_version: int | None = None,
        on_loop: bool = False,
    ) -> AppendInfo:
        """Check the one batch in `records` (writable; it is changed in place), give it its offsets, keep it for the
        write.

        KafkaError leaves everything as it was. A repetition of one of its producer's last five batches is answered
        with what that one got and not staged. `records` must stay as it is until `write_staged`.

        With `on_loop`, TooLargeToOpenHere where the batch has to be opened in a worker thread first: by
        `validate_produce` with this log's `rules`, whose result is then passed as `records`.
        """
        if self.write_error is not None:
            raise self.write_error
        now = self.clock.now_ms()
        (
            buffer, size, count, delta, max_timestamp, append_time, _, producer_id, producer_epoch, sequence,
            transactional, is_control, _,
        ) = (
            records if isinstance(records, ValidatedBatch) else
            validate_produce(
                records, self.rules, now, LATEST_API_VERSION if api_version is None else api_version,
                origin is CLIENT, on_loop,
            )
        )  # fmt: skip
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"A batch of {size} bytes does not fit into a segment of {self.config.segment_bytes}.",
            )
        marker: EndMarker | None = None
        final_sequence = -1
        if producer_id >= 0:
            if is_control:
                batch = batch_at(buffer, 0, size)
                assert batch is not None
                marker = parse_end_marker(batch, verify_crc=False)
                if marker is not None:
                    self.producer_states.check_marker(producer_id, producer_epoch, marker)
            elif origin is CLIENT:
                final_sequence = (sequence + delta) & 0x7FFFFFFF
                known = self.producer_states.check_client_batch(
                    producer_id, producer_epoch, sequence, final_sequence, transactional
                )
                if known is not None:
                    return self._duplicate(known, leader_epoch)
            else:
                final_sequence = last_sequence(sequence, delta)
                self.producer_states.check_coordinator_batch(producer_id, producer_epoch, transactional)
        elif transactional and origin is CLIENT:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "A transactional batch must have a producer id."
            )

        base = self.end_offset
        last = base + delta
        segment = self.active
        position = segment.file.size + self.staged_bytes
        if (
            position > self.config.segment_bytes - size
            or (now if segment.rolls_by_clock else max_timestamp) > segment.roll_at
            or segment.offset_index.entries + len(self.staged_entries) >= segment.offset_index.max_entries
            or segment.time_index.entries + len(self.staged_entries) >= segment.time_index.max_entries - 1
            or last - segment.base_offset > MAX_RELATIVE_OFFSET
        ) and self._must_roll(segment, position, size, max_timestamp, now, last):
            self._roll_in_turn(base)
            segment = self.active
            position = 0

        undo = self.undo
        if undo is None:
            undo = self.undo = Undo(segment, base)
        assign_offsets(buffer, base, leader_epoch, append_time)
        if leader_epoch != self.epochs.latest and leader_epoch >= 0:
            self._begin_epoch(undo, leader_epoch, base)
        if producer_id >= 0:
            if transactional and undo.transactions is None:
                self._keep_transactions(undo)
            if not is_control:
                entry = self.producer_states.append_batch(
                    producer_id, producer_epoch, sequence, final_sequence, last, delta, max_timestamp, transactional
                )
                undo.producers.append((producer_id, entry))
            elif marker is not None:
                self._end_transaction(undo, producer_id, producer_epoch, marker, base, max_timestamp)
        self._stage(segment, buffer, position, size, last, max_timestamp)
        return AppendInfo(
            base,
            last,
            max_timestamp,
            -1 if append_time is None else append_time,
            self.start_offset,
            leader_epoch,
            size,
            count,
        )

    def _stage(
        self,
        segment: LogSegment,
        buffer: memoryview | bytearray,
        position: int,
        size: int,
        last: int,
        max_timestamp: int,
    ) -> None:
        """Queue one batch, and work out what it means for the indexes."""
        self.staged_buffers.append(buffer)
        self.staged_last.append(last)
        self.staged_positions.append(position)
        self.staged_bytes += size
        self.end_offset = last + 1
        if not position:
            segment.first_timestamp = max_timestamp
            segment.set_roll_time()
        largest = segment.max_timestamp_so_far
        if largest is None:
            largest = segment.load_max_timestamp()
        if max_timestamp > largest:
            segment.max_timestamp_so_far = largest = max_timestamp
            segment.max_timestamp_offset = last
        if segment.bytes_since_index > self.config.index_interval_bytes:
            self.staged_entries.append((last, position, largest, segment.max_timestamp_offset))
            segment.bytes_since_index = size
        else:
            segment.bytes_since_index += size

    def _duplicate(self, known: BatchMeta, leader_epoch: int) -> AppendInfo:
        return AppendInfo(
            known.first_offset,
            known.last_offset,
            known.timestamp,
            known.timestamp,
            self.start_offset,
            leader_epoch,
            0,
            known.offset_delta + 1,
            duplicate=True,
        )

    def append_as_follower(
        self, records: memoryview | bytes | bytearray, leader_epoch: int | None = None
    ) -> AppendInfo:
        """Append what a leader sent, offsets and epochs as they are, and write it. A batch cut off at the end is left
        out.

        UnexpectedOffset where it begins before the log's end; CORRUPT_MESSAGE where a CRC or the order of offsets is
        wrong, or a batch is of a later epoch than `leader_epoch`, the one that was asked in (a file that was cut and
        written to again while it was sent): nothing is appended then.
        """
        found = self._check_from_leader(records, leader_epoch)
        if not found:
            at = self.end_offset
            return AppendInfo(at, at - 1, -1, -1, self.start_offset, self.epochs.latest, 0, 0)
        if self.write_error is not None:
            raise self.write_error
        view = memoryview(records)
        largest = -1
        now = self.clock.now_ms()
        try:
            for batch in found:
                self._stage_from_leader(batch, view[batch.start : batch.end], now)
                largest = max(largest, batch.max_timestamp)
        except KafkaError:
            self.roll_back()
            self.write_error = None
            raise
        first, final = found[0], found[-1]
        self.write_staged()
        return AppendInfo(
            first.base_offset,
            final.last_offset,
            largest,
            -1,
            self.start_offset,
            final.leader_epoch,
            final.end,
            sum(batch.count or 1 for batch in found),
        )

    def _check_from_leader(self, records: memoryview | bytes | bytearray, leader_epoch: int | None) -> list[Batch]:
        found = list(batches(records))
        if found and found[0].base_offset < self.end_offset:
            raise UnexpectedOffset(found[0].base_offset, found[-1].last_offset, self.end_offset)
        previous = self.end_offset - 1
        for batch in found:
            if batch.base_offset <= previous or batch.last_offset < batch.base_offset:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"Offsets {batch.base_offset} to {batch.last_offset} came after offset {previous}.",
                )
            if batch.last_offset - batch.base_offset > MAX_RELATIVE_OFFSET:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The batch at {batch.base_offset} spans too many offsets.")
            if leader_epoch is not None and batch.leader_epoch > leader_epoch:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"The batch at {batch.base_offset} is of epoch {batch.leader_epoch}, not of {leader_epoch}.",
                )
            batch.ensure_crc()
            previous = batch.last_offset
        return found

    def _stage_from_leader(self, batch: Batch, data: memoryview, now: int) -> None:
        segment = self.active
        position = segment.file.size + self.staged_bytes
        if self._must_roll(segment, position, batch.size, batch.max_timestamp, now, batch.last_offset):
            self._roll_in_turn(batch.base_offset)
            segment = self.active
            position = 0
        undo = self.undo
        if undo is None:
            undo = self.undo = Undo(segment, self.end_offset)
        if batch.leader_epoch >= 0 and batch.leader_epoch != self.epochs.latest:
            self._begin_epoch(undo, batch.leader_epoch, batch.base_offset)
        if batch.producer_id >= 0:
            if batch.is_transactional and undo.transactions is None:
                self._keep_transactions(undo)
            if not batch.is_control:
                entry = self.producer_states.append_batch(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.last_offset - batch.base_offset,
                    batch.max_timestamp,
                    batch.is_transactional,
                )
                undo.producers.append((batch.producer_id, entry))
            elif (marker := parse_end_marker(batch, verify_crc=False)) is not None:
                self._end_transaction(
                    undo, batch.producer_id, batch.producer_epoch, marker, batch.base_offset, batch.max_timestamp
                )
        self._stage(segment, data, position, batch.size, batch.last_offset, batch.max_timestamp)

    # --- what a staged batch changes besides the file, each with its way back

    def _begin_epoch(self, undo: Undo, epoch: int, offset: int) -> None:
        if undo.epochs is None:
            undo.epochs = self.epochs.entries
        self.epochs.assign(epoch, offset)

    def _keep_transactions(self, undo: Undo) -> None:
        states = self.producer_states
        undo.transactions = (dict(states.ongoing), dict(states.unreplicated))
        undo.txn_entries = len(undo.segment.txn_index.entries)

    def _end_transaction(
        self, undo: Undo, producer_id: int, epoch: int, marker: EndMarker, offset: int, timestamp: int
    ) -> None:
        if undo.transactions is None:
            self._keep_transactions(undo)
        entry, aborted = self.producer_states.append_marker(producer_id, epoch, marker, offset, timestamp)
        undo.producers.append((producer_id, entry))
        if aborted is not None:
            self.staged_aborted.append(aborted)

    # --- the write

    def write_staged(self) -> None:
        """Write all that was staged in one call, then its index entries.

        Where that fails (a full disk), KafkaError(KAFKA_STORAGE_ERROR) with the OSError as its cause: the file is cut
        back to where it was, and offsets, producers, epochs are as before the first batch of the turn was staged.
        """
        if self.write_error is not None:
            error, self.write_error = self.write_error, None
            raise error
        if self.undo is None:
            return
        if self.staged_buffers:
            self._write_out()
        self.undo = None
        self.written_end = self.end_offset

    def _write_out(self) -> None:
        segment = self.active
        entries = self.staged_entries
        try:
            if entries:
                segment.reserve_index_entries(len(entries))
            segment.file.append(self.staged_buffers, self.staged_bytes)
            if self.staged_aborted:
                segment.txn_index.append(*self.staged_aborted)
        except FileClosed:
            self.roll_back()
            raise
        except OSError as error:
            self.roll_back()
            raise storage_error(f"Cannot append to {segment.file.path}: {error.strerror or error}") from error
        if entries:
            segment.add_index_entries(entries)
        segment.remember(self.staged_last, self.staged_positions)
        self._clear_staged()

    def _clear_staged(self) -> None:
        self.staged_buffers.clear()
        self.staged_last.clear()
        self.staged_positions.clear()
        self.staged_entries.clear()
        self.staged_aborted.clear()
        self.staged_bytes = 0

    def roll_back(self) -> None:
        """Undo all that was staged since the last `write_staged`, and what a roll has already written of it."""
        self._clear_staged()
        undo, self.undo = self.undo, None
        if undo is None:
            return
        segment = undo.segment
        while self.segments[-1] is not segment:
            newer = self.segments[-1]
            self.segments.remove(newer)
            with contextlib.suppress(OSError):
                self.snapshots.remove(newer.base_offset)
                newer.delete()
        self.active = segment
        states = self.producer_states
        for producer_id, entry in reversed(undo.producers):
            states.restore(producer_id, entry)
        if undo.transactions is not None:
            states.restore_transactions(*undo.transactions)
        if undo.epochs is not None:
            self.epochs.restore(undo.epochs)
        self.end_offset = undo.end_offset
        segment.bytes_since_index = undo.bytes_since_index
        segment.max_timestamp_so_far = undo.max_timestamp
        segment.max_timestamp_offset = undo.max_timestamp_offset
        segment.first_timestamp = undo.first_timestamp
        segment.roll_at = undo.roll_at
        segment.rolls_by_clock = undo.rolls_by_clock
        with contextlib.suppress(OSError):
            # A disk that does not even let a file be cut is cut before the next append (LogFile).
            segment.restore(undo.size, undo.index_entries, undo.time_entries, undo.txn_entries)

    # --- rolling

    def _must_roll(
        self, segment: LogSegment, position: int, size: int, max_timestamp: int, now: int, last_offset: int
    ) -> bool:
        """Whether the batch has to go into a new segment: by size, age, a full index, or an offset too far from the
        base."""
        if segment.roll_at == ROLL_TIME_UNKNOWN:
            segment.set_roll_time()
        staged = len(self.staged_entries)
        return (
            position > self.config.segment_bytes - size
            or (position > 0 and (now if segment.rolls_by_clock else max_timestamp) > segment.roll_at)
            or segment.offset_index.entries + staged >= segment.offset_index.max_entries
            or segment.time_index.entries + staged >= segment.time_index.max_entries - 1
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        )

    def _roll_in_turn(self, base_offset: int) -> None:
        """A new segment for the next batch, in the middle of a turn: what is staged goes into the old one first.

        If that fails, all of the turn has failed: `write_staged` will say so again to those who staged before.
        """
        if self.staged_buffers:
            try:
                self._write_out()
            except KafkaError as error:
                self.write_error = error
                raise
        self._roll_at(base_offset)

    def _roll_at(self, base_offset: int) -> None:
        """Nothing is staged but what is written. A failure leaves the active segment as it is."""
        old = self.active
        if base_offset <= old.base_offset:
            # Only an empty segment can be asked to give way to one of the same name: it is as good as the new one.
            return
        try:
            self.snapshots.write(base_offset, self.producer_states.entries.values())
            old.become_inactive()
            new = self.new_segment(base_offset)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.snapshots.remove(base_offset)
                LogSegment.remove_files(str(self.dir), base_offset)
            raise storage_error(f"Cannot begin a new segment in {self.dir}: {error.strerror or error}") from error
        if len(self.segments) > 2:
            self.segments[-3].forget_recent()
        new.set_roll_time()
        if self.on_roll is not None:
            self.on_roll(self)  # type: ignore[arg-type]

    def roll(self) -> None:
        """Begin a new segment at the end of the log, unless the active one is empty."""
        self.write_staged()
        if self.active.file.size:
            self._roll_at(self.end_offset)

    def start_epoch(self, leader_epoch: int) -> None:
        """This broker leads from here on: the epoch begins at the end of the log, whatever is written to it."""
        self.write_staged()
        if leader_epoch >= 0:
            self.epochs.assign(leader_epoch, self.end_offset)
