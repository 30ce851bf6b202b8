"""The base class of the offset index and the time index: a file of sorted entries."""

from __future__ import annotations

import contextlib
import mmap
import os
from struct import Struct
from typing import ClassVar

from kavka.storage.files import sync_file, write_all

# Entries stay in memory until they have this size. Every log with an index has such a buffer, and
# there may be ten thousand logs.
BUFFER_BYTES = 1024


class CorruptIndexError(Exception):
    """A malformed index file. The caller rebuilds the index from the .log file."""


class IndexFile:
    """A file of fixed-size entries of two integers.

    The first `_written` entries are in the file, the last entries (`_tail`) only in memory, until
    they fill a buffer. When the segment rolls or closes, `trim` writes them and truncates the file
    to its entries, so the number of entries follows from the length of the file. After a crash the
    file of an unflushed segment lacks its last entries, and recovery rebuilds it.

    Lookups map the file for reading. Entries are not written through a map: the first store to a
    page of a long, sparse file costs milliseconds, because the kernel may allocate megabytes for
    it, and kills the process on a full disk (SIGBUS).

    An append cannot fail: on a full disk the entries stay in memory until the next append or
    `trim`.

    The file is not opened before the buffer is full or a lookup. Only the thread that owns the log
    may call the methods, except for `sync`. `_last` caches the last entry.
    """

    ENTRY: ClassVar[int]

    __slots__ = (
        "_file_size", "_last", "_map", "_tail", "_written", "base_offset", "entries", "max_entries", "path",
    )  # fmt: skip

    def __init__(self, path: str, base_offset: int, max_bytes: int, file_size: int = 0) -> None:
        """`file_size` is the length of an existing, trimmed file."""
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY
        self.entries = self._written = file_size // self.ENTRY
        self._file_size = file_size
        self._map: mmap.mmap | None = None
        self._tail = bytearray()
        self._last: tuple[int, int] | None = None

    def create(self) -> None:
        """Create an empty file, or empty an existing one."""
        self.reset()
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def check(self) -> None:
        """Raise CorruptIndexError if the file cannot be the index of its segment."""
        if self._file_size % self.ENTRY:
            raise CorruptIndexError(f"{self.path}: the size {self._file_size} is not a multiple of {self.ENTRY}")

    def _append(self, entry: bytes) -> None:
        """Append the bytes of an entry."""
        tail = self._tail
        tail += entry
        self.entries += 1
        if len(tail) >= BUFFER_BYTES:
            with contextlib.suppress(OSError):
                self._write_tail()

    def _write_tail(self) -> None:
        start = self._written * self.ENTRY
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A copy: the traceback of an error would keep a view, and the tail could not grow.
            write_all(fd, bytes(self._tail), start)
        finally:
            os.close(fd)
        self._file_size = max(self._file_size, start + len(self._tail))
        self._written = self.entries
        self._tail.clear()

    def _mapped(self) -> mmap.mmap:
        """Return the map of the entries in the file, for lookups. There must be at least one."""
        mapped, size = self._map, self._written * self.ENTRY
        if mapped is None or len(mapped) < size:
            self._unmap()
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                mapped = self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        return mapped

    def _raw(self, entry: int) -> bytes:
        """Return the bytes of one entry, without mapping the file."""
        if entry >= self._written:
            start = (entry - self._written) * self.ENTRY
            return bytes(self._tail[start : start + self.ENTRY])
        start = entry * self.ENTRY
        if self._map is not None and start + self.ENTRY <= len(self._map):
            return self._map[start : start + self.ENTRY]
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, self.ENTRY, start)
        finally:
            os.close(fd)

    def _at(self, entry: int) -> tuple[mmap.mmap | bytearray, int]:
        """Return the buffer that has an entry, and the position of the entry. For lookups."""
        if entry >= self._written:
            return self._tail, (entry - self._written) * self.ENTRY
        return self._mapped(), entry * self.ENTRY

    def _count(self, field: Struct, value: int) -> int:
        """Return the number of entries whose `field` is at most `value`."""
        size, unpack = self.ENTRY, field.unpack_from
        buffer: mmap.mmap | bytearray = self._tail
        if buffer and unpack(buffer, 0)[0] <= value:
            first, low, high = self._written, 1, len(buffer) // size
        elif self._written:
            buffer, first, low, high = self._mapped(), 0, 0, self._written
        else:
            return 0
        while low < high:
            middle = (low + high) >> 1
            if unpack(buffer, middle * size)[0] <= value:
                low = middle + 1
            else:
                high = middle
        return first + low

    def restore(self, entries: int) -> None:
        """Remove all but the first `entries` entries."""
        self.entries = entries
        self._last = None
        del self._tail[max(0, entries - self._written) * self.ENTRY :]
        self._written = min(self._written, entries)

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()

    def reset(self) -> None:
        """Remove all entries, including any that a crash left in the file."""
        self.restore(0)
        self._unmap()
        if self._file_size:
            os.truncate(self.path, 0)
            self._file_size = 0

    def trim(self) -> None:
        """Write the entries in memory, truncate the file to its entries and unmap it. Raises
        OSError."""
        self._unmap()
        if self._tail:
            self._write_tail()
        size = self.entries * self.ENTRY
        if self._file_size != size:
            os.truncate(self.path, size)
            self._file_size = size

    def sync(self) -> None:
        """fsync the file. Blocks; any thread may call it."""
        sync_file(self.path)

    def close(self) -> None:
        """Unmap without trimming."""
        self._unmap()
