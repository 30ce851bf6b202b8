"""Connections from this broker to other brokers, opened on demand.

The fetcher, the controller and the coordinators each use a separate channel, that is, a separate
connection: a broker responds to the requests of a connection in order, so a fetch that waits for
records would delay later requests.

This module does not retry. A request fails after one attempt to connect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kavka.client.addresses import Addresses
from kavka.client.connection import Connection
from kavka.client.errors import AuthenticationFailed, Disconnected
from kavka.protocol.primitives import TopMessage

if TYPE_CHECKING:
    from kavka.security.client_security import ClientSecurity

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0

# The host and port of a broker on the inter-broker listener; None if the broker is not alive.
Address = Callable[[int], tuple[str, int] | None]


class Peers:
    """Owns the connections to other brokers. Only the loop thread uses it."""

    def __init__(
        self,
        broker_id: int,
        address: Address,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        security: Callable[[], ClientSecurity | None] = lambda: None,
    ) -> None:
        """`security` returns the current security of the inter-broker listener."""
        self._client_id = f"broker-{broker_id}"
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._security = security
        self._addresses = Addresses()
        self._open: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._close_waiters: dict[Connection, set[asyncio.Future[None]]] = {}
        self._closed = False

    async def connection(self, broker_id: int, channel: str = "") -> Connection:
        """Return an open connection. Raises Disconnected or KafkaTimeout if it cannot be opened."""
        key = broker_id, channel
        address = self._address(broker_id)
        existing = self._open.get(key)
        if existing is not None:
            if address is None or existing.name == f"{address[0]}:{address[1]}":
                return existing
            existing.close()  # the broker has another address
        if self._closed or address is None:
            raise Disconnected(f"broker {broker_id} is not alive" if not self._closed else "this broker is stopping")
        opening_task = self._opening.get(key)
        if opening_task is None:
            opening_task = self._opening[key] = asyncio.ensure_future(self._connect(key, *address))
            # Mark the exception as retrieved: all waiters may have been cancelled.
            opening_task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(opening_task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # The caller may be cancelled in the same turn in which the channel is closed.
            if opening_task.cancelled() and not (task is not None and task.cancelling()):
                raise Disconnected(f"the connection to broker {broker_id} was closed") from None
            raise

    async def _connect(self, key: tuple[int, str], host: str, port: int) -> Connection:
        try:
            connection = await Connection.open(
                host,
                port,
                client_id=self._client_id,
                timeout=self._connect_timeout_s,
                addresses=self._addresses,
                security=self._security(),
            )
        except AuthenticationFailed as error:
            logger.warning("Cannot connect to broker %d: %s", key[0], error)
            raise Disconnected(str(error)) from None
        finally:
            self._opening.pop(key, None)
        connection.on_close = lambda connection: self._on_close(key, connection)
        self._open[key] = connection
        return connection

    def _on_close(self, key: tuple[int, str], connection: Connection) -> None:
        if self._open.get(key) is connection:
            del self._open[key]
        for waiter in self._close_waiters.pop(connection, ()):
            if not waiter.done():
                waiter.set_result(None)

    def open_connection(self, broker_id: int, channel: str = "") -> Connection | None:
        """Return the connection if it is open."""
        return self._open.get((broker_id, channel))

    async def wait_until_closed(self, connection: Connection) -> None:
        """Wait until an open connection of this object is closed, by either side."""
        if connection.closed:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._close_waiters.setdefault(connection, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:
            waiters.discard(waiter)

    async def send(
        self,
        broker_id: int,
        request: TopMessage,
        *,
        channel: str = "",
        timeout: float = REQUEST_TIMEOUT_S,
        max_version: int | None = None,
    ) -> Any:
        """Send a request and return the response. Raises Disconnected, KafkaTimeout or
        UnsupportedVersion. After Disconnected or KafkaTimeout the broker may have executed the
        request."""
        connection = await self.connection(broker_id, channel)
        return await connection.send(request, timeout=timeout, max_version=max_version)

    def close_channel(self, broker_id: int, channel: str = "") -> None:
        """Close the connection. Its requests in flight fail."""
        opening_task = self._opening.pop((broker_id, channel), None)
        if opening_task is not None:
            opening_task.cancel()
        connection = self._open.pop((broker_id, channel), None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        self._closed = True
        opening_tasks = list(self._opening.values())
        for key in {*self._opening, *self._open}:
            self.close_channel(*key)
        await asyncio.gather(*opening_tasks, return_exceptions=True)
