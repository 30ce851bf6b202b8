"""The bytes between a connection and its peer: plain, or encrypted with TLS.

A transport has the calls of a non-blocking socket that `Connection` uses. It is the only code that
knows whether a connection has TLS. `PlainTransport` passes on the socket's own methods, so
PLAINTEXT costs no additional call.

TLS uses memory BIOs: one `recv` of up to 256 KB instead of two per TLS record of 16 KB. Beside a
non-blocking SSLSocket this takes about 8% less CPU time for requests of 1000 bytes and 8% to 24%
less to receive large requests, and somewhat more to send. TLS has no sendfile, so file slices are
read and encrypted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from asyncio import AbstractEventLoop, Handle
from collections.abc import Callable
from typing import Any, Protocol

from kavka.network.zero_copy import FileShrank, Outbox, Piece, join_bytes
from kavka.storage.file_slice import FileClosed, FileSlice

# A call encrypts this much at a time, and at most `_MAX_SENT_BYTES` in a turn of the loop, which is
# more than a fetch of 1 MB.
_CHUNK_BYTES = 256 * 1024
_MAX_SENT_BYTES = 1280 * 1024
_CLOSED_BY_PEER = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Readers(Protocol):
    """The set of sockets to read from. An event loop is one."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None: ...

    def remove_reader(self, fd: int, /) -> Any: ...


class Transport(Protocol):
    @property
    def recv_into(self) -> Callable[[memoryview], int]:
        """Receive bytes. 0 is the end of the input. Raises BlockingIOError, or another OSError."""

    def outbox(self, on_writable: Callable[[], None]) -> Outbox:
        """Create the outbox of the connection."""

    def start_reading(self, readers: Readers, on_readable: Callable[[], None]) -> None: ...

    def stop_reading(self, readers: Readers) -> None: ...

    def close(self) -> None: ...


class PlainTransport:
    """A TCP socket without encryption."""

    __slots__ = ("_fd", "_loop", "_sock", "recv_into")

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self.recv_into: Callable[[memoryview], int] = sock.recv_into

    def outbox(self, on_writable: Callable[[], None]) -> Outbox:
        return Outbox(self._loop, self._sock, on_writable)

    def start_reading(self, readers: Readers, on_readable: Callable[[], None]) -> None:
        readers.add_reader(self._fd, on_readable)

    def stop_reading(self, readers: Readers) -> None:
        readers.remove_reader(self._fd)

    def close(self) -> None:
        self._sock.close()


class TlsTransport:
    """A TCP socket with TLS, as the server. `handshake` must return True before other calls.

    Decrypted bytes may remain in memory while the socket is not readable. The transport then calls
    the reader again in the next turn of the loop.
    """

    __slots__ = (
        "_fd", "_incoming", "_is_ended", "_loop", "_on_readable", "_outgoing", "_resumption", "_sock", "_tls",
        "buffer", "unsent",
    )  # fmt: skip

    def __init__(
        self, loop: AbstractEventLoop, sock: socket.socket, context: ssl.SSLContext, buffer: memoryview
    ) -> None:
        """`buffer` is shared by all transports of the loop: it is used within a call only."""
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.buffer = buffer
        self._is_ended = False
        self._on_readable: Callable[[], None] | None = None
        self._resumption: Handle | None = None
        # Encrypted bytes that the socket did not accept.
        self.unsent: memoryview | bytes = b""

    # ---- handshake

    def handshake(self) -> bool:
        """Receive, and continue the handshake. Returns whether it is complete. Raises OSError
        (ssl.SSLError is an OSError); an alert was then sent to the peer."""
        with contextlib.suppress(BlockingIOError):
            self._receive()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._is_ended:
                raise ConnectionResetError("the peer closed the connection during the handshake") from None
            self.flush()
            return False
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self.flush()
            raise
        self.flush()
        return True

    def first_bytes(self) -> bytes:
        """Return the first bytes of the peer, which has sent no valid handshake. They are lost
        after the call."""
        return self._incoming.read(8)

    def peer_certificate(self) -> bytes | None:
        """The certificate of the peer in DER format, None if it has sent none."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def version(self) -> str | None:
        return self._tls.version()

    @property
    def cipher(self) -> str | None:
        cipher = self._tls.cipher()
        return cipher[0] if cipher else None

    # ---- reading

    def start_reading(self, readers: Readers, on_readable: Callable[[], None]) -> None:
        self._on_readable = on_readable
        readers.add_reader(self._fd, on_readable)
        self._resume_if_pending()

    def stop_reading(self, readers: Readers) -> None:
        self._on_readable = None
        readers.remove_reader(self._fd)
        if self._resumption is not None:
            self._resumption.cancel()
            self._resumption = None

    def _resume_if_pending(self) -> None:
        if self._resumption is None and (self._tls.pending() or self._incoming.pending):
            self._resumption = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resumption = None
        if self._on_readable is not None:
            self._on_readable()

    def recv_into(self, buffer: memoryview) -> int:
        tls, incoming = self._tls, self._incoming
        size = len(buffer)
        filled = 0
        has_received = False
        while filled < size:
            # Without this check every call would raise two exceptions: before and after the data.
            if incoming.pending or tls.pending():
                try:
                    received: int = tls.read(size - filled, buffer[filled:])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    pass
                except _CLOSED_BY_PEER:
                    self._is_ended = True
                    break
                else:
                    if not received:
                        self._is_ended = True
                        break
                    filled += received
                    continue
            if has_received or self._is_ended:
                break
            has_received = True
            try:
                self._receive()
            except BlockingIOError:
                break
        if self._outgoing.pending:
            # A key update. If it is not sent, the peer waits forever.
            self.flush()
        if filled:
            if filled == size:
                self._resume_if_pending()
            return filled
        if self._is_ended:
            return 0
        raise BlockingIOError

    def _receive(self) -> None:
        received = self._sock.recv_into(self.buffer)
        if received:
            self._incoming.write(self.buffer[:received])
        else:
            self._is_ended = True
            self._incoming.write_eof()

    # ---- writing

    def encrypt(self, data: bytes | memoryview) -> None:
        """Encrypt all of `data` and send what the socket accepts. `unsent` must be empty."""
        self._tls.write(data)
        self.flush()

    def flush(self) -> bool:
        """Send the encrypted bytes. Returns whether all were sent."""
        if self._outgoing.pending:
            encrypted = self._outgoing.read()
            self.unsent = memoryview(bytes(self.unsent) + encrypted if len(self.unsent) else encrypted)
        while len(self.unsent):
            try:
                sent = self._sock.send(self.unsent)
            except BlockingIOError:
                return False
            self.unsent = self.unsent[sent:]
        return True

    def outbox(self, on_writable: Callable[[], None]) -> Outbox:
        return TlsOutbox(self._loop, self._sock, on_writable, self)

    def close(self) -> None:
        # Notify the peer that the end is no truncation, if that takes no time.
        with contextlib.suppress(OSError, ValueError):
            if not len(self.unsent):
                self._tls.unwrap()
        with contextlib.suppress(OSError, ValueError):
            self.flush()
        self._sock.close()


class TlsOutbox(Outbox):
    """Sends bytes and file slices over TLS. A piece leaves the queue when it is encrypted."""

    __slots__ = ("_transport",)

    def __init__(
        self, loop: AbstractEventLoop, sock: socket.socket, on_writable: Callable[[], None], transport: TlsTransport
    ) -> None:
        super().__init__(loop, sock, on_writable)
        self._transport = transport

    @property
    def is_empty(self) -> bool:
        return not self._queue and not len(self._transport.unsent)

    def send(self, pieces: list[Piece]) -> None:
        if self.is_empty and (data := _small(pieces)) is not None:
            self._transport.encrypt(data)
            if len(self._transport.unsent):
                self._start_waiting()
            return
        for piece in join_bytes(pieces):
            self._queue.append(piece)
            if not isinstance(piece, FileSlice):
                self.queued_bytes += len(piece)
        if not self._is_waiting:
            self._pump()

    def _pump(self) -> None:
        queue, transport = self._queue, self._transport
        budget = _MAX_SENT_BYTES
        while True:
            if not transport.flush():
                break
            if not queue:
                self._stop_waiting()
                return
            if budget <= 0:
                break
            data = self._next_chunk()
            budget -= len(data)
            transport.encrypt(data)
        self._start_waiting()

    def _next_chunk(self) -> memoryview:
        """Remove the next bytes from the queue. Several pieces share a TLS record."""
        queue, buffer = self._queue, self._transport.buffer
        size = 0
        while queue and size < _CHUNK_BYTES:
            piece = queue[0]
            length = min(len(piece), _CHUNK_BYTES - size)
            target = buffer[size : size + length]
            if isinstance(piece, FileSlice):
                _read_into(target, piece)
            else:
                target[:] = memoryview(piece)[:length]
                self.queued_bytes -= length
            size += length
            if length == len(piece):
                queue.popleft()
            else:
                queue[0] = piece.tail(length) if isinstance(piece, FileSlice) else memoryview(piece)[length:]
        return buffer[:size]


def _small(pieces: list[Piece]) -> bytes | None:
    """Join a response without file slices, None if it has any or is too large for one call."""
    try:
        data = b"".join(pieces)  # type: ignore[arg-type]
    except TypeError:
        return None
    return data if len(data) <= _CHUNK_BYTES else None


def _read_into(target: memoryview, piece: FileSlice) -> None:
    """Fill `target` from the start of the slice."""
    position = piece.position
    while target:
        try:
            size = os.preadv(piece.fd, (target,), position)
        except FileClosed:
            raise FileShrank from None
        if not size:
            raise FileShrank
        target = target[size:]
        position += size
