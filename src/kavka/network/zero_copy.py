"""Sends bytes and file slices, in order, to a non-blocking socket.

`send` writes as much as the socket accepts, and queues the remaining pieces until the socket is
writable. A FileSlice is sent by sendfile from the page cache to the socket, without a copy in this
process. Bytes before a slice are sent with MSG_MORE, so that both share packets. A small slice is
read and sent together with the other pieces.
"""

from __future__ import annotations

import os
import socket
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from kavka.storage.file_slice import FileClosed, FileSlice

Piece = bytes | memoryview | FileSlice

# One call sends at most this much of a file, so that a fast reader does not block the loop.
_MAX_SENDFILE_BYTES = 4 * 1024 * 1024
# Up to this size, one read and one send (10 µs) are faster than send, sendfile and send (15 µs).
_MAX_COPIED_BYTES = 32 * 1024


class FileShrank(Exception):
    """The file is shorter than the slice, or closed, because the log was truncated. The response
    cannot be completed."""


class Outbox:
    """Owns the unsent pieces of a connection. `queued_bytes` does not count file slices. Only the
    loop thread uses it."""

    __slots__ = ("_fd", "_is_waiting", "_loop", "_on_writable", "_queue", "_sock", "queued_bytes")

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket, on_writable: Callable[[], None]) -> None:
        """`on_writable` is called on the loop when the socket is writable. It must call
        `Outbox.on_writable`."""
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._on_writable = on_writable
        self._queue: deque[Piece] = deque()
        self._is_waiting = False
        self.queued_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._queue

    @property
    def queued_pieces(self) -> int:
        return len(self._queue)

    def send(self, pieces: list[Piece]) -> None:
        """Send the pieces, or queue them. After OSError or FileShrank the caller must close the
        connection."""
        queue = self._queue
        try:
            data: bytes | memoryview = b"".join(pieces)  # type: ignore[arg-type]
        except TypeError:  # there is a FileSlice
            if sum(map(len, pieces)) > _MAX_COPIED_BYTES:
                for piece in join_bytes(pieces):
                    queue.append(piece)
                    if not isinstance(piece, FileSlice):
                        self.queued_bytes += len(piece)
                if not self._is_waiting:
                    self._pump()
                return
            data = b"".join([_read(piece) if isinstance(piece, FileSlice) else piece for piece in pieces])
        if not queue:
            sent = self._send_bytes(data, has_more=False)
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        queue.append(data)
        self.queued_bytes += len(data)
        if not self._is_waiting:
            self._pump()

    def _pump(self) -> None:
        queue = self._queue
        while queue:
            piece = queue[0]
            if isinstance(piece, FileSlice):
                sent = self._send_file(piece)
            else:
                sent = self._send_bytes(piece, has_more=len(queue) > 1)
                self.queued_bytes -= sent
            if sent == len(piece):
                queue.popleft()
                continue
            if sent:
                queue[0] = piece.tail(sent) if isinstance(piece, FileSlice) else memoryview(piece)[sent:]
            self._start_waiting()
            return
        self._stop_waiting()

    def _send_bytes(self, piece: bytes | memoryview, has_more: bool) -> int:
        try:
            return self._sock.send(piece, socket.MSG_MORE if has_more else 0)
        except BlockingIOError:
            return 0

    def _send_file(self, piece: FileSlice) -> int:
        size = len(piece)
        try:
            sent = os.sendfile(self._fd, piece.fd, piece.position, min(size, _MAX_SENDFILE_BYTES))
        except BlockingIOError:
            return 0
        except FileClosed:
            raise FileShrank from None
        if sent == 0 and size:
            raise FileShrank
        return sent

    def _start_waiting(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._loop.add_writer(self._fd, self._on_writable)

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._fd)

    def on_writable(self) -> None:
        """Continue to send. Raises OSError or FileShrank."""
        self._pump()

    def close(self) -> None:
        self._stop_waiting()
        self._queue.clear()
        self.queued_bytes = 0


def _read(piece: FileSlice) -> bytes:
    try:
        data = piece.read()
    except FileClosed:
        raise FileShrank from None
    if len(data) != len(piece):
        raise FileShrank
    return data


def join_bytes(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with adjacent bytes joined."""
    joined: list[Piece] = []
    adjacent: list[bytes | memoryview] = []
    for piece in pieces:
        if isinstance(piece, FileSlice):
            if adjacent:
                joined.append(b"".join(adjacent))
                adjacent = []
            joined.append(piece)
        else:
            adjacent.append(piece)
    if adjacent:
        joined.append(b"".join(adjacent))
    return joined
