"""[pure] Client quotas: the bounds of users and clients, and the rates that are measured for them.

A quota belongs to a user, a client id, or a pair of both; each may be the default of all users or
clients. For each key, the most specific quota applies:

    user and client, user and default client, user,
    default user and client, default user and default client, default user,
    client, default client

All clients that share a quota of a user are measured together. The clients of a default quota are
measured one by one. There is a meter only for clients with a bound. A meter without an event in the
window equals a new meter, so it is removed; if there are too many meters, the oldest are removed.

`ClientQuotas.version` changes when a bound changes or a meter is removed. A connection stores the
resolved quota of its client until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kavka.common.config import INT_MAX, LONG_MAX, AtLeast, ConfigError, ConfigKey, ConfigTable, ConfigType
from kavka.security.rates import MAX_THROTTLE_MS, Rate, TokenBucket, Window, refill_ms, throttle_ms

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

CLIENT_QUOTAS = ConfigTable(
    "client quota",
    (
        ConfigKey(PRODUCER_BYTE_RATE, ConfigType.LONG, LONG_MAX, "Produced bytes per second."),
        ConfigKey(CONSUMER_BYTE_RATE, ConfigType.LONG, LONG_MAX, "Fetched bytes per second."),
        ConfigKey(REQUEST_PERCENTAGE, ConfigType.DOUBLE, float(LONG_MAX), "Share of the event loop's time in percent."),
        ConfigKey(
            CONTROLLER_MUTATION_RATE, ConfigType.DOUBLE, float(LONG_MAX), "Created and deleted partitions per second."
        ),
    ),
)
IP_QUOTAS = ConfigTable(
    "IP quota",
    (ConfigKey(CONNECTION_CREATION_RATE, ConfigType.INT, INT_MAX, "New connections per second.", AtLeast(0)),),
)

# The name of the default user, client or address. Kafka refuses entities with an empty name.
DEFAULT = ""
# More meters are removed, oldest first. A meter takes about 1 KB.
MAX_METERS = 10_000


class QuotaEntity(NamedTuple):
    """The entity of a quota. A part is a name, DEFAULT, or None if the entity does not have the
    part."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        parts = {"user": self.user, "client": self.client_id, "address": self.ip}
        return ", ".join(
            f"the default {part}" if name == DEFAULT else f"{part} {name}"
            for part, name in parts.items()
            if name is not None
        )


def parse_bounds(table: ConfigTable, values: Mapping[str, str]) -> tuple[dict[str, float], list[ConfigError]]:
    """Return the quotas among the settings of an entity, and the errors of invalid values."""
    bounds: dict[str, float] = {}
    errors: list[ConfigError] = []
    for name, text in values.items():
        if name in table:
            try:
                bounds[name] = float(table.parse_one(name, text))
            except ConfigError as error:
                errors.append(error)
    return bounds, errors


@dataclass(slots=True, eq=False)
class Meter:
    """Measures one rate of one client, user or pair, against its bound. `throttled_ms` is the last
    throttle time."""

    window: Window
    bound: float = 0.0
    limit_ms: int = MAX_THROTTLE_MS
    throttled_ms: int = 0
    _rate: Rate = field(default_factory=Rate)
    # The shortest window of `measure`.
    _burst_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._burst_s = (self.window.samples - 1) * self.window.sample_ms / 1000

    def record(self, value: float, now_ms: int) -> int:
        """Record a value. Returns the throttle time: 0, or how long the client must pause."""
        if self.record_free(value, now_ms):
            return 0
        self._rate.record(value, now_ms, self.window)
        self.throttled_ms = self.throttle(now_ms)
        return self.throttled_ms

    def record_free(self, value: float, now_ms: int) -> bool:
        """Record a value that certainly is not throttled. Returns False, and records nothing, if
        only `record` can decide that."""
        if not self._rate.record_within(self.bound * self._burst_s, value, now_ms):
            return False
        self.throttled_ms = 0
        return True

    def throttle(self, now_ms: int) -> int:
        """Return the throttle time of what was recorded."""
        measured, window_ms = self._rate.measure(now_ms, self.window)
        return throttle_ms(measured, self.bound, window_ms, self.limit_ms)

    def withdraw(self, value: float, now_ms: int) -> None:
        """Undo a record, of bytes that are not sent."""
        self._rate.record(-value, now_ms, self.window)

    def measure(self, now_ms: int) -> float:
        return self._rate.measure(now_ms, self.window)[0]

    def is_idle(self, now_ms: int) -> bool:
        return self._rate.is_idle(now_ms, self.window)

    @property
    def max_burst(self) -> float:
        """The largest value that is not throttled after a quiet time. A larger fetch would be
        throttled forever."""
        return self.bound * self._burst_s


@dataclass(slots=True, eq=False)
class MutationMeter:
    """The tokens of a client for changes of partitions by the controller."""

    window: Window
    bound: float = 0.0
    throttled_ms: int = 0
    _bucket: TokenBucket = field(default_factory=TokenBucket)

    def exceeded_ms(self, now_ms: int) -> int:
        """Return 0, or the time until the bucket is not negative."""
        return refill_ms(self._bucket.measure(now_ms, self.bound, self.window), self.bound)

    def record(self, partitions: float, now_ms: int) -> int:
        self._bucket.record(partitions, now_ms, self.bound, self.window)
        self.throttled_ms = self.exceeded_ms(now_ms)
        return self.throttled_ms

    def measure(self, now_ms: int) -> float:
        """Return the tokens, as Kafka's metric does."""
        return self._bucket.measure(now_ms, self.bound, self.window)

    def is_idle(self, now_ms: int) -> bool:
        return self.measure(now_ms) >= self.bound * self.window.total_ms / 1000


@dataclass(slots=True, eq=False)
class ClientQuota:
    """The meters that apply to one client. None for a key without a bound."""

    produce: Meter | None
    fetch: Meter | None
    request: Meter | None
    mutation: MutationMeter | None


class MeterKey(NamedTuple):
    """Identifies a meter: a quota key, and the user and client id that it belongs to."""

    quota_key: str
    user: str | None
    client_id: str | None


# The entity of a quota, as a plain tuple, and the user and client id that are measured.
Level = tuple[tuple[str | None, str | None, None], str | None, str | None]


def levels_of(user: str, client_id: str) -> tuple[Level, ...]:
    """Return the entities of a client's quotas, highest precedence first."""
    return (
        ((user, client_id, None), user, client_id),
        ((user, DEFAULT, None), user, client_id),
        ((user, None, None), user, None),
        ((DEFAULT, client_id, None), user, client_id),
        ((DEFAULT, DEFAULT, None), user, client_id),
        ((DEFAULT, None, None), user, None),
        ((None, client_id, None), None, client_id),
        ((None, DEFAULT, None), None, client_id),
    )


def _find(
    levels: list[tuple[dict[str, float], str | None, str | None]], quota_key: str
) -> tuple[MeterKey, float] | None:
    """Return the meter and the bound of a key at the first level that has the key."""
    for bounds, user, client_id in levels:
        bound = bounds.get(quota_key)
        if bound is not None:
            return MeterKey(quota_key, user, client_id), bound
    return None


class ClientQuotas:
    """Owns the bounds and the meters of one broker. Only the event loop uses it."""

    def __init__(self, window: Window | None = None, mutation_window: Window | None = None) -> None:
        self.version = 0
        self._window = window or Window()
        self._mutation_window = mutation_window or Window()
        # By QuotaEntity.
        self._bounds: dict[tuple[str | None, str | None, str | None], dict[str, float]] = {}
        self._meters: dict[MeterKey, Meter | MutationMeter] = {}

    @property
    def has_bounds(self) -> bool:
        return bool(self._bounds)

    def set(self, entity: QuotaEntity, bounds: Mapping[str, float]) -> None:
        """Replace the bounds of an entity. Without bounds, the entity is removed. Meters keep what
        they measured."""
        if bounds == self._bounds.get(entity, {}):
            return
        if bounds:
            self._bounds[entity] = dict(bounds)
        else:
            self._bounds.pop(entity, None)
        self.version += 1

    def resolve(self, user: str, client_id: str, now_ms: int) -> ClientQuota | None:
        """Return the meters of a client, or None if it has no bound."""
        levels = [
            (bounds, measured_user, measured_client)
            for entity, measured_user, measured_client in levels_of(user, client_id)
            if (bounds := self._bounds.get(entity)) is not None
        ]
        if not levels:
            return None
        self._make_room(now_ms)
        return ClientQuota(
            self._meter(_find(levels, PRODUCER_BYTE_RATE)),
            self._meter(_find(levels, CONSUMER_BYTE_RATE)),
            self._meter(_find(levels, REQUEST_PERCENTAGE)),
            self._mutation_meter(_find(levels, CONTROLLER_MUTATION_RATE)),
        )

    def _meter(self, match: tuple[MeterKey, float] | None) -> Meter | None:
        if match is None:
            return None
        key, bound = match
        meter = self._meters.get(key)
        if not isinstance(meter, Meter):
            # A client that uses the event loop too much is paused for at most one sample, as in
            # Kafka.
            limit_ms = self._window.sample_ms if key.quota_key == REQUEST_PERCENTAGE else MAX_THROTTLE_MS
            meter = self._meters[key] = Meter(self._window, limit_ms=limit_ms)
        meter.bound = bound
        return meter

    def _mutation_meter(self, match: tuple[MeterKey, float] | None) -> MutationMeter | None:
        if match is None:
            return None
        key, bound = match
        meter = self._meters.get(key)
        if not isinstance(meter, MutationMeter):
            meter = self._meters[key] = MutationMeter(self._mutation_window)
        meter.bound = bound
        return meter

    def meters(self) -> list[tuple[MeterKey, Meter | MutationMeter]]:
        return list(self._meters.items())

    def expire(self, now_ms: int) -> None:
        """Remove the meters that measured nothing within the window."""
        idle = [key for key, meter in self._meters.items() if meter.is_idle(now_ms)]
        for key in idle:
            del self._meters[key]
        if idle:
            # Connections that store a removed meter resolve their quotas again.
            self.version += 1

    def _make_room(self, now_ms: int) -> None:
        if len(self._meters) < MAX_METERS:
            return
        self.expire(now_ms)
        excess = len(self._meters) - MAX_METERS * 7 // 8
        if excess > 0:
            for key in list(self._meters)[:excess]:
                del self._meters[key]
            self.version += 1


class ConnectionQuota:
    """The quota of one connection: the resolved quota of its client, and the allowances that every
    connection has."""

    __slots__ = ("_auto_created_topics", "_client_id", "_principal", "_producer_ids", "_version", "client")

    def __init__(self) -> None:
        self.client: ClientQuota | None = None
        self._version = -1
        self._principal: str | None = None
        self._client_id: str | None = None
        self._auto_created_topics: TokenBucket | None = None
        self._producer_ids: TokenBucket | None = None

    def resolve(
        self, quotas: ClientQuotas, principal: str, client_id: str | None, now_ms: Callable[[], int]
    ) -> ClientQuota | None:
        """Return the quota of the connection's client. Looks it up again if the client or a bound
        changed."""
        if self._version != quotas.version or self._client_id != client_id or self._principal != principal:
            self.client = quotas.resolve(principal.partition(":")[2], client_id or "", now_ms())
            self._version, self._client_id, self._principal = quotas.version, client_id, principal
        return self.client

    def take_topics(self, count: int, rate: float, now_ms: int) -> tuple[int, int]:
        """Take the tokens of `count` new topics. Returns how many topics may be created now, and
        the throttle time of the connection."""
        bucket = self._auto_created_topics = self._auto_created_topics or TokenBucket()
        allowed = min(count, max(0, int(bucket.measure(now_ms, rate, ALLOWANCE_WINDOW))))
        bucket.record(allowed, now_ms, rate, ALLOWANCE_WINDOW)
        if allowed == count:
            return count, 0
        # The client retries the refused topics. Pause it for at most a second of tokens.
        missing = min(count - allowed, rate)
        return allowed, refill_ms(bucket.measure(now_ms, rate, ALLOWANCE_WINDOW) - missing, rate)

    def take_producer_id(self, rate: float, now_ms: int) -> int:
        """Take the token of a new producer id. Returns the throttle time of the connection."""
        bucket = self._producer_ids = self._producer_ids or TokenBucket()
        bucket.record(1, now_ms, rate, ALLOWANCE_WINDOW)
        return refill_ms(bucket.measure(now_ms, rate, ALLOWANCE_WINDOW), rate)


# The allowances of a connection permit a burst of ten seconds.
ALLOWANCE_WINDOW = Window(10, 1000)
