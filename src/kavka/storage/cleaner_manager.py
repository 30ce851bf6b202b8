"""Schedules the cleaner: the next log to clean, and the offset up to which each log is clean.

Only the loop thread uses this module, except that `CleanerJob.run` runs in a worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kavka.common.clock import Clock
from kavka.common.types import TopicPartition
from kavka.storage.checkpoint import CheckpointError
from kavka.storage.cleaner import CleanerSettings, CleaningResult, LogCleaning
from kavka.storage.files import fsync_dir
from kavka.storage.jobs import Job
from kavka.storage.log import Log
from kavka.storage.log_config import MAX_LONG
from kavka.storage.log_dir import LogDir, is_dir_failure
from kavka.storage.pace import WorkAborted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The cleanable part of one log, in whole segments: the offsets in [first_dirty_offset,
    upper_bound). `is_overdue` is True if a record has been dirty for longer than
    `max.compaction.lag.ms`."""

    log: Log
    first_dirty_offset: int
    upper_bound: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        return self.cleanable_bytes > 0 and (
            self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio
        )


def measure(log: Log, clean_offset: int | None, now_ms: int) -> LogToClean:
    """Return the cleanable part of a log. As in Kafka, it does not include the active segment,
    segments that reach past the last stable offset, or segments with a record younger than
    `min.compaction.lag.ms`."""
    first_dirty = log.start_offset if clean_offset is None else clean_offset
    if not log.start_offset <= first_dirty <= log.end_offset:
        # Retention passed the checkpoint, or the log was truncated: the whole log is dirty.
        first_dirty = log.start_offset
    segments = log.segments
    active = segments[-1].base_offset
    bound = min(log.last_stable_offset, active)
    inactive = segments[:-1]
    dirty = [s for n, s in enumerate(inactive) if segments[n + 1].base_offset > first_dirty]
    lag = log.config.min_compaction_lag_ms
    if lag > 0:
        young_segment = next((s for s in dirty if s.largest_timestamp > now_ms - lag), None)
        if young_segment is not None:
            bound = min(bound, young_segment.base_offset)
    # Only whole segments are cleaned: the segment that contains the bound is not.
    upper = next((s.base_offset for n, s in enumerate(inactive) if segments[n + 1].base_offset > bound), active)
    clean_bytes = sum(s.size for s in inactive if s.base_offset < first_dirty)
    cleanable = sum(s.size for s in dirty if s.base_offset < upper)
    is_overdue = False
    if log.config.max_compaction_lag_ms < MAX_LONG:
        times = [t for s in dirty if (t := s.first_batch_timestamp()) is not None and t > 0]
        is_overdue = bool(times) and min(times) < now_ms - log.config.max_compaction_lag_ms
    return LogToClean(log, first_dirty, upper, clean_bytes, cleanable, is_overdue)


class CleanerManager:
    """The compaction state of all logs of a broker: the offset up to which each log is clean, the
    log that is being cleaned, and the logs that must not be cleaned.

    Code that truncates, deletes or moves a log calls `abort` or `pause` first. Retention skips the
    log that is being cleaned. The offsets are saved in `cleaner-offset-checkpoint`; a crash loses
    at most the offset of the last cleaning, which is then repeated. Only the loop thread may call
    the methods.
    """

    def __init__(self, logs: Callable[[], Iterable[Log]], dir_of: Callable[[Log], LogDir], clock: Clock) -> None:
        self._logs = logs
        self._dir_of = dir_of
        self._clock = clock
        self.clean_offsets: dict[TopicPartition, int] = {}
        self.uncleanable: dict[TopicPartition, str] = {}
        self.current: LogCleaning | None = None
        self._paused: dict[TopicPartition, int] = {}

    def load(self, log_dir: LogDir) -> None:
        """Read the checkpoint of a directory, while the broker starts. If the checkpoint is
        malformed, all compacted logs of the directory are cleaned from their start. Raises
        OSError."""
        try:
            self.clean_offsets.update(log_dir.cleaner.read())
        except CheckpointError as error:
            logger.warning("Cleaning all compacted logs in %s from their start: %s", log_dir.path, error)

    def offsets_in(self, log_dir: LogDir) -> dict[TopicPartition, int]:
        """Return the contents of the directory's `cleaner-offset-checkpoint`."""
        offsets = {}
        for log in self._logs():
            offset = self.clean_offsets.get(log.topic_partition)
            if offset is not None and self._dir_of(log) is log_dir:
                offsets[log.topic_partition] = offset
        return offsets

    # --- pausing and aborting

    def is_cleaning(self, partition: TopicPartition) -> bool:
        return self.current is not None and self.current.log.topic_partition == partition

    def pause(self, partition: TopicPartition) -> None:
        """Prevent cleanings of the log until `resume` has been called as often as `pause`. Aborts a
        cleaning in progress."""
        self._paused[partition] = self._paused.get(partition, 0) + 1
        self.abort(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Revert one `pause`."""
        count = self._paused.pop(partition, 0) - 1
        if count > 0:
            self._paused[partition] = count

    def abort(self, partition: TopicPartition) -> None:
        """Abort the cleaning of the log, if it is in progress."""
        if self.current is not None and self.is_cleaning(partition):
            self.current.abort()

    def forget(self, partition: TopicPartition) -> None:
        """Remove the state of a deleted partition."""
        self.abort(partition)
        self.clean_offsets.pop(partition, None)
        self.uncleanable.pop(partition, None)
        self._paused.pop(partition, None)

    def on_truncated(self, partition: TopicPartition, offset: int) -> None:
        """Mark the offsets from `offset` on as dirty, after the log was truncated to `offset`."""
        if self.clean_offsets.get(partition, 0) > offset:
            self.clean_offsets[partition] = offset

    # --- the next log

    def pick(self) -> LogToClean | None:
        """Return the log with the highest dirty ratio that is due, or None."""
        now = self._clock.now_ms()
        best: LogToClean | None = None
        for log in self._logs():
            partition = log.topic_partition
            if not log.config.compact or len(log.segments) < 2:
                continue
            if partition in self.uncleanable or partition in self._paused:
                continue
            try:
                candidate = measure(log, self.clean_offsets.get(partition), now)
            except Exception as error:
                self.mark_uncleanable(partition, error)
                continue
            if candidate.is_due and (best is None or candidate.dirty_ratio > best.dirty_ratio):
                best = candidate
        return best

    def mark_uncleanable(self, partition: TopicPartition, error: BaseException) -> None:
        """Ignore a log until the next start, because cleaning it failed with `error`."""
        self.uncleanable[partition] = str(error) or type(error).__name__
        logger.error("Cannot clean %s, ignoring it until the next start: %s", partition, error)


class CleanerJob(Job):
    """Cleans logs one after another, the dirtiest first, until none is due. After each log, the job
    writes the cleaner checkpoint of the log's directory."""

    name = "cleaner"

    def __init__(
        self,
        manager: CleanerManager,
        settings: CleanerSettings,
        clock: Clock,
        fail_dir: Callable[[LogDir, BaseException], None],
        dir_of: Callable[[Log], LogDir],
    ) -> None:
        self.period_ms = settings.backoff_ms
        self.settings = settings
        self._manager = manager
        self._clock = clock
        self._fail_dir = fail_dir
        self._dir_of = dir_of
        self._checkpoint: tuple[LogDir, dict[TopicPartition, int], Path] | None = None
        self._prepare_error: Exception | None = None
        self._log_dir: LogDir | None = None
        self._stopped = False

    def stop(self) -> None:
        """Abort the cleaning in progress, and start no other. Only the loop thread may call it."""
        self._stopped = True
        if self._manager.current is not None:
            self._manager.current.abort()

    def prepare(self) -> bool:
        if self._checkpoint is not None:
            return True
        if self._stopped:
            return False
        manager = self._manager
        cleaning = manager.current
        if cleaning is None:
            candidate = manager.pick()
            if candidate is None:
                return False
            self._log_dir = self._dir_of(candidate.log)
            cleaning = manager.current = LogCleaning(
                candidate.log, candidate.first_dirty_offset, candidate.upper_bound, self.settings, self._clock
            )
        try:
            cleaning.prepare()
        except Exception as error:
            self._prepare_error = error
        return True

    def run(self) -> None:
        if self._checkpoint is not None:
            log_dir, offsets, folder = self._checkpoint
            fsync_dir(folder)
            log_dir.cleaner.write(offsets)
        elif self._prepare_error is not None:
            raise self._prepare_error
        elif self._manager.current is not None:
            self._manager.current.run()

    def finish(self, error: BaseException | None) -> bool:
        if self._checkpoint is not None:
            log_dir = self._checkpoint[0]
            self._checkpoint = None
            if error is not None:
                self._report(log_dir, error)
            return not self._stopped and error is None
        cleaning = self._manager.current
        self._prepare_error = None
        if cleaning is None:
            return False
        if error is not None:
            return self._end_failed_cleaning(cleaning, error)
        try:
            result = cleaning.finish()
        except OSError as failure:
            # The swap of segments is incomplete. The next opening of the log completes it.
            self._end_failed_cleaning(cleaning, WorkAborted())
            if self._log_dir is not None:
                self._fail_dir(self._log_dir, failure)
            return not self._stopped
        except Exception as failure:
            return self._end_failed_cleaning(cleaning, failure)
        if result is not None:
            self._end_completed_cleaning(cleaning, result)
        return True

    def _end_completed_cleaning(self, cleaning: LogCleaning, result: CleaningResult) -> None:
        manager, log = self._manager, cleaning.log
        manager.current = None
        manager.clean_offsets[log.topic_partition] = result.end_offset
        if self._log_dir is not None:
            self._checkpoint = (self._log_dir, manager.offsets_in(self._log_dir), log.dir)
        stats = result.stats
        logger.info(
            "Cleaned %s up to offset %d: %d of %d records and %d of %d bytes remain",
            log.topic_partition,
            result.end_offset,
            stats.records_written,
            stats.records_read,
            stats.bytes_written,
            stats.bytes_read,
        )

    def _end_failed_cleaning(self, cleaning: LogCleaning, error: BaseException) -> bool:
        """End a cleaning that was aborted, whose disk is full or has failed, or whose log is
        uncleanable. Returns whether the next log may be cleaned at once."""
        partition = cleaning.log.topic_partition
        cleaning.fail()
        self._manager.current = None
        if isinstance(error, WorkAborted):
            logger.debug("Aborted the cleaning of %s", partition)
        elif isinstance(error, OSError) or is_dir_failure(error):
            if self._log_dir is not None:
                self._report(self._log_dir, error)
            return False
        else:
            self._manager.mark_uncleanable(partition, error)
        return not self._stopped

    def _report(self, log_dir: LogDir, error: BaseException) -> None:
        if is_dir_failure(error):
            self._fail_dir(log_dir, error)
        else:
            logger.warning("The cleaner failed in log directory %s and will retry: %s", log_dir.path, error)
