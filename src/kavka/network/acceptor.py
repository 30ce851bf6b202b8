"""Listening sockets. Accepts while there is room; a broker with `max.connections` open lets new ones wait outside."""

from __future__ import annotations

import errno
import logging
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable

from kavka.network.limits import ConnectionLimits

log = logging.getLogger(__name__)

_ACCEPTS_A_TURN = 64
_OUT_OF_FILES_PAUSE_S = 0.1


class Acceptor:
    """All addresses of one listener. `on_connection(socket, address)` gets each admitted connection."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        limits: ConnectionLimits,
        on_connection: Callable[[socket.socket, str], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._on_connection = on_connection
        self._sockets: list[socket.socket] = []
        self._accepting = False

    def bind(self, host: str, port: int, backlog: int) -> int:
        """Bind every address that `host` stands for ("" is all of them); returns the port (for 0 a free one)."""
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
        for family, kind, proto, _, address in dict.fromkeys(addresses):
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                continue  # the machine has no IPv6
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind((address[0], port, *address[2:]))
            except OSError as error:
                sock.close()
                if error.errno == errno.EADDRNOTAVAIL and len(addresses) > 1:
                    continue
                raise
            sock.listen(backlog)
            sock.setblocking(False)
            self._sockets.append(sock)
            port = sock.getsockname()[1]
        if not self._sockets:
            raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is not an address of this machine")
        return port

    def start(self) -> None:
        if not self._accepting and self._sockets:
            self._accepting = True
            for sock in self._sockets:
                self._loop.add_reader(sock.fileno(), self._accept, sock)

    def pause(self) -> None:
        if self._accepting:
            self._accepting = False
            for sock in self._sockets:
                self._loop.remove_reader(sock.fileno())

    def close(self) -> None:
        self.pause()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self._limits.full:
                self.pause()
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No file descriptors left: the waiting connection would wake us again at once.
                log.error("Cannot accept connections: %s", error.strerror)
                self.pause()
                self._loop.call_later(_OUT_OF_FILES_PAUSE_S, self.start)
                return
            if not self._limits.admit(address[0]):
                log.info("Too many connections from %s: turned away", address[0])
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._on_connection(sock, address[0])
