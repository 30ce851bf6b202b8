"""Accepts connections on listening sockets. At the limit `max.connections`, new connections stay in
the backlog."""

from __future__ import annotations

import errno
import logging
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kavka.network.limits import ConnectionLimits, Refusal

logger = logging.getLogger(__name__)

_MAX_ACCEPTS_PER_TURN = 64
_OUT_OF_FILES_PAUSE_S = 0.1
_MAX_FREE_PORT_RETRIES = 10
# Refused connections that stay open for their delay. Further ones are closed at once.
_MAX_DELAYED_REFUSALS = 1000


class SocketBuffers(NamedTuple):
    """Sizes of each connection's socket buffers. None is the operating system's default."""

    send: int | None = None
    receive: int | None = None


@dataclass(eq=False, repr=False)
class Acceptor:
    """Owns the listening sockets of one listener. Calls `on_connection(socket, address)` for each
    admitted connection. Only the loop thread uses it."""

    _loop: AbstractEventLoop
    _listener: str
    _limits: ConnectionLimits
    _on_connection: Callable[[socket.socket, str], None]
    _buffers: SocketBuffers = field(default_factory=SocketBuffers)
    _sockets: list[socket.socket] = field(init=False, default_factory=list)
    _is_accepting: bool = field(init=False, default=False)
    _resume_timer: TimerHandle | None = field(init=False, default=None)
    _refused: dict[socket.socket, TimerHandle] = field(init=False, default_factory=dict)
    refusals: Counter[str] = field(init=False, default_factory=Counter)

    def bind(self, host: str, port: int, backlog: int) -> int:
        """Bind all addresses of `host` ("" is every address of the machine). Returns the bound
        port, which is a free port if `port` is 0. If an address cannot be bound, raises OSError
        and releases all addresses."""
        retries = _MAX_FREE_PORT_RETRIES
        while True:
            try:
                return self._bind_all(host, port, backlog)
            except OSError as error:
                self.close()
                retries -= 1
                # A port that is free at one address may be in use at the next.
                if port or retries < 0 or error.errno != errno.EADDRINUSE:
                    raise

    def _bind_all(self, host: str, port: int, backlog: int) -> int:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
        for family, socket_type, proto, _, address in dict.fromkeys(addresses):
            try:
                sock = socket.socket(family, socket_type, proto)
            except OSError:
                continue  # the machine has no IPv6
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if self._buffers.receive is not None:
                    # Accepted sockets inherit the size; TCP negotiates the window before `accept`.
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffers.receive)
                sock.bind((address[0], port, *address[2:]))
                sock.listen(backlog)
            except OSError as error:
                sock.close()
                if error.errno == errno.EADDRNOTAVAIL and len(addresses) > 1:
                    continue
                raise
            sock.setblocking(False)
            self._sockets.append(sock)
            port = sock.getsockname()[1]
        if not self._sockets:
            raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is not an address of this machine")
        return port

    def start(self) -> None:
        """Start to accept, or resume after a pause."""
        if not self._is_accepting and self._sockets and self._resume_timer is None:
            self._is_accepting = True
            for sock in self._sockets:
                self._loop.add_reader(sock.fileno(), self._accept, sock)

    def pause(self) -> None:
        """Accept no connection until the next `start`."""
        if self._is_accepting:
            self._is_accepting = False
            for sock in self._sockets:
                self._loop.remove_reader(sock.fileno())

    def _pause_for(self, seconds: float) -> None:
        self.pause()
        if self._resume_timer is None:
            self._resume_timer = self._loop.call_later(seconds, self._end_pause)

    def _end_pause(self) -> None:
        self._resume_timer = None
        self.start()

    def close(self) -> None:
        self.pause()
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        for sock, timer in self._refused.items():
            timer.cancel()
            sock.close()
        self._refused.clear()

    def _accept(self, listening_socket: socket.socket) -> None:
        limits = self._limits
        for _ in range(_MAX_ACCEPTS_PER_TURN):
            if limits.is_full(self._listener):
                self.pause()
                return
            now_ms = int(self._loop.time() * 1000)
            if delay := limits.rate_delay(self._listener, now_ms):
                self._pause_for(delay)
                return
            try:
                sock, address = listening_socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # The process may be out of file descriptors. The socket stays readable: pause.
                logger.error("Cannot accept a connection: %s", error.strerror)
                self._pause_for(_OUT_OF_FILES_PAUSE_S)
                return
            if refusal := limits.admit(self._listener, address[0], now_ms):
                logger.info("Refused a connection from %s: %s is exceeded", address[0], refusal.reason)
                self._refuse(sock, refusal)
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self._buffers.send is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffers.send)
                self._on_connection(sock, address[0])
            except OSError as error:
                logger.info("The connection from %s closed before it was accepted: %s", address[0], error)
                sock.close()
                limits.release(self._listener, address[0])

    def _refuse(self, sock: socket.socket, refusal: Refusal) -> None:
        self.refusals[refusal.reason] += 1
        if refusal.delay_s and len(self._refused) < _MAX_DELAYED_REFUSALS:
            self._refused[sock] = self._loop.call_later(refusal.delay_s, self._close_refused, sock)
        else:
            sock.close()

    def _close_refused(self, sock: socket.socket) -> None:
        self._refused.pop(sock, None)
        sock.close()
