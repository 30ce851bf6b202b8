"""One partition's log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from kavka.common.clock import Clock
from kavka.common.types import TopicPartition
from kavka.storage.log_config import LogConfig
from kavka.storage.segment import LogSegment


class Log:
    """SKELETON: signatures for those who build on it; bodies follow.

    The loop thread alone calls a Log, except `open` (before anyone else has it) and `run()` of what `prepare_flush` and
    `take_due_deletions` hand out.
    """

    topic_partition: TopicPartition
    dir: Path
    config: LogConfig
    topic_id: UUID | None
    start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    flushed_offset: int
    """All before it is on disk; the same as `recovery_point`, what goes into recovery-point-offset-checkpoint."""
    recovery_point: int
    last_flush_ms: int
    on_roll: Any
    """Callable[[Log], None] | None: called after a roll, so that the finished segment can be flushed soon (prepare_flush)."""

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
        metrics: Any = None,
    ) -> Log:
        """The folder is made if it is not there. Blocks; recovers when `clean_shutdown` is False. OSError where the disk fails,
        KafkaError(KAFKA_STORAGE_ERROR) where the files cannot be a log."""
        raise NotImplementedError

    @property
    def segments(self) -> Sequence[LogSegment]:
        """In order of offsets; the last one is active."""
        raise NotImplementedError

    @property
    def active_segment(self) -> LogSegment:
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes of all .log files."""
        raise NotImplementedError

    def set_topic_id(self, topic_id: UUID) -> None:
        """Writes partition.metadata; KafkaError(INCONSISTENT_TOPIC_ID) where another id is there."""
        raise NotImplementedError

    def update_config(self, config: LogConfig) -> None:
        raise NotImplementedError

    # flush: prepare on the loop, run() in any thread, complete() on the loop
    def prepare_flush(self, up_to: int | None = None) -> Any:
        """A FlushJob with .offset, .run(), .complete(); None where nothing is to be flushed."""
        raise NotImplementedError

    def flush(self) -> None:
        """The three steps at once. Blocks."""
        raise NotImplementedError

    @property
    def unflushed_messages(self) -> int:
        raise NotImplementedError

    # deletion
    def delete_old_segments(self, now_ms: int | None = None) -> int:
        """By retention.ms, retention.bytes (both only with cleanup.policy=delete) and start offset. Returns how many segments went."""
        raise NotImplementedError

    def delete_records_before(self, offset: int) -> int:
        """Move the start offset up (never down) to `offset`; beyond the high watermark OFFSET_OUT_OF_RANGE. Returns the start offset."""
        raise NotImplementedError

    pending_deletions: list[Any]
    """PendingDeletion(due_ms, paths) of files renamed to .deleted."""

    def take_due_deletions(self, now_ms: int) -> list[Any]:
        """Takes those that are due out of `pending_deletions`; `.run()` each in a worker thread (unlinks, never raises for a missing file)."""
        raise NotImplementedError

    # cleaner
    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Kafka's swap: .cleaned -> .swap, old ones -> .deleted, .swap -> plain names; a crash at any point is completed on open."""
        raise NotImplementedError

    def roll(self) -> None:
        raise NotImplementedError

    def roll_if_older(self, max_age_ms: int) -> bool:
        raise NotImplementedError

    # truncation
    def truncate_to(self, offset: int) -> bool:
        raise NotImplementedError

    def truncate_fully_and_start_at(self, offset: int) -> None:
        raise NotImplementedError

    # producers
    def producers(self) -> Sequence[Any]:
        raise NotImplementedError

    def expire_producers(self, now_ms: int) -> int:
        raise NotImplementedError

    def last_producer_entry(self, producer_id: int) -> Any:
        """The cleaner keeps the last batch of every active producer: entry with .last_offset, .epoch, .last_sequence, or None."""
        raise NotImplementedError

    # the end
    def close(self) -> None:
        """Clean: staged data written, producer snapshot taken, indexes trimmed, everything flushed and closed."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Close descriptors and nothing else: for a disk that failed and for tests of a crash."""
        raise NotImplementedError

    def rename_for_delete(self) -> Path:
        """Close, rename the folder to topic-N.<uuid>-delete; removing it is the log manager's."""
        raise NotImplementedError

    def rename_dir(self, name: str) -> Path:
        """Rename the folder of a log that goes on living (topic-N.<uuid>-future to topic-N)."""
        raise NotImplementedError
