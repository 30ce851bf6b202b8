"""The network side of a broker: its listeners, its connections, and what they share."""

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

log = logging.getLogger(__name__)

RECEIVE_BUFFER = 256 * 1024
IDLE_SWEEPS = 10  # per connections.max.idle.ms
# What is under way when the server stops may take this long to end.
STOP_GRACE_S = 1.0


class Server:
    """Made on the loop it runs on. `services` must be ready before `start`."""

    def __init__(self, services: BrokerServices) -> None:
        settings = services.settings
        self.loop = asyncio.get_running_loop()
        self.services = services
        self.apis = registry.served(services.in_cluster)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER))
        self.max_request_bytes: int = settings.socket_request_max_bytes
        self.large_frame_bytes = 0
        # Decoding a large request takes memory and a worker: one at a time.
        self.large_requests = asyncio.Lock()
        self._waiting_for_bytes: dict[Connection, None] = {}
        self.write_staged = services.replica_manager.write_staged
        self.connections: set[Connection] = set()
        self.limits = ConnectionLimits(*self._limits())
        self._max_bytes_in_flight: int = settings.queued_max_request_bytes
        self._max_idle_s: float = settings.connections_max_idle_ms / 1000
        self._acceptors: list[Acceptor] = []
        self._started = False
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
        settings = self.services.settings
        buffers = SocketBuffers(
            send=_chosen(settings, "socket.send.buffer.bytes"), receive=_chosen(settings, "socket.receive.buffer.bytes")
        )
        acceptor = Acceptor(self.loop, self.limits, partial(self._on_connection, listener), buffers)
        bound = acceptor.bind(host, port, max(128, settings.socket_listen_backlog_size))
        self._acceptors.append(acceptor)
        return bound

    def _limits(self) -> tuple[int, int, dict[str, int], int]:
        settings = self.services.settings
        return (
            settings.max_connections,
            settings.max_connections_per_ip,
            settings.max_connections_per_ip_overrides,
            settings.max_connection_creation_rate,
        )

    def settings_changed(self) -> None:
        """Take over what may change while the broker runs: the limits of connections."""
        self.limits.change(*self._limits())
        self._accept_again()

    def start(self) -> None:
        self._started = True
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
        """Close all connections, and let what is under way for them (a topic half created) come to its end."""
        under_way = [task for connection in self.connections for task in connection.tasks()]
        self.close()
        under_way = [task for task in under_way if not task.done()]
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=STOP_GRACE_S)
            for task in late:
                task.cancel()
            if late:
                log.warning("%d requests were not done when the broker stopped", len(late))
                await asyncio.wait(late, timeout=STOP_GRACE_S)

    # ---- for connections

    def count(self, api: registry.Api, seconds: float) -> None:
        requests, time_spent = self._counters[api.key]
        requests.value += 1
        time_spent.value += seconds

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._waiting_for_bytes.pop(connection, None)
        self.limits.release(connection.address)
        self._accept_again()

    def _accept_again(self) -> None:
        if self._started:
            for acceptor in self._acceptors:
                acceptor.start()

    def reserve_bytes(self, connection: Connection, size: int) -> bool:
        """`queued.max.request.bytes`: a large request may begin while those under way are not more than that.

        False: it has to wait, and the connection's `go_on` is called when others have come to their end.
        """
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
                self.loop.call_soon(connection.go_on)

    def _on_connection(self, listener: str, sock: socket.socket, address: str) -> None:
        self.connections.add(Connection(self, sock, address, listener))

    def _sweep_idle(self) -> None:
        if self._max_idle_s <= 0:
            return
        oldest = self.loop.time() - self._max_idle_s
        for connection in list(self.connections):
            if connection.silent_since(oldest):
                connection.close()
        self._idle_timer = self.loop.call_later(self._max_idle_s / IDLE_SWEEPS, self._sweep_idle)


def _chosen(settings: Any, name: str) -> int | None:
    """The value that somebody set; without one the operating system does better by itself than Kafka's default."""
    value: int = settings[name]
    return value if settings.is_set(name) and value > 0 else None
