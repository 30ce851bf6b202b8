"""The state of one partition's log, which the other log_*.py files work on, each with one part of what a Log does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.records.compression import CODEC_NAMES
from kavka.records.rules import ProduceRules
from kavka.storage.leader_epochs import LeaderEpochs
from kavka.storage.log_config import LOG_APPEND_TIME, LogConfig
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.producer_state import ProducerStates
from kavka.storage.segment import ROLL_TIME_UNKNOWN, LogSegment
from kavka.storage.segments import Segments
from kavka.storage.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kavka.storage.log import Log
    from kavka.storage.log_append import Undo
    from kavka.storage.log_deletion import PendingDeletion
    from kavka.storage.log_flush import FlushJob


@dataclass(slots=True)
class LoadedLog:
    """What is found in a folder: the result of recovery.py, the start of a Log."""

    segments: Segments
    start_offset: int
    end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: SnapshotFiles


class LogState:
    """Only the loop thread touches it (before that, the thread that opens the log).

    start_offset <= high_watermark <= written_end <= end_offset. Between `stage` and `write_staged` of one turn,
    `end_offset` (and producers, epochs) are ahead of what readers see, `written_end`, and of the file, by the
    `staged_*` lists; `undo` then tells the way back.
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
        self.dir = dir
        self.topic_partition = topic_partition
        self.clock = clock
        self.topic_id = topic_id
        self.segments: Segments = loaded.segments
        self.active: LogSegment = loaded.segments[-1]
        self.start_offset: int = loaded.start_offset
        self.end_offset: int = loaded.end_offset
        self.written_end: int = loaded.end_offset
        self.high_watermark: int = loaded.start_offset
        self.last_stable_offset: int = loaded.start_offset
        self.epochs: LeaderEpochs = loaded.epochs
        self.producer_states: ProducerStates = loaded.producers
        self.snapshots: SnapshotFiles = loaded.snapshots
        self.flushed_offset: int = loaded.recovery_point
        self.last_flush_ms: int = clock.now_ms()
        self.on_roll: Callable[[Log], None] | None = None
        self.pending_deletions: list[PendingDeletion] = []
        self.closed = False
        self.limit_found: tuple[LogSegment, int, int] | None = None
        self.flush_jobs: list[FlushJob] = []
        self.files_created = False
        self.staged_buffers: list[memoryview | bytearray] = []
        self.staged_last: list[int] = []
        self.staged_positions: list[int] = []
        self.staged_entries: list[tuple[int, int, int, int]] = []
        self.staged_aborted: list[AbortedTxn] = []
        self.staged_bytes = 0
        self.undo: Undo | None = None
        self.write_error: KafkaError | None = None
        self.config: LogConfig = config
        self.rules: ProduceRules = rules_of(config)

    def update_config(self, config: LogConfig) -> None:
        """Takes effect at once, for the segments that are there too, but for the size of their indexes."""
        self.config = config
        self.rules = rules_of(config)
        for segment in self.segments:
            segment.config = config
            segment.roll_at = ROLL_TIME_UNKNOWN

    def new_segment(self, base_offset: int) -> LogSegment:
        """Make the files of a segment and make it the active one."""
        segment = LogSegment.create(str(self.dir), base_offset, self.config, self.clock.now_ms())
        self.segments.add(segment)
        self.active = segment
        self.files_created = True
        return segment

    def update_stable_offset(self) -> None:
        first = self.producer_states.first_unstable_offset
        high_watermark = self.high_watermark
        if first is None or first >= high_watermark:
            self.last_stable_offset = high_watermark
        else:
            self.last_stable_offset = max(first, self.start_offset)


def rules_of(config: LogConfig) -> ProduceRules:
    """What validation needs to know, in its own terms."""
    name = config.compression_type
    codec = None if name == "producer" else CODEC_NAMES.index("none" if name == "uncompressed" else name)
    return ProduceRules(
        codec=codec,
        level=config.compression_level,
        timestamp_type=int(config.message_timestamp_type == LOG_APPEND_TIME),
        max_message_bytes=config.max_message_bytes,
        compacted=config.compact,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
    )


def storage_error(message: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
