"""The file of a segment's batches, and the part of it that answers a fetch without being read.

A FileSlice goes into a Fetch response as its `records`: the network layer hands it to sendfile, or reads it where
sendfile does not go (TLS). It keeps its LogFile alive, so a segment may be deleted while a slice of it is still being
sent.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from threading import Lock

from kavka.common.errors import ErrorCode, KafkaError

_CLOEXEC = os.O_CLOEXEC
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
IOV_MAX = 1024
"""How many buffers one writev takes."""


class FileClosed(KafkaError):
    """An access to a file that this broker closed itself: its segment was deleted, or its log was let go of. It says
    nothing about the disk."""

    def __init__(self, path: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is closed.")


class LogFile:
    """A .log file: its path, its descriptor (opened when first needed), and how many of its bytes are whole batches.

    Descriptor numbers are reused, so nobody may use one that another thread can close. The loop thread (or the thread
    that owns the log) calls `close`; it alone uses `fd` directly. Every other thread takes the descriptor by
    `acquire` and gives it back by `release`, or reads by `read`, which does both. `close` takes effect at once for new
    users, who get FileClosed; the descriptor is closed by the last `release`. Without `close` it is closed with the
    last reference to this object.

    A file is opened by its path, which the loop thread may change: files that a worker is to read are opened on the
    loop thread first.

    What lies after `size` in the file is never shown: nothing, or zeros of a preallocated file, or for as long as the
    disk refuses even to cut a file short, what a failed append left. That is cut off before anything else is
    appended, as recovery after a crash would take whole batches in it for good ones.
    """

    __slots__ = ("_closed", "_fd", "_lock", "_orphan", "_torn", "_users", "path", "preallocated", "size")

    def __init__(self, path: str, size: int, fd: int = -1, preallocated: int = 0) -> None:
        """`preallocated`: the length of the file on disk, where it was made longer than its content."""
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
        """A new empty file; one that is there is emptied."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _CLOEXEC, 0o644)
        file = cls(path, 0, fd, preallocated)
        if preallocated:
            os.ftruncate(fd, preallocated)
        return file

    def append(self, buffers: Sequence[bytes | bytearray | memoryview], total: int) -> None:
        """Write all the buffers (`total` bytes) at the end, or raise OSError with the file as it was."""
        if self._torn:
            self.cut(self.size)
        position = self.size
        try:
            written = os.pwritev(self.fd, buffers[:IOV_MAX], position)
            if written != total:
                self._append_rest(buffers, written, position)
        except BaseException:
            with contextlib.suppress(OSError):
                self.cut(position)
            raise
        self.size = position + total

    def _append_rest(self, buffers: Sequence[bytes | bytearray | memoryview], written: int, position: int) -> None:
        """The kernel took less than all: too many buffers, or the disk ran full half way (then the next call says
        so)."""
        rest = [memoryview(buffer) for buffer in buffers]
        position += written
        while True:
            done = 0
            for view in rest:
                if written < len(view):
                    break
                written -= len(view)
                done += 1
            del rest[:done]
            if not rest:
                return
            if written:
                rest[0] = rest[0][written:]
            written = os.pwritev(self.fd, rest[:IOV_MAX], position)
            if not written:
                raise OSError(errno.EIO, "the disk takes no more bytes", self.path)
            position += written

    def cut(self, size: int) -> None:
        """Drop everything from `size` on."""
        self._torn = True
        self.size = size
        os.ftruncate(self.fd, size)
        if self.preallocated:
            os.ftruncate(self.fd, self.preallocated)
        self._torn = False

    def trim(self) -> None:
        """Give back what was preallocated and is not used."""
        if self.preallocated or self._torn:
            self.preallocated = 0
            self.cut(self.size)

    @property
    def fd(self) -> int:
        """For the thread that owns the log, until it gives up control: another turn may close the file."""
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
        """The descriptor, which stays open until `release`. FileClosed after `close`."""
        with self._lock:
            fd = self._opened()
            self._users += 1
            return fd

    def release(self) -> None:
        """Once for every `acquire`, in any thread."""
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

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. In any thread."""
        fd = self.acquire()
        try:
            return _pread_all(fd, position, size)
        finally:
            self.release()

    def read_nowait(self, position: int, size: int) -> bytes:
        """As `read`, but raises BlockingIOError where the bytes are not in the page cache. For the thread that owns the
        log."""
        if not _NOWAIT:
            return _pread_all(self.fd, position, size)
        buffer = bytearray(size)
        try:
            got = os.preadv(self.fd, (buffer,), position, _NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            return _pread_all(self.fd, position, size)
        if got < size and position + got < self.size:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache", self.path)
        return bytes(memoryview(buffer)[:got])

    def suspend(self) -> None:
        """Close the descriptor until it is needed again: nobody but the caller may hold this file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """No new user from here on; the last one closes the descriptor."""
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


class FileSlice:
    """`size` bytes of a LogFile from `position` on."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: LogFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    @property
    def fd(self) -> int:
        """For the loop thread alone, see LogFile."""
        return self.file.fd

    def read(self) -> bytes:
        """All of it, copied. Shorter than `len()` only where the log was truncated under it, FileClosed where its
        segment was deleted. In any thread."""
        return self.file.read(self.position, self.size)

    def tail(self, n: int) -> FileSlice:
        """What is left after the first `n` bytes."""
        return FileSlice(self.file, self.position + n, self.size - n)

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, {self.position}, {self.size})"


def _pread_all(fd: int, position: int, size: int) -> bytes:
    data = os.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        data = os.pread(fd, size - got, position + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)
