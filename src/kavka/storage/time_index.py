"""The sparse index from timestamps to offsets of a segment.

One entry is 12 bytes, big-endian: a timestamp in ms (8) and a relative offset (4). The timestamp is
the largest of the segment so far, and the offset is the last offset of the batch with that
timestamp. So no record before the offset has a later timestamp. Timestamps strictly increase;
offsets never decrease. The last entry is written when the segment rolls or closes, and has the
largest timestamp of the segment.
"""

from __future__ import annotations

from struct import Struct

from kavka.storage.index_file import CorruptIndexError, IndexFile

_ENTRY = Struct(">qI")
_TIMESTAMP = Struct(">q")
_RELATIVE = Struct(">8xI")


class TimeIndex(IndexFile):
    """The `.timeindex` file of one segment. IndexFile describes the invariants of the file. One
    slot is reserved for the last entry of the segment."""

    ENTRY = 12

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry, or (-1, base offset)."""
        last = self._last
        if last is None:
            timestamp, relative = _ENTRY.unpack(self._raw(self.entries - 1)) if self.entries else (-1, 0)
            last = self._last = timestamp, self.base_offset + relative
        return last

    def entry(self, n: int) -> tuple[int, int]:
        if not 0 <= n < self.entries:
            raise IndexError(f"{self.path} has no entry {n}: it has {self.entries} entries")
        timestamp, relative = _ENTRY.unpack_from(*self._at(n))
        return timestamp, self.base_offset + relative

    def maybe_append(self, timestamp: int, offset: int, *, at_end: bool = False) -> None:
        """Append an entry if `timestamp` is later than that of the last entry. With `at_end`, the
        entry may use the reserved slot. Raises ValueError if the index is full or the entry is out
        of order."""
        last_timestamp, last_offset = self.last_entry
        if timestamp <= last_timestamp:
            if timestamp < last_timestamp and self.entries:
                raise ValueError(f"{self.path}: timestamp {timestamp} is before the last timestamp {last_timestamp}")
            return
        entries = self.entries
        if self.is_full and not at_end:
            raise ValueError(f"cannot append to {self.path}: it is full")
        if entries and offset < last_offset:
            raise ValueError(f"{self.path}: offset {offset} is before the last offset {last_offset}")
        self._append(_ENTRY.pack(timestamp, offset - self.base_offset))
        self._last = timestamp, offset

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return (timestamp, offset) of the last entry whose timestamp is at most `timestamp`, or
        (-1, base offset)."""
        count = self._count(_TIMESTAMP, timestamp)
        if not count:
            return -1, self.base_offset
        entry_timestamp, relative = _ENTRY.unpack_from(*self._at(count - 1))
        return entry_timestamp, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Remove the entries whose offset is `offset` or later."""
        self.restore(self._count(_RELATIVE, offset - 1 - self.base_offset))

    def check(self) -> None:
        super().check()
        if not self.entries:
            return
        timestamp, offset = self.last_entry
        if offset < self.base_offset:
            raise CorruptIndexError(
                f"{self.path}: the offset {offset} of the last entry is before the base offset of the segment"
            )
        if timestamp < 0 or (self.entries > 1 and timestamp < _ENTRY.unpack(self._raw(0))[0]):
            raise CorruptIndexError(f"{self.path}: the timestamp {timestamp} of the last entry is not the largest")
