"""The segments of one log, in the order of their base offsets, and the removal of their files."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from kavka.common.clock import Clock
from kavka.storage.files import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, fsync_dir, remove_if_exists
from kavka.storage.log_config import LogConfig
from kavka.storage.segment import ROLL_TIME_UNKNOWN, LogSegment


@dataclass(slots=True)
class PendingDeletion:
    """The files of a removed segment, renamed to `.deleted`. They may be removed from `due_ms` on.

    If `is_replaced` is True, the cleaner has replaced the segment by a new one. The names of the
    new files must be on disk before the files in `paths` are removed.
    """

    due_ms: int
    paths: list[str]
    is_replaced: bool

    def run(self) -> None:
        """Remove the files. Missing files are ignored. Any thread may call it. Raises OSError."""
        if self.is_replaced:
            with contextlib.suppress(FileNotFoundError):
                fsync_dir(os.path.dirname(self.paths[0]))
        for path in self.paths:
            remove_if_exists(path)


class LogSegments(Sequence[LogSegment]):
    """The segments of one log and their files. `active` is the last segment.

    A log has at least one segment, except while it is loaded or fully truncated.
    `has_unsynced_dir_entries` is True if segments were created, replaced or truncated since the
    last fsync of the folder. Deletions by retention do not set it. `pending_deletions` are the
    files that are removed after `file.delete.delay.ms`; after a crash, opening the log removes
    them. Only the thread that owns the log may call the methods.
    """

    __slots__ = (
        "_bases",
        "_clock",
        "_config",
        "_items",
        "active",
        "dir",
        "has_unsynced_dir_entries",
        "pending_deletions",
    )

    def __init__(self, dir: str, config: LogConfig, clock: Clock) -> None:
        self.dir = dir
        self._config = config
        self._clock = clock
        self._bases: list[int] = []
        self._items: list[LogSegment] = []
        self.active: LogSegment
        self.has_unsynced_dir_entries = False
        self.pending_deletions: list[PendingDeletion] = []

    # --- the sequence

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> LogSegment: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogSegment]: ...
    def __getitem__(self, index: int | slice) -> LogSegment | list[LogSegment]:
        return self._items[index]

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._items)

    @property
    def size(self) -> int:
        """Total bytes of the .log files."""
        return sum(segment.file.size for segment in self._items)

    def floor_index(self, offset: int) -> int:
        """Return the index of the last segment that begins at or before `offset`, or -1."""
        return bisect_right(self._bases, offset) - 1

    def from_offset(self, offset: int) -> list[LogSegment]:
        """Return the last segment that begins at or before `offset`, or else the first segment, and
        all segments after it."""
        return self._items[max(0, self.floor_index(offset)) :]

    def between(self, start: int, end: int) -> list[LogSegment]:
        """Return the segments that contain offsets in [start, end)."""
        return [segment for segment in self.from_offset(start) if segment.base_offset < end]

    def base_after(self, segment: LogSegment) -> int:
        """Return the base offset of the segment after `segment`, which must exist."""
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    # --- changes

    def add(self, segment: LogSegment) -> None:
        """Insert a segment, in place of any segment with the same base offset."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._bases[index] == segment.base_offset:
            self._items[index] = segment
        else:
            self._bases.insert(index, segment.base_offset)
            self._items.insert(index, segment)
        self.active = self._items[-1]

    def create(self, base_offset: int) -> LogSegment:
        """Create the files of a segment and add it. Raises OSError."""
        segment = LogSegment.create(self.dir, base_offset, self._config, self._clock.now_ms())
        self.add(segment)
        self.has_unsynced_dir_entries = True
        return segment

    def remove(self, segment: LogSegment) -> None:
        """Remove a segment from the log, but not its files."""
        index = self._items.index(segment)
        del self._bases[index], self._items[index]
        if self._items:
            self.active = self._items[-1]

    def delete_later(self, segment: LogSegment, *, is_replaced: bool = False) -> None:
        """Remove a segment from the log, rename its files to `.deleted`, and schedule their
        removal. Raises OSError."""
        self.remove(segment)
        segment.unmap()
        segment.change_suffix("", DELETED_SUFFIX)
        due_ms = self._clock.now_ms() + self._config.file_delete_delay_ms
        self.pending_deletions.append(PendingDeletion(due_ms, segment.paths, is_replaced))

    def take_due_deletions(self, now_ms: int) -> list[PendingDeletion]:
        """Remove and return the deletions that are due. The caller runs them in a worker thread."""
        due = [deletion for deletion in self.pending_deletions if deletion.due_ms <= now_ms]
        if due:
            self.pending_deletions = [deletion for deletion in self.pending_deletions if deletion.due_ms > now_ms]
        return due

    def replace(self, cleaned: Sequence[LogSegment], sources: Sequence[LogSegment]) -> None:
        """Replace `sources` by the segments that the cleaner created from them. The files of the
        cleaned segments must be flushed, trimmed and named `.cleaned`. Raises OSError.

        If a crash happens before all cleaned segments are renamed to `.swap`, opening the log keeps
        the sources. After a later crash, opening the log completes the swap. The last cleaned
        segment is renamed to `.swap` first, because opening the log treats a `.swap` segment after
        a `.cleaned` segment as incomplete.
        """
        ordered = sorted(cleaned, key=lambda segment: segment.base_offset)
        for segment in reversed(ordered):
            segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        for segment in sources:
            self.delete_later(segment, is_replaced=True)
        for segment in ordered:
            segment.change_suffix(SWAP_SUFFIX, "")
            self.add(segment)
        self.has_unsynced_dir_entries = True

    def update_config(self, config: LogConfig) -> None:
        self._config = config
        for segment in self._items:
            segment.config = config
            segment.roll_at = ROLL_TIME_UNKNOWN

    def move(self, dir: str) -> None:
        """Update all paths after the folder was renamed to `dir`."""
        self.dir = dir
        for segment in self._items:
            segment.move(dir)
        for deletion in self.pending_deletions:
            deletion.paths = [f"{dir}/{os.path.basename(path)}" for path in deletion.paths]

    def abandon(self) -> None:
        """Close all descriptors and leave the files as they are."""
        for segment in self._items:
            segment.abandon()
