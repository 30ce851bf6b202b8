"""Moves a log to another data directory while records are appended to it (AlterReplicaLogDirs).

A worker thread copies the batches of the current log, as a follower would, to a future log in a
folder `<topic>-<partition>.<unique id>-future` of the target directory. When the future log has
nearly caught up, the loop thread copies the remaining batches and swaps the logs: it renames the
current folder to `….<unique id>-delete`, then the future folder to `<topic>-<partition>`. After a
crash between the two renames, the next start finds the same unique id in both directories and
completes the move (loading.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kavka.common.types import TopicPartition
from kavka.records.batch import batches
from kavka.storage.file_slice import FileClosed, FileSlice
from kavka.storage.files import fsync_dir
from kavka.storage.jobs import Job
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDir, is_dir_failure
from kavka.storage.pace import Pace, WorkAborted
from kavka.storage.partition_dir import DELETE, marked_name

if TYPE_CHECKING:
    from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

# The maximum number of bytes that one `run` copies.
MAX_ROUND_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
# The maximum number of bytes that the loop thread copies before the swap.
MAX_SWAP_BYTES = 2 * 1024 * 1024


class SourceDirError(Exception):
    """The source directory of a move has failed, not the target directory."""


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    """Convert an OSError to a SourceDirError."""
    try:
        yield
    except OSError as error:
        raise SourceDirError(str(error)) from error


@dataclass(slots=True, eq=False)
class PartitionMove:
    """The move of one log from `source` to `target`. The worker thread owns the future log while
    `run` is in progress, and the loop thread otherwise. Only the loop thread may call the methods,
    except for `run`."""

    current: Log
    future: Log
    source: LogDir
    target: LogDir
    unique_id: str
    dropped: bool = False
    pace: Pace = field(default_factory=Pace)
    _slice: FileSlice | None = None
    _truncate_at: int | None = None
    _has_caught_up: bool = False

    @property
    def partition(self) -> TopicPartition:
        return self.current.topic_partition

    @property
    def lag(self) -> int:
        return max(0, self.current.end_offset - self.future.end_offset)

    def drop(self) -> None:
        """Cancel the move. The job removes the copy."""
        self.dropped = True
        self.pace.stop()

    def truncate(self, offset: int | None) -> None:
        """Make the next `prepare` truncate the copy, after the log was truncated to `offset` or
        emptied (None)."""
        bound = -1 if offset is None else offset
        self._truncate_at = bound if self._truncate_at is None else min(bound, self._truncate_at)

    def is_outdated(self, error: BaseException) -> bool:
        """Whether `run` failed only because the log was truncated or its segment deleted during the
        copy. The next round then copies the current state."""
        return isinstance(error, FileClosed) or (self._truncate_at is not None and not is_dir_failure(error))

    def prepare(self) -> None:
        """Select the bytes to copy next."""
        current, future = self.current, self.future
        start = current.start_offset
        if self._truncate_at is not None:
            if self._truncate_at < 0:
                future.truncate_fully_and_start_at(start)
            else:
                future.truncate_to(self._truncate_at)
            self._truncate_at = None
        if future.end_offset < start:
            future.truncate_fully_and_start_at(start)
        read = current.read(future.end_offset, MAX_ROUND_BYTES, limit=current.end_offset, min_one_batch=True)
        self._slice = None if read is None else read.slice
        self._has_caught_up = self._slice is None or (
            self._slice.size <= MAX_SWAP_BYTES and self._slice.file is current.active_segment.file
        )

    def run(self) -> None:
        """Copy the selected bytes. Runs in the worker thread."""
        if self._slice is not None:
            copy(self.future, self._slice, self.pace)
        if self._has_caught_up:
            # This leaves little to flush after the swap.
            self.future.flush()

    def can_swap(self) -> bool:
        """Whether the remaining bytes are few enough for `swap`. Call it after `run`."""
        if not self._has_caught_up or self._truncate_at is not None:
            return False
        return self.current.bytes_between(self.future.end_offset, self.current.end_offset) <= MAX_SWAP_BYTES

    def swap(self) -> None:
        """Copy the remaining batches and replace the current log by the future log. Raises OSError
        if the target directory fails, and SourceDirError if the source directory fails."""
        current, future = self.current, self.future
        while future.end_offset < current.end_offset:
            read = current.read(future.end_offset, MAX_SWAP_BYTES, limit=current.end_offset, min_one_batch=True)
            if read is None:
                raise RuntimeError(
                    f"cannot complete the copy of {self.partition}: the copy ends at offset {future.end_offset}, "
                    f"the log at {current.end_offset}"
                )
            copy(future, read.slice, None)
        if current.topic_id is not None and future.topic_id is None:
            future.set_topic_id(current.topic_id)
        future.set_high_watermark(current.high_watermark)
        if current.start_offset > future.start_offset:
            future.delete_records_before(current.start_offset)
        name = str(self.partition)
        with _source_errors():
            current.rename_dir(marked_name(self.partition, DELETE, self.unique_id))
        try:
            with _source_errors():
                fsync_dir(self.source.path)
            future.rename_dir(name)
        except (OSError, SourceDirError):
            current.rename_dir(name)
            raise
        fsync_dir(self.target.path)


def copy(future: Log, slice: FileSlice, pace: Pace | None) -> None:
    """Append the complete batches of a slice to `future`, about a megabyte at a time. Raises
    SourceDirError if the slice cannot be read, OSError, and WorkAborted."""
    position, remaining = slice.position, slice.size
    chunk = CHUNK_BYTES
    while remaining > 0:
        with _source_errors():
            data = slice.file.read(position, min(remaining, chunk))
        end = 0
        for batch in batches(data):
            if not end and batch.base_offset < future.end_offset and future.end_offset == future.start_offset:
                # The log starts in the middle of a batch. The copy stores the complete batch.
                future.truncate_fully_and_start_at(batch.base_offset)
            end = batch.end
        if not end:
            if chunk >= remaining:
                return
            chunk = min(remaining, chunk * 4)
            continue
        future.append_as_follower(memoryview(data)[:end])
        position += end
        remaining -= end
        chunk = CHUNK_BYTES
        if pace is not None:
            pace.pause_if_due()


class LogMoves(Job):
    """All moves in progress. A round of the job copies at most MAX_ROUND_BYTES of one move; the
    moves take turns.

    `in_progress` has one move per partition, including cancelled moves until the next `prepare`.
    Only the loop thread may call the methods, except for `run`.
    """

    name = "move-logs"
    period_ms = 1_000

    def __init__(self, manager: LogManager, on_swapped: Callable[[PartitionMove], None]) -> None:
        self._manager = manager
        self._on_swapped = on_swapped
        self._move: PartitionMove | None = None
        self._prepare_error: Exception | None = None
        self.in_progress: dict[TopicPartition, PartitionMove] = {}
        self._cancelled: list[PartitionMove] = []

    def add(self, move: PartitionMove) -> None:
        """Start a move. An earlier move of the same partition is cancelled."""
        previous_move = self.in_progress.pop(move.partition, None)
        if previous_move is not None:
            previous_move.drop()
            self._cancelled.append(previous_move)
        self.in_progress[move.partition] = move

    def cancel_other_target(self, partition: TopicPartition, source: LogDir, target: LogDir) -> bool:
        """Cancel a move of the partition to a directory other than `target`. Returns whether a move
        to `target` must be started."""
        move = self.in_progress.get(partition)
        if move is not None and not move.dropped:
            if move.target is target:
                return False
            move.drop()
        return source is not target

    def cancel(self, partition: TopicPartition) -> None:
        """Cancel the move of a partition, if there is one."""
        move = self.in_progress.get(partition)
        if move is not None:
            move.drop()

    def cancel_dir(self, log_dir: LogDir) -> None:
        """Cancel all moves from and to a failed directory."""
        for move in self.in_progress.values():
            if move.target is log_dir or move.source is log_dir:
                move.drop()

    def truncate(self, partition: TopicPartition, offset: int | None) -> None:
        """Truncate the copy, after the log was truncated to `offset` or emptied (None)."""
        move = self.in_progress.get(partition)
        if move is not None:
            move.truncate(offset)

    def stop(self) -> None:
        """Make `run` end soon."""
        for move in self.in_progress.values():
            move.pace.stop()

    def prepare(self) -> bool:
        for partition, move in list(self.in_progress.items()):
            if move.dropped:
                self._cancelled.append(self.in_progress.pop(partition))
        # The copies are removed only now, because the worker thread may have used them until its
        # last round ended.
        while self._cancelled:
            self._manager.remove_copy(self._cancelled.pop())
        if not self.in_progress:
            return False
        partition = next(iter(self.in_progress))
        move = self._move = self.in_progress.pop(partition)
        self.in_progress[partition] = move
        try:
            move.prepare()
            self._manager.lower_checkpoints(move.target, partition, move.future.end_offset)
        except Exception as error:
            self._prepare_error = error
        return True

    def run(self) -> None:
        if self._prepare_error is not None:
            raise self._prepare_error
        if self._move is not None:
            self._move.run()

    def finish(self, error: BaseException | None) -> bool:
        move, self._move, self._prepare_error = self._move, None, None
        if move is None:
            return False
        if not move.dropped and error is None:
            try:
                if move.can_swap():
                    move.swap()
                    del self.in_progress[move.partition]
                    self._on_swapped(move)
            except Exception as failure:
                error = failure
        if error is not None and not isinstance(error, WorkAborted) and not move.is_outdated(error):
            logger.warning("Cannot move %s to %s: %s", move.partition, move.target.path, error)
            move.drop()
            self._manager.report_failure(move.current if isinstance(error, SourceDirError) else move.future, error)
        return bool(self.in_progress)
