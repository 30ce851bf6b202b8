"""The network side of a broker: its listeners, its connections, and what they share."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from kavka.api import registry
from kavka.api.context import BrokerServices
from kavka.common.metrics import Counter
from kavka.network.acceptor import Acceptor
from kavka.network.connection import Connection
from kavka.network.limits import ConnectionLimits

RECEIVE_BUFFER = 256 * 1024
IDLE_SWEEPS = 10  # per connections.max.idle.ms


class Server:
    """Made on the loop it runs on. `services` must be ready before `start`."""

    def __init__(self, services: BrokerServices) -> None:
        settings = services.settings
        self.loop = asyncio.get_running_loop()
        self.services = services
        self.apis = registry.load()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER))
        self.max_request_bytes: int = settings.socket_request_max_bytes
        self.large_frame_bytes = 0
        self._waiting_for_bytes: set[Connection] = set()
        self.write_staged = services.replica_manager.write_staged
        self.connections: set[Connection] = set()
        self.limits = ConnectionLimits(
            settings.max_connections, settings.max_connections_per_ip, settings.max_connections_per_ip_overrides
        )
        self._max_bytes_in_flight: int = settings.queued_max_request_bytes
        self._max_idle_s: float = settings.connections_max_idle_ms / 1000
        self._acceptors: list[Acceptor] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        requests = services.metrics.counter("kavka_requests_total", "Requests answered", ("api",))
        seconds = services.metrics.counter(
            "kavka_request_seconds_total", "Time from a request's arrival to its answer, waiting included", ("api",)
        )
        self._counters: dict[int, tuple[Counter, Counter]] = {
            key: (requests.labels(api.name), seconds.labels(api.name)) for key, api in self.apis.items()
        }
        services.metrics.gauge("kavka_connections", "Open client connections", read=lambda: float(self.limits.count))

    def listen(self, listener: str, host: str, port: int) -> int:
        """Bind; returns the port. Connections wait in the backlog until `start`."""
        acceptor = Acceptor(self.loop, self.limits, partial(self._on_connection, listener))
        bound = acceptor.bind(host, port, max(128, self.services.settings.socket_listen_backlog_size))
        self._acceptors.append(acceptor)
        return bound

    def start(self) -> None:
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
        for connection in list(self.connections):
            connection.close()

    # ---- for connections

    def count(self, api: registry.Api, seconds: float) -> None:
        requests, time_spent = self._counters[api.key]
        requests.value += 1
        time_spent.value += seconds

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.limits.release(connection.address)
        for acceptor in self._acceptors:
            acceptor.start()

    def too_many_bytes_in_flight(self, connection: Connection, in_the_middle: bool) -> bool:
        """`queued.max.request.bytes`: whoever is in the middle of a large request may finish it, the others wait."""
        too_many = 0 < self._max_bytes_in_flight <= self.large_frame_bytes and not in_the_middle
        if too_many:
            self._waiting_for_bytes.add(connection)
        return too_many

    def release_bytes(self, size: int) -> None:
        self.large_frame_bytes -= size
        if self._waiting_for_bytes:
            waiting, self._waiting_for_bytes = self._waiting_for_bytes, set()
            for connection in waiting:
                self.loop.call_soon(connection.go_on)

    def _on_connection(self, listener: str, sock: socket.socket, address: str) -> None:
        self.connections.add(Connection(self, sock, address, listener))

    def _sweep_idle(self) -> None:
        if self._max_idle_s <= 0:
            return
        oldest = self.loop.time() - self._max_idle_s
        for connection in list(self.connections):
            if connection.last_active < oldest and connection.idle:
                connection.close()
        self._idle_timer = self.loop.call_later(self._max_idle_s / IDLE_SWEEPS, self._sweep_idle)
