"""The network server of a broker: its listeners, its connections, and their shared resources."""

from __future__ import annotations

import asyncio
import logging
import socket
from bisect import bisect_left
from collections import Counter
from functools import partial
from typing import Any

from kavka.api import registry
from kavka.api.context import BrokerServices
from kavka.common import metrics
from kavka.common.config import INT_MAX
from kavka.common.metrics import SECONDS_BUCKETS
from kavka.network.acceptor import Acceptor, SocketBuffers
from kavka.network.connection import Connection
from kavka.network.handshakes import Handshakes
from kavka.network.limits import NO_BOUNDS, Bounds, ConnectionLimits, LimitSettings
from kavka.network.listener_security import ListenerSecurity
from kavka.network.read_turns import RECEIVE_BUFFER_BYTES, ReadTurns
from kavka.network.throttling import Throttling
from kavka.network.transport import PlainTransport, TlsTransport
from kavka.security.principal import ANONYMOUS, Principal, SecurityProtocol
from kavka.security.quotas import ClientQuotas
from kavka.security.rates import Window

logger = logging.getLogger(__name__)

# The number of sweeps for idle connections per connections.max.idle.ms.
IDLE_SWEEPS_PER_TIMEOUT = 10
METER_EXPIRY_INTERVAL_S = 10.0
# How long pending requests may take when the server stops.
STOP_GRACE_S = 1.0
# The maximum number of connections that have not authenticated yet. A new connection ends the
# oldest.
MAX_UNAUTHENTICATED = 1024
# The maximum number of warnings of clients with unsupported versions.
MAX_WARNINGS = 16


class Server:
    """Owns the listeners and the connections. Only the loop thread
    creates and uses it. `services` must be ready before `start`."""

    def __init__(self, services: BrokerServices) -> None:
        settings = services.settings
        self.loop = asyncio.get_running_loop()
        self.services = services
        self.apis = registry.served_apis(services.in_cluster)
        self.reads = ReadTurns(self.loop, services.replica_manager.staged_appends)
        self.max_request_bytes: int = settings.socket_request_max_bytes
        self.large_frame_bytes = 0
        # Held while a worker decodes or encodes a large request, because that takes much memory.
        self.large_request_lock = asyncio.Lock()
        # None until a client quota is set.
        self.quotas: ClientQuotas | None = None
        self.throttling = Throttling(services.metrics)
        self._waiting_for_bytes: dict[Connection, None] = {}
        self.write_staged = services.replica_manager.staged_appends.write
        self.connections: set[Connection] = set()
        self._unauthenticated: dict[Connection, None] = {}
        self._handshakes = Handshakes(
            self.loop, memoryview(bytearray(RECEIVE_BUFFER_BYTES)), self._on_handshake, self._release
        )
        window = Window(settings["quota.window.num"], 1000 * settings["quota.window.size.seconds"])
        self.limits = ConnectionLimits(limit_settings(settings), window)
        self._max_bytes_in_flight: int = settings.queued_max_request_bytes
        self._max_idle_s: float = settings.connections_max_idle_ms / 1000
        self._acceptors: list[Acceptor] = []
        self._is_started = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._refused_versions: set[tuple[int, int]] = set()
        self._latencies = _Latencies(services.metrics)
        services.metrics.gauge(
            "kavka_refused_connections", "Refused connections by limit", ("limit",), read=self._refusals
        )
        services.metrics.gauge("kavka_connections", "Open client connections", read=lambda: float(self.limits.count))

    def warn_of_version(self, address: str, key: int, version: int) -> None:
        """Log that a client uses a version of an API that this broker does not serve: once per
        version, and for a few versions only, so that a peer cannot fill the log."""
        api = self.apis.get(key)
        if api is None or (key, version) in self._refused_versions or len(self._refused_versions) >= MAX_WARNINGS:
            return
        self._refused_versions.add((key, version))
        age, remedy = ("old", "a newer client") if version < api.min_version else ("new", "an older client")
        logger.warning(
            "The client at %s is too %s: it sends %s v%d, and this broker serves v%d to v%d; use %s, or let it "
            "negotiate versions", address, age, api.name, version, api.min_version, api.max_version, remedy,
        )  # fmt: skip

    def listen(self, listener: str, host: str, port: int, security: ListenerSecurity | None = None) -> int:
        """Bind a listener. Returns the bound port. Raises OSError. Connections stay in the backlog
        until `start`. Without `security` the listener has the protocol PLAINTEXT."""
        security = security or ListenerSecurity(listener, SecurityProtocol.PLAINTEXT)
        settings = self.services.settings
        buffers = SocketBuffers(
            send=_configured(settings, "socket.send.buffer.bytes"),
            receive=_configured(settings, "socket.receive.buffer.bytes"),
        )
        acceptor = Acceptor(self.loop, listener, self.limits, partial(self._on_connection, security), buffers)
        bound_port = acceptor.bind(host, port, max(128, settings.socket_listen_backlog_size))
        self._acceptors.append(acceptor)
        return bound_port

    def apply_settings(self) -> None:
        """Apply changed connection limits."""
        self.limits.change(limit_settings(self.services.settings))
        self._resume_accepting()

    def start(self) -> None:
        self._is_started = True
        for acceptor in self._acceptors:
            acceptor.start()
        self._sweep_idle()
        self._expire_meters()

    def stop_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    def close(self) -> None:
        self.stop_accepting()
        for timer in (self._idle_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._expiry_timer = None
        self._handshakes.close()
        for connection in list(self.connections):
            connection.close()
        self.reads.close()

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
        # `Histogram.observe` without its call: this runs for every request.
        histogram = self._latencies[api.name]
        histogram.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        histogram.sum += seconds

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._unauthenticated.pop(connection, None)
        self.reads.forget(connection)
        self._waiting_for_bytes.pop(connection, None)
        self._release(connection.listener, connection.address)

    def _release(self, listener: str, address: str) -> None:
        self.limits.release(listener, address)
        self._resume_accepting()

    def on_authenticated(self, connection: Connection) -> None:
        self._unauthenticated.pop(connection, None)

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

    def _on_connection(self, security: ListenerSecurity, sock: socket.socket, address: str) -> None:
        if security.protocol.has_tls:
            self._handshakes.add(sock, address, security)
        elif security.protocol.has_sasl:
            self._add_unauthenticated(PlainTransport(self.loop, sock), address, security)
        else:
            self.connections.add(Connection(self, PlainTransport(self.loop, sock), address, security.name))
        if self.limits.is_exceeded:
            others = [connection for connection in self.connections if connection.listener != security.name]
            if others:
                min(others, key=lambda connection: connection.last_active).close()

    def _on_handshake(
        self, transport: TlsTransport, address: str, security: ListenerSecurity, principal: Principal
    ) -> None:
        if security.protocol.has_sasl:
            self._add_unauthenticated(transport, address, security)
        else:
            self.connections.add(Connection(self, transport, address, security.name, principal))

    def _add_unauthenticated(
        self, transport: PlainTransport | TlsTransport, address: str, security: ListenerSecurity
    ) -> None:
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            next(iter(self._unauthenticated)).close()
        connection = Connection(self, transport, address, security.name, ANONYMOUS, security)
        self.connections.add(connection)
        self._unauthenticated[connection] = None

    def _refusals(self) -> list[tuple[tuple[str], float]]:
        totals: Counter[str] = sum((acceptor.refusals for acceptor in self._acceptors), Counter())
        return [((reason,), float(count)) for reason, count in totals.items()]

    def _expire_meters(self) -> None:
        """Remove meters that measured nothing for a while, so that they do not accumulate."""
        now_ms = self.services.now_ms()
        self.limits.expire(int(self.loop.time() * 1000))
        if self.quotas is not None:
            self.quotas.expire(now_ms)
        self._expiry_timer = self.loop.call_later(METER_EXPIRY_INTERVAL_S, self._expire_meters)

    def _sweep_idle(self) -> None:
        if self._max_idle_s <= 0:
            return
        cutoff = self.loop.time() - self._max_idle_s
        for connection in list(self.connections):
            if connection.is_idle_since(cutoff):
                connection.close()
        self._idle_timer = self.loop.call_later(self._max_idle_s / IDLE_SWEEPS_PER_TIMEOUT, self._sweep_idle)


class _Latencies(dict[str, metrics.Histogram]):
    """The histograms of request latencies by API. Only APIs with requests are exported."""

    def __init__(self, registry: metrics.Registry) -> None:
        self._family = registry.histogram(
            "kavka_request_seconds", "Time from the arrival of a request to its response, including waits", ("api",)
        )

    def __missing__(self, api: str) -> metrics.Histogram:
        histogram = self[api] = self._family.labels(api)
        return histogram


def limit_settings(settings: Any) -> LimitSettings:
    listeners = {}
    for listener in settings.listeners:
        prefix = f"listener.name.{listener.name.lower()}."
        bounds = Bounds(
            settings.get(f"{prefix}max.connections", INT_MAX),
            settings.get(f"{prefix}max.connection.creation.rate", INT_MAX),
        )
        if bounds != NO_BOUNDS:
            listeners[listener.name] = bounds
    return LimitSettings(
        Bounds(settings.max_connections, settings.max_connection_creation_rate),
        listeners,
        settings.max_connections_per_ip,
        settings.max_connections_per_ip_overrides,
        settings.inter_broker_listener if len(settings.listeners) > 1 else None,
    )


def _configured(settings: Any, name: str) -> int | None:
    """Return the configured value, or None if the property is not set: the operating system's
    default is better than Kafka's."""
    value: int = settings[name]
    return value if settings.is_set(name) and value > 0 else None
