"""The sparse index from offsets to positions in a segment's .log file.

One entry is 8 bytes, big-endian: the last offset of a batch, relative to the base offset of the
segment (4), and the position of that batch (4). There is one entry for about every
`index.interval.bytes` of log; both columns strictly increase. A lookup finds the greatest entry at
or before an offset and scans the batches from there.
"""

from __future__ import annotations

from struct import Struct

from kavka.storage.index_file import CorruptIndex, IndexFile

_ENTRY = Struct(">II")
_RELATIVE = Struct(">I")


class OffsetIndex(IndexFile):
    """The `.index` file of one segment. IndexFile has the invariants of the file."""

    ENTRY = 8

    __slots__ = ("_last_offset",)

    def __init__(self, path: str, base_offset: int, max_bytes: int, file_size: int = 0) -> None:
        super().__init__(path, base_offset, max_bytes, file_size)
        self._last_offset: int | None = None

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    @property
    def last_offset(self) -> int:
        """The offset of the last entry, or the base offset."""
        last = self._last_offset
        if last is None:
            last = self._last_offset = self.last_entry()[0]
        return last

    def last_entry(self) -> tuple[int, int]:
        """(offset, position) of the last entry, or the start of the segment."""
        if not self.entries:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack(self._raw(self.entries - 1))
        return self.base_offset + relative, position

    def entry(self, n: int) -> tuple[int, int]:
        if not 0 <= n < self.entries:
            raise IndexError(f"{self.path} has {self.entries} entries, not {n}")
        relative, position = _ENTRY.unpack_from(self._mapped(), n * 8)
        return self.base_offset + relative, position

    def append(self, offset: int, position: int) -> None:
        entries = self.entries
        if entries >= self.max_entries:
            raise ValueError(f"{self.path} is full")
        if entries and offset <= self.last_offset:
            raise ValueError(f"{self.path}: offset {offset} is not after {self.last_offset}")
        if not self._writable or (entries + 1) * 8 > self._allocated:
            self._allocate(1)
        assert self._map is not None
        _ENTRY.pack_into(self._map, entries * 8, offset - self.base_offset, position)
        self.entries = entries + 1
        self._last_offset = offset

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the greatest entry at or before `offset`, or the start of the
        segment."""
        slot = self._slots_up_to(offset)
        if not slot:
            return self.base_offset, 0
        relative, position = _ENTRY.unpack_from(self._mapped(), slot * 8 - 8)
        return self.base_offset + relative, position

    def _slots_up_to(self, offset: int) -> int:
        """The number of entries at or before `offset`."""
        low, high = 0, self.entries
        relative = offset - self.base_offset
        if not high or relative < 0:
            return 0
        mapped = self._mapped()
        unpack = _RELATIVE.unpack_from
        while low < high:
            middle = (low + high) >> 1
            if unpack(mapped, middle * 8)[0] <= relative:
                low = middle + 1
            else:
                high = middle
        return low

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and after `offset`."""
        self._keep(self._slots_up_to(offset - 1))
        self._last_offset = None

    def restore(self, entries: int) -> None:
        """Remove all but the first `entries`."""
        self._keep(entries)
        self._last_offset = None

    def reset(self) -> None:
        super().reset()
        self._last_offset = None

    def check(self) -> None:
        super().check()
        if self.entries and not self.last_entry()[1]:
            # The first batch never has an entry: these are zeros of a file that was not trimmed.
            raise CorruptIndex(f"{self.path}: its last entry points to the start of the segment")
