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

from kavka.common.errors import ErrorCode, KafkaError
from kavka.storage.files import atomic_write

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_VERSION = 0


class LeaderEpochs:
    """Changes are made in memory; `save` writes them when `dirty`. A crash before it costs nothing: recovery finds
    the epochs in the batches past the recovery point."""

    __slots__ = ("dirty", "epochs", "latest", "path", "starts")

    def __init__(self, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.path = path
        self.epochs: list[int] = []
        self.starts: list[int] = []
        for epoch, start in entries:
            self.epochs.append(epoch)
            self.starts.append(start)
        self.latest = self.epochs[-1] if self.epochs else UNDEFINED_EPOCH
        self.dirty = False

    @classmethod
    def load(cls, path: str) -> LeaderEpochs:
        try:
            with open(path, encoding="ascii") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return cls(path)
        if not lines:
            return cls(path)
        try:
            if int(lines[0]) != _VERSION or int(lines[1]) != len(lines) - 2:
                raise ValueError(f"version {lines[0]}, {lines[1]} entries")
            entries = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:])]
        except (ValueError, IndexError) as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is malformed: {error}") from error
        epochs = cls(path)
        for epoch, start in entries:
            epochs.assign(epoch, start)
        epochs.dirty = False
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
        self.dirty = True

    def save(self, *, sync: bool = False) -> None:
        """Write the file if anything changed since."""
        if self.dirty:
            lines = [f"{_VERSION}\n{len(self.epochs)}\n"]
            lines += [f"{epoch} {start}\n" for epoch, start in zip(self.epochs, self.starts, strict=True)]
            atomic_write(self.path, "".join(lines).encode(), sync=sync)
            self.dirty = False
