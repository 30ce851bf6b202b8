"""Moving a partition's log to another data directory while it goes on being written to (AlterReplicaLogDirs).

A second log, in a folder `<topic>-<partition>.<unique>-future` of the target directory, copies the first one batch by
batch, as a follower would, in a worker thread. When it is nearly level, the loop copies the rest and swaps the two: the
old folder becomes `….<unique>-delete`, then the new one takes the plain name. A crash between these two renames is seen
at the next start by the same unique name on both sides, and the move is completed (loading.py).
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
LEVEL_BYTES = 2 * 1024 * 1024
"""So little may be left when the loop thread does the rest by itself."""


class SourceFailed(Exception):
    """The log that is copied cannot be read: its directory is at fault, not that of the copy."""


@contextlib.contextmanager
def _blaming_source() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceFailed(str(error)) from error


class PartitionMove:
    """One log on its way. The future log belongs to the worker while `run` is under way, else to the loop thread."""

    __slots__ = (
        "_level",
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
        self._level = False

    @property
    def partition(self) -> TopicPartition:
        return self.current.topic_partition

    @property
    def lag(self) -> int:
        return max(0, self.current.end_offset - self.future.end_offset)

    def drop(self) -> None:
        """On the loop thread: the move is off; the job removes the copy."""
        self.dropped = True
        self.pace.stop()

    def truncate(self, offset: int | None) -> None:
        """The log was truncated to `offset`, or emptied (None): the copy must follow before it goes on."""
        bound = -1 if offset is None else offset
        self._truncate_at = bound if self._truncate_at is None else min(bound, self._truncate_at)

    def changed_under(self, error: BaseException) -> bool:
        """On the loop thread, after `run`: whether it failed only because the log was truncated, or its segment
        deleted, while it was copied. The next round starts from what is there now."""
        return isinstance(error, FileClosed) or (self._truncate_at is not None and not is_dir_failure(error))

    def prepare(self) -> None:
        """On the loop thread: what is to be copied next."""
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
        self._level = self._slice is None or (
            self._slice.size <= LEVEL_BYTES and self._slice.file is current.active_segment.file
        )

    def run(self) -> None:
        """In the worker."""
        if self._slice is not None:
            copy(self.future, self._slice, self.pace)
        if self._level:
            # So that what is left to make safe at the swap is little.
            self.future.flush()

    def is_level(self) -> bool:
        """On the loop thread, after `run`: whether the rest is little enough to be copied right now."""
        if not self._level or self._truncate_at is not None:
            return False
        return self.current.bytes_between(self.future.end_offset, self.current.end_offset) <= LEVEL_BYTES

    def swap(self) -> None:
        """On the loop thread, in one go: the future log becomes the log."""
        current, future = self.current, self.future
        while future.end_offset < current.end_offset:
            read = current.read(future.end_offset, LEVEL_BYTES, limit=current.end_offset, min_one_batch=True)
            if read is None:
                raise RuntimeError(f"the copy of {self.partition} ends at {future.end_offset}, the log goes on")
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
    """Appends the whole batches of a slice, about a megabyte at a time."""
    position, left = piece.position, piece.size
    want = PIECE_BYTES
    while left > 0:
        with _blaming_source():
            data = piece.file.read(position, min(left, want))
        end = 0
        for batch in batches(data):
            if not end and batch.base_offset < future.end_offset and future.end_offset == future.start_offset:
                # The log starts in the middle of a batch; the copy takes all of it.
                future.truncate_fully_and_start_at(batch.base_offset)
            end = batch.end
        if not end:
            if want >= left:
                return
            want = min(left, want * 4)
            continue
        future.append_as_follower(memoryview(data)[:end])
        position += end
        left -= end
        want = PIECE_BYTES
        if pace is not None:
            pace.breathe()


class MoveJob(Job):
    """Carries all moves on, in turn, a round of some megabytes each."""

    name = "move-logs"
    period_ms = 1_000

    def __init__(self, manager: LogManager, swapped: Callable[[PartitionMove], None]) -> None:
        self._manager = manager
        self._swapped = swapped
        self._move: PartitionMove | None = None
        self._failed: Exception | None = None
        self.moves: dict[TopicPartition, PartitionMove] = {}
        self._retired: list[PartitionMove] = []

    def add(self, move: PartitionMove) -> None:
        """On the loop thread. A move of the same partition to elsewhere is off."""
        old = self.moves.pop(move.partition, None)
        if old is not None:
            old.drop()
            self._retired.append(old)
        self.moves[move.partition] = move

    def copies(self) -> list[Log]:
        """All future logs that are open."""
        return [move.future for move in (*self.moves.values(), *self._retired)]

    def prepare(self) -> bool:
        for partition, move in list(self.moves.items()):
            if move.dropped:
                self._retired.append(self.moves.pop(partition))
        # Only here is it certain that no worker is at work on them.
        while self._retired:
            self._manager.remove_copy(self._retired.pop())
        if not self.moves:
            return False
        partition = next(iter(self.moves))
        move = self._move = self.moves.pop(partition)
        self.moves[partition] = move
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
                if move.is_level():
                    move.swap()
                    del self.moves[move.partition]
                    self._swapped(move)
            except Exception as failure:
                error = failure
        if error is not None and not isinstance(error, Stopped) and not move.changed_under(error):
            logger.warning("%s cannot be moved to %s: %s", move.partition, move.target.path, error)
            move.drop()
            self._manager.note_failure(move.current if isinstance(error, SourceFailed) else move.future, error)
        return bool(self.moves)
