"""Configuration of clients: the settings that all clients share, and the parsing of settings.

Settings are a mapping by Kafka's names, keyword arguments with underscores instead of dots, or
both. Keyword arguments take precedence:

    Producer({"bootstrap.servers": "localhost:9092"}, acks="all", batch_size=65536)

Values may be text, as in a .properties file, or Python objects: numbers, booleans, lists, classes,
objects, functions. An invalid value raises a ConfigError that names the key and the allowed values.
An unknown name is logged as a warning. Settings that name a class also accept the Java names of
Kafka's classes (`classes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

from kavka.client.security_config import JAVA_ONLY, SECURITY, SECURITY_ALIASES
from kavka.client.serializers import is_serializer_setting
from kavka.common.config import (
    BOOLEAN,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    STRING,
    AtLeast,
    ConfigError,
    ConfigKey,
    ConfigTable,
    ConfigType,
    NotEmpty,
    OneOf,
)

logger = logging.getLogger(__name__)

K = ConfigKey

NOT_YET = "has no effect yet"

MAX_TIMEOUT_S = 1e8
"""Seconds (about three years); every timer accepts this value."""

# Lists whose items may be classes or objects.
OBJECT_LISTS = frozenset({"interceptor.classes", "metric.reporters", "partition.assignment.strategy"})

# fmt: off
COMMON = (
    K("bootstrap.servers", LIST, None,
      "Brokers to connect to first, host:port separated by commas; they return the other brokers of the cluster.",
      NotEmpty(), HIGH),
    K("client.id", STRING, "", "Name of this client in the broker's logs and metrics."),
    K("client.dns.lookup", STRING, "use_all_dns_ips",
      "All addresses of a name are tried in turn. resolve_canonical_bootstrap_servers_only also replaces each "
      "bootstrap server by the canonical names of its addresses.",
      OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"))),
    K("request.timeout.ms", INT, 30_000, "Timeout of a request.", AtLeast(0)),
    K("metadata.max.age.ms", LONG, 300_000, "Longest time between two refreshes of metadata.", AtLeast(0), LOW),
    K("metadata.recovery.strategy", STRING, "rebootstrap",
      "Action when no known broker can be reached: rebootstrap reconnects to bootstrap.servers.",
      OneOf(("rebootstrap", "none"), ignore_case=True), LOW),
    K("metadata.recovery.rebootstrap.trigger.ms", LONG, 300_000,
      "After this time without metadata, reconnect to bootstrap.servers.", AtLeast(0), LOW),
    K("reconnect.backoff.ms", LONG, 50, "Delay before reconnecting to the same broker; doubles with each failure.",
      AtLeast(0), LOW),
    K("reconnect.backoff.max.ms", LONG, 1_000, "Longest delay before reconnecting.", AtLeast(0), LOW),
    K("retry.backoff.ms", LONG, 100, "Delay before a failed request is retried; doubles with each failure.",
      AtLeast(0), LOW),
    K("retry.backoff.max.ms", LONG, 1_000, "Longest delay before a failed request is retried.", AtLeast(0), LOW),
    K("socket.connection.setup.timeout.ms", LONG, 10_000,
      "Timeout of connecting to one address; doubles with each failure.", AtLeast(1)),
    K("socket.connection.setup.timeout.max.ms", LONG, 30_000, "Longest timeout of connecting to one address.",
      AtLeast(1)),
    K("connections.max.idle.ms", LONG, 540_000, "Connections that are idle for this long are closed; -1: never."),
    K("send.buffer.bytes", INT, -1, "Send buffer of the socket; -1: the operating system decides (Kafka: 131072).",
      AtLeast(-1)),
    K("receive.buffer.bytes", INT, -1,
      "Receive buffer of the socket; -1: the operating system decides (Kafka: 32768 to 65536).", AtLeast(-1)),
    *SECURITY,
    K("metric.reporters", LIST, (), "Metrics reporters.", importance=LOW, warning=JAVA_ONLY),
    K("metrics.sample.window.ms", LONG, 30_000, "Window of a metrics sample.", AtLeast(0), LOW, warning=JAVA_ONLY),
    K("metrics.num.samples", INT, 2, "Number of metrics samples.", AtLeast(1), LOW, warning=JAVA_ONLY),
    K("metrics.recording.level", STRING, "INFO", "Recording level of metrics.", OneOf(("INFO", "DEBUG", "TRACE")), LOW,
      warning=JAVA_ONLY),
    K("enable.metrics.push", BOOLEAN, True, "Push metrics to the cluster.", importance=LOW, warning=NOT_YET),
    K("config.providers", LIST, (), "Providers of configuration values.", importance=LOW, warning=JAVA_ONLY),
    K("auto.include.jmx.reporter", BOOLEAN, True, "Include the JMX reporter.", importance=LOW, warning=JAVA_ONLY),
)
# fmt: on

# An alias of a setting: a function from its value to the settings that replace it.
Alias = Callable[[Any], Mapping[str, Any]]


def renamed(name: str) -> Alias:
    return lambda value: {name: value}


class ClientConfig(Mapping[str, Any]):
    """The parsed settings of one client by Kafka's names, with a value for every key of the table.

    `originals` are the unparsed settings of the user, with aliases replaced; `configure()` of a
    user's class gets them. Immutable.
    """

    def __init__(
        self,
        table: ConfigTable,
        config: Mapping[str, Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
        aliases: Mapping[str, Alias] | None = None,
    ) -> None:
        self.table = table
        self.originals = _collect(config, keywords or {}, {**SECURITY_ALIASES, **(aliases or {})})
        self._explicit: set[str] = set()
        warnings: list[str] = []
        objects: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name, value in self.originals.items():
            key = table.get(name)
            if value is None and key is not None:
                continue
            self._explicit.add(name)
            if key is None and is_serializer_setting(name):
                continue
            if key is not None and _is_object(key, value):
                objects[name] = tuple(value) if name in OBJECT_LISTS and isinstance(value, (list, tuple)) else value
            else:
                texts[name] = _text(name, value)
        self._values = table.parse(texts, warnings=warnings) | objects
        for line in warnings:
            logger.warning("%s", line)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def is_explicit(self, name: str) -> bool:
        """Whether the user has set a value for this setting."""
        return name in self._explicit

    def replaced(self, name: str, value: Any) -> ClientConfig:
        """Return a copy with one parsed value changed."""
        changed = copy(self)
        changed._values = {**self._values, name: value}
        return changed

    def seconds(self, name: str) -> float:
        """Return the value of a setting in milliseconds as seconds, at most MAX_TIMEOUT_S."""
        return min(float(self._values[name]) / 1000, MAX_TIMEOUT_S)


def _collect(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any], aliases: Mapping[str, Alias]
) -> dict[str, Any]:
    """Return the settings of the user with aliases replaced. A setting under its current name takes
    precedence over its alias."""
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            "bootstrap.servers",
            f"settings must be a mapping or keywords (bootstrap_servers=…), not a {type(config).__name__}",
        )
    settings: dict[str, Any] = {}
    for name, value in (config or {}).items():
        if not isinstance(name, str):
            raise ConfigError(str(name), "the name of a setting must be text")
        settings[name] = value
    settings |= {name.replace("_", "."): value for name, value in keywords.items()}
    result = {name: value for name, value in settings.items() if name not in aliases}
    for name, value in settings.items():
        if name in aliases and value is not None:
            for current_name, converted in aliases[name](value).items():
                result.setdefault(current_name, converted)
    return result


def _is_object(key: ConfigKey, value: Any) -> bool:
    if key.type is ConfigType.CLASS:
        return not isinstance(value, str)
    if key.name in OBJECT_LISTS:
        items = value if isinstance(value, (list, tuple)) else (value,)
        return any(not isinstance(item, str) for item in items)
    return False


def _text(name: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        case list() | tuple() | set() | frozenset():
            return ",".join(_text(name, item) for item in value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise ConfigError(name, f"{value!r} is not allowed; it must be text in UTF-8") from None
        case _:
            raise ConfigError(name, f"a {type(value).__name__} is not allowed")


def supported_settings(settings: Mapping[str, Any], table: ConfigTable) -> dict[str, Any]:
    """Return the settings that a client with this table accepts, for settings that are meant for
    several clients. librdkafka's names are kept; other aliases are not."""
    return {name: value for name, value in settings.items() if table.get(name) is not None or name in SECURITY_ALIASES}


def parse_servers(servers: tuple[str, ...] | None) -> list[tuple[str, int]]:
    """Parse the items of bootstrap.servers, each `host:port` or `[v6]:port` with an optional
    `PLAINTEXT://`. Returns (host, port) pairs without duplicates. Raises ConfigError."""
    addresses: list[tuple[str, int]] = []
    for item in servers or ():
        if not item:
            continue
        host, colon, port = item.rpartition("://")[2].rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError("bootstrap.servers", f"'{item}' is not allowed; it must be host:port")
        if (host, int(port)) not in addresses:
            addresses.append((host, int(port)))
    if not addresses:
        raise ConfigError("bootstrap.servers", "is required: host:port of at least one broker")
    return addresses
