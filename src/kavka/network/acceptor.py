"""Listening sockets. Accepts while there is room; a broker with `max.connections` open lets new ones wait outside."""

from __future__ import annotations

import errno
import logging
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import NamedTuple

from kavka.network.limits import ConnectionLimits

log = logging.getLogger(__name__)

_ACCEPTS_A_TURN = 64
_OUT_OF_FILES_PAUSE_S = 0.1
_TRIES_FOR_A_FREE_PORT = 10


class SocketBuffers(NamedTuple):
    """The operating system's buffers of each connection; None leaves them to it."""

    send: int | None = None
    receive: int | None = None


class Acceptor:
    """All addresses of one listener. `on_connection(socket, address)` gets each admitted connection."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        limits: ConnectionLimits,
        on_connection: Callable[[socket.socket, str], None],
        buffers: SocketBuffers = SocketBuffers(),
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._on_connection = on_connection
        self._buffers = buffers
        self._sockets: list[socket.socket] = []
        self._accepting = False
        self._resume: TimerHandle | None = None

    def bind(self, host: str, port: int, backlog: int) -> int:
        """Bind every address that `host` stands for ("" is all of them); returns the port (given, or a free one for 0).

        OSError where that cannot be; nothing is bound then.
        """
        for last_try in (*(False for _ in range(_TRIES_FOR_A_FREE_PORT)), True):
            try:
                return self._bind_all(host, port, backlog)
            except OSError as error:
                self.close()
                # The port that is free at one address may be taken at the next one.
                if port or last_try or error.errno != errno.EADDRINUSE:
                    raise
        raise AssertionError

    def _bind_all(self, host: str, port: int, backlog: int) -> int:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
        for family, kind, proto, _, address in dict.fromkeys(addresses):
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                continue  # the machine has no IPv6
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if self._buffers.receive is not None:
                    # Accepted sockets inherit it, and their window is agreed on before they are accepted.
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
        """Accept, or do so again: there may be room."""
        if not self._accepting and self._sockets and self._resume is None:
            self._accepting = True
            for sock in self._sockets:
                self._loop.add_reader(sock.fileno(), self._accept, sock)

    def pause(self) -> None:
        """Until the next `start`."""
        if self._accepting:
            self._accepting = False
            for sock in self._sockets:
                self._loop.remove_reader(sock.fileno())

    def _pause_for(self, seconds: float) -> None:
        self.pause()
        if self._resume is None:
            self._resume = self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resume = None
        self.start()

    def close(self) -> None:
        self.pause()
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        limits = self._limits
        for _ in range(_ACCEPTS_A_TURN):
            if limits.full:
                self.pause()
                return
            if rest := limits.pause(self._loop.time()):
                self._pause_for(rest)
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No file descriptors left: the waiting connection would wake us again at once.
                log.error("Cannot accept connections: %s", error.strerror)
                self._pause_for(_OUT_OF_FILES_PAUSE_S)
                return
            if not limits.admit(address[0]):
                log.info("Too many connections from %s: turned away", address[0])
                sock.close()
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self._buffers.send is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffers.send)
                self._on_connection(sock, address[0])
            except OSError as error:
                log.info("The connection from %s is gone already: %s", address[0], error)
                sock.close()
                limits.release(address[0])
