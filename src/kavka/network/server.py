"""The network server of a broker: its listeners, its connections, and their shared resources."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any

from kavka.api import registry
from kavka.api.context import BrokerServices
from kavka.common.metrics import Counter
from kavka.network.acceptor import Acceptor, SocketBuffers
from kavka.network.connection import Connection
from kavka.network.limits import ConnectionLimits

logger = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 256 * 1024
# The number of sweeps for idle connections per connections.max.idle.ms.
IDLE_SWEEPS_PER_TIMEOUT = 10
# How long pending requests may take when the server stops.
STOP_GRACE_S = 1.0


class Server:
    """Owns the listeners, the connections and the shared receive buffer. Only the loop thread
    creates and uses it. `services` must be ready before `start`."""

    def __init__(self, services: BrokerServices) -> None:
        settings = services.settings
        self.loop = asyncio.get_running_loop()
        self.services = services
        self.apis = registry.served_apis(services.in_cluster)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.max_request_bytes: int = settings.socket_request_max_bytes
        self.large_frame_bytes = 0
        # Held while a worker decodes or encodes a large request, because that takes much memory.
        self.large_request_lock = asyncio.Lock()
        self._waiting_for_bytes: dict[Connection, None] = {}
        self.write_staged = services.replica_manager.staged_appends.write
        self.connections: set[Connection] = set()
        self.limits = ConnectionLimits(*self._limits())
        self._max_bytes_in_flight: int = settings.queued_max_request_bytes
        self._max_idle_s: float = settings.connections_max_idle_ms / 1000
        self._acceptors: list[Acceptor] = []
        self._is_started = False
        self._idle_timer: asyncio.TimerHandle | None = None
        requests = services.metrics.counter("kavka_requests_total", "Responses sent", ("api",))
        seconds = services.metrics.counter(
            "kavka_request_seconds_total",
            "Time from the arrival of a request to its response, including waits",
            ("api",),
        )
        self._counters: dict[int, tuple[Counter, Counter]] = {
            key: (requests.labels(api.name), seconds.labels(api.name)) for key, api in self.apis.items()
        }
        services.metrics.gauge("kavka_connections", "Open client connections", read=lambda: float(self.limits.count))

    def listen(self, listener: str, host: str, port: int) -> int:
        """Bind a listener. Returns the bound port. Raises OSError. Connections stay in the backlog
        until `start`."""
        settings = self.services.settings
        buffers = SocketBuffers(
            send=_configured(settings, "socket.send.buffer.bytes"),
            receive=_configured(settings, "socket.receive.buffer.bytes"),
        )
        acceptor = Acceptor(self.loop, self.limits, partial(self._on_connection, listener), buffers)
        bound_port = acceptor.bind(host, port, max(128, settings.socket_listen_backlog_size))
        self._acceptors.append(acceptor)
        return bound_port

    def _limits(self) -> tuple[int, int, dict[str, int], int]:
        settings = self.services.settings
        return (
            settings.max_connections,
            settings.max_connections_per_ip,
            settings.max_connections_per_ip_overrides,
            settings.max_connection_creation_rate,
        )

    def apply_settings(self) -> None:
        """Apply changed connection limits."""
        self.limits.change(*self._limits())
        self._resume_accepting()

    def start(self) -> None:
        self._is_started = True
        for acceptor in self._acceptors:
            acceptor.start()
        self._sweep_idle()

    def stop_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    def close(self) -> None:
        self.stop_accepting()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        for connection in list(self.connections):
            connection.close()

    async def stop(self) -> None:
        """Close all connections, and wait for pending tasks, for example an incomplete topic
        creation."""
        pending = [task for connection in self.connections for task in connection.tasks()]
        self.close()
        pending = [task for task in pending if not task.done()]
        if pending:
            _, unfinished = await asyncio.wait(pending, timeout=STOP_GRACE_S)
            for task in unfinished:
                task.cancel()
            if unfinished:
                logger.warning("Cancelled %d requests that did not complete before the stop", len(unfinished))
                await asyncio.wait(unfinished, timeout=STOP_GRACE_S)

    # ---- for connections

    def count(self, api: registry.Api, seconds: float) -> None:
        requests, time_spent = self._counters[api.key]
        requests.value += 1
        time_spent.value += seconds

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._waiting_for_bytes.pop(connection, None)
        self.limits.release(connection.address)
        self._resume_accepting()

    def _resume_accepting(self) -> None:
        if self._is_started:
            for acceptor in self._acceptors:
                acceptor.start()

    def reserve_bytes(self, connection: Connection, size: int) -> bool:
        """Reserve bytes of `queued.max.request.bytes` for a large request. Returns False if the
        limit is reached. Then the connection's `on_bytes_released` is called later."""
        if 0 < self._max_bytes_in_flight <= self.large_frame_bytes:
            self._waiting_for_bytes[connection] = None
            return False
        self.large_frame_bytes += size
        return True

    def release_bytes(self, size: int) -> None:
        self.large_frame_bytes -= size
        if self._waiting_for_bytes:
            waiting, self._waiting_for_bytes = self._waiting_for_bytes, {}
            for connection in waiting:
                self.loop.call_soon(connection.on_bytes_released)

    def _on_connection(self, listener: str, sock: socket.socket, address: str) -> None:
        self.connections.add(Connection(self, sock, address, listener))

    def _sweep_idle(self) -> None:
        if self._max_idle_s <= 0:
            return
        cutoff = self.loop.time() - self._max_idle_s
        for connection in list(self.connections):
            if connection.is_idle_since(cutoff):
                connection.close()
        self._idle_timer = self.loop.call_later(self._max_idle_s / IDLE_SWEEPS_PER_TIMEOUT, self._sweep_idle)


def _configured(settings: Any, name: str) -> int | None:
    """Return the configured value, or None if the property is not set: the operating system's
    default is better than Kafka's."""
    value: int = settings[name]
    return value if settings.is_set(name) and value > 0 else None
