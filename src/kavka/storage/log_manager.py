"""All logs of a broker: opens, creates, truncates and deletes them, and provides their periodic
jobs.

Only the loop thread uses the log manager, except for `open_dirs`, `load` and `shutdown`. These
methods block. They run in the thread that starts or stops the broker, while nothing else uses the
logs. The blocking part of periodic work is in the `run` methods of the jobs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import UUID

from kavka.common.clock import Clock, SystemClock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.storage.cleaner_manager import CleanerJob, CleanerManager
from kavka.storage.dir_description import DirInfo, ReplicaInfo, describe_dir
from kavka.storage.dir_health import DirHealth
from kavka.storage.files import storage_error
from kavka.storage.jobs import Job
from kavka.storage.loading import (
    DirContents,
    LoadedFolder,
    Progress,
    check_duplicates,
    close_logs,
    complete_moves,
    open_logs,
    scan,
)
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import LogDir, LogDirError, is_dir_failure
from kavka.storage.log_moves import LogMoves, PartitionMove
from kavka.storage.maintenance import CheckpointJob, DeletionJob, FlushJob, LeaderEpochJob, SweepJob
from kavka.storage.partition_dir import DELETE, FUTURE, MAX_NAME_BYTES, STRAY, marked_name
from kavka.storage.placement import LogPlacement, create_folders
from kavka.storage.producer_replay import PastProducers
from kavka.storage.settings import StorageSettings

logger = logging.getLogger(__name__)


class LogManager:
    """The open logs of a broker, one per partition, and the directory of each log.

    The log manager is composed of DirHealth (the usable directories), LogPlacement (the directory
    of a new log), LogMoves (moves between directories), the cleaner, and the jobs of
    maintenance.py.

    The loop thread calls `on_dir_failure(dir, partitions)` after a directory and its partitions
    went offline, and `on_moved(partition, log)` after a copy in another directory replaced the
    log of a partition.
    """

    def __init__(
        self,
        dirs: Iterable[str | os.PathLike[str]],
        config_for: Callable[[str], LogConfig],
        settings: StorageSettings | None = None,
        clock: Clock | None = None,
        *,
        on_dir_failure: Callable[[LogDir, list[TopicPartition]], None] | None = None,
        on_moved: Callable[[TopicPartition, Log], None] | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.settings = settings or StorageSettings()
        self.config_for = config_for
        self.on_moved = on_moved
        self.dirs = [LogDir(path) for path in dict.fromkeys(os.path.abspath(path) for path in dirs)]
        if not self.dirs:
            raise LogDirError("log.dirs contains no directory")
        self._logs: dict[TopicPartition, Log] = {}
        self._partition_dirs: dict[TopicPartition, LogDir] = {}
        self.ignored_folders: list[Path] = []
        self._health = DirHealth(self.dirs, self._release_dir, on_dir_failure)
        self._placement = LogPlacement()
        self._moves = LogMoves(self, self._on_swapped)
        self.cleaner = CleanerManager(self._logs.values, self.dir_of, self.clock)
        self._flush = FlushJob(self, self.settings.flush_scheduler_interval_ms)
        self._deletion = DeletionJob(self)
        self._cleaning = CleanerJob(self.cleaner, self.settings.cleaner, self.clock, self._health.fail, self.dir_of)
        self._checkpoints = [
            CheckpointJob(
                self,
                "checkpoint-recovery-points",
                self.settings.flush_offset_checkpoint_interval_ms,
                lambda log_dir: log_dir.recovery_points,
                lambda: self._offsets_by_dir(lambda log: log.flushed_offset),
            ),
            CheckpointJob(
                self,
                "checkpoint-start-offsets",
                self.settings.flush_start_offset_checkpoint_interval_ms,
                lambda log_dir: log_dir.start_offsets,
                lambda: self._offsets_by_dir(_advanced_start),
            ),
            CheckpointJob(
                self,
                "checkpoint-high-watermarks",
                self.settings.high_watermark_checkpoint_interval_ms,
                lambda log_dir: log_dir.high_watermarks,
                lambda: self._offsets_by_dir(lambda log: log.high_watermark),
            ),
        ]

    # --- start

    def open_dirs(self) -> None:
        """Create and lock the directories. Blocks. Raises LogDirError if another broker has locked
        a directory, or if no directory can be used."""
        self._health.open()

    def check_ids(self, broker_id: int | None, cluster_id: str | None) -> tuple[int | None, str | None]:
        """Return the broker id and the cluster id from `meta.properties`, or the arguments if no
        file has them. Raises LogDirError if an id differs from its argument or between files."""
        return self._health.check_ids(broker_id, cluster_id)

    def write_ids(self, broker_id: int, cluster_id: str) -> None:
        """Write the `meta.properties` files that are missing or incomplete."""
        self._health.write_ids(broker_id, cluster_id)

    def load(self, progress: Progress | None = None) -> None:
        """Open all logs. Blocks, after a crash for a long time. Raises LogDirError if a partition
        has two logs, or if no directory can be read."""
        dirs = self._scan_dirs()
        complete_moves(dirs)
        check_duplicates(dirs)
        for contents in dirs:
            for path in contents.ignored:
                logger.warning("Ignoring %s: it is not the folder of a partition", path)
            self.ignored_folders += contents.ignored
            for path in contents.deletes:
                self._deletion.add(path, 0)
        folders = open_logs(
            [contents for contents in dirs if contents.log_dir.online],
            self.config_for,
            self.clock,
            threads_per_dir=self.settings.recovery_threads_per_data_dir,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            progress=progress,
        )
        high_watermarks = {contents.log_dir: contents.high_watermarks for contents in dirs}
        for folder in folders:
            self._adopt_folder(folder, high_watermarks[folder.log_dir].get(folder.partition))
        for folder in folders:
            if folder.unique_id and folder.log is not None and folder.log_dir.online:
                self._resume_move(folder, folder.log)
        if not self.online_dirs:
            raise LogDirError("no log directory can be read")

    def _scan_dirs(self) -> list[DirContents]:
        dirs = []
        for log_dir in self.online_dirs:
            try:
                dirs.append(scan(log_dir))
                self.cleaner.load(log_dir)
            except OSError as error:
                self._health.fail_at_start(log_dir, error)
        return dirs

    def _adopt_folder(self, folder: LoadedFolder, high_watermark: int | None) -> None:
        log = folder.log
        if not folder.log_dir.online:
            self._health.set_offline(folder.partition, folder.log_dir)
            if log is not None:
                log.abandon()
        elif log is None:
            if not folder.unique_id:
                self._health.set_unreadable(folder.partition, folder.path, str(folder.error))
            logger.error("Cannot open the log in %s, ignoring it: %s", folder.path, folder.error)
        elif not folder.unique_id:
            if high_watermark is not None:
                log.set_high_watermark(high_watermark)
            self._adopt(log, folder.log_dir)

    def _resume_move(self, folder: LoadedFolder, future: Log) -> None:
        current = self._logs.get(folder.partition)
        if current is None or self._partition_dirs[folder.partition] is folder.log_dir:
            logger.warning("Ignoring %s: it is a copy of a log that does not exist", folder.path)
            self.ignored_folders.append(folder.path)
            future.abandon()
        else:
            source = self._partition_dirs[folder.partition]
            self._moves.add(PartitionMove(current, future, source, folder.log_dir, folder.unique_id))
            self.cleaner.pause(folder.partition)

    def _adopt(self, log: Log, log_dir: LogDir) -> None:
        self._logs[log.topic_partition] = log
        self._partition_dirs[log.topic_partition] = log_dir
        self._flush.watch(log)

    # --- lookup

    @property
    def online_dirs(self) -> list[LogDir]:
        return self._health.online_dirs

    def get(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._logs

    def __len__(self) -> int:
        return len(self._logs)

    def logs(self) -> Iterable[Log]:
        """The logs of all partitions, without the future logs of moves."""
        return self._logs.values()

    def all_logs(self) -> Iterator[Log]:
        """The logs of all partitions, and the future logs of moves."""
        yield from self._logs.values()
        for move in self._moves.in_progress.values():
            yield move.future

    def dir_of(self, log: Log) -> LogDir:
        """Return the directory of a log. Raises KeyError if the log was deleted or replaced."""
        partition = log.topic_partition
        if self._logs.get(partition) is log:
            return self._partition_dirs[partition]
        move = self._moves.in_progress[partition]
        if move.future is log:
            return move.target
        raise KeyError(partition)

    def dir_at(self, path: str | os.PathLike[str]) -> LogDir | None:
        absolute = Path(os.path.abspath(path))
        return next((log_dir for log_dir in self.dirs if log_dir.path == absolute), None)

    def is_offline(self, partition: TopicPartition) -> bool:
        """Whether the log of the partition is in a failed directory, or unreadable."""
        return self._health.is_offline(partition)

    def is_in_failed_dir(self, partition: TopicPartition) -> bool:
        """Whether the log of the partition was in a directory when the directory failed."""
        return self._health.is_in_failed_dir(partition)

    # --- creating and deleting

    def place_new(self, partitions: Iterable[tuple[TopicPartition, UUID, bool]]) -> Callable[[], None] | None:
        """Choose the directories of logs that `get_or_create` is about to create. Each tuple has
        the partition, the topic id and `is_new` (see `get_or_create`).

        Returns a function that creates the folders and waits for the disk, or None if no folder is
        needed. A worker thread calls the function. If the function is not called or fails,
        `get_or_create` creates the folders.
        """
        counts = self._partition_counts()
        folders: list[tuple[str, UUID]] = []
        for partition, topic_id, is_new in partitions:
            exists = partition in self._logs or self._health.is_offline(partition)
            if exists or self._placement.is_reserved(partition) or not counts:
                continue
            if is_new or self._health.all_online:
                log_dir = self._placement.reserve(partition, counts)
                folders.append((str(log_dir.path / str(partition)), topic_id))
        return (lambda: create_folders(folders)) if folders else None

    def get_or_create(
        self,
        partition: TopicPartition,
        config: LogConfig | None = None,
        topic_id: UUID | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """Return the log of the partition. If there is none, create it in the directory that
        LogPlacement chooses. Raises KAFKA_STORAGE_ERROR if the log cannot be created, or may be in
        an offline directory.

        If `is_new` is False, this broker had a log of the partition before, so no log is created
        while a directory is offline.

        A log with another topic id belongs to an earlier topic of the same name, whose partition
        was moved to another broker or deleted while this broker was down. If `is_new` is True, the
        folder of that log is renamed to `-stray`, else KAFKA_STORAGE_ERROR is raised.
        """
        log = self._logs.get(partition)
        # Old request versions have no topic id: it is all zeros.
        if log is not None and topic_id is not None and topic_id.int and log.topic_id not in (None, topic_id):
            if not is_new:
                raise storage_error(f"{log.dir} belongs to topic {log.topic_id}, not to {topic_id}.")
            self._mark_stray(log, topic_id)
            log = None
        if log is not None:
            if topic_id is not None and log.topic_id is None:
                log.set_topic_id(topic_id)
            return log
        self._health.check_available(partition, is_new)
        log_dir = self._placement.choose(partition, self._partition_counts)
        if not log_dir.online:
            raise storage_error(f"The log of {partition} may be in a log directory that is offline.")
        log = self._create(partition, log_dir, str(partition), config or self.config_for(partition.topic), topic_id)
        self._placement.forget(partition)
        self._adopt(log, log_dir)
        return log

    def _create(
        self, partition: TopicPartition, log_dir: LogDir, name: str, config: LogConfig, topic_id: UUID | None = None
    ) -> Log:
        try:
            self.lower_checkpoints(log_dir, partition, 0)
            return Log.open(
                log_dir.path / name,
                partition,
                config,
                self.clock,
                producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
                topic_id=topic_id,
            )
        except OSError as error:
            if is_dir_failure(error):
                self._health.fail(log_dir, error)
            raise storage_error(f"Cannot create the log of {partition} in {log_dir.path}: {error}.") from error

    def _partition_counts(self) -> dict[LogDir, int]:
        """Return the number of partitions of each online directory, including reserved logs and the
        targets of moves."""
        targets = [move.target for move in self._moves.in_progress.values()]
        return self._placement.counts(self.online_dirs, [*self._partition_dirs.values(), *targets])

    def update_config(self, topic: str, config: LogConfig) -> None:
        """Set the configuration of all partitions of a topic."""
        for log in self.all_logs():
            if log.topic_partition.topic == topic:
                log.update_config(config)
                if log is self._logs.get(log.topic_partition):
                    self._flush.watch(log)

    def update_settings(self, settings: StorageSettings) -> None:
        """Apply the dynamic settings: those of the cleaner, the expiration of producers, and the
        number of threads at shutdown."""
        self.settings = settings
        self._cleaning.settings = settings.cleaner
        self._cleaning.period_ms = settings.cleaner.backoff_ms
        for log in self.all_logs():
            log.producer_states.expiration_ms = settings.producer_id_expiration_ms

    def delete(self, partition: TopicPartition) -> None:
        """Delete the log of a partition. Its folder is renamed to `-delete` at once, and its files
        are removed after `file.delete.delay.ms`. Raises KAFKA_STORAGE_ERROR if the folder cannot be
        renamed."""
        self._placement.forget(partition)
        log = self._release(partition)
        if log is None:
            path = self._health.pop_unreadable(partition)
            if path is not None:
                self._deletion.add(path.rename(path.with_name(marked_name(partition, DELETE))), 0)
            return
        due_ms = self.clock.now_ms() + log.config.file_delete_delay_ms
        self._rename(log, DELETE)
        # The log stays open until its files are removed: responses in flight may still send them.
        self._deletion.add(log.dir, due_ms, log)

    def _mark_stray(self, log: Log, topic_id: UUID) -> None:
        """Rename the folder of a log of another topic to `-stray`. The operator decides whether to
        delete it."""
        self._release(log.topic_partition)
        self._rename(log, STRAY)
        logger.warning("Marked %s as stray: it belongs to topic %s, not to %s", log.dir, log.topic_id, topic_id)
        log.abandon()
        self.ignored_folders.append(log.dir)

    def _release(self, partition: TopicPartition) -> Log | None:
        """Remove and return the open log of a partition. `_rename` must follow."""
        self._moves.cancel(partition)
        log = self._logs.pop(partition, None)
        if log is not None:
            self.cleaner.forget(partition)
            self._flush.unwatch(log)
        return log

    def _rename(self, log: Log, suffix: str) -> None:
        """Rename the folder of a released log to `-delete` or `-stray`."""
        partition = log.topic_partition
        log_dir = self._partition_dirs.pop(partition)
        try:
            log.rename_dir(marked_name(partition, suffix))
        except OSError as error:
            log.abandon()
            if is_dir_failure(error):
                self._health.fail(log_dir, error)
            raise storage_error(f"Cannot rename the folder of {partition}: {error}.") from error

    # --- truncation

    def truncate_to(self, partition: TopicPartition, offset: int, past: PastProducers | None = None) -> None:
        """Truncate the log of a partition and its future log to `offset`, and lower the offsets of
        the cleaner and the checkpoints. `past` is that of `Log.truncate_to`."""
        log = self._logs[partition]
        self.cleaner.abort(partition)
        try:
            log.truncate_to(offset, past)
        finally:
            # If the disk is full, an error is raised although the log is truncated.
            self.cleaner.on_truncated(partition, offset)
            self._moves.truncate(partition, offset)
            self.lower_checkpoints(self._partition_dirs[partition], partition, log.end_offset)

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        log = self._logs[partition]
        self.cleaner.abort(partition)
        log.truncate_fully_and_start_at(offset)
        self.cleaner.clean_offsets.pop(partition, None)
        self._moves.truncate(partition, None)
        self.lower_checkpoints(self._partition_dirs[partition], partition, offset)

    def lower_checkpoints(self, log_dir: LogDir, partition: TopicPartition, offset: int) -> None:
        """Lower the offset of a partition in all checkpoints to at most `offset`, the end of its
        log. Raises OSError."""
        for checkpoint in self._checkpoints:
            checkpoint.lower(log_dir, partition, offset)

    # --- moves between directories

    def move(self, partition: TopicPartition, path: str | os.PathLike[str]) -> None:
        """Start to move the log of a partition to the directory `path`. If the partition has no log
        yet, its log will be created in that directory.

        Raises INVALID_TOPIC_EXCEPTION, as Kafka does, if the topic name is too long for the name of
        the future folder, LOG_DIR_NOT_FOUND if `path` is not in log.dirs, and KAFKA_STORAGE_ERROR
        if the directory or the log is offline.
        """
        name = marked_name(partition, FUTURE)
        if len(name) > MAX_NAME_BYTES:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target = self.dir_at(path)
        if target is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of this broker's log directories.")
        if not target.online:
            raise storage_error(f"The log directory {path} is offline.")
        if self.is_offline(partition):
            raise storage_error(f"The log of {partition} is offline.")
        current = self._logs.get(partition)
        if current is None:
            self._placement.request(partition, target)
        elif self._moves.cancel_other_target(partition, self._partition_dirs[partition], target):
            future = self._create(partition, target, name, current.config)
            unique_id = name.rpartition(".")[2].removesuffix(f"-{FUTURE}")
            self._moves.add(PartitionMove(current, future, self._partition_dirs[partition], target, unique_id))
            self.cleaner.pause(partition)

    def future(self, partition: TopicPartition) -> Log | None:
        """Return the future log of a partition that is being moved to another directory, or
        None."""
        move = self._moves.in_progress.get(partition)
        return None if move is None or move.dropped else move.future

    def remove_copy(self, move: PartitionMove) -> None:
        """For LogMoves: remove the copy of a cancelled move."""
        self.cleaner.resume(move.partition)
        if move.target.online:
            self._deletion.add(move.future.dir, 0, move.future)
        else:
            move.future.abandon()

    def _on_swapped(self, move: PartitionMove) -> None:
        partition, replaced_log = move.partition, move.current
        self.cleaner.resume(partition)
        self._flush.unwatch(replaced_log)
        self._adopt(move.future, move.target)
        due_ms = self.clock.now_ms() + replaced_log.config.file_delete_delay_ms
        self._deletion.add(replaced_log.dir, due_ms, replaced_log)
        logger.info("Moved %s from %s to %s", partition, move.source.path, move.target.path)
        if self.on_moved is not None:
            self.on_moved(partition, move.future)

    # --- failure

    def report_failure(self, log: Log, error: BaseException | None) -> bool:
        """Take the directory of a log offline if `error` is a directory failure. Returns False for
        other errors. Only the loop thread may call it."""
        if not is_dir_failure(error):
            return False
        assert error is not None
        try:
            log_dir = self.dir_of(log)
        except KeyError:
            return True
        self._health.report_for_log(log, log_dir, error)
        return True

    def report_dir_failure(self, log_dir: LogDir, error: BaseException | None, action: str) -> None:
        """Handle the error of `action` in a directory: take the directory offline, or log the
        error. Only the loop thread may call it."""
        self._health.report(log_dir, error, action)

    def _release_dir(self, log_dir: LogDir) -> list[TopicPartition]:
        """For DirHealth: close all logs of a failed directory. Returns their partitions."""
        partitions = [partition for partition, other in self._partition_dirs.items() if other is log_dir]
        self._moves.cancel_dir(log_dir)
        for partition in partitions:
            self.cleaner.abort(partition)
            log = self._logs.pop(partition)
            del self._partition_dirs[partition]
            self._flush.unwatch(log)
            log.abandon()
        self._placement.drop_dir(log_dir)
        self._deletion.drop_dir(log_dir)
        return partitions

    # --- jobs

    def jobs(self) -> list[Job]:
        """Return the jobs that the broker's loop schedules (jobs.py)."""
        jobs: list[Job] = [
            SweepJob(self, "retention", self.settings.retention_check_interval_ms, self.apply_retention),
            SweepJob(
                self,
                "expire-producers",
                self.settings.producer_id_expiration_check_interval_ms,
                lambda log: log.producer_states.expire(self.clock.now_ms()),
            ),
            self._flush,
            LeaderEpochJob(self),
            *self._checkpoints,
            self._deletion,
            self._moves,
        ]
        if self.settings.cleaner.enable:
            jobs.append(self._cleaning)
        return jobs

    def apply_retention(self, log: Log) -> None:
        """Delete the segments that exceed the retention of a log, unless the log is being
        cleaned."""
        if not self.cleaner.is_cleaning(log.topic_partition):
            log.delete_old_segments(self.clock.now_ms())

    def _offsets_by_dir(self, offset_of: Callable[[Log], int | None]) -> dict[LogDir, dict[TopicPartition, int]]:
        """Return the contents of a checkpoint file for each online directory. Logs for which
        `offset_of` returns None are omitted."""
        offsets: dict[LogDir, dict[TopicPartition, int]] = {log_dir: {} for log_dir in self.online_dirs}
        for log in self.all_logs():
            log_dir, offset = self.dir_of(log), offset_of(log)
            if log_dir.online and offset is not None:
                offsets[log_dir][log.topic_partition] = offset
        return offsets

    def describe(self) -> list[DirInfo]:
        """Describe the directories and their partitions, for DescribeLogDirs."""
        replicas: dict[LogDir, list[ReplicaInfo]] = {log_dir: [] for log_dir in self.dirs}
        for partition, log in self._logs.items():
            lag = max(0, log.high_watermark - log.end_offset)
            replicas[self._partition_dirs[partition]].append(ReplicaInfo(partition, log.size, lag, False))
        for partition, move in self._moves.in_progress.items():
            if not move.dropped:
                replicas[move.target].append(ReplicaInfo(partition, move.future.size, move.lag, True))
        return [describe_dir(log_dir, replicas[log_dir], self.report_dir_failure) for log_dir in self.dirs]

    # --- stop

    def stop_jobs(self) -> None:
        """Abort the running cleaning and moves, and start no other cleaning. The loop thread calls
        it before `shutdown`."""
        self._cleaning.stop()
        self._moves.stop()

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flush and close all logs, write the checkpoints and the clean shutdown files, and unlock
        the directories. Blocks. No job may be running."""
        self.stop_jobs()
        recovery_points = self._offsets_by_dir(lambda log: log.end_offset)
        start_offsets = self._offsets_by_dir(_advanced_start)
        high_watermarks = self._offsets_by_dir(lambda log: log.high_watermark)
        logs: dict[LogDir, list[Log]] = {log_dir: [] for log_dir in self.online_dirs}
        for log in self.all_logs():
            log_dir = self.dir_of(log)
            if log_dir.online:
                logs[log_dir].append(log)
        self._deletion.abandon_logs()
        for log_dir, dir_logs in logs.items():
            if not close_logs(dir_logs, self.settings.recovery_threads_per_data_dir):
                continue
            try:
                log_dir.recovery_points.write(recovery_points[log_dir])
                log_dir.start_offsets.write(start_offsets[log_dir])
                log_dir.high_watermarks.write(high_watermarks[log_dir])
                log_dir.cleaner.write(self.cleaner.offsets_in(log_dir))
                log_dir.write_clean_shutdown(broker_epoch)
            except OSError as error:
                logger.error("Cannot close log directory %s cleanly: %s", log_dir.path, error)
        self._health.unlock()
        self._logs.clear()
        self._partition_dirs.clear()

    def abandon(self) -> None:
        """Close all files without writing, like a crash. For tests, and after a failed start."""
        for log in self.all_logs():
            log.abandon()
        self._deletion.abandon_logs()
        self._health.unlock()
        self._logs.clear()
        self._partition_dirs.clear()


def _advanced_start(log: Log) -> int | None:
    """The start offset, or None if the log starts at the base offset of its first segment."""
    return log.start_offset if log.start_offset > log.segments[0].base_offset else None
