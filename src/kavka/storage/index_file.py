"""The base class of the offset index and the time index: a memory-mapped file of sorted entries."""

from __future__ import annotations

import mmap
import os
from struct import Struct
from typing import ClassVar

from kavka.storage.files import sync_file

PAGE_BYTES = 4096


class CorruptIndexError(Exception):
    """A malformed index file. The caller rebuilds the index from the .log file."""


class IndexFile:
    """A memory-mapped file of fixed-size entries of two integers.

    While its segment is active, the file has the length `segment.index.bytes` and is mapped
    completely. The file is sparse: only used pages occupy disk space. When the segment rolls or
    closes, `trim` truncates the file to its entries, so the number of entries follows from the
    length of the file. After a crash the length of the file of an unflushed segment is meaningless,
    and recovery rebuilds the file.

    A store to a mapped page without disk space would kill the process (SIGBUS). So `reserve`
    allocates pages before they are written, and raises OSError if the disk is full.

    The file is not opened or mapped before the first append or lookup. Only the thread that owns
    the log may call the methods, except for `sync`. `_last` caches the last entry.
    """

    ENTRY: ClassVar[int]

    __slots__ = (
        "_allocated", "_file_size", "_last", "_map", "_writable", "base_offset", "entries", "max_entries", "path",
    )  # fmt: skip

    def __init__(self, path: str, base_offset: int, max_bytes: int, file_size: int = 0) -> None:
        """`file_size` is the length of an existing, trimmed file."""
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY
        self.entries = file_size // self.ENTRY
        self._file_size = file_size
        self._map: mmap.mmap | None = None
        self._writable = False
        self._allocated = 0
        self._last: tuple[int, int] | None = None

    def create(self) -> None:
        """Create an empty file, or empty an existing one."""
        self.reset()
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def check(self) -> None:
        """Raise CorruptIndexError if the file cannot be the index of its segment."""
        if self._file_size % self.ENTRY:
            raise CorruptIndexError(f"{self.path}: the size {self._file_size} is not a multiple of {self.ENTRY}")

    def reserve(self, count: int) -> None:
        """Allocate disk space for `count` more entries, so that appending them cannot fail. Raises
        OSError."""
        if not self._writable or (self.entries + count) * self.ENTRY > self._allocated:
            self._allocate(count)

    def _allocate(self, count: int) -> None:
        limit = max(self.max_entries, self.entries + count) * self.ENTRY
        target = min(limit, -(-(self.entries + count) * self.ENTRY // PAGE_BYTES) * PAGE_BYTES)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not self._writable:
                os.ftruncate(fd, limit)
                self._file_size = limit
            if target > self._allocated:
                os.posix_fallocate(fd, self._allocated, target - self._allocated)
            if not self._writable:
                self._map = mmap.mmap(fd, limit)
                self._writable = True
        finally:
            os.close(fd)
        self._allocated = target

    def _mapped(self) -> mmap.mmap:
        """Return the map for lookups. There must be at least one entry."""
        mapped = self._map
        if mapped is None:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                mapped = self._map = mmap.mmap(fd, self.entries * self.ENTRY, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        return mapped

    def _raw(self, entry: int) -> bytes:
        """Return the bytes of one entry, without mapping the file."""
        start = entry * self.ENTRY
        if self._map is not None:
            return self._map[start : start + self.ENTRY]
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, self.ENTRY, start)
        finally:
            os.close(fd)

    def _count(self, field: Struct, value: int) -> int:
        """Return the number of entries whose `field` is at most `value`."""
        low, high = 0, self.entries
        if not high:
            return 0
        mapped, size, unpack = self._mapped(), self.ENTRY, field.unpack_from
        while low < high:
            middle = (low + high) >> 1
            if unpack(mapped, middle * size)[0] <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def restore(self, entries: int) -> None:
        """Remove all but the first `entries` entries."""
        self.entries = entries
        self._last = None
        if not self._writable:
            self._unmap()

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        self._writable = False
        self._allocated = 0
        if mapped is not None:
            mapped.close()

    def reset(self) -> None:
        """Remove all entries, including any that a crash left in the file."""
        self.entries = 0
        self._last = None
        self._unmap()
        if self._file_size:
            os.truncate(self.path, 0)
            self._file_size = 0

    def trim(self) -> None:
        """Truncate the file to its entries and unmap it."""
        self._unmap()
        size = self.entries * self.ENTRY
        if self._file_size != size:
            os.truncate(self.path, size)
            self._file_size = size

    def sync(self) -> None:
        """fsync the file, including stores through the map. Blocks; any thread may call it."""
        sync_file(self.path)

    def close(self) -> None:
        """Unmap without trimming."""
        self._unmap()
