"""The connections to the brokers of a cluster. They are opened on demand, with a backoff after
failures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kavka.client.addresses import Addresses
from kavka.client.config import ClientConfig, parse_servers
from kavka.client.connection import Connection
from kavka.client.errors import ClientClosed, Disconnected, IllegalState, KafkaTimeout
from kavka.client.metadata import Node
from kavka.client.security_config import security_of
from kavka.common.backoff import Backoff
from kavka.common.errors import KafkaError

logger = logging.getLogger(__name__)

MAIN = ""
"""The default channel; see `Connections.connection`."""

# A limit for metadata with ever new addresses.
_MAX_ADDRESSES = 1024


@dataclass(slots=True, eq=False)
class _Link:
    """The connection to a broker on one channel, and the failed attempts to connect."""

    node_id: int
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0
    error: KafkaError | None = None
    """The error of the last attempt; None after a success."""
    retry_at: float = 0.0


class Connections:
    """The base class of `Cluster`. Owns one link per broker and channel; the cluster updates
    `nodes`. All methods except `connections` run on the cluster's event loop."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, config: ClientConfig, client_id: str) -> None:
        self.config = config
        self.client_id = client_id
        self.nodes: dict[int, Node] = {}
        self.started = False
        self.closed = False
        self.connections_opened = 0
        self._links: dict[tuple[int, str], _Link] = {}
        self._connection_callbacks: list[Callable[[int], None]] = []
        self._addresses = Addresses()
        self._reconnect = Backoff(config["reconnect.backoff.ms"], config["reconnect.backoff.max.ms"])
        self._setup_timeout = Backoff(
            config["socket.connection.setup.timeout.ms"], config["socket.connection.setup.timeout.max.ms"]
        )
        self._max_idle = config["connections.max.idle.ms"] / 1000
        self._security = security_of(config)
        self._servers = parse_servers(config["bootstrap.servers"])
        # Addresses that accepted a connection, and addresses whose failure was logged.
        self._reached: set[tuple[str, int]] = set()
        self._unreached: set[tuple[str, int]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that ran `start`."""
        return self._loop

    def request_update(self) -> int:
        raise NotImplementedError

    async def close_connections(self) -> None:
        self.closed = True
        tasks = [link.opening for link in self._links.values() if link.opening is not None]
        for connection in self.connections():
            connection.close(ClientClosed("the client is closed"))
        self._links.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def connection(self, node_id: int, channel: str = MAIN, *, timeout: float | None = None) -> Connection:
        """Return an open connection to a broker. Opens a connection if necessary, after the backoff
        for earlier failures. Raises Disconnected, KafkaTimeout or ClientClosed.

        Channels are separate connections to the same broker. A broker responds to the requests of a
        connection in order, so a heartbeat on the channel of fetches would wait for a long poll.
        """
        link = self._link(node_id, channel)
        if link.connection is not None:
            return link.connection
        if link.opening is None:
            self._open(node_id, channel, link)
        opening = link.opening
        assert opening is not None
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(opening)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if opening.cancelled() and (caller is None or not caller.cancelling()):
                # The client was closed; the caller was not cancelled.
                raise ClientClosed("the client is closed") from None
            raise
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            broker = f"broker {node_id}" if node_id >= 0 else "a bootstrap server"
            raise KafkaTimeout(f"no connection to {broker} within {timeout:g} s{cause_of(link.error)}") from None

    def ready_connection(self, node_id: int, channel: str = MAIN) -> Connection | None:
        """Return the open connection. If there is none, start to open a connection and return None;
        `on_connection_change` reports the result."""
        link = self._link(node_id, channel)
        if link.connection is None and link.opening is None:
            self._open(node_id, channel, link)
        return link.connection

    def is_unreachable(self, node_id: int, channel: str = MAIN) -> bool:
        """Whether there is no connection and the last attempt to connect failed."""
        link = self._links.get((node_id, channel))
        return link is not None and link.connection is None and link.failures > 0

    def is_lost(self, node_id: int) -> bool:
        """Whether the connection to a broker has just been lost or could not be opened, on any
        channel, and there is no other connection to the broker."""
        links = [link for (link_node, _), link in self._links.items() if link_node == node_id]
        return all(link.connection is None for link in links) and any(
            link.failures or link.retry_at > self._now() for link in links
        )

    def connect_error(self) -> KafkaError | None:
        """Return the last error of a failed attempt to connect, or None while any connection is
        open. May be called from any thread."""
        failed = [link for link in list(self._links.values()) if link.error is not None]
        if not failed or self.connections():
            return None
        return max(failed, key=lambda link: link.retry_at).error

    def on_connection_change(self, callback: Callable[[int], None]) -> None:
        """Call `callback(node_id)` on the event loop whenever a connection opens or closes, or an
        attempt to connect fails."""
        self._connection_callbacks.append(callback)

    def connections(self) -> list[Connection]:
        """Return the open connections. May be called from any thread: `list` copies the links
        atomically."""
        links = list(self._links.values())
        return [connection for link in links if (connection := link.connection) is not None]

    def check_usable(self) -> None:
        if self.closed:
            raise ClientClosed("the client is closed")
        if not self.started:
            raise IllegalState("the client is not started: use `async with`, or `await` its `start()`")

    def _link(self, node_id: int, channel: str) -> _Link:
        self.check_usable()
        link = self._links.get((node_id, channel))
        if link is None:
            if node_id not in self.nodes:
                raise Disconnected(f"broker {node_id} is not in the metadata")
            link = self._links[node_id, channel] = _Link(node_id)
        return link

    def _open(self, node_id: int, channel: str, link: _Link) -> None:
        task = asyncio.create_task(self._connect(node_id, channel, link), name=f"kavka-connect-{node_id}")
        link.opening = task
        # Mark the exception as retrieved: the link has the error, and there may be no waiter.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _connect(self, node_id: int, channel: str, link: _Link) -> Connection:
        try:
            wait = link.retry_at - self._now()
            if wait > 0:
                await asyncio.sleep(wait)
            node = self.nodes.get(node_id)
            if node is None:
                raise Disconnected(f"broker {node_id} is no longer in the metadata")
            connection = await Connection.open(
                node.host,
                node.port,
                client_id=self.client_id,
                timeout=self._setup_timeout.delay(link.failures + 1),
                send_buffer=self.config["send.buffer.bytes"],
                receive_buffer=self.config["receive.buffer.bytes"],
                addresses=self._addresses,
                security=self._security,
            )
        except KafkaError as error:
            link.failures += 1
            link.error = explained = self._explained(error, link.node_id)
            link.retry_at = self._now() + self._reconnect.delay(link.failures)
            logger.debug("Cannot connect to broker %s: %s", node_id, error)
            if node_id >= 0:
                self.request_update()
            if explained is error:
                raise
            raise explained from error
        finally:
            link.opening = None
            if not self.closed:
                self._loop.call_soon(self._notify_connected, node_id)
        if self.closed or self._links.get((node_id, channel)) is not link or self._has_moved(node_id, connection):
            connection.close()
            raise Disconnected(f"broker {node_id} is no longer at {connection.name}")
        link.failures = 0
        link.error = None
        if len(self._reached) < _MAX_ADDRESSES:
            self._reached.add((node.host, node.port))
        link.connection = connection
        self.connections_opened += 1
        connection.on_close = lambda _closed: self._on_lost(link)
        if connection.closed:
            self._on_lost(link)
            raise Disconnected(f"{connection.name} closed the connection")
        return connection

    def _explained(self, error: KafkaError, node_id: int) -> KafkaError:
        """Return the error of an attempt to connect. If the client has the address only from the
        metadata and no connection to it worked yet, name the setting of the broker. Log the first
        error of an address."""
        node = self.nodes.get(node_id)
        if node is None or node_id < 0 or not isinstance(error, (Disconnected, KafkaTimeout)):
            return error
        address = (node.host, node.port)
        if address in self._servers or address in self._reached:
            return error
        error_class = KafkaTimeout if isinstance(error, KafkaTimeout) else Disconnected
        explained = error_class(
            f"{error} (broker {node_id} advertises this address: is the broker running, and can this machine reach "
            "the address? If not, change advertised.listeners of the broker)"
        )
        if address not in self._unreached and len(self._unreached) < _MAX_ADDRESSES:
            self._unreached.add(address)
            logger.warning("Cannot connect to broker %s: %s", node_id, explained)
        return explained

    def _notify_connected(self, node_id: int) -> None:
        for callback in self._connection_callbacks:
            callback(node_id)

    def _on_lost(self, link: _Link) -> None:
        connection, link.connection = link.connection, None
        if self.closed or connection is None:
            return
        link.retry_at = self._now() + self._reconnect.delay(1)
        if self._now() - connection.last_used < self._max_idle or self._max_idle < 0:
            # The connection was not closed as idle: the broker may have failed, and its partitions
            # may have new leaders.
            self.request_update()
        self._loop.call_soon(self._notify_connected, link.node_id)

    def _now(self) -> float:
        return time.monotonic()

    def _drop_moved(self) -> None:
        """Close connections to bootstrap servers, to removed brokers, and to brokers that have a
        new address."""
        addresses = {f"{node.host}:{node.port}": node.id for node in self.nodes.values()}
        for (node_id, channel), link in list(self._links.items()):
            node = self.nodes.get(node_id)
            connection = link.connection
            broker_id = addresses.get(connection.name) if node_id < 0 and connection is not None else None
            if broker_id is not None and (broker_id, channel) not in self._links:
                # The metadata has the broker id of this bootstrap server.
                self._links[broker_id, channel] = self._links.pop((node_id, channel))
                link.node_id = broker_id
                continue
            if node is None or (connection is not None and self._has_moved(node_id, connection)):
                del self._links[node_id, channel]
                if connection is not None:
                    connection.on_close = None
                    self._close_when_quiet(connection)

    def _has_moved(self, node_id: int, connection: Connection) -> bool:
        """Whether the address of the broker in the metadata differs from the connection's
        address."""
        node = self.nodes.get(node_id)
        return node is not None and connection.name != f"{node.host}:{node.port}"

    def _close_when_quiet(self, connection: Connection) -> None:
        """Close the connection when it has no requests in flight, because the broker may still
        respond to them."""
        if connection.in_flight and not self.closed:
            self._loop.call_later(0.1, self._close_when_quiet, connection)
        else:
            connection.close()

    def _close_idle(self) -> None:
        if self._max_idle < 0:
            return
        for connection in self.connections():
            if not connection.in_flight and self._now() - connection.last_used >= self._max_idle:
                connection.close()


def cause_of(error: KafkaError | None) -> str:
    """Return the cause of a timeout as a suffix of the error message; empty if it is unknown."""
    return "" if error is None else f": {error}"
