"""All logs of a broker: in which data directory each is, opening them, making and deleting them, and what is done with
them from time to time.

Everything here belongs to the loop thread, except `open_dirs`, `load` and `shutdown`, which block and run in the thread
that starts or stops the broker while nothing else uses the logs. The blocking part of periodic work is in the `run` of
jobs.

A directory that fails with an I/O error goes offline and stays so until the next start: its logs are let go of, and the
layer above is told which partitions went with it. A full disk is no failure: the request that met it gets an error.
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
from kavka.storage.closing import close_all
from kavka.storage.dir_description import DirInfo, ReplicaInfo, describe_dir
from kavka.storage.jobs import Job
from kavka.storage.loading import Progress, check_duplicates, complete_moves, open_logs, scan
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import LogDir, LogDirError, claim_dirs, is_dir_failure, mark_dirs, os_error
from kavka.storage.log_mover import MoveJob, PartitionMove
from kavka.storage.maintenance import CheckpointJob, DeletionJob, FlushJob, LeaderEpochJob, SweepJob, by_dir
from kavka.storage.new_folders import make_folders
from kavka.storage.partition_dir import DELETE, FUTURE, MAX_NAME, STRAY, marked_name
from kavka.storage.settings import StorageSettings

logger = logging.getLogger(__name__)


class LogManager:
    """`on_dir_failure(dir, partitions)` is called on the loop thread after a directory went offline with these
    partitions; `on_moved(partition, log)` after a partition's log was exchanged for a copy in another directory."""

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
        self.on_dir_failure = on_dir_failure
        self.on_moved = on_moved
        self.dirs = [LogDir(path) for path in dict.fromkeys(os.path.abspath(path) for path in dirs)]
        if not self.dirs:
            raise LogDirError("log.dirs names no directory")
        self._logs: dict[TopicPartition, Log] = {}
        self._homes: dict[TopicPartition, LogDir] = {}
        self._unreadable: dict[TopicPartition, tuple[Path, str]] = {}
        self._offline: dict[TopicPartition, LogDir] = {}
        self._preferred: dict[TopicPartition, LogDir] = {}
        # Where the folders of partitions have been made whose logs have not.
        self._placed: dict[TopicPartition, LogDir] = {}
        self.strangers: list[Path] = []
        self.cleaner = CleanerManager(self._logs.values, self.dir_of, self.clock)
        self._flush = FlushJob(self, self.settings.flush_scheduler_interval_ms)
        self._deletion = DeletionJob(self)
        self._moves = MoveJob(self, self._moved)
        self._cleaning = CleanerJob(self.cleaner, self.settings.cleaner, self.clock, self._dir_failed, self.dir_of)
        self._checkpoints = [
            CheckpointJob(
                self,
                "checkpoint-recovery-points",
                self.settings.flush_offset_checkpoint_interval_ms,
                lambda d: d.recovery_points,
                lambda: self._by_dir(lambda log: log.flushed_offset),
            ),
            CheckpointJob(
                self,
                "checkpoint-start-offsets",
                self.settings.flush_start_offset_checkpoint_interval_ms,
                lambda d: d.start_offsets,
                lambda: self._by_dir(_moved_start),
            ),
            CheckpointJob(
                self,
                "checkpoint-high-watermarks",
                self.settings.high_watermark_checkpoint_interval_ms,
                lambda d: d.high_watermarks,
                lambda: self._by_dir(lambda log: log.high_watermark),
            ),
        ]

    # --- start

    def open_dirs(self) -> None:
        """Makes and locks the directories. Blocks. LogDirError when another broker holds one, or none can be used."""
        for log_dir in self.dirs:
            try:
                log_dir.prepare()
                log_dir.lock()
            except OSError as error:
                log_dir.fail(error)
                logger.error("log directory %s cannot be used and is offline: %s", log_dir.path, error)
            except LogDirError:
                self._unlock()
                raise
        if not self.online_dirs:
            reasons = "; ".join(f"{d.path}: {d.failure}" for d in self.dirs)
            self._unlock()
            raise LogDirError(f"none of the log directories can be used: {reasons}")

    def claim(self, broker_id: int | None, cluster_id: str | None) -> tuple[int | None, str | None]:
        """The broker's and the cluster's id as `meta.properties` have them; LogDirError when they are others'."""
        for log_dir in self.online_dirs:
            try:
                log_dir.read_meta()
            except OSError as error:
                log_dir.fail(error)
                logger.error("log directory %s cannot be read and is offline: %s", log_dir.path, error)
        return claim_dirs(self.online_dirs, broker_id, cluster_id)

    def mark(self, broker_id: int, cluster_id: str) -> None:
        """Writes `meta.properties` where it is missing."""
        for log_dir in self.online_dirs:
            try:
                mark_dirs([log_dir], broker_id, cluster_id)
            except OSError as error:
                log_dir.fail(error)

    def load(self, progress: Progress | None = None) -> None:
        """Opens all logs. Blocks, for long after a crash. LogDirError when a partition has two logs, or no directory is
        left."""
        found = []
        for log_dir in self.online_dirs:
            try:
                found.append(scan(log_dir))
                self.cleaner.load(log_dir)
            except OSError as error:
                log_dir.fail(error)
                logger.error("log directory %s cannot be read and is offline: %s", log_dir.path, error)
        complete_moves(found)
        check_duplicates(found)
        for one in found:
            for path in one.strangers:
                logger.warning("%s is no partition's folder: left alone", path)
            self.strangers += one.strangers
            for path in one.deletes:
                self._deletion.add(path, 0)
        opened = open_logs(
            [one for one in found if one.log_dir.online],
            self.config_for,
            self.clock,
            threads_per_dir=self.settings.recovery_threads_per_data_dir,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            progress=progress,
        )
        high_watermarks = {one.log_dir: one.high_watermarks for one in found}
        for item in opened:
            if not item.log_dir.online:
                self._offline[item.partition] = item.log_dir
                if item.log is not None:
                    item.log.abandon()
            elif item.log is None:
                if not item.unique:
                    self._unreadable[item.partition] = (item.path, str(item.error))
                logger.error("%s cannot be opened and is left alone: %s", item.path, item.error)
            elif not item.unique:
                high_watermark = high_watermarks[item.log_dir].get(item.partition)
                if high_watermark is not None:
                    item.log.set_high_watermark(max(item.log.start_offset, min(high_watermark, item.log.end_offset)))
                self._adopt(item.log, item.log_dir)
        for item in opened:
            if item.unique and item.log is not None and item.log_dir.online:
                current = self._logs.get(item.partition)
                if current is None or self._homes[item.partition] is item.log_dir:
                    logger.warning("%s is the copy of a log that is not here: left alone", item.path)
                    self.strangers.append(item.path)
                    item.log.abandon()
                else:
                    source = self._homes[item.partition]
                    self._moves.add(PartitionMove(current, item.log, source, item.log_dir, item.unique))
                    self.cleaner.pause(item.partition)
        if not self.online_dirs:
            raise LogDirError("none of the log directories can be read")

    def _adopt(self, log: Log, log_dir: LogDir) -> None:
        self._logs[log.topic_partition] = log
        self._homes[log.topic_partition] = log_dir
        self._flush.watch(log)

    # --- who is there

    @property
    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.online]

    def get(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._logs

    def __len__(self) -> int:
        return len(self._logs)

    def logs(self) -> Iterable[Log]:
        """Of all partitions; copies on their way are not among them."""
        return self._logs.values()

    def all_logs(self) -> Iterator[Log]:
        """Copies on their way too."""
        yield from self._logs.values()
        for move in self._moves.moves.values():
            yield move.future

    def dir_of(self, log: Log) -> LogDir:
        """KeyError for a log that was deleted or exchanged."""
        partition = log.topic_partition
        if self._logs.get(partition) is log:
            return self._homes[partition]
        move = self._moves.moves[partition]
        if move.future is log:
            return move.target
        raise KeyError(partition)

    def dir_at(self, path: str | os.PathLike[str]) -> LogDir | None:
        wanted = Path(os.path.abspath(path))
        return next((log_dir for log_dir in self.dirs if log_dir.path == wanted), None)

    def is_offline(self, partition: TopicPartition) -> bool:
        """Whether the partition's log is known to be in a directory that failed, or could not be opened."""
        return partition in self._offline or partition in self._unreadable

    def is_in_failed_dir(self, partition: TopicPartition) -> bool:
        """Whether its log was, when it was last seen, in a directory that has failed since."""
        return partition in self._offline

    # --- making, changing, deleting

    def place_new(self, partitions: Iterable[tuple[TopicPartition, UUID, bool]]) -> Callable[[], None] | None:
        """Where `get_or_create` is going to make new logs: returns what makes their folders, which is waiting for the
        disk. Without it, or where it fails, they are made with the logs. The flag of a partition is its `is_new`."""
        all_online = len(self.online_dirs) == len(self.dirs)
        counts = self._counts()
        wanted: list[tuple[str, UUID]] = []
        for partition, topic_id, is_new in partitions:
            known = partition in self._logs or partition in self._unreadable or partition in self._offline
            if known or partition in self._placed or not counts or not (is_new or all_online):
                continue
            log_dir = self._place(partition, counts)
            counts[log_dir] += 1
            self._placed[partition] = log_dir
            wanted.append((str(log_dir.path / str(partition)), topic_id))
        return (lambda: make_folders(wanted)) if wanted else None

    def get_or_create(
        self,
        partition: TopicPartition,
        config: LogConfig | None = None,
        topic_id: UUID | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """The partition's log, made if there is none, in the directory wished for or else in the online one with the
        fewest partitions. KAFKA_STORAGE_ERROR where it cannot be made, or may be in a directory that is offline.

        `is_new` False: the partition had a log on this broker before, so none is made while a directory is offline.

        A log of an earlier topic of that name (one that was moved elsewhere, then deleted, while this broker was away)
        is never the partition's: it is set aside for a new one, else KAFKA_STORAGE_ERROR.
        """
        log = self._logs.get(partition)
        # An order of old has no topic id (all zeros).
        if log is not None and topic_id is not None and topic_id.int and log.topic_id not in (None, topic_id):
            if not is_new:
                raise _storage_error(f"{log.dir} holds topic {log.topic_id}, not {topic_id}.")
            self._set_aside(log, topic_id)
            log = None
        if log is not None:
            if topic_id is not None and log.topic_id is None:
                log.set_topic_id(topic_id)
            return log
        if partition in self._unreadable:
            raise _storage_error(f"The log of {partition} could not be opened: {self._unreadable[partition][1]}.")
        if partition in self._offline or (not is_new and len(self.online_dirs) < len(self.dirs)):
            raise _storage_error(f"The log of {partition} may be in a log directory that is offline.")
        log_dir = self._placed.pop(partition, None) or self._place(partition, self._counts())
        if not log_dir.online:
            raise _storage_error(f"The log of {partition} may be in a log directory that is offline.")
        try:
            self.lower_checkpoints(log_dir, partition, 0)
            log = Log.open(
                log_dir.path / str(partition),
                partition,
                config or self.config_for(partition.topic),
                self.clock,
                producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
                topic_id=topic_id,
            )
        except OSError as error:
            if is_dir_failure(error):
                self._dir_failed(log_dir, error)
            raise _storage_error(f"The log of {partition} cannot be made in {log_dir.path}: {error}.") from error
        log.files_created = True
        self._preferred.pop(partition, None)
        self._adopt(log, log_dir)
        return log

    def _place(self, partition: TopicPartition, counts: dict[LogDir, int]) -> LogDir:
        """The directory that was asked for, else the one with the fewest partitions, of those that `_counts` gave."""
        wished = self._preferred.get(partition)
        if wished is not None and wished in counts:
            return wished
        if not counts:
            raise _storage_error("All log directories are offline.")
        return min(counts, key=counts.__getitem__)

    def _counts(self) -> dict[LogDir, int]:
        """How many partitions each online directory has, or is about to have."""
        counts = {log_dir: 0 for log_dir in self.online_dirs}
        for home in (*self._homes.values(), *self._placed.values()):
            if home in counts:
                counts[home] += 1
        for move in self._moves.moves.values():
            if move.target in counts:
                counts[move.target] += 1
        return counts

    def update_config(self, topic: str, config: LogConfig) -> None:
        """For all partitions of a topic, at once."""
        for log in self.all_logs():
            if log.topic_partition.topic == topic:
                log.update_config(config)
                if log is self._logs.get(log.topic_partition):
                    self._flush.watch(log)

    def settings_changed(self, settings: StorageSettings) -> None:
        """Takes over what may change while the broker runs: the cleaner's pace and memory, the expiration of producers,
        the threads of the stop."""
        self.settings = settings
        self._cleaning.settings = settings.cleaner
        self._cleaning.period_ms = settings.cleaner.backoff_ms
        for log in self.all_logs():
            log.producer_states.expiration_ms = settings.producer_id_expiration_ms

    def delete(self, partition: TopicPartition) -> None:
        """Takes the log away at once; its folder is renamed, its files go after `file.delete.delay.ms`."""
        self._preferred.pop(partition, None)
        log = self._let_go(partition)
        if log is None:
            unreadable = self._unreadable.pop(partition, None)
            if unreadable is not None:
                self._deletion.add(unreadable[0].rename(unreadable[0].with_name(marked_name(partition, DELETE))), 0)
            return
        due = self.clock.now_ms() + log.config.file_delete_delay_ms
        self._rename(log, DELETE)
        # The log itself stays open till then: answers that are being sent may still need its files.
        self._deletion.add(log.dir, due, log)

    def _set_aside(self, log: Log, topic_id: UUID) -> None:
        """Nobody reads it: no partition has it any more. An operator may."""
        self._let_go(log.topic_partition)
        self._rename(log, STRAY)
        logger.warning("%s was left by topic %s, not by %s: it is set aside", log.dir, log.topic_id, topic_id)
        log.abandon()
        self.strangers.append(log.dir)

    def _let_go(self, partition: TopicPartition) -> Log | None:
        """The log is not the partition's any more; its folder is still named so, and its home is still known."""
        move = self._moves.moves.get(partition)
        if move is not None:
            move.drop()
        log = self._logs.pop(partition, None)
        if log is not None:
            self.cleaner.forget(partition)
            self._flush.unwatch(log)
        return log

    def _rename(self, log: Log, kind: str) -> None:
        """Mark the folder of a log that was let go of."""
        partition = log.topic_partition
        log_dir = self._homes.pop(partition)
        try:
            log.rename_dir(marked_name(partition, kind))
        except OSError as error:
            log.abandon()
            if is_dir_failure(error):
                self._dir_failed(log_dir, error)
            raise _storage_error(f"The log of {partition} cannot be renamed: {error}.") from error

    def truncate_to(self, partition: TopicPartition, offset: int) -> None:
        """Cuts a log, its copy, and what the cleaner and the checkpoints know of it."""
        log = self._logs[partition]
        self.cleaner.abort(partition)
        try:
            log.truncate_to(offset)
        finally:
            # Also where a full disk kept the rest of it from being written.
            self.cleaner.truncated(partition, offset)
            move = self._moves.moves.get(partition)
            if move is not None:
                move.truncate(offset)
            self.lower_checkpoints(self._homes[partition], partition, log.end_offset)

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        log = self._logs[partition]
        self.cleaner.abort(partition)
        log.truncate_fully_and_start_at(offset)
        self.cleaner.clean_offsets.pop(partition, None)
        move = self._moves.moves.get(partition)
        if move is not None:
            move.truncate(None)
        self.lower_checkpoints(self._homes[partition], partition, offset)

    def lower_checkpoints(self, log_dir: LogDir, partition: TopicPartition, offset: int) -> None:
        """On the loop thread, for a log that ends at `offset` now: no checkpoint may say more of it. OSError."""
        for checkpoint in self._checkpoints:
            checkpoint.lowered(log_dir, partition, offset)

    # --- moving between directories

    def move(self, partition: TopicPartition, path: str | os.PathLike[str]) -> None:
        """Begins to move a partition to the directory `path`; of one that is not here, remembers the wish for when it
        is made.

        INVALID_TOPIC_EXCEPTION, as in Kafka, for a topic whose name leaves no room for that of the copy's folder;
        LOG_DIR_NOT_FOUND for a path that is not one of log.dirs, KAFKA_STORAGE_ERROR for one that is offline.
        """
        name = marked_name(partition, FUTURE)
        if len(name) > MAX_NAME:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target = self.dir_at(path)
        if target is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of this broker's log directories.")
        if not target.online:
            raise _storage_error(f"The log directory {path} is offline.")
        if self.is_offline(partition):
            raise _storage_error(f"The log of {partition} is offline.")
        current = self._logs.get(partition)
        if current is None:
            self._preferred[partition] = target
            return
        under_way = self._moves.moves.get(partition)
        if under_way is not None and not under_way.dropped:
            if under_way.target is target:
                return
            under_way.drop()
        if self._homes[partition] is target:
            return
        unique = name.rpartition(".")[2].removesuffix(f"-{FUTURE}")
        try:
            self.lower_checkpoints(target, partition, 0)
            future = Log.open(
                target.path / name,
                partition,
                current.config,
                self.clock,
                producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            )
        except OSError as error:
            if is_dir_failure(error):
                self._dir_failed(target, error)
            raise _storage_error(f"{partition} cannot be moved to {path}: {error}.") from error
        self._moves.add(PartitionMove(current, future, self._homes[partition], target, unique))
        self.cleaner.pause(partition)

    def future(self, partition: TopicPartition) -> Log | None:
        """The copy on its way to another directory."""
        move = self._moves.moves.get(partition)
        return None if move is None or move.dropped else move.future

    def remove_copy(self, move: PartitionMove) -> None:
        """For the job: the copy of a move that is off."""
        self.cleaner.resume(move.partition)
        if move.target.online:
            self._deletion.add(move.future.dir, 0, move.future)
        else:
            move.future.abandon()

    def _moved(self, move: PartitionMove) -> None:
        partition, old, new = move.partition, move.current, move.future
        self.cleaner.resume(partition)
        self._flush.unwatch(old)
        self._adopt(new, move.target)
        self._deletion.add(old.dir, self.clock.now_ms() + old.config.file_delete_delay_ms, old)
        logger.info("%s has moved from %s to %s", partition, move.source.path, move.target.path)
        if self.on_moved is not None:
            self.on_moved(partition, new)

    # --- failure

    def note_failure(self, log: Log, error: BaseException | None) -> bool:
        """On the loop thread, for whoever met an error with a log: takes its directory offline if the error says that
        it is broken. False when it says nothing of the kind."""
        if not is_dir_failure(error):
            return False
        assert error is not None
        # A worker may have missed files of a log whose folder was renamed meanwhile: that says nothing of the disk.
        try:
            log_dir = self.dir_of(log)
        except KeyError:
            return True
        missing = os_error(error)
        if isinstance(missing, FileNotFoundError) and missing.filename is not None:
            path = os.fsdecode(missing.filename)
            if path != str(log.dir) and not path.startswith(f"{log.dir}{os.sep}"):
                return True
        self._dir_failed(log_dir, error)
        return True

    def note_dir_failure(self, log_dir: LogDir, error: BaseException | None, what: str) -> None:
        if is_dir_failure(error):
            assert error is not None
            self._dir_failed(log_dir, error)
        else:
            logger.warning("%s in %s failed: %s", what, log_dir.path, error)

    def _dir_failed(self, log_dir: LogDir, error: BaseException) -> None:
        if not log_dir.fail(error):
            return
        logger.error("log directory %s has failed and is offline: %s", log_dir.path, error)
        gone = [partition for partition, home in self._homes.items() if home is log_dir]
        for move in self._moves.moves.values():
            if move.target is log_dir or move.source is log_dir:
                move.drop()
        for partition in gone:
            self.cleaner.abort(partition)
            log = self._logs.pop(partition)
            del self._homes[partition]
            self._offline[partition] = log_dir
            self._flush.unwatch(log)
            log.abandon()
        self._preferred = {tp: home for tp, home in self._preferred.items() if home is not log_dir}
        self._deletion.folders = [f for f in self._deletion.folders if f.path.parent != log_dir.path]
        log_dir.unlock()
        if self.on_dir_failure is not None:
            self.on_dir_failure(log_dir, gone)

    # --- what is done from time to time

    def jobs(self) -> list[Job]:
        """For the broker's loop to schedule (see jobs.py)."""
        found: list[Job] = [
            SweepJob(self, "retention", self.settings.retention_check_interval_ms, self.retain),
            SweepJob(
                self,
                "expire-producers",
                self.settings.producer_id_expiration_check_interval_ms,
                lambda log: _expire(log, self.clock.now_ms()),
            ),
            self._flush,
            LeaderEpochJob(self),
            *self._checkpoints,
            self._deletion,
            self._moves,
        ]
        if self.settings.cleaner.enable:
            found.append(self._cleaning)
        return found

    def retain(self, log: Log) -> None:
        """Remove what retention and the start offset let go of, unless the log is being compacted just now."""
        if not self.cleaner.is_cleaning(log.topic_partition):
            log.delete_old_segments(self.clock.now_ms())

    def _by_dir(self, offset: Callable[[Log], int | None]) -> dict[LogDir, dict[TopicPartition, int]]:
        pairs = [(log, self.dir_of(log)) for log in self.all_logs()]
        return by_dir(((log, home) for log, home in pairs if home.online), self.online_dirs, offset)

    def describe(self) -> list[DirInfo]:
        """What DescribeLogDirs answers with."""
        replicas: dict[LogDir, list[ReplicaInfo]] = {log_dir: [] for log_dir in self.dirs}
        for partition, log in self._logs.items():
            lag = max(0, log.high_watermark - log.end_offset)
            replicas[self._homes[partition]].append(ReplicaInfo(partition, log.size, lag, False))
        for partition, move in self._moves.moves.items():
            if not move.dropped:
                replicas[move.target].append(ReplicaInfo(partition, move.future.size, move.lag, True))
        return [describe_dir(log_dir, replicas[log_dir], self.note_dir_failure) for log_dir in self.dirs]

    # --- stop

    def stop_jobs(self) -> None:
        """On the loop thread, before `shutdown`: what is under way in workers ends soon, nothing new is begun."""
        self._cleaning.stop()
        for move in self._moves.moves.values():
            move.pace.stop()

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flushes and closes all logs, writes the checkpoints, marks the directories as cleanly left, and unlocks them.
        Blocks; no job may be under way any more."""
        self.stop_jobs()
        points = self._by_dir(lambda log: log.end_offset)
        starts = self._by_dir(_moved_start)
        high_watermarks = self._by_dir(lambda log: log.high_watermark)
        logs: dict[LogDir, list[Log]] = {log_dir: [] for log_dir in self.online_dirs}
        for log in self.all_logs():
            home = self.dir_of(log)
            if home.online:
                logs[home].append(log)
        for doomed in self._deletion.folders:
            if doomed.log is not None:
                doomed.log.abandon()
        for log_dir, there in logs.items():
            if not close_all(there, self.settings.recovery_threads_per_data_dir):
                continue
            try:
                log_dir.recovery_points.write(points[log_dir])
                log_dir.start_offsets.write(starts[log_dir])
                log_dir.high_watermarks.write(high_watermarks[log_dir])
                log_dir.cleaner.write(self.cleaner.offsets_in(log_dir))
                log_dir.write_clean_shutdown(broker_epoch)
            except OSError as error:
                logger.error("log directory %s could not be left cleanly: %s", log_dir.path, error)
        self._unlock()
        self._logs.clear()
        self._homes.clear()

    def abandon(self) -> None:
        """Lets go of everything with nothing written, as a crash would: for tests, and for a start that failed."""
        for log in self.all_logs():
            log.abandon()
        for doomed in self._deletion.folders:
            if doomed.log is not None:
                doomed.log.abandon()
        self._unlock()
        self._logs.clear()
        self._homes.clear()

    def _unlock(self) -> None:
        for log_dir in self.dirs:
            log_dir.unlock()


def _moved_start(log: Log) -> int | None:
    """The start offset where the files do not tell it."""
    return log.start_offset if log.start_offset > log.segments[0].base_offset else None


def _expire(log: Log, now_ms: int) -> None:
    log.expire_producers(now_ms)


def _storage_error(message: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
