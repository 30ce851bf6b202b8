"""The connections from this broker to the others, made when they are needed.

Several parts of a broker speak to the same peer (the fetcher, the controller, the coordinators). Each takes a channel
of its own, a separate connection, since a broker answers the requests of a connection in their order: a fetch that
waits for records would hold up what comes behind it.

When and how often to try again is the caller's matter: here a peer that cannot be reached is an error, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kavka.client.addresses import Addresses
from kavka.client.connection import Connection
from kavka.client.errors import Disconnected
from kavka.protocol.primitives import TopMessage

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0

# The host and port of a broker on the listener that brokers use among themselves; None where it is not alive.
Address = Callable[[int], tuple[str, int] | None]


class Peers:
    def __init__(self, broker_id: int, address: Address, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._client_id = f"broker-{broker_id}"
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._addresses = Addresses()
        self._open: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._closed = False

    async def connection(self, broker_id: int, channel: str = "") -> Connection:
        """An open connection, made now if need be. Raises Disconnected or KafkaTimeout."""
        at = broker_id, channel
        address = self._address(broker_id)
        found = self._open.get(at)
        if found is not None:
            if address is None or found.name == f"{address[0]}:{address[1]}":
                return found
            found.close()  # the broker came back at another address
        if self._closed or address is None:
            raise Disconnected(f"broker {broker_id} is not there" if not self._closed else "the broker is stopping")
        opening = self._opening.get(at)
        if opening is None:
            opening = self._opening[at] = asyncio.ensure_future(self._connect(at, *address))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise Disconnected(f"the connection to broker {broker_id} is not wanted any more") from None
            raise

    async def _connect(self, at: tuple[int, str], host: str, port: int) -> Connection:
        try:
            made = await Connection.open(
                host,
                port,
                client_id=self._client_id,
                timeout=self._connect_timeout_s,
                addresses=self._addresses,
            )
        finally:
            self._opening.pop(at, None)
        made.on_close = lambda connection: self._gone(at, connection)
        self._open[at] = made
        return made

    def _gone(self, at: tuple[int, str], connection: Connection) -> None:
        if self._open.get(at) is connection:
            del self._open[at]

    async def ask(
        self,
        broker_id: int,
        request: TopMessage,
        *,
        channel: str = "",
        timeout: float = REQUEST_TIMEOUT_S,
        max_version: int | None = None,
    ) -> Any:
        """The answer. Raises Disconnected, KafkaTimeout or UnsupportedVersion; whether the request was done is then not
        known."""
        connection = await self.connection(broker_id, channel)
        return await connection.send(request, timeout=timeout, max_version=max_version)

    def close_channel(self, broker_id: int, channel: str = "") -> None:
        """End the connection, and what is in flight on it."""
        opening = self._opening.pop((broker_id, channel), None)
        if opening is not None:
            opening.cancel()
        connection = self._open.pop((broker_id, channel), None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        self._closed = True
        under_way = list(self._opening.values())
        for at in {*self._opening, *self._open}:
            self.close_channel(*at)
        await asyncio.gather(*under_way, return_exceptions=True)
