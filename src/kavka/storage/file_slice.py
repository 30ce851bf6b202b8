"""The .log file of a segment, and slices of the file that are sent without being read.

A FileSlice is the `records` field of a Fetch response. The network layer passes it to sendfile, or
reads the slice if sendfile cannot be used (TLS). A slice keeps its LogFile alive, so a segment may
be deleted while a slice is being sent.
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
    bytes of the complete batches.

    Descriptor numbers are reused, so no thread may use a descriptor that another thread can close.
    Only the thread that owns the log may call `close` and use `fd` directly. Other threads call
    `acquire` and `release`, or `read`, which calls both. After `close`, `acquire` raises
    FileClosed, and the last `release` closes the descriptor. Without `close`, the descriptor is
    closed when this object is freed.

    A file is opened by its path, and the loop thread may rename the folder. So the loop thread
    opens a file before a worker thread reads it.

    Bytes after `size` are never read. They are the zeros of a preallocated file, or they are from a
    failed append whose truncation also failed. In the latter case the next append truncates the
    file first, because recovery would accept complete batches after `size`.
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
        """Create an empty file, or truncate an existing file. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _CLOEXEC, 0o644)
        file = cls(path, 0, fd, preallocated)
        if preallocated:
            os.ftruncate(fd, preallocated)
        return file

    def append(self, buffers: Sequence[bytes | bytearray | memoryview], total: int) -> None:
        """Write all buffers (`total` bytes) at the end. If it raises OSError, `size` is
        unchanged."""
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
        """Write the remaining bytes after a short write, because of too many buffers or a full
        disk. On a full disk the next write raises OSError."""
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
                raise OSError(errno.EIO, "cannot write more bytes", self.path)
            position += written

    def truncate(self, size: int) -> None:
        """Remove all bytes from `size` on. Raises OSError."""
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
        """The descriptor, for the thread that owns the log. It is valid for one iteration of the
        event loop: the next iteration may close the file. Raises FileClosed after `close`."""
        fd = self._fd
        if fd < 0:
            with self._lock:
                fd = self._open_locked()
        return fd

    def _open_locked(self) -> int:
        """Return the descriptor, and open the file if necessary. The caller must hold the lock."""
        if self._closed:
            raise FileClosed(self.path)
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | _CLOEXEC)
        return self._fd

    def acquire(self) -> int:
        """Return the descriptor, which stays open until `release`. Any thread may call it. Raises
        FileClosed after `close`."""
        with self._lock:
            fd = self._open_locked()
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
        """A context with the descriptor, which stays open until the end of the context."""
        fd = self.acquire()
        try:
            yield fd
        finally:
            self.release()

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file. Any thread may call it. Raises
        FileClosed after `close`."""
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
        """Close the descriptor until the next use of the file. No other thread may use the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Reject new users. The descriptor is closed now, or by the last `release`."""
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
        """Return a copy of the bytes, which is shorter than `size` if the log was truncated. Raises
        FileClosed if the segment was deleted. Any thread may call it."""
        return self.file.read(self.position, self.size)

    def tail(self, n: int) -> FileSlice:
        """Return the slice without its first `n` bytes."""
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
