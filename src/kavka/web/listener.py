"""A listener for read-only pages: the metrics of a broker, the status of a mirror.

It runs on a separate event loop in a thread, so that HTTP clients cannot delay the broker's loop. A
connection gets one response and is closed. Only GET and HEAD are served. The pages contain no
secrets, so Host and Origin are not checked.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from kavka.web import connections
from kavka.web.connections import Gate

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
"""The maximum size in bytes of the request line and the headers."""
BACKLOG = 256
JOIN_TIMEOUT_S = 5.0
TEXT = "text/plain"

Page = Callable[[], tuple[str, bytes]]
"""Returns (Content-Type, body). The listener's thread calls it."""


class Listener:
    """Serves `pages`, by path, in a separate thread. Any thread may call `close`. The constructor
    raises OSError if an address cannot be bound."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._listeners = bind(host, port)
        self.port: int = self._listeners[0].getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"http-{self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        gates = [Gate(listener, lambda on_closed: PageProtocol(on_closed, self._pages)) for listener in self._listeners]
        for gate in gates:
            gate.open()
        await self._stopped.wait()
        for gate, listener in zip(gates, self._listeners, strict=True):
            gate.close()
            gate.abort()
            listener.close()
        while any(map(len, gates)):
            await asyncio.sleep(0)


class PageProtocol(asyncio.Protocol):
    """A connection with one request and one response."""

    transport: asyncio.Transport

    def __init__(self, on_closed: Callable[[], None], pages: Mapping[str, Page]) -> None:
        self._on_closed = on_closed
        self._pages = pages
        self._head = bytearray()
        self._since = time.monotonic()
        self.is_waiting = True
        """False once the response is written."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()

    def is_overdue(self, now: float) -> bool:
        """Whether the peer is too slow: it has HEADER_TIMEOUT_S to send the request, and
        STALL_TIMEOUT_S to read the whole response."""
        return now - self._since > (connections.HEADER_TIMEOUT_S if self.is_waiting else connections.STALL_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        if not self.is_waiting:
            return
        self._head += data
        if len(self._head) > MAX_HEAD_BYTES:
            self._respond(431)
        elif b"\n\r\n" in self._head or b"\n\n" in self._head:
            request_line = self._head.partition(b"\n")[0].decode("latin-1")
            self._respond(*self._response(request_line), has_body=not request_line.startswith("HEAD "))

    def _response(self, request_line: str) -> tuple[int, str, bytes]:
        """The response as (status, Content-Type, body)."""
        method, target, http_version, *_ = [*request_line.split(" ", 2), "", ""]
        path = target.partition("?")[0]
        if not http_version.startswith("HTTP/"):
            return 400, TEXT, b""
        if method not in ("GET", "HEAD"):
            return 501, TEXT, b""
        if path not in self._pages:
            return 404, TEXT, b""
        try:
            return 200, *self._pages[path]()
        except Exception:
            logger.exception("Cannot serve %s", path)
            return 500, TEXT, b""

    def _respond(self, status: int, content_type: str = TEXT, body: bytes = b"", has_body: bool = True) -> None:
        self.is_waiting = False
        self._since = time.monotonic()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + (body if has_body else b""))
        self.transport.close()


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind the same port at all addresses of `host`. "" means all addresses of the machine. Raises
    OSError if no address can be bound or one is in use."""
    addresses = dict.fromkeys(
        (family, address)
        for family, _, _, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    )
    listeners: list[socket.socket] = []
    for family, address in addresses:
        try:
            listener = socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG)
        except OSError as error:
            # "localhost" may resolve to an IPv6 address that the machine does not have.
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(addresses) > 1:
                continue
            for listener in listeners:
                listener.close()
            raise
        port = listener.getsockname()[1]
        listeners.append(listener)
    if not listeners:
        raise OSError(errno.EADDRNOTAVAIL, f"this machine has no address of {host!r}")
    return listeners
