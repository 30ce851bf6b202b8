"""The log of one partition."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from uuid import UUID

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.records.rules import ProduceRules
from kavka.storage.files import fsync_dir
from kavka.storage.leader_epochs import FILE_NAME as EPOCHS_FILE
from kavka.storage.log_append import LogAppender
from kavka.storage.log_config import LogConfig
from kavka.storage.log_flush import LogFlusher
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.log_read import LogReader
from kavka.storage.partition_metadata import read_topic_id, write_topic_id
from kavka.storage.producer_replay import PastProducers, reload_producers
from kavka.storage.producer_state import ProducerEntry
from kavka.storage.recovery import LoadedLog, LogLoader
from kavka.storage.segment import LogSegment

# The headers of this many bytes of batches are read in a few milliseconds.
MAX_REPLAYED_ON_LOOP_BYTES = 64 * 1024


class Log(LogOffsets):
    """The batches of one partition, stored as segments in one folder. A log has these parts:

    - `segments` (LogSegments): the files of batches and their indexes;
    - `producer_states` (ProducerStates): idempotent producers, transactions, and their snapshots;
    - `epochs` (LeaderEpochs): the offset at which each leader epoch begins;
    - an appender (LogAppender): stages and writes batches;
    - a reader (LogReader);
    - a flusher (LogFlusher): moves the recovery point.

    Log itself implements the operations that span several parts: retention, truncation, the high
    watermark, and the swap of cleaned segments. LogOffsets defines the offsets and their
    invariants.

    One thread owns a log. The loop thread owns it, except while it is opened, closed at shutdown,
    or the target of a move (log_moves.py). Only the owner may call the methods. Any thread may
    call `run()` of the objects that `prepare_flush` and `take_due_deletions` return.
    """

    def __init__(
        self,
        dir: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        loaded: LoadedLog,
        topic_id: UUID | None,
    ) -> None:
        super().__init__(loaded.start_offset, loaded.end_offset, loaded.recovery_point)
        self.dir = dir
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.clock = clock
        self.closed = False
        self.segments = segments = loaded.segments
        self.producer_states = producers = loaded.producers
        self.epochs = epochs = loaded.epochs
        self._appender = appender = LogAppender(self, segments, producers, epochs, config, clock)
        self._reader = reader = LogReader(self, segments, topic_partition)
        self._flusher = flusher = LogFlusher(self, segments, producers.snapshots, epochs, clock)
        # Bound methods of the parts instead of wrappers: most of them are called for every request.
        self.stage_as_leader = appender.stage_as_leader
        self.append_as_follower = appender.append_as_follower
        self.write_staged = appender.write_staged
        self.roll_back = appender.roll_back
        self.roll = appender.roll
        self.read = reader.read
        self.bytes_between = reader.bytes_between
        self.aborted_transactions = reader.aborted_transactions
        self.offset_for_timestamp = reader.offset_for_timestamp
        self.offset_of_max_timestamp = reader.offset_of_max_timestamp
        self.prepare_flush = flusher.prepare_flush
        self.flush = flusher.flush
        self.take_due_deletions = segments.take_due_deletions

    @classmethod
    def open(
        cls,
        dir: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        *,
        recovery_point: int = 0,
        start_offset: int = 0,
        clean_shutdown: bool = True,
        producer_id_expiration_ms: int = 86_400_000,
        topic_id: UUID | None = None,
    ) -> Log:
        """Open the log in `dir`. A missing `dir` is created in its parent, which must exist.
        Blocks. Recovers the log unless the last shutdown was clean.

        Raises OSError if the disk fails, and KafkaError if the folder belongs to another topic id
        or its files are malformed.
        """
        path = os.fspath(dir)
        is_new = not os.path.isdir(path)
        if is_new:
            os.mkdir(path)
            fsync_dir(os.path.dirname(path) or ".")
        stored_id = None if is_new else read_topic_id(path)
        loader = LogLoader(path, config, clock, producer_id_expiration_ms)
        loaded = loader.load(recovery_point, start_offset, clean_shutdown)
        log = cls(Path(dir), topic_partition, config, clock, loaded, stored_id)
        if topic_id is not None:
            log.set_topic_id(topic_id)
        return log

    def set_topic_id(self, topic_id: UUID) -> None:
        """Write `partition.metadata`, unless it has this topic id. Raises INCONSISTENT_TOPIC_ID if
        it has another topic id."""
        if self.topic_id is None:
            write_topic_id(str(self.dir), topic_id)
            self.topic_id = topic_id
        elif self.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.dir} belongs to topic {self.topic_id}, not to {topic_id}."
            )

    def update_config(self, config: LogConfig) -> None:
        """Set the configuration. It takes effect at once, except for the size of the indexes of
        existing segments."""
        self.config = config
        self.segments.update_config(config)
        self._appender.update_config(config)

    def notify_rolls(self, callback: Callable[[Log], None] | None) -> None:
        """Call `callback` after each roll. None removes the callback."""
        self._appender.on_roll = None if callback is None else lambda: callback(self)

    # --- state

    @property
    def rules(self) -> ProduceRules:
        """The topic's rules for `validate_produce`."""
        return self._appender.rules

    @property
    def active_segment(self) -> LogSegment:
        return self.segments.active

    @property
    def size(self) -> int:
        """Total bytes of the .log files."""
        return self.segments.size

    @property
    def last_flush_ms(self) -> int:
        return self._flusher.last_flush_ms

    @property
    def unflushed_messages(self) -> int:
        return self.written_end - self.flushed_offset

    def producers(self) -> Iterable[ProducerEntry]:
        """All producers of the log, for DescribeProducers."""
        return self.producer_states.entries.values()

    # --- leader epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and its end offset, or (-1, -1) if it is
        unknown."""
        return self.epochs.end_offset_for(epoch, self.written_end)

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch at the end of the log, when this broker becomes the leader."""
        self.write_staged()
        if leader_epoch >= 0:
            self.epochs.assign(leader_epoch, self.end_offset)

    # --- the high watermark and the start offset

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark to `offset`, limited to the offsets of the log, and update the
        last stable offset."""
        if offset > self.written_end:
            offset = self.written_end
        if offset < self.start_offset:
            offset = self.start_offset
        self.high_watermark = offset
        states = self.producer_states
        if states.unreplicated:
            states.on_high_watermark(offset)
        first = states.first_unstable_offset
        if first is None or first >= offset:
            self.last_stable_offset = offset
        else:
            self.last_stable_offset = first if first > self.start_offset else self.start_offset

    def delete_records_before(self, offset: int) -> int:
        """Move the start offset up to `offset` (-1: the high watermark). Returns the start offset.

        Raises OFFSET_OUT_OF_RANGE if `offset` is negative or past the high watermark. The next
        `delete_old_segments` removes the segments that end before the start offset.
        """
        self.write_staged()
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot delete the records of {self.topic_partition} before {offset}: the high watermark is "
                f"{self.high_watermark}.",
            )
        self._advance_start(offset)
        return self.start_offset

    def advance_start_offset(self, offset: int) -> None:
        """Move the start offset of a follower up to `offset`, the start offset of the leader, but
        not past the end of the log."""
        self.write_staged()
        self._advance_start(min(offset, self.end_offset))

    def _advance_start(self, offset: int) -> None:
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.flushed_offset = max(self.flushed_offset, offset)
        self.set_high_watermark(self.high_watermark)

    # --- retention

    def delete_old_segments(self, now_ms: int | None = None) -> int:
        """Remove the segments, oldest first, that exceed retention.ms or retention.bytes (both only
        with cleanup.policy=delete), or that end before the start offset. Returns the number of
        removed segments.

        If the active segment has expired as well, the log rolls first.
        """
        self.write_staged()
        now = self.clock.now_ms() if now_ms is None else now_ms
        config = self.config
        count = 0
        if config.delete and config.retention_ms >= 0:
            count += self._delete_expired(lambda segment, _: now - segment.largest_timestamp > config.retention_ms)
        if config.delete and config.retention_bytes >= 0:
            excess = self.size - config.retention_bytes

            def is_excess(segment: LogSegment, _: int | None) -> bool:
                nonlocal excess
                excess -= segment.size
                return excess >= 0

            count += self._delete_expired(is_excess)
        return count + self._delete_expired(lambda _, end: end is not None and end <= self.start_offset)

    def _delete_expired(self, is_expired: Callable[[LogSegment, int | None], bool]) -> int:
        """Remove the segments at the start of the log that have expired and end at or before the
        high watermark. Returns the number of removed segments. The second argument of `is_expired`
        is the base offset of the next segment, or None for the active segment."""
        expired: list[LogSegment] = []
        next_bases = [segment.base_offset for segment in self.segments[1:]]
        for segment, next_base in zip(self.segments, [*next_bases, None], strict=True):
            if self.high_watermark < (self.end_offset if next_base is None else next_base):
                break
            if (next_base is None and not segment.size) or not is_expired(segment, next_base):
                break
            expired.append(segment)
        if len(expired) == len(self.segments):
            self.roll()
            if self.active_segment is expired[-1]:
                return 0
        for segment in expired:
            self.segments.delete_later(segment)
            self._remove_snapshot(segment.base_offset)
        if expired:
            self._reader.forget_position()
            self._advance_start(self.segments[0].base_offset)
        return len(expired)

    def _remove_snapshot(self, offset: int) -> None:
        """Remove the producer snapshot at `offset`, the base offset of a removed segment, unless it
        is the latest snapshot."""
        snapshots = self.producer_states.snapshots
        if offset != snapshots.latest:
            snapshots.remove(offset)

    # --- truncation

    def past_producers(self, offset: int) -> PastProducers | None:
        """Return an object that computes the producer states at `offset` in a worker thread, for
        `truncate_to`. Return None if the states are already in memory, or are read in a few
        milliseconds."""
        self.write_staged()
        start_offset = min(self.start_offset, offset)
        if offset >= self.end_offset or offset < self.segments[0].base_offset:
            return None
        past = PastProducers.at(offset, self.producer_states, self.segments, start_offset, self.clock.now_ms())
        return past if self.bytes_between(past.first_offset, offset) > MAX_REPLAYED_ON_LOOP_BYTES else None

    def truncate_to(self, offset: int, past: PastProducers | None = None) -> bool:
        """Truncate the log so that it ends at `offset`. The batch that contains `offset` is removed
        completely. Returns False if the log ends at or before `offset`. If the disk is full, raises
        OSError, but the log is truncated in memory and on disk.

        Without `past`, which has the producer states at `offset`, this reads the headers of all
        batches since the last snapshot."""
        self.write_staged()
        if offset < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        if offset >= self.end_offset:
            # A leader that appended nothing may have left its epoch at the end.
            self.epochs.truncate_from_end(self.end_offset)
            return False
        segments = self.segments
        if offset < segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        snapshots = self.producer_states.snapshots
        for segment in [s for s in reversed(segments) if s.base_offset > offset]:
            segments.delete_later(segment)
            segment.file.close()  # a pending fetch must not send the removed records
            snapshots.remove(segment.base_offset)
        segments.active.truncate_to(offset, self.clock.now_ms())
        segments.has_unsynced_dir_entries = True
        self._end_at(offset)
        self.epochs.truncate_from_end(offset)
        self.start_offset = min(self.start_offset, offset)
        try:
            if past is None:
                reload_producers(self.producer_states, segments, self.start_offset, offset, self.clock.now_ms())
            else:
                snapshots.remove_outside(self.start_offset, offset)
                self.producer_states.replace_with(past.states)
        finally:
            self.set_high_watermark(min(self.high_watermark, offset))
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records and start the log at `offset`. If the new segment cannot be created,
        the log has no segment. Then raises OSError(EIO), which takes the directory offline."""
        self.write_staged()
        for segment in list(reversed(self.segments)):
            self.segments.remove(segment)
            segment.delete()
        snapshots = self.producer_states.snapshots
        for snapshot in list(snapshots.offsets):
            snapshots.remove(snapshot)
        try:
            self.segments.create(offset)
        except OSError as error:
            raise OSError(errno.EIO, f"cannot create segment {offset}: {error.strerror}", error.filename) from error
        self.start_offset = offset
        self._end_at(offset)
        self.epochs.clear()
        self.producer_states.clear()
        self.set_high_watermark(offset)

    def _end_at(self, offset: int) -> None:
        self.end_offset = self.written_end = offset
        self._flusher.truncate_to(offset)
        self._reader.forget_position()

    # --- the cleaner

    def replace_segments(self, cleaned: Sequence[LogSegment], sources: Sequence[LogSegment]) -> None:
        """Replace `sources` by the segments that the cleaner created from them
        (`LogSegments.replace`)."""
        self.segments.replace(cleaned, sources)
        base_offsets = {segment.base_offset for segment in self.segments}
        for segment in sources:
            if segment.base_offset not in base_offsets:
                self._remove_snapshot(segment.base_offset)
        self._reader.forget_position()

    # --- closing

    def close(self) -> None:
        """Close the log at a clean shutdown: write a producer snapshot at the end of the log, trim
        the indexes and flush all unflushed files. Blocks. Raises OSError."""
        if self.closed:
            return
        self.write_staged()
        if self.end_offset > self.start_offset:
            self.producer_states.take_snapshot(self.end_offset, sync=True)
        self.epochs.save()
        dirty = self.segments.from_offset(self.flushed_offset) if self.written_end > self.flushed_offset else []
        for segment in self.segments:
            segment.become_inactive()
        for segment in dirty:
            segment.flush()
        if self.segments.has_unsynced_dir_entries or dirty:
            fsync_dir(self.dir)
        self.flushed_offset = self.written_end
        self._close_files()

    def abandon(self) -> None:
        """Drop the staged batches and close the descriptors without a flush, after a disk failure
        or before the folder is removed."""
        if not self.closed:
            self.roll_back()
            self._close_files()

    def _close_files(self) -> None:
        self.closed = True
        self.segments.abandon()

    def rename_dir(self, name: str) -> Path:
        """Rename the folder of the log, which stays open. Returns the new path. Raises OSError."""
        self.write_staged()
        self.dir = self.dir.rename(self.dir.with_name(name))
        path = str(self.dir)
        self.segments.move(path)
        self.producer_states.snapshots.dir = path
        self.epochs.path = f"{path}/{EPOCHS_FILE}"
        return self.dir

    def __repr__(self) -> str:
        return f"Log({str(self.dir)!r}, offsets {self.start_offset}..{self.end_offset})"
