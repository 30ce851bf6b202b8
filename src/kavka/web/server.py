"""uvicorn behind the `Gate`: the server of the console and of Connect's REST interface.

uvicorn only closes connections that are idle between two requests. Peers that send half of a
request could use all connections that the gate allows, and block other clients.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kavka.web import connections
from kavka.web.connections import Gate


class DeadlineProtocol(H11Protocol):
    """uvicorn's protocol with deadlines. A phase is the state of the peer in h11."""

    def __init__(self, on_closed: Callable[[], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._on_closed = on_closed
        self._phase: Any = None
        self._since = 0.0
        self._unsent_bytes = 0
        self._unsent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_phase()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._unsent_since = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()
        super().connection_lost(exc)

    def _update_phase(self) -> None:
        if self.conn.their_state is not self._phase:
            self._phase = self.conn.their_state
            self._since = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for the peer: no complete request was received."""
        if self.flow.write_paused:
            return False
        is_served = self.cycle is not None and not self.cycle.response_complete
        return not is_served or self.conn.their_state is h11.SEND_BODY

    def is_overdue(self, now: float) -> bool:
        if self.flow.write_paused or self.transport.is_closing():
            return self._is_stalled(now)
        limit = {h11.IDLE: connections.HEADER_TIMEOUT_S, h11.SEND_BODY: connections.BODY_TIMEOUT_S}.get(self._phase)
        return limit is not None and now - self._since > limit

    def _is_stalled(self, now: float) -> bool:
        size = self.transport.get_write_buffer_size()
        if not self._unsent_since or size <= self._unsent_bytes - connections.MIN_READ_BYTES:
            self._unsent_bytes, self._unsent_since = size, now
        return now - self._unsent_since > connections.STALL_TIMEOUT_S


class Server(uvicorn.Server):
    """A uvicorn server that accepts connections through one `Gate` per listening socket. `tls` has
    the TLS contexts of sockets that do not use the context of `config`. `proxies` have no limit per
    address."""

    def __init__(
        self,
        config: uvicorn.Config,
        listeners: Sequence[socket.socket],
        proxies: Collection[str] = (),
        tls: Mapping[socket.socket, ssl.SSLContext | None] | None = None,
    ) -> None:
        super().__init__(config)
        self._listeners = listeners
        self._proxies = proxies
        self._tls = tls or {}
        self._gates: list[Gate] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without sockets, uvicorn accepts no connections itself.
        await super().startup([])
        self._gates = [
            Gate(listener, self._protocol, self._tls.get(listener, self.config.ssl), self._proxies)
            for listener in self._listeners
        ]
        for gate in self._gates:
            gate.open()

    def _protocol(self, on_closed: Callable[[], None]) -> DeadlineProtocol:
        return DeadlineProtocol(
            on_closed, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for gate in self._gates:
            gate.close()
        await super().shutdown(sockets)
