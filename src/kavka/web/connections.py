"""Limits the number of connections of an HTTP listener, and the time for requests and responses.

The `Gate` accepts every connection, before TLS:

- At the limit of an address or of all connections, the gate closes the oldest connection that waits
  for its peer, and accepts the new connection. A connection whose request is being served is not
  closed. If there is no connection to close, the new connection is refused.
- A sweep every second closes connections whose peer is too slow to send headers or a body, or to
  read a response.

A deadline applies to a phase of the connection. Received bytes do not extend the deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

from kavka.common.web import network_of

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 500
MAX_PER_ADDRESS = 100
HANDSHAKE_TIMEOUT_S = 10.0
HEADER_TIMEOUT_S = 10.0
"""Time for all headers of a request, from the start of the connection or the last response."""
BODY_TIMEOUT_S = 60.0
"""Time for the body of a request. The application limits its size."""
STALL_TIMEOUT_S = 30.0
MIN_READ_BYTES = 16 * 1024
"""The minimum number of bytes of a response that a peer must read in STALL_TIMEOUT_S."""
SWEEP_INTERVAL_S = 1.0
MAX_ACCEPTED_PER_TURN = 64
"""Maximum number of connections accepted in one turn of the event loop."""
ACCEPT_PAUSE_S = 0.5
"""Pause after an error of accept, for example if there are no more file descriptors."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class LimitedProtocol(Protocol):
    """An asyncio protocol whose connection a `Gate` may close."""

    transport: asyncio.Transport

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for the peer: no complete request was received."""

    def is_overdue(self, now: float) -> bool:
        """Whether the deadline of the current phase has passed."""


class Connection:
    """An accepted socket. `protocol` is None until the TLS handshake is complete."""

    __slots__ = ("address", "protocol", "socket")

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.socket = accepted
        self.address = address
        self.protocol: LimitedProtocol | None = None

    @property
    def is_waiting(self) -> bool:
        return self.protocol is None or self.protocol.is_waiting

    def abort(self) -> None:
        if self.protocol is not None:
            self.protocol.transport.abort()
        else:
            # During the handshake the event loop owns the socket. It detects the shutdown.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class Gate:
    """Accepts connections for a server and owns them until they end. Call it only on the event
    loop. Every connection is in `_all` and in `_by_address`, oldest first."""

    def __init__(
        self,
        listener: socket.socket,
        create_protocol: Callable[[Callable[[], None]], Any],
        tls: ssl.SSLContext | None = None,
        exempt: Collection[str] = (),
    ) -> None:
        """`create_protocol(on_closed)` creates the protocol of a connection, which must call
        `on_closed` when the connection ends. `exempt` are the addresses and networks of proxies,
        which have no limit per address."""
        self._listener = listener
        self._create_protocol = create_protocol
        self._tls = tls
        self._exempt = [ipaddress.ip_network(proxy) for proxy in exempt]
        # Dictionaries as ordered sets: the oldest connection is first.
        self._all: dict[Connection, None] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self._sweep()

    def close(self) -> None:
        """Stop accepting. The server closes the existing connections."""
        self._loop.remove_reader(self._listener)
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def abort(self) -> None:
        """Abort the existing connections."""
        for connection in list(self._all):
            connection.abort()

    def __len__(self) -> int:
        return len(self._all)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED_PER_TURN):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("Cannot accept connections, retrying in %.1f s: %s", ACCEPT_PAUSE_S, error)
                self._loop.remove_reader(self._listener)
                self._timers["accept"] = self._loop.call_later(
                    ACCEPT_PAUSE_S, self._loop.add_reader, self._listener, self._accept
                )
                return
            accepted.setblocking(False)
            address = network_of(peer[0]) if accepted.family in (socket.AF_INET, socket.AF_INET6) else ""
            connection = self._admit(accepted, address)
            if connection is None:
                logger.warning("Refused a connection from %s: too many requests are being served", address)
                self._refuse(accepted)
                continue
            task = self._loop.create_task(self._start(connection))
            self._tasks.add(task)
            task.add_done_callback(partial(self._started, connection))

    def _admit(self, accepted: socket.socket, address: str) -> Connection | None:
        peers = self._by_address.get(address, {})
        has_room = len(peers) < MAX_PER_ADDRESS or self._is_exempt(address) or self._evict(peers)
        if not has_room or not (len(self._all) < MAX_CONNECTIONS or self._evict(self._all)):
            return None
        connection = Connection(accepted, address)
        self._all[connection] = self._by_address.setdefault(address, {})[connection] = None
        return connection

    def _is_exempt(self, address: str) -> bool:
        if not address:
            return False
        network = ipaddress.ip_network(address)
        return any(network.version == proxy.version and network.overlaps(proxy) for proxy in self._exempt)

    def _evict(self, connections: dict[Connection, None]) -> bool:
        for connection in connections:
            if connection.is_waiting:
                self._remove(connection)
                connection.abort()
                return True
        return False

    def _remove(self, connection: Connection) -> None:
        self._all.pop(connection, None)
        peers = self._by_address.get(connection.address, {})
        peers.pop(connection, None)
        if not peers:
            self._by_address.pop(connection.address, None)

    def _refuse(self, accepted: socket.socket) -> None:
        with contextlib.closing(accepted), contextlib.suppress(OSError):
            if self._tls is None:
                accepted.send(REFUSAL)

    def _started(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # The task was cancelled before the coroutine ran.
            self._remove(connection)
            connection.socket.close()

    async def _start(self, connection: Connection) -> None:
        try:
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, protocol = await self._loop.connect_accepted_socket(
                lambda: self._create_protocol(lambda: self._remove(connection)),
                connection.socket,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls is not None else None,
            )
            connection.protocol = protocol
        except (OSError, asyncio.CancelledError):
            # The peer closed the connection, or the TLS handshake failed (ssl.SSLError and timeouts
            # are OSErrors).
            self._remove(connection)
            connection.socket.close()

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in list(self._all):
            if connection.protocol is not None and connection.protocol.is_overdue(now):
                self._remove(connection)
                connection.abort()
        self._timers["sweep"] = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
