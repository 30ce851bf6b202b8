"""One partition's log.

A Log is made of parts, each in a file of its own: log_state.py (what it consists of), log_append.py, log_read.py,
log_flush.py, log_deletion.py (what becomes of it), recovery.py (how it is found on disk). This file has its beginning
and its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.storage.files import fsync_dir
from kavka.storage.leader_epochs import FILE_NAME as EPOCHS_FILE
from kavka.storage.log_config import LogConfig
from kavka.storage.log_deletion import LogDeletion
from kavka.storage.log_flush import LogFlushing
from kavka.storage.log_read import LogReading
from kavka.storage.partition_metadata import read_topic_id, write_topic_id
from kavka.storage.producer_state import ProducerEntry
from kavka.storage.recovery import load_log
from kavka.storage.segment import LogSegment


class Log(LogDeletion, LogReading, LogFlushing):
    """The batches of one partition, in segments, in one folder.

    The loop thread alone calls it, except `open` (before anyone else has it) and `run()` of what `prepare_flush` and
    `take_due_deletions` hand out. All before `high_watermark` is replicated, all before `last_stable_offset` also
    decided, all before `flushed_offset` on disk. `end_offset` includes what is staged and not written yet.
    """

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
        """The log in `dir`, which is made if it is not there, but not the folder that it is in. Blocks; recovers unless
        the last stop was clean.

        OSError where the disk fails, KafkaError where the folder belongs to another topic id or its files make no
        sense.
        """
        path = os.fspath(dir)
        new = not os.path.isdir(path)
        if new:
            os.mkdir(path)
            fsync_dir(os.path.dirname(path) or ".")
        known_id = None if new else read_topic_id(path)
        loaded = load_log(
            path,
            config,
            clock.now_ms(),
            recovery_point=recovery_point,
            start_offset=start_offset,
            clean_shutdown=clean_shutdown,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        log = cls(Path(dir), topic_partition, config, clock, loaded, known_id)
        log.files_created = new or not clean_shutdown
        if topic_id is not None:
            log.set_topic_id(topic_id)
        return log

    def set_topic_id(self, topic_id: UUID) -> None:
        """Write partition.metadata; INCONSISTENT_TOPIC_ID where the files are those of another topic."""
        if self.topic_id is None:
            write_topic_id(str(self.dir), topic_id)
            self.topic_id = topic_id
        elif self.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self.dir} holds topic {self.topic_id}, not {topic_id}.",
            )

    @property
    def active_segment(self) -> LogSegment:
        return self.active

    # --- producers

    def producers(self) -> Iterable[ProducerEntry]:
        """All that are remembered, for DescribeProducers."""
        return self.producer_states.entries.values()

    def last_producer_entry(self, producer_id: int) -> ProducerEntry | None:
        return self.producer_states.entries.get(producer_id)

    def expire_producers(self, now_ms: int) -> int:
        """Forget those that wrote nothing for long; returns how many."""
        return self.producer_states.expire(now_ms)

    # --- the end

    def close(self) -> None:
        """What a clean stop leaves: a producer snapshot at the end of the log, trimmed indexes, everything on disk.
        Blocks."""
        if self.closed:
            return
        self.write_staged()
        if self.end_offset > self.start_offset:
            self.snapshots.write(self.end_offset, self.producer_states.entries.values(), sync=True)
        self.epochs.save()
        dirty = self.segments.from_offset(self.flushed_offset) if self.written_end > self.flushed_offset else []
        for segment in self.segments:
            segment.become_inactive()
        for segment in dirty:
            segment.flush()
        if self.files_created or dirty:
            fsync_dir(self.dir)
        self.flushed_offset = self.written_end
        self._close_files()

    def abandon(self) -> None:
        """Close descriptors and nothing else: for a disk that failed, and for a folder that is about to be removed."""
        if not self.closed:
            self.roll_back()
            self._close_files()

    def _close_files(self) -> None:
        self.closed = True
        for segment in self.segments:
            segment.abandon()

    def rename_dir(self, name: str) -> Path:
        """Rename the folder of a log that goes on living (topic-N.<uuid>-future to topic-N)."""
        self.write_staged()
        self.dir = self.dir.rename(self.dir.with_name(name))
        path = str(self.dir)
        for segment in self.segments:
            segment.move(path)
        self.snapshots.dir = path
        self.epochs.path = f"{path}/{EPOCHS_FILE}"
        for deletion in self.pending_deletions:
            deletion.paths = [f"{path}/{os.path.basename(old)}" for old in deletion.paths]
        return self.dir

    def __repr__(self) -> str:
        return f"Log({str(self.dir)!r}, offsets {self.start_offset}..{self.end_offset})"
