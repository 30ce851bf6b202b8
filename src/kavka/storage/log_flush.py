"""Flushes of a log. The loop thread prepares and completes a flush, and a worker thread runs it.
Appends continue in the meantime.

Before the recovery point moves to an offset, these files must be on disk: the .log files up to the
offset, the leader epoch checkpoint, and for each inactive segment its indexes and the producer
snapshot at its end. The indexes of the active segment are not flushed, because recovery rebuilds
them.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from kavka.common.clock import Clock
from kavka.storage.file_slice import LogFile
from kavka.storage.files import fsync_dir, sync_file
from kavka.storage.leader_epochs import EpochsSnapshot, LeaderEpochs
from kavka.storage.log_offsets import LogOffsets
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.segments import LogSegments


@dataclass(slots=True, eq=False)
class LogFlush:
    """One flush. Any thread may call `run`, once. Then the loop thread calls `complete`, or
    `cancel` if `run` failed or was not called.

    `offset` is the recovery point that `complete` sets; a truncation in the meantime lowers it.
    `prepare_flush` acquires `files` and their descriptors, so that a truncation, deletion or
    failure in the meantime does not close them. `run` releases each file after its fsync; `cancel`
    releases the remaining files.
    """

    flusher: LogFlusher
    offset: int
    files: list[tuple[LogFile, int]]
    paths: list[str]
    epochs: LeaderEpochs
    epochs_snapshot: EpochsSnapshot | None
    dir: str | None

    def run(self) -> None:
        """Write the files to disk. Raises OSError. After a failed fsync (never ENOSPC or EDQUOT)
        written data may be lost, and the log must not be used any more."""
        if self.epochs_snapshot is not None:
            self.epochs.write(self.epochs_snapshot)
        try:
            while self.files:
                file, fd = self.files.pop()
                try:
                    os.fdatasync(fd)
                finally:
                    file.release()
            for path in self.paths:
                sync_file(path)
            if self.dir is not None:
                fsync_dir(self.dir)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # After a failed fsync the kernel may drop the dirty pages, so a retry could succeed
                # without writing them. EIO takes the directory offline; ENOSPC would fail only this
                # flush.
                raise OSError(errno.EIO, f"fsync failed: {error.strerror}", error.filename) from error
            raise

    def complete(self) -> None:
        self.flusher.end(self, self.offset)

    def cancel(self) -> None:
        _release(self.files)
        self.flusher.end(self, None, has_unsynced_dir_entries=self.dir is not None)


def _release(files: list[tuple[LogFile, int]]) -> None:
    while files:
        files.pop()[0].release()


class LogFlusher:
    """The recovery point of one log (`LogOffsets.flushed_offset`), and the flushes in progress.

    A crash of the machine can only damage batches past the recovery point, which recovery checks.
    Only the thread that owns the log may call the methods.
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
        """Acquire the files that must be flushed before the recovery point is `up_to`, by default
        the end of the written batches. Returns the flush. Raises OSError or FileClosed if a file
        cannot be opened."""
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
        if self._segments.has_unsynced_dir_entries and files:
            directory = self._segments.dir
            self._segments.has_unsynced_dir_entries = False
        job = LogFlush(self, offset, files, paths, epochs, epochs_snapshot, directory)
        self._jobs.append(job)
        return job

    def _collect_unflushed(self, offset: int, files: list[tuple[LogFile, int]], paths: list[str]) -> None:
        """Acquire the .log files with unflushed batches before `offset`, and list the paths of the
        other files that must be flushed with them."""
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

    def end(self, job: LogFlush, flushed: int | None, *, has_unsynced_dir_entries: bool = False) -> None:
        """For LogFlush: end a flush that has written all records before `flushed`, or that failed
        or was not run (None)."""
        if job in self._jobs:
            self._jobs.remove(job)
        if flushed is not None:
            self.last_flush_ms = self._clock.now_ms()
            self._offsets.flushed_offset = max(self._offsets.flushed_offset, flushed)
        if has_unsynced_dir_entries:
            self._segments.has_unsynced_dir_entries = True

    def flush(self, up_to: int | None = None) -> None:
        """Prepare, run and complete a flush. Blocks. Raises OSError."""
        job = self.prepare_flush(up_to)
        try:
            job.run()
        except OSError:
            job.cancel()
            raise
        job.complete()

    def truncate_to(self, offset: int) -> None:
        """Limit the recovery point and the flushes in progress to `offset`, the end of the log."""
        self._offsets.flushed_offset = min(self._offsets.flushed_offset, offset)
        for job in self._jobs:
            job.offset = min(job.offset, offset)
