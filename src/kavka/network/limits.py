"""[pure] Limits on open connections and on new connections per second: of the broker, of a listener
and of an address. Rates are measured as Kafka does, so a burst after a quiet time is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kavka.common.config import INT_MAX
from kavka.security.quotas import DEFAULT, MAX_METERS, Meter
from kavka.security.rates import Window


class Bounds(NamedTuple):
    """The bounds of the broker or of one listener: open connections, and new ones per second."""

    max_connections: int = INT_MAX
    max_rate: int = INT_MAX


NO_BOUNDS = Bounds()


@dataclass(frozen=True)
class LimitSettings:
    """`protected_listener` is the inter-broker listener, if the broker has other listeners. The
    bounds of the broker do not apply to it."""

    broker: Bounds = NO_BOUNDS
    listeners: Mapping[str, Bounds] = field(default_factory=dict)
    max_per_ip: int = INT_MAX
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    protected_listener: str | None = None


class Refusal(NamedTuple):
    """Why a connection is refused. It is closed after the delay, which slows down a client that
    connects again at once."""

    reason: str
    delay_s: float = 0.0


class ConnectionLimits:
    """Owns the counts of open connections and the rates of new ones. At the limit or the maximum
    rate of the broker or a listener, new connections stay in the backlog. At the limit or the rate
    of an address, its connections are refused. Changed limits apply to new connections only.
    """

    def __init__(self, settings: LimitSettings, window: Window | None = None) -> None:
        self._window = window or Window()
        self.count = 0
        self._by_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._broker_meter = self._new_meter()
        self._listener_meters: dict[str, Meter] = {}
        self._ip_rates: dict[str, float] = {}
        self._ip_meters: dict[str, Meter] = {}
        self.change(settings)

    def change(self, settings: LimitSettings) -> None:
        self._settings = settings
        self._broker_meter.bound = settings.broker.max_rate

    def set_ip_rate(self, address: str, rate: float | None) -> None:
        """Set the maximum rate of new connections per second of an address. If `address` is
        DEFAULT, the rate applies to every address that has none. None removes the rate."""
        if rate is None:
            self._ip_rates.pop(address, None)
        else:
            self._ip_rates[address] = rate

    def is_full(self, listener: str) -> bool:
        bounds = self._settings.listeners.get(listener)
        if bounds is not None and self._by_listener[listener] >= bounds.max_connections:
            return True
        return self.count >= self._settings.broker.max_connections and not self._is_protected(listener)

    @property
    def is_exceeded(self) -> bool:
        """Whether a connection of the protected listener exceeds the limit of the broker. Then a
        connection of another listener must be closed."""
        return self.count > self._settings.broker.max_connections

    def rate_delay(self, listener: str, now_ms: int) -> float:
        """Return the seconds until the rates allow the next connection."""
        meters = [] if self._is_protected(listener) else [self._broker_meter]
        if listener in self._settings.listeners:
            meters.append(self._listener_meter(listener))
        return max((meter.throttle(now_ms) for meter in meters), default=0) / 1000

    def admit(self, listener: str, address: str, now_ms: int) -> Refusal | None:
        """Count a new connection, or return why it is refused. A connection that exceeds
        `max.connections.per.ip` still counts for the rates of the broker and the listener."""
        delay_ms = self._throttle_ip(address, now_ms)
        if delay_ms:
            return Refusal("connection_creation_rate", delay_ms / 1000)
        self._broker_meter.record(1, now_ms)
        if listener in self._settings.listeners:
            self._listener_meter(listener).record(1, now_ms)
        if self._by_ip[address] >= self._settings.per_ip_overrides.get(address, self._settings.max_per_ip):
            if not self._by_ip[address]:
                del self._by_ip[address]
            return Refusal("max.connections.per.ip")
        self._by_ip[address] += 1
        self._by_listener[listener] += 1
        self.count += 1
        return None

    def release(self, listener: str, address: str) -> None:
        self.count -= 1
        self._by_listener[listener] -= 1
        self._by_ip[address] -= 1
        if self._by_ip[address] <= 0:
            del self._by_ip[address]

    def expire(self, now_ms: int) -> None:
        """Remove the meters of addresses that did not connect within the window."""
        for address in [address for address, meter in self._ip_meters.items() if meter.is_idle(now_ms)]:
            del self._ip_meters[address]

    def _is_protected(self, listener: str) -> bool:
        return listener == self._settings.protected_listener

    def _throttle_ip(self, address: str, now_ms: int) -> int:
        rate = self._ip_rates.get(address, self._ip_rates.get(DEFAULT))
        if rate is None:
            return 0
        meter = self._ip_meters.get(address)
        if meter is None:
            if len(self._ip_meters) >= MAX_METERS:
                del self._ip_meters[next(iter(self._ip_meters))]
            meter = self._ip_meters[address] = self._new_meter()
        meter.bound = rate
        throttle_ms = meter.record(1, now_ms)
        if throttle_ms:
            meter.withdraw(1, now_ms)
        return throttle_ms

    def _listener_meter(self, listener: str) -> Meter:
        meter = self._listener_meters.get(listener)
        if meter is None:
            meter = self._listener_meters[listener] = self._new_meter()
        meter.bound = self._settings.listeners[listener].max_rate
        return meter

    def _new_meter(self) -> Meter:
        return Meter(self._window, limit_ms=self._window.sample_ms)
