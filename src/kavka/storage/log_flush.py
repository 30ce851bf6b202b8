"""Flushing: prepared on the loop, run in a worker thread, completed on the loop, while the log
takes appends.

Before the recovery point may pass an offset, these must be on disk: the .log files up to it, the
leader epochs, and for every finished segment its indexes and the producer snapshot at its end. The
indexes of the segment that holds the recovery point need not be: recovery rebuilds them.
"""

from __future__ import annotations

import errno
import os

from kavka.common.clock import Clock
from kavka.storage.file_slice import LogFile
from kavka.storage.files import fsync_dir, sync_file
from kavka.storage.leader_epochs import EpochsSnapshot, LeaderEpochs
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.segments import LogSegments


class LogFlush:
    """One flush. Any thread may call `run`, once; afterwards the loop thread calls `complete`, or
    `cancel` where `run` failed or is not called.

    `offset` is the recovery point that `complete` sets; a truncation in between lowers it. The job
    holds the files from `prepare_flush` on, so that a truncation, deletion or failure in between
    does not close them. `run` releases each file after its fsync, `cancel` the remaining ones.
    """

    __slots__ = ("_dir", "_epochs", "_epochs_snapshot", "_files", "_flusher", "_paths", "offset")

    def __init__(
        self,
        flusher: LogFlusher,
        offset: int,
        files: list[tuple[LogFile, int]],
        paths: list[str],
        epochs: LeaderEpochs,
        epochs_snapshot: EpochsSnapshot | None,
        dir: str | None,
    ) -> None:
        """`files` are acquired, with their descriptors."""
        self._flusher = flusher
        self._files = files
        self._paths = paths
        self._epochs = epochs
        self._epochs_snapshot = epochs_snapshot
        self._dir = dir
        self.offset = offset

    def run(self) -> None:
        """Raises OSError if the disk fails: written data may be lost, and the log must not be
        used further."""
        if self._epochs_snapshot is not None:
            self._epochs.write(self._epochs_snapshot)
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
                # The kernel has dropped the pages that did not fit: unlike a write, an fsync cannot
                # be repeated.
                raise OSError(errno.EIO, f"not flushed: {error.strerror}", error.filename) from error
            raise

    def complete(self) -> None:
        self._flusher.end(self, self.offset)

    def cancel(self) -> None:
        _release(self._files)
        self._flusher.end(self, None, has_unsynced_names=self._dir is not None)


def _release(files: list[tuple[LogFile, int]]) -> None:
    while files:
        files.pop()[0].release()


class LogFlusher:
    """The recovery point of one log (`flushed_offset`), and the flushes that are in progress.

    Only the thread that owns the log may call it. A crash loses batches past the recovery point at
    most; recovery checks them.
    """

    __slots__ = ("_clock", "_epochs", "_jobs", "_offsets", "_segments", "_snapshots", "last_flush_ms")

    def __init__(
        self, offsets: LogOffsets, segments: LogSegments, snapshots: SnapshotFiles, epochs: LeaderEpochs, clock: Clock
    ) -> None:
        self._offsets = offsets
        self._segments = segments
        self._snapshots = snapshots
        self._epochs = epochs
        self._clock = clock
        self._jobs: list[LogFlush] = []
        self.last_flush_ms = clock.now_ms()

    def prepare_flush(self, up_to: int | None = None) -> LogFlush:
        """On the loop thread: acquire the files to flush for the recovery point `up_to`, by default
        the end of the log."""
        offsets = self._offsets
        offset = offsets.written_end if up_to is None else min(up_to, offsets.written_end)
        files: list[tuple[LogFile, int]] = []
        paths: list[str] = []
        try:
            self._collect_unflushed(offset, files, paths)
        except BaseException:
            _release(files)
            raise
        epochs = self._epochs
        epochs_snapshot = epochs.snapshot() if offset > offsets.flushed_offset and epochs.dirty else None
        directory = None
        if self._segments.has_unsynced_names and files:
            directory = self._segments.dir
            self._segments.has_unsynced_names = False
        job = LogFlush(self, offset, files, paths, epochs, epochs_snapshot, directory)
        self._jobs.append(job)
        return job

    def _collect_unflushed(self, offset: int, files: list[tuple[LogFile, int]], paths: list[str]) -> None:
        """Acquire the .log files that hold unflushed batches before `offset`, and list the paths
        that must be on disk with them."""
        flushed, segments = self._offsets.flushed_offset, self._segments
        if offset <= flushed:
            return
        for n in range(max(0, segments.floor_index(flushed)), len(segments)):
            segment = segments[n]
            if segment.base_offset >= offset:
                break
            files.append((segment.file, segment.file.acquire()))
            if segment is not segments.active:
                paths += segment.paths[1:]
                paths.append(self._snapshots.path(segments[n + 1].base_offset))

    def end(self, job: LogFlush, flushed: int | None, *, has_unsynced_names: bool = False) -> None:
        """For the job: it has flushed all records before `flushed`, or failed (None)."""
        if job in self._jobs:
            self._jobs.remove(job)
        if flushed is not None:
            self.last_flush_ms = self._clock.now_ms()
            self._offsets.flushed_offset = max(self._offsets.flushed_offset, flushed)
        if has_unsynced_names:
            self._segments.has_unsynced_names = True

    def flush(self, up_to: int | None = None) -> None:
        """All steps at once. Blocks."""
        job = self.prepare_flush(up_to)
        try:
            job.run()
        except OSError:
            job.cancel()
            raise
        job.complete()

    def truncate_to(self, offset: int) -> None:
        """The log ends at `offset`: neither the recovery point nor a running flush goes past it."""
        self._offsets.flushed_offset = min(self._offsets.flushed_offset, offset)
        for job in self._jobs:
            job.offset = min(job.offset, offset)
