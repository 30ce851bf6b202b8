"""The .log file of a segment, and slices of it that are sent without being read.

A FileSlice is the `records` field of a Fetch response. The network layer passes it to sendfile, or
reads it if sendfile cannot be used (TLS). It keeps its LogFile alive, so a segment may be deleted
while a slice of it is being sent.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

from kavka.common.errors import ErrorCode, KafkaError

_CLOEXEC = os.O_CLOEXEC
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
IOV_MAX = 1024  # The maximum number of buffers of one pwritev.


class FileClosed(KafkaError):
    """An access to a file that this broker has closed, because its segment was deleted or its log
    closed. The disk has not failed."""

    def __init__(self, path: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is closed.")


class LogFile:
    """A .log file: its path, its descriptor (opened at its first use), and `size`, the number of
    bytes of complete batches.

    Descriptor numbers are reused, so no thread may use a descriptor that another thread can close.
    Only the thread that owns the log may call `close` and use `fd` directly. Other threads call
    `acquire` and `release`, or `read`, which calls both. After `close`, `acquire` raises
    FileClosed, and the last `release` closes the descriptor. Without `close`, the descriptor is
    closed when this object is freed.

    A file is opened by its path, which the loop thread may change, so the loop thread opens files
    before a worker thread reads them.

    Bytes after `size` are never read. They are zeros of a preallocated file, or were left by a
    failed append whose truncation also failed. The next append truncates the file first, because
    recovery would accept complete batches after `size`.
    """

    __slots__ = ("_closed", "_fd", "_lock", "_orphan", "_torn", "_users", "path", "preallocated", "size")

    def __init__(self, path: str, size: int, fd: int = -1, preallocated: int = 0) -> None:
        """`preallocated` is the length of a preallocated file on disk, else 0."""
        self.path = path
        self.size = size
        self.preallocated = preallocated
        self._fd = fd
        self._closed = False
        self._torn = False
        self._lock = Lock()
        self._users = 0
        # The descriptor between `close` and the last `release`.
        self._orphan = -1

    @classmethod
    def create(cls, path: str, preallocated: int = 0) -> LogFile:
        """Create an empty file, or empty an existing one."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _CLOEXEC, 0o644)
        file = cls(path, 0, fd, preallocated)
        if preallocated:
            os.ftruncate(fd, preallocated)
        return file

    def append(self, buffers: Sequence[bytes | bytearray | memoryview], total: int) -> None:
        """Write all buffers (`total` bytes) at the end. An OSError leaves `size` unchanged."""
        if self._torn:
            self.truncate(self.size)
        position = self.size
        try:
            written = os.pwritev(self.fd, buffers[:IOV_MAX], position)
            if written != total:
                self._append_remaining(buffers, written, position)
        except BaseException:
            with contextlib.suppress(OSError):
                self.truncate(position)
            raise
        self.size = position + total

    def _append_remaining(self, buffers: Sequence[bytes | bytearray | memoryview], written: int, position: int) -> None:
        """Write the remaining bytes after a short write: there were too many buffers, or the disk
        is full, in which case the next call fails."""
        views = [memoryview(buffer) for buffer in buffers]
        position += written
        while True:
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if not views:
                return
            views[0] = views[0][written:]
            written = os.pwritev(self.fd, views[:IOV_MAX], position)
            if not written:
                raise OSError(errno.EIO, "the disk accepts no more bytes", self.path)
            position += written

    def truncate(self, size: int) -> None:
        """Remove all bytes from `size` on."""
        self._torn = True
        self.size = size
        os.ftruncate(self.fd, size)
        if self.preallocated:
            os.ftruncate(self.fd, self.preallocated)
        self._torn = False

    def trim(self) -> None:
        """Release unused preallocated space."""
        if self.preallocated or self._torn:
            self.preallocated = 0
            self.truncate(self.size)

    @property
    def fd(self) -> int:
        """The descriptor, for the thread that owns the log. It is valid for one turn of the loop:
        the next turn may close the file."""
        fd = self._fd
        if fd < 0:
            with self._lock:
                fd = self._opened()
        return fd

    def _opened(self) -> int:
        if self._closed:
            raise FileClosed(self.path)
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | _CLOEXEC)
        return self._fd

    def acquire(self) -> int:
        """The descriptor, which stays open until `release`. Raises FileClosed after `close`."""
        with self._lock:
            fd = self._opened()
            self._users += 1
            return fd

    def release(self) -> None:
        """End the use that `acquire` began. Any thread may call it, once for every `acquire`."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            fd, self._orphan = self._orphan, -1
        if fd >= 0:
            os.close(fd)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[int]:
        fd = self.acquire()
        try:
            yield fd
        finally:
            self.release()

    def read(self, position: int, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file. Any thread may call it."""
        fd = self.acquire()
        try:
            return _pread_all(fd, position, size)
        finally:
            self.release()

    def read_nowait(self, position: int, size: int) -> bytes:
        """Like `read`, but raises BlockingIOError if the bytes are not in the page cache. Only the
        thread that owns the log may call it."""
        if not _NOWAIT:
            return _pread_all(self.fd, position, size)
        buffer = bytearray(size)
        try:
            count = os.preadv(self.fd, (buffer,), position, _NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            return _pread_all(self.fd, position, size)
        if count < size and position + count < self.size:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache", self.path)
        return bytes(memoryview(buffer)[:count])

    def suspend(self) -> None:
        """Close the descriptor until its next use. The file must have no other user."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Reject new users. The last `release` closes the descriptor."""
        with self._lock:
            self._closed = True
            fd, self._fd = self._fd, -1
            if self._users and fd >= 0:
                self._orphan, fd = fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        for fd in (getattr(self, "_fd", -1), getattr(self, "_orphan", -1)):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def __repr__(self) -> str:
        return f"LogFile({self.path!r}, size={self.size})"


@dataclass(slots=True, eq=False)
class FileSlice:
    """`size` bytes of a LogFile from `position` on. Immutable."""

    file: LogFile
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def fd(self) -> int:
        """The descriptor, only for the loop thread (`LogFile.fd`)."""
        return self.file.fd

    def read(self) -> bytes:
        """A copy of the bytes. It is shorter than `len()` if the log was truncated. Raises
        FileClosed if the segment was deleted. Any thread may call it."""
        return self.file.read(self.position, self.size)

    def tail(self, n: int) -> FileSlice:
        """The slice without its first `n` bytes."""
        return FileSlice(self.file, self.position + n, self.size - n)


def _pread_all(fd: int, position: int, size: int) -> bytes:
    data = os.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    received = bytearray(data)
    while data and len(received) < size:
        data = os.pread(fd, size - len(received), position + len(received))
        received += data
    return bytes(received)
