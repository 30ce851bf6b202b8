"""Flushing: prepared on the loop, run in a worker thread, completed on the loop, while the log goes on taking
appends.

What has to be on disk before the recovery point may pass an offset: the .log files up to it, and for segments that
are finished also their indexes and the producer snapshot that the next one begins with; and the leader epochs. The
indexes of the segment
that the recovery point lies in need not be: recovery makes them anew.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kavka.storage.file_slice import LogFile
from kavka.storage.files import fsync_dir, sync_file
from kavka.storage.leader_epochs import EpochsSnapshot
from kavka.storage.log_state import LogState

if TYPE_CHECKING:
    from kavka.storage.log import Log


class FlushJob:
    """One flush. `run` may be called in any thread, once; `complete` on the loop thread after it has returned.

    `offset` is what the log is flushed up to when it is done; a truncation meanwhile lowers it. Nothing is done where
    nothing is to be flushed. The job is a user of the files from `prepare_flush` on, so that a truncation, deletion or
    failure meanwhile does not close them: `run` releases each after its fsync, `cancel` those that are left.
    """

    __slots__ = ("_dir", "_epochs", "_files", "_log", "_paths", "offset")

    def __init__(
        self,
        log: Log,
        offset: int,
        files: list[tuple[LogFile, int]],
        paths: list[str],
        epochs: EpochsSnapshot | None,
        dir: str | None,
    ) -> None:
        """`files` are acquired, with their descriptors."""
        self._log = log
        self._files = files
        self._paths = paths
        self._epochs = epochs
        self._dir = dir
        self.offset = offset

    def run(self) -> None:
        """OSError where the disk fails: then what was written may be lost, and the log must not be used further."""
        if self._epochs is not None:
            self._log.epochs.write(self._epochs)
        try:
            while self._files:
                file, fd = self._files.pop()
                try:
                    os.fdatasync(fd)
                finally:
                    file.release()
            for path in self._paths:
                sync_file(path)
            if self._dir is not None:
                fsync_dir(self._dir)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # The kernel has dropped what it found no room for: unlike a write, this cannot be tried again.
                raise OSError(errno.EIO, f"not flushed: {error.strerror}", error.filename) from error
            raise

    def complete(self) -> None:
        log = self._log
        if self in log.flush_jobs:
            log.flush_jobs.remove(self)
        log.last_flush_ms = log.clock.now_ms()
        if self.offset > log.flushed_offset:
            log.flushed_offset = self.offset

    def cancel(self) -> None:
        """It failed, or will not be run."""
        _release(self._files)
        log = self._log
        if self in log.flush_jobs:
            log.flush_jobs.remove(self)
        if self._dir is not None:
            log.files_created = True


def _release(files: list[tuple[LogFile, int]]) -> None:
    while files:
        files.pop()[0].release()


class LogFlushing(LogState):
    @property
    def recovery_point(self) -> int:
        """All before it is on disk: what recovery-point-offset-checkpoint is to hold."""
        return self.flushed_offset

    @property
    def unflushed_messages(self) -> int:
        return self.written_end - self.flushed_offset

    def prepare_flush(self, up_to: int | None = None) -> FlushJob:
        """On the loop thread: take hold of the files that have to be flushed for `up_to` (the end of the log if not
        given)."""
        offset = self.written_end if up_to is None else min(up_to, self.written_end)
        files: list[tuple[LogFile, int]] = []
        paths: list[str] = []
        try:
            self._collect_unflushed(offset, files, paths)
        except BaseException:
            _release(files)
            raise
        epochs = self.epochs.snapshot() if offset > self.flushed_offset and self.epochs.dirty else None
        directory = str(self.dir) if self.files_created and files else None
        if directory is not None:
            self.files_created = False
        job = FlushJob(self, offset, files, paths, epochs, directory)  # type: ignore[arg-type]
        self.flush_jobs.append(job)
        return job

    def _collect_unflushed(self, offset: int, files: list[tuple[LogFile, int]], paths: list[str]) -> None:
        """Acquire the .log files that hold unflushed batches before `offset`, and name what must be on disk with
        them."""
        if offset <= self.flushed_offset:
            return
        number = max(0, self.segments.floor_index(self.flushed_offset))
        for n in range(number, len(self.segments)):
            segment = self.segments[n]
            if segment.base_offset >= offset:
                break
            files.append((segment.file, segment.file.acquire()))
            if segment is not self.active:
                paths += segment.paths[1:]
                paths.append(self.snapshots.path(self.segments[n + 1].base_offset))

    def flush(self, up_to: int | None = None) -> None:
        """All three steps at once. Blocks."""
        job = self.prepare_flush(up_to)
        try:
            job.run()
        except OSError:
            job.cancel()
            raise
        job.complete()
