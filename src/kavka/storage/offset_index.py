"""The sparse index from offsets to positions in a segment's .log file.

One entry is 8 bytes, big-endian: the last offset of a batch, relative to the base offset of the
segment (4), and the position of that batch (4). There is one entry for about every
`index.interval.bytes` of log; both columns strictly increase. A lookup finds the last entry at or
before an offset; the caller scans the batches from that position.
"""

from __future__ import annotations

from struct import Struct

from kavka.storage.index_file import CorruptIndexError, IndexFile

_ENTRY = Struct(">II")
_RELATIVE = Struct(">I")


class OffsetIndex(IndexFile):
    """The `.index` file of one segment. IndexFile describes the invariants of the file."""

    ENTRY = 8

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    @property
    def last_entry(self) -> tuple[int, int]:
        """(offset, position) of the last entry, or (base offset, 0)."""
        last = self._last
        if last is None:
            relative, position = _ENTRY.unpack(self._raw(self.entries - 1)) if self.entries else (0, 0)
            last = self._last = self.base_offset + relative, position
        return last

    def entry(self, n: int) -> tuple[int, int]:
        if not 0 <= n < self.entries:
            raise IndexError(f"{self.path} has no entry {n}: it has {self.entries} entries")
        relative, position = _ENTRY.unpack_from(*self._at(n))
        return self.base_offset + relative, position

    def append(self, offset: int, position: int) -> None:
        """Append an entry. Raises ValueError if the index is full or the offset does not
        increase."""
        entries = self.entries
        if entries >= self.max_entries:
            raise ValueError(f"cannot append to {self.path}: it is full")
        if entries and offset <= self.last_entry[0]:
            raise ValueError(f"{self.path}: offset {offset} is not after the last offset {self.last_entry[0]}")
        self._append(_ENTRY.pack(offset - self.base_offset, position))
        self._last = offset, position

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return (offset, position) of the last entry at or before `offset`, or (base offset,
        0)."""
        count = self._count(_RELATIVE, offset - self.base_offset)
        if not count:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack_from(*self._at(count - 1))
        return self.base_offset + relative, position

    def truncate_to(self, offset: int) -> None:
        """Remove the entries whose offset is `offset` or later."""
        self.restore(self._count(_RELATIVE, offset - 1 - self.base_offset))

    def check(self) -> None:
        super().check()
        if self.entries and not self.last_entry[1]:
            # The first batch never has an entry, so the entries are zeros of a file that was not
            # trimmed.
            raise CorruptIndexError(f"{self.path}: the last entry points to the start of the segment")
