"""The periodic jobs of the log manager: retention, flushing, checkpoints, forgetting producers, removing files.

See jobs.py for which method runs where. Work that touches every log is done in slices of a few milliseconds, so that
the loop is never away for long however many partitions there are.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.common.types import TopicPartition
from kavka.storage.checkpoint import CheckpointError, OffsetCheckpoint
from kavka.storage.jobs import Job
from kavka.storage.log_config import MAX_LONG

if TYPE_CHECKING:
    from kavka.storage.leader_epochs import EpochsSnapshot
    from kavka.storage.log import Log
    from kavka.storage.log_dir import LogDir
    from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

SLICE_S = 0.004
FLUSH_PERIOD_MS = 1_000
DELETION_PERIOD_MS = 1_000


class SweepJob(Job):
    """Does something quick with every log, on the loop thread, some milliseconds at a time."""

    def __init__(self, manager: LogManager, name: str, period_ms: int, each: Callable[[Log], None]) -> None:
        self.name = name
        self.period_ms = period_ms
        self._manager = manager
        self._each = each
        self._left: Iterator[Log] | None = None

    def prepare(self) -> bool:
        if self._left is None:
            self._left = iter(list(self._manager.logs()))
        end = time.perf_counter() + SLICE_S
        for log in self._left:
            if self._manager.get(log.topic_partition) is not log:
                continue
            try:
                self._each(log)
            except Exception as error:
                if not self._manager.note_failure(log, error):
                    logger.warning("%s of %s failed: %s", self.name, log.topic_partition, error)
            if time.perf_counter() > end:
                return True
        self._left = None
        return False

    def finish(self, error: BaseException | None) -> bool:
        return self._left is not None


class FlushJob(Job):
    """fsyncs segments that were rolled, and logs whose `flush.ms` is over (or that of
    log.flush.scheduler.interval.ms)."""

    name = "flush"

    def __init__(self, manager: LogManager, scheduler_interval_ms: int) -> None:
        self.period_ms = min(FLUSH_PERIOD_MS, scheduler_interval_ms)
        self._manager = manager
        self._rolled: dict[Log, None] = {}
        self._timed: dict[Log, None] = {}
        self._work: list[tuple[Log, Any, list[BaseException]]] = []

    def watch(self, log: Log) -> None:
        """On the loop thread, for a log that is new here or has a new configuration."""
        log.on_roll = self.note_roll
        if log.config.flush_ms < MAX_LONG:
            self._timed[log] = None
        else:
            self._timed.pop(log, None)

    def unwatch(self, log: Log) -> None:
        log.on_roll = None
        self._timed.pop(log, None)
        self._rolled.pop(log, None)

    def note_roll(self, log: Log) -> None:
        self._rolled[log] = None

    def prepare(self) -> bool:
        now = self._manager.clock.now_ms()
        due: list[tuple[Log, int | None]] = [(log, log.active_segment.base_offset) for log in self._rolled]
        due += [
            (log, None)
            for log in self._timed
            if log.unflushed_messages and now - log.last_flush_ms >= log.config.flush_ms
        ]
        self._rolled.clear()
        for log, up_to in due:
            try:
                self._work.append((log, log.prepare_flush(up_to), []))
            except Exception as error:
                self._failed(log, error)
        return bool(self._work)

    def run(self) -> None:
        for _, job, errors in self._work:
            try:
                job.run()
            except Exception as error:
                errors.append(error)

    def finish(self, error: BaseException | None) -> bool:
        for log, job, errors in self._work:
            if not errors and error is None:
                job.complete()
            else:
                job.cancel()
                self._failed(log, errors[0] if errors else error)
        self._work = []
        return False

    def _failed(self, log: Log, error: BaseException | None) -> None:
        if not self._manager.note_failure(log, error):
            logger.warning("%s could not be flushed: %s", log.topic_partition, error)


class LeaderEpochJob(Job):
    """Writes the leader epochs of logs that changed. A new leader changes them on thousands of logs at once, and each
    write waits for two fsyncs: so they are written here, some at a time, and not on the loop. What a flush or a clean
    stop needs of them it writes itself."""

    name = "save-leader-epochs"
    period_ms = 1_000
    ROUND = 500

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._work: list[tuple[Log, EpochsSnapshot]] = []
        self._errors: list[tuple[Log, Exception]] = []

    def prepare(self) -> bool:
        dirty = (log for log in self._manager.logs() if log.epochs.dirty)
        self._work = [(log, log.epochs.snapshot()) for log in islice(dirty, self.ROUND)]
        return bool(self._work)

    def run(self) -> None:
        for log, snapshot in self._work:
            try:
                log.epochs.write(snapshot)
            except Exception as error:
                self._errors.append((log, error))

    def finish(self, error: BaseException | None) -> bool:
        errors, self._errors = self._errors, []
        is_full_round = len(self._work) == self.ROUND
        self._work = []
        unexplained = [failure for log, failure in errors if not self._manager.note_failure(log, failure)]
        if unexplained:
            logger.warning("%d leader epoch checkpoints could not be written: %s", len(unexplained), unexplained[0])
        return is_full_round and not errors and error is None


class CheckpointJob(Job):
    """Writes one kind of checkpoint file in every directory that is online, where it has changed."""

    def __init__(
        self,
        manager: LogManager,
        name: str,
        period_ms: int,
        file_of: Callable[[LogDir], OffsetCheckpoint],
        collect: Callable[[], Mapping[LogDir, dict[TopicPartition, int]]],
    ) -> None:
        self.name = name
        self.period_ms = period_ms
        self._manager = manager
        self._file_of = file_of
        self._collect = collect
        self._written: dict[LogDir, dict[TopicPartition, int]] = {}
        self._work: list[tuple[LogDir, dict[TopicPartition, int], list[BaseException]]] = []
        self._outdated = False

    def lowered(self, log_dir: LogDir, partition: TopicPartition, offset: int) -> None:
        """A log was cut to `offset`, or begins there: where the file says more of it (or of an earlier one of its
        name), write it at once, on the loop thread. After a crash it must not vouch for what is appended from here on,
        nor have the log begin after it. OSError where that fails."""
        if not self._says_more(log_dir, partition, offset):
            return
        offsets = self._collect()[log_dir]
        self._file_of(log_dir).write(offsets)
        self._written[log_dir] = offsets
        self._outdated = bool(self._work)

    def _says_more(self, log_dir: LogDir, partition: TopicPartition, offset: int) -> bool:
        if log_dir not in self._written:
            # Nothing was written since the start: what was found then is still there.
            try:
                self._written[log_dir] = self._file_of(log_dir).read()
            except CheckpointError:
                return True
        said = [self._written[log_dir], *(offsets for of_dir, offsets, _ in self._work if of_dir is log_dir)]
        return any(offsets.get(partition, -1) > offset for offsets in said)

    def prepare(self) -> bool:
        self._work = [
            (log_dir, offsets, [])
            for log_dir, offsets in self._collect().items()
            if log_dir.online and self._written.get(log_dir) != offsets
        ]
        return bool(self._work)

    def run(self) -> None:
        for log_dir, offsets, errors in self._work:
            try:
                self._file_of(log_dir).write(offsets)
            except Exception as error:
                errors.append(error)

    def finish(self, error: BaseException | None) -> bool:
        for log_dir, offsets, errors in self._work:
            if not errors and error is None:
                self._written[log_dir] = offsets
            else:
                self._manager.note_dir_failure(log_dir, errors[0] if errors else error, self.name)
        self._work = []
        # What was collected before a log was cut has just been written over what was said then.
        again, self._outdated = self._outdated, False
        return again


@dataclass(slots=True)
class DoomedFolder:
    """A `-delete` folder, or one of a move that was dropped. `log` is let go of, on the loop, before the files go."""

    path: Path
    due_ms: int
    log: Log | None = None


class DeletionJob(Job):
    """Removes what was marked for deletion, when `file.delete.delay.ms` is over: files of segments, folders of
    partitions."""

    name = "delete-files"
    period_ms = DELETION_PERIOD_MS

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.folders: list[DoomedFolder] = []
        self._files: list[Any] = []
        self._gone: list[DoomedFolder] = []
        self._errors: list[tuple[Path, OSError]] = []

    def add(self, path: Path, due_ms: int, log: Log | None = None) -> None:
        self.folders.append(DoomedFolder(path, due_ms, log))

    def prepare(self) -> bool:
        now = self._manager.clock.now_ms()
        self._files = [
            deletion
            for log in self._manager.logs()
            if log.pending_deletions
            for deletion in log.take_due_deletions(now)
        ]
        self._gone = [folder for folder in self.folders if folder.due_ms <= now]
        for folder in self._gone:
            self.folders.remove(folder)
            if folder.log is not None:
                folder.log.abandon()
                folder.log = None
        return bool(self._files or self._gone)

    def run(self) -> None:
        for deletion in self._files:
            try:
                deletion.run()
            except OSError as error:
                self._errors.append((Path(deletion.paths[0]).parent.parent, error))
        for doomed in self._gone:
            shutil.rmtree(doomed.path, ignore_errors=True)

    def finish(self, error: BaseException | None) -> bool:
        for path, failure in self._errors:
            log_dir = self._manager.dir_at(path)
            if log_dir is not None:
                self._manager.note_dir_failure(log_dir, failure, self.name)
        self._files, self._gone, self._errors = [], [], []
        return False


def by_dir(
    logs: Iterable[tuple[Log, LogDir]], dirs: Iterable[LogDir], offset: Callable[[Log], int | None]
) -> dict[LogDir, dict[TopicPartition, int]]:
    """What a checkpoint file of each directory is to say."""
    found: dict[LogDir, dict[TopicPartition, int]] = {log_dir: {} for log_dir in dirs}
    for log, log_dir in logs:
        value = offset(log)
        if value is not None:
            found[log_dir][log.topic_partition] = value
    return found
