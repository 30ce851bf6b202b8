"""The leader epochs of a log: the offset at which each epoch begins (`leader-epoch-checkpoint`).

    0                 version of the format
    2                 number of lines that follow
    0 0               epoch, its first offset
    3 1042

Both columns strictly increase. A follower compares its epochs with those of its leader to find the
offset at which their logs diverge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from kavka.storage.checkpoint import VERSION, decode_epochs
from kavka.storage.files import atomic_write, read_file

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochsSnapshot(NamedTuple):
    """A copy of the (epoch, start offset) entries, for the thread that writes the file. `revision`
    orders the copies."""

    revision: int
    entries: list[tuple[int, int]]


class LeaderEpochs:
    """The leader epochs of one log and their file.

    Changes are made in memory. The file is written before the recovery point passes the batches of
    a new epoch, and at a clean shutdown. If a crash happens before, recovery reads the epochs from
    the batches past the recovery point.

    Only the thread that owns the log may change the epochs. Any thread may call `write` with the
    result of `snapshot`. `write` blocks, so the loop thread does not call it.
    """

    __slots__ = ("_revision", "_saved_revision", "_writing", "epochs", "latest", "path", "starts")

    def __init__(self, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.path = path
        self.epochs: list[int] = []
        self.starts: list[int] = []
        for epoch, start in entries:
            self.epochs.append(epoch)
            self.starts.append(start)
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED_EPOCH
        # `_revision` is incremented with each change; `_saved_revision` is the revision in the
        # file.
        self._revision = self._saved_revision = 0
        self._writing = Lock()

    @classmethod
    def load(cls, path: str) -> LeaderEpochs:
        """Read the epochs from the file. A missing file has no epochs. Raises CheckpointError for
        an empty or malformed file, and OSError."""
        try:
            data = read_file(path)
        except FileNotFoundError:
            return cls(path)
        epochs = cls(path)
        for epoch, start in decode_epochs(data, path):
            epochs.assign(epoch, start)
        epochs._saved_revision = epochs._revision
        return epochs

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. Removes the entries that contradict it:
        those with the same or a later epoch or start offset. Returns whether the entries changed.
        Raises ValueError for negative arguments."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"invalid leader epoch {epoch} at offset {start_offset}")
        if self.epochs and epoch == self.latest and start_offset >= self.starts[-1]:
            return False
        count = min(bisect_left(self.epochs, epoch), bisect_left(self.starts, start_offset))
        del self.epochs[count:], self.starts[count:]
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        self._on_change()
        return True

    def recover_batch(self, epoch: int, base_offset: int, last_offset: int) -> None:
        """Record the epoch of a batch that recovery read. The batches must be passed in the order
        of offsets. Removes the entries that contradict the batch: entries that begin within the
        batch or assign its offsets to another epoch. A crash may leave such entries in the file."""
        if epoch < 0 or (self.epoch_for(base_offset) == epoch == self.epoch_for(last_offset)):
            return
        self.truncate_from_end(base_offset + 1)
        if self.epoch_for(base_offset) != epoch:
            self.truncate_from_end(base_offset)
            self.assign(epoch, base_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and its end offset, or (-1, -1) if it is
        unknown."""
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        next_entry = bisect_right(self.epochs, epoch)
        if next_entry == len(self.epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        return self.epochs[next_entry - 1] if next_entry else epoch, self.starts[next_entry]

    def epoch_for(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, or -1 if it is unknown."""
        n = bisect_right(self.starts, offset)
        return self.epochs[n - 1] if n else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin at or after `end_offset`."""
        count = bisect_left(self.starts, end_offset)
        if count < len(self.starts):
            del self.epochs[count:], self.starts[count:]
            self._on_change()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before `start_offset`. The epoch that contains
        `start_offset` then begins at `start_offset`."""
        n = bisect_right(self.starts, start_offset)
        if n and (n > 1 or self.starts[0] != start_offset):
            del self.epochs[: n - 1], self.starts[: n - 1]
            self.starts[0] = start_offset
            self._on_change()

    def clear(self) -> None:
        if self.epochs:
            self.epochs.clear()
            self.starts.clear()
            self._on_change()

    def restore(self, entries: list[tuple[int, int]]) -> None:
        """Set the entries to an earlier value of `entries`."""
        self.epochs = [epoch for epoch, _ in entries]
        self.starts = [start for _, start in entries]
        self._on_change()

    def _on_change(self) -> None:
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED_EPOCH
        self._revision += 1

    # --- the file

    @property
    def dirty(self) -> bool:
        """Whether the file does not have the latest changes."""
        return self._revision != self._saved_revision

    def snapshot(self) -> EpochsSnapshot:
        return EpochsSnapshot(self._revision, self.entries)

    def write(self, snapshot: EpochsSnapshot) -> None:
        """Write a snapshot to the file, unless the file has this or a later revision. Blocks for
        two fsyncs. Any thread may call it. Raises OSError."""
        with self._writing:
            if snapshot.revision > self._saved_revision:
                lines = [f"{VERSION}\n{len(snapshot.entries)}\n"]
                lines += [f"{epoch} {start}\n" for epoch, start in snapshot.entries]
                atomic_write(self.path, "".join(lines).encode())
                self._saved_revision = snapshot.revision

    def save(self) -> None:
        """Write the file if it does not have the latest changes. Blocks. Raises OSError."""
        if self.dirty:
            self.write(self.snapshot())

    def mark_dirty(self) -> None:
        """Make the next `save` write the file, because it is malformed."""
        self._on_change()
