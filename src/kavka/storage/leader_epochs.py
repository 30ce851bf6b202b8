"""The leader epochs of a log: at which offset each leader began to write (`leader-epoch-checkpoint`).

    0                 version
    2                 number of lines that follow
    0 0               epoch, its first offset
    3 1042

Both columns strictly grow. A follower compares them with its leader's to find where their logs part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from kavka.storage.checkpoint import VERSION, decode_epochs
from kavka.storage.files import atomic_write

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochsSnapshot(NamedTuple):
    """The epochs at one moment, for the thread that writes the file."""

    version: int
    entries: list[tuple[int, int]]


class LeaderEpochs:
    """Changes are made in memory; who makes them also makes sure that the file is written before the recovery point
    passes the batches that they are about, and at a clean stop. A crash before that costs nothing: recovery finds the
    epochs in the batches past the recovery point.

    Only the thread that owns the log changes it. `write` runs in any thread, with what `snapshot` returned: files are
    fsynced, which the loop thread must not wait for.
    """

    __slots__ = ("_saved", "_version", "_writing", "epochs", "latest", "path", "starts")

    def __init__(self, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.path = path
        self.epochs: list[int] = []
        self.starts: list[int] = []
        for epoch, start in entries:
            self.epochs.append(epoch)
            self.starts.append(start)
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED_EPOCH
        # How often it changed, and which of these states is in the file.
        self._version = self._saved = 0
        self._writing = Lock()

    @classmethod
    def load(cls, path: str) -> LeaderEpochs:
        """No file is a file of no epochs; CheckpointError for one that is empty or malformed."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return cls(path)
        epochs = cls(path)
        for epoch, start in decode_epochs(data, path):
            epochs.assign(epoch, start)
        epochs._saved = epochs._version
        return epochs

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """`epoch` begins at `start_offset`; True where that is news. Entries it contradicts (not before it in both
        columns) go."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset}")
        if self.epochs and epoch == self.latest and start_offset >= self.starts[-1]:
            return False
        keep = min(bisect_left(self.epochs, epoch), bisect_left(self.starts, start_offset))
        del self.epochs[keep:], self.starts[keep:]
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        self._changed()
        return True

    def note_batch(self, epoch: int, base_offset: int, last_offset: int) -> None:
        """In recovery: a batch of the log, in order. It proves entries wrong that a crash has left in the file: those
        that begin within it, and those that have its offsets in another epoch."""
        if epoch < 0 or (self.epoch_for(base_offset) == epoch == self.epoch_for(last_offset)):
            return
        self.truncate_from_end(base_offset + 1)
        if self.epoch_for(base_offset) != epoch:
            self.truncate_from_end(base_offset)
            self.assign(epoch, base_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest known epoch up to `epoch`, where it ends); (-1, -1) where that cannot be said."""
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self.epochs, epoch)
        if after == len(self.epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        found = self.epochs[after - 1] if after else epoch
        return found, self.starts[after]

    def epoch_for(self, offset: int) -> int:
        """The epoch that the record at `offset` was written in; -1 where that is not known."""
        n = bisect_right(self.starts, offset)
        return self.epochs[n - 1] if n else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        keep = bisect_left(self.starts, end_offset)
        if keep < len(self.starts):
            del self.epochs[keep:], self.starts[keep:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end at or before `start_offset`; the one that holds it begins there now."""
        n = bisect_right(self.starts, start_offset)
        if n and (n > 1 or self.starts[0] != start_offset):
            del self.epochs[: n - 1], self.starts[: n - 1]
            self.starts[0] = start_offset
            self._changed()

    def clear(self) -> None:
        if self.epochs:
            self.epochs.clear()
            self.starts.clear()
            self._changed()

    def restore(self, entries: list[tuple[int, int]]) -> None:
        """Undo: go back to what `entries` gave before."""
        self.epochs = [epoch for epoch, _ in entries]
        self.starts = [start for _, start in entries]
        self._changed()

    def _changed(self) -> None:
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED_EPOCH
        self._version += 1

    # --- the file

    @property
    def dirty(self) -> bool:
        """Whether the file says something else."""
        return self._version != self._saved

    def snapshot(self) -> EpochsSnapshot:
        return EpochsSnapshot(self._version, self.entries)

    def write(self, snapshot: EpochsSnapshot) -> None:
        """In any thread: the snapshot is on disk after it, unless a later one is already. Blocks for two fsyncs."""
        with self._writing:
            if snapshot.version > self._saved:
                lines = [f"{VERSION}\n{len(snapshot.entries)}\n"]
                lines += [f"{epoch} {start}\n" for epoch, start in snapshot.entries]
                atomic_write(self.path, "".join(lines).encode())
                self._saved = snapshot.version

    def save(self) -> None:
        """For the thread that owns the log, where it may block: write what changed."""
        if self.dirty:
            self.write(self.snapshot())

    def rebuilt(self) -> None:
        """The file is of no use: write it even if there is no epoch."""
        self._changed()
