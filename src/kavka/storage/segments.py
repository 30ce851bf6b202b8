"""The segments of a log in the order of their base offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from kavka.storage.segment import LogSegment


class Segments(Sequence[LogSegment]):
    """A sequence of segments that is searched by offset. The last one is the active one."""

    __slots__ = ("_bases", "_items")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._items: list[LogSegment] = []

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

    def add(self, segment: LogSegment) -> None:
        """Put in its place; one with the same base offset is replaced."""
        n = bisect_left(self._bases, segment.base_offset)
        if n < len(self._bases) and self._bases[n] == segment.base_offset:
            self._items[n] = segment
        else:
            self._bases.insert(n, segment.base_offset)
            self._items.insert(n, segment)

    def remove(self, segment: LogSegment) -> None:
        n = self._items.index(segment)
        del self._bases[n], self._items[n]

    def get(self, base_offset: int) -> LogSegment | None:
        n = bisect_left(self._bases, base_offset)
        return self._items[n] if n < len(self._bases) and self._bases[n] == base_offset else None

    def floor_index(self, offset: int) -> int:
        """Where the last segment that begins at or before `offset` stands; -1 where all begin after it."""
        return bisect_right(self._bases, offset) - 1

    def from_offset(self, offset: int) -> list[LogSegment]:
        """The segment that holds `offset` and all after it."""
        return self._items[max(0, self.floor_index(offset)) :]

    def end_of(self, n: int, log_end_offset: int) -> int:
        """The offset that ends segment number `n`."""
        return self._bases[n + 1] if n + 1 < len(self._bases) else log_end_offset
