"""Moving a log to another data directory while it takes appends (AlterReplicaLogDirs).

A second log, in a folder `<topic>-<partition>.<unique>-future` of the target directory, copies the
first one batch by batch, as a follower would, in a worker thread. When it has nearly caught up, the
loop thread copies the rest and swaps the two: the old folder is renamed to `….<unique>-delete`,
then the new one to `<topic>-<partition>`. After a crash between the two renames, the next start
sees the same unique name in both directories and completes the move (loading.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kavka.common.types import TopicPartition
from kavka.records.batch import batches
from kavka.storage.file_slice import FileClosed, FileSlice
from kavka.storage.files import fsync_dir
from kavka.storage.jobs import Job
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDir, is_dir_failure
from kavka.storage.pace import Pace, Stopped
from kavka.storage.partition_dir import DELETE, marked_name

if TYPE_CHECKING:
    from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

ROUND_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
SWAP_BYTES = 2 * 1024 * 1024
"""The loop thread copies at most this much itself."""


class SourceFailed(Exception):
    """The source of the copy cannot be read: its directory has failed, not that of the copy."""


@contextlib.contextmanager
def _blaming_source() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceFailed(str(error)) from error


class PartitionMove:
    """The move of one log. The future log belongs to the worker thread while `run` is in progress,
    else to the loop thread."""

    __slots__ = (
        "_has_caught_up",
        "_slice",
        "_truncate_at",
        "current",
        "dropped",
        "future",
        "pace",
        "source",
        "target",
        "unique",
    )

    def __init__(self, current: Log, future: Log, source: LogDir, target: LogDir, unique: str) -> None:
        self.current = current
        self.future = future
        self.source = source
        self.target = target
        self.unique = unique
        self.dropped = False
        self.pace = Pace()
        self._slice: FileSlice | None = None
        self._truncate_at: int | None = None
        self._has_caught_up = False

    @property
    def partition(self) -> TopicPartition:
        return self.current.topic_partition

    @property
    def lag(self) -> int:
        return max(0, self.current.end_offset - self.future.end_offset)

    def drop(self) -> None:
        """On the loop thread: cancel the move. The job removes the copy."""
        self.dropped = True
        self.pace.stop()

    def truncate(self, offset: int | None) -> None:
        """The log was truncated to `offset`, or emptied (None). The next `prepare` truncates the
        copy."""
        bound = -1 if offset is None else offset
        self._truncate_at = bound if self._truncate_at is None else min(bound, self._truncate_at)

    def is_outdated(self, error: BaseException) -> bool:
        """On the loop thread, after `run` failed: whether it failed only because the log was
        truncated, or its segment deleted, during the copy. The next round copies the current
        state."""
        return isinstance(error, FileClosed) or (self._truncate_at is not None and not is_dir_failure(error))

    def prepare(self) -> None:
        """On the loop thread: select the bytes to copy next."""
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
        read = current.read(future.end_offset, ROUND_BYTES, limit=current.end_offset, min_one_batch=True)
        self._slice = None if read is None else read.slice
        self._has_caught_up = self._slice is None or (
            self._slice.size <= SWAP_BYTES and self._slice.file is current.active_segment.file
        )

    def run(self) -> None:
        """In the worker thread."""
        if self._slice is not None:
            copy(self.future, self._slice, self.pace)
        if self._has_caught_up:
            # The swap then has little left to flush.
            self.future.flush()

    def can_swap(self) -> bool:
        """On the loop thread, after `run`: whether the rest is small enough to copy now."""
        if not self._has_caught_up or self._truncate_at is not None:
            return False
        return self.current.bytes_between(self.future.end_offset, self.current.end_offset) <= SWAP_BYTES

    def swap(self) -> None:
        """On the loop thread: copy the rest, then the future log becomes the log."""
        current, future = self.current, self.future
        while future.end_offset < current.end_offset:
            read = current.read(future.end_offset, SWAP_BYTES, limit=current.end_offset, min_one_batch=True)
            if read is None:
                raise RuntimeError(
                    f"the copy of {self.partition} ends at {future.end_offset}, the log at {current.end_offset}"
                )
            copy(future, read.slice, None)
        if current.topic_id is not None and future.topic_id is None:
            future.set_topic_id(current.topic_id)
        future.set_high_watermark(current.high_watermark)
        if current.start_offset > future.start_offset:
            future.delete_records_before(current.start_offset)
        name = str(self.partition)
        with _blaming_source():
            current.rename_dir(marked_name(self.partition, DELETE, self.unique))
        try:
            with _blaming_source():
                fsync_dir(self.source.path)
            future.rename_dir(name)
        except (OSError, SourceFailed):
            current.rename_dir(name)
            raise
        fsync_dir(self.target.path)


def copy(future: Log, piece: FileSlice, pace: Pace | None) -> None:
    """Append the whole batches of a slice, about a megabyte at a time."""
    position, left = piece.position, piece.size
    chunk = PIECE_BYTES
    while left > 0:
        with _blaming_source():
            data = piece.file.read(position, min(left, chunk))
        end = 0
        for batch in batches(data):
            if not end and batch.base_offset < future.end_offset and future.end_offset == future.start_offset:
                # The log starts in the middle of a batch; the copy has all of that batch.
                future.truncate_fully_and_start_at(batch.base_offset)
            end = batch.end
        if not end:
            if chunk >= left:
                return
            chunk = min(left, chunk * 4)
            continue
        future.append_as_follower(memoryview(data)[:end])
        position += end
        left -= end
        chunk = PIECE_BYTES
        if pace is not None:
            pace.pause_if_due()


class LogMoves(Job):
    """All moves in progress. The job copies a few megabytes of each in turn.

    `in_progress` has one move per partition, cancelled ones included until the next `prepare`. Only
    the loop thread may call it, except for `run`.
    """

    name = "move-logs"
    period_ms = 1_000

    def __init__(self, manager: LogManager, swapped: Callable[[PartitionMove], None]) -> None:
        self._manager = manager
        self._swapped = swapped
        self._move: PartitionMove | None = None
        self._failed: Exception | None = None
        self.in_progress: dict[TopicPartition, PartitionMove] = {}
        self._cancelled: list[PartitionMove] = []

    def add(self, move: PartitionMove) -> None:
        """Start a move. A move of the same partition is cancelled."""
        old = self.in_progress.pop(move.partition, None)
        if old is not None:
            old.drop()
            self._cancelled.append(old)
        self.in_progress[move.partition] = move

    def is_needed(self, partition: TopicPartition, home: LogDir, target: LogDir) -> bool:
        """Whether a move to `target` must be started. A move to another directory is cancelled."""
        move = self.in_progress.get(partition)
        if move is not None and not move.dropped:
            if move.target is target:
                return False
            move.drop()
        return home is not target

    def get(self, partition: TopicPartition) -> PartitionMove | None:
        return self.in_progress.get(partition)

    def cancel(self, partition: TopicPartition) -> None:
        move = self.in_progress.get(partition)
        if move is not None:
            move.drop()

    def cancel_dir(self, log_dir: LogDir) -> None:
        """The directory failed: cancel all moves from and to it."""
        for move in self.in_progress.values():
            if move.target is log_dir or move.source is log_dir:
                move.drop()

    def truncate(self, partition: TopicPartition, offset: int | None) -> None:
        """The log was truncated to `offset`, or emptied (None)."""
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
        # Not earlier: a worker thread may have used the copies until now.
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
            self._failed = error
        return True

    def run(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._move is not None:
            self._move.run()

    def finish(self, error: BaseException | None) -> bool:
        move, self._move, self._failed = self._move, None, None
        if move is None:
            return False
        if not move.dropped and error is None:
            try:
                if move.can_swap():
                    move.swap()
                    del self.in_progress[move.partition]
                    self._swapped(move)
            except Exception as failure:
                error = failure
        if error is not None and not isinstance(error, Stopped) and not move.is_outdated(error):
            logger.warning("%s cannot be moved to %s: %s", move.partition, move.target.path, error)
            move.drop()
            self._manager.report_failure(move.current if isinstance(error, SourceFailed) else move.future, error)
        return bool(self.in_progress)
