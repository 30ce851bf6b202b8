"""The periodic jobs of the log manager: retention, expiration of producers, flushes, checkpoints,
and removal of files.

jobs.py defines which method runs in which thread. Jobs over all logs work in slices of a few
milliseconds, so that they do not block the loop, however many partitions there are.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from kavka.common.types import TopicPartition
from kavka.storage.checkpoint import CheckpointError, OffsetCheckpoint
from kavka.storage.files import CONCURRENT_FSYNCS
from kavka.storage.jobs import Job
from kavka.storage.log_config import MAX_LONG

if TYPE_CHECKING:
    from kavka.storage.leader_epochs import EpochsSnapshot
    from kavka.storage.log import Log
    from kavka.storage.log_dir import LogDir
    from kavka.storage.log_flush import LogFlush
    from kavka.storage.log_manager import LogManager
    from kavka.storage.segments import PendingDeletion

logger = logging.getLogger(__name__)

MAX_SLICE_S = 0.004
MAX_FLUSH_PERIOD_MS = 1_000
DELETION_PERIOD_MS = 1_000


class SweepJob(Job):
    """Calls `action` for every log, on the loop thread, for a few milliseconds at a time. `action`
    must be quick."""

    def __init__(self, manager: LogManager, name: str, period_ms: int, action: Callable[[Log], object]) -> None:
        self.name = name
        self.period_ms = period_ms
        self._manager = manager
        self._action = action
        self._remaining_logs: Iterator[Log] | None = None

    def prepare(self) -> bool:
        if self._remaining_logs is None:
            self._remaining_logs = iter(list(self._manager.logs()))
        end = time.perf_counter() + MAX_SLICE_S
        for log in self._remaining_logs:
            if self._manager.get(log.topic_partition) is not log:
                continue
            try:
                self._action(log)
            except Exception as error:
                if not self._manager.report_failure(log, error):
                    logger.warning("Job %s failed for %s: %s", self.name, log.topic_partition, error)
            if time.perf_counter() > end:
                return True
        self._remaining_logs = None
        return False

    def finish(self, error: BaseException | None) -> bool:
        return self._remaining_logs is not None


class FlushJob(Job):
    """Flushes logs that have rolled, and logs whose `flush.ms` has expired."""

    name = "flush"

    def __init__(self, manager: LogManager, scheduler_interval_ms: int) -> None:
        self.period_ms = min(MAX_FLUSH_PERIOD_MS, scheduler_interval_ms)
        self._manager = manager
        self._rolled: dict[Log, None] = {}
        self._timed: dict[Log, None] = {}
        self._work: list[tuple[Log, LogFlush, list[BaseException]]] = []

    def watch(self, log: Log) -> None:
        """Watch the rolls and the `flush.ms` of a log. Call it again after a change of the
        configuration. Only the loop thread may call it."""
        log.notify_rolls(self._on_roll)
        if log.config.flush_ms < MAX_LONG:
            self._timed[log] = None
        else:
            self._timed.pop(log, None)

    def unwatch(self, log: Log) -> None:
        log.notify_rolls(None)
        self._timed.pop(log, None)
        self._rolled.pop(log, None)

    def _on_roll(self, log: Log) -> None:
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
                self._report_failure(log, error)
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
                self._report_failure(log, errors[0] if errors else error)
        self._work = []
        return False

    def _report_failure(self, log: Log, error: BaseException | None) -> None:
        if not self._manager.report_failure(log, error):
            logger.warning("Cannot flush %s: %s", log.topic_partition, error)


class LeaderEpochJob(Job):
    """Writes changed `leader-epoch-checkpoint` files in a worker thread, at most
    MAX_FILES_PER_ROUND at a time.

    When a broker becomes the leader of thousands of partitions, all of their files change, and each
    write waits for two fsyncs. Flushes and clean shutdowns do not depend on this job: they write
    the files that they need.
    """

    name = "save-leader-epochs"
    period_ms = 1_000
    MAX_FILES_PER_ROUND = 500

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._work: list[tuple[Log, EpochsSnapshot]] = []
        self._errors: list[tuple[Log, Exception]] = []

    def prepare(self) -> bool:
        dirty = (log for log in self._manager.logs() if log.epochs.dirty)
        self._work = [(log, log.epochs.snapshot()) for log in islice(dirty, self.MAX_FILES_PER_ROUND)]
        return bool(self._work)

    def run(self) -> None:
        with ThreadPoolExecutor(min(len(self._work), CONCURRENT_FSYNCS), "epochs") as pool:
            for _ in pool.map(self._write, self._work):
                pass

    def _write(self, work: tuple[Log, EpochsSnapshot]) -> None:
        log, snapshot = work
        try:
            log.epochs.write(snapshot)
        except Exception as error:
            self._errors.append((log, error))

    def finish(self, error: BaseException | None) -> bool:
        errors, self._errors = self._errors, []
        is_full_round = len(self._work) == self.MAX_FILES_PER_ROUND
        self._work = []
        failures = [failure for log, failure in errors if not self._manager.report_failure(log, failure)]
        if failures:
            logger.warning("Cannot write %d leader epoch checkpoints: %s", len(failures), failures[0])
        return is_full_round and not errors and error is None


class CheckpointJob(Job):
    """Writes one of the offset checkpoints, for example the recovery points, in each online
    directory in which an offset has changed.

    `_written` has the contents of each file, `_work` the writes in progress. `_is_outdated` is True
    if a write in progress has offsets from before a truncation. The files must then be written
    again.
    """

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
        self._is_outdated = False

    def lower(self, log_dir: LogDir, partition: TopicPartition, offset: int) -> None:
        """Write the file at once if its offset of the partition is larger than `offset`, the end of
        a log that was truncated or created. An earlier log of the same partition may have left such
        an offset. After a crash, recovery would not check the records before a recovery point that
        is too large, and would skip the records before such a start offset. Raises OSError."""
        if not self._has_larger(log_dir, partition, offset):
            return
        offsets = self._collect()[log_dir]
        self._file_of(log_dir).write(offsets)
        self._written[log_dir] = offsets
        self._is_outdated = bool(self._work)

    def _has_larger(self, log_dir: LogDir, partition: TopicPartition, offset: int) -> bool:
        if log_dir not in self._written:
            # The broker has not written the file since it started.
            try:
                self._written[log_dir] = self._file_of(log_dir).read()
            except CheckpointError:
                return True
        in_progress = [offsets for written_dir, offsets, _ in self._work if written_dir is log_dir]
        return any(offsets.get(partition, -1) > offset for offsets in (self._written[log_dir], *in_progress))

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
                self._manager.report_dir_failure(log_dir, errors[0] if errors else error, self.name)
        self._work = []
        is_outdated, self._is_outdated = self._is_outdated, False
        return is_outdated


@dataclass(slots=True)
class FolderDeletion:
    """The pending deletion of a `-delete` folder, or of the `-future` folder of a cancelled move.
    The loop thread closes `log` before a worker thread removes the files."""

    path: Path
    due_ms: int
    log: Log | None = None


class DeletionJob(Job):
    """Removes the files of deleted segments and the folders of deleted partitions, after
    `file.delete.delay.ms`."""

    name = "delete-files"
    period_ms = DELETION_PERIOD_MS

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._pending: list[FolderDeletion] = []
        self._due: list[FolderDeletion] = []
        self._files: list[PendingDeletion] = []
        self._errors: list[tuple[Path, OSError]] = []

    def add(self, path: Path, due_ms: int, log: Log | None = None) -> None:
        """Schedule the removal of a folder at `due_ms` or later. `log` is the open log in the
        folder, if any."""
        self._pending.append(FolderDeletion(path, due_ms, log))

    def drop_dir(self, log_dir: LogDir) -> None:
        """Cancel the deletions in a failed directory. The next start handles its folders."""
        self._pending = [folder for folder in self._pending if folder.path.parent != log_dir.path]

    def abandon_logs(self) -> None:
        """Close the logs of all pending folders."""
        for folder in self._pending:
            if folder.log is not None:
                folder.log.abandon()

    def prepare(self) -> bool:
        now = self._manager.clock.now_ms()
        self._files = [
            deletion
            for log in self._manager.logs()
            if log.segments.pending_deletions
            for deletion in log.take_due_deletions(now)
        ]
        self._due = [folder for folder in self._pending if folder.due_ms <= now]
        for folder in self._due:
            self._pending.remove(folder)
            if folder.log is not None:
                folder.log.abandon()
                folder.log = None
        return bool(self._files or self._due)

    def run(self) -> None:
        for deletion in self._files:
            try:
                deletion.run()
            except OSError as error:
                self._errors.append((Path(deletion.paths[0]).parent.parent, error))
        for folder in self._due:
            shutil.rmtree(folder.path, ignore_errors=True)

    def finish(self, error: BaseException | None) -> bool:
        for path, failure in self._errors:
            log_dir = self._manager.dir_at(path)
            if log_dir is not None:
                self._manager.report_dir_failure(log_dir, failure, self.name)
        self._files, self._due, self._errors = [], [], []
        return False
