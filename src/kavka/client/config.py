"""Settings of clients: what all three have in common, and how they are given.

A client takes a mapping by Kafka's names, keyword arguments with underscores for the dots, or both (keywords win):

    Producer({"bootstrap.servers": "localhost:9092"}, acks="all", batch_size=65536)

Values may be text, as in a .properties file, or Python's own: numbers, booleans, lists, classes, objects, functions. A
wrong value is a ConfigError that names the key and what is allowed; a name that is not known is a warning in the log.
Settings that name a class take Java's names of Kafka's own classes too (`classes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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

log = logging.getLogger(__name__)

K = ConfigKey

NOT_YET = "has no effect yet"
NOT_HERE = "has no effect: it is about the Java client"

FOR_EVER = 1e8
"""Seconds: some three years, which every timer takes."""

# Lists whose items may be classes or objects.
OBJECT_LISTS = frozenset({"interceptor.classes", "metric.reporters", "partition.assignment.strategy"})

# fmt: off
COMMON = (
    K("bootstrap.servers", LIST, None,
      "Brokers to begin with, host:port separated by commas; the rest of the cluster is found through them.",
      NotEmpty(), HIGH),
    K("client.id", STRING, "", "A name for this client in the broker's logs and metrics."),
    K("client.dns.lookup", STRING, "use_all_dns_ips",
      "Every address of a name is tried in turn. resolve_canonical_bootstrap_servers_only also replaces each bootstrap "
      "server by the canonical names of its addresses.",
      OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"))),
    K("request.timeout.ms", INT, 30_000, "How long to wait for the answer to a request.", AtLeast(0)),
    K("metadata.max.age.ms", LONG, 300_000, "Metadata is asked for again at least this often.", AtLeast(0), LOW),
    K("metadata.recovery.strategy", STRING, "rebootstrap",
      "What happens when no known broker can be reached: rebootstrap begins again with bootstrap.servers.",
      OneOf(("rebootstrap", "none"), ignore_case=True), LOW),
    K("metadata.recovery.rebootstrap.trigger.ms", LONG, 300_000,
      "After this long without metadata, begin again with bootstrap.servers.", AtLeast(0), LOW),
    K("reconnect.backoff.ms", LONG, 50, "Wait before connecting to the same broker again, doubling with each failure.",
      AtLeast(0), LOW),
    K("reconnect.backoff.max.ms", LONG, 1_000, "The longest wait before connecting again.", AtLeast(0), LOW),
    K("retry.backoff.ms", LONG, 100, "Wait before a failed request is tried again, doubling with each failure.",
      AtLeast(0), LOW),
    K("retry.backoff.max.ms", LONG, 1_000, "The longest wait before a failed request is tried again.", AtLeast(0), LOW),
    K("socket.connection.setup.timeout.ms", LONG, 10_000,
      "How long connecting to one address may take, doubling with each failure.", AtLeast(1)),
    K("socket.connection.setup.timeout.max.ms", LONG, 30_000, "The longest that connecting to one address may take.",
      AtLeast(1)),
    K("connections.max.idle.ms", LONG, 540_000, "Connections not used for this long are closed; -1: never."),
    K("send.buffer.bytes", INT, -1, "The socket's send buffer; -1: the operating system decides (Kafka: 131072).",
      AtLeast(-1)),
    K("receive.buffer.bytes", INT, -1,
      "The socket's receive buffer; -1: the operating system decides (Kafka: 32768 to 65536).", AtLeast(-1)),
    K("security.protocol", STRING, "PLAINTEXT", "How brokers are spoken to; the others come later.",
      OneOf(("PLAINTEXT",), ignore_case=True)),
    K("metric.reporters", LIST, (), "Reporters of metrics.", importance=LOW, warning=NOT_HERE),
    K("metrics.sample.window.ms", LONG, 30_000, "Window of samples.", AtLeast(0), LOW, warning=NOT_HERE),
    K("metrics.num.samples", INT, 2, "Samples kept.", AtLeast(1), LOW, warning=NOT_HERE),
    K("metrics.recording.level", STRING, "INFO", "Level of metrics.", OneOf(("INFO", "DEBUG", "TRACE")), LOW,
      warning=NOT_HERE),
    K("enable.metrics.push", BOOLEAN, True, "Push metrics to the cluster.", importance=LOW, warning=NOT_YET),
    K("config.providers", LIST, (), "Providers of values.", importance=LOW, warning=NOT_HERE),
    K("auto.include.jmx.reporter", BOOLEAN, True, "JMX.", importance=LOW, warning=NOT_HERE),
)
# fmt: on

FOREIGN = {"ssl.": "TLS comes later", "sasl.": "SASL comes later", "security.": "it comes later"}

# Another name of a setting: from the value given to what is set in its place.
Alias = Callable[[Any], Mapping[str, Any]]


def renamed(name: str) -> Alias:
    return lambda value: {name: value}


class ClientConfig(Mapping[str, Any]):
    """The parsed settings of one client, by Kafka's names; every name of its table is there.

    `originals` is what was given, under today's names and not parsed: what `configure()` of a user's class gets.
    """

    def __init__(
        self,
        table: ConfigTable,
        config: Mapping[str, Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
        aliases: Mapping[str, Alias] | None = None,
    ) -> None:
        self.table = table
        self.originals = _collect(config, keywords or {}, aliases or {})
        self._given: set[str] = set()
        warnings: list[str] = []
        objects: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name, value in self.originals.items():
            key = table.get(name)
            if value is None and key is not None:
                continue
            self._given.add(name)
            if key is not None and _is_object(key, value):
                objects[name] = tuple(value) if name in OBJECT_LISTS and isinstance(value, (list, tuple)) else value
            else:
                texts[name] = _text(name, value)
        self._values = table.parse(texts, warnings=warnings) | objects
        for line in warnings:
            log.warning("%s", line)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def given(self, name: str) -> bool:
        """Whether the user has set it, rather than left it at its default."""
        return name in self._given

    def replaced(self, name: str, value: Any) -> ClientConfig:
        """A copy with one parsed value changed."""
        other = object.__new__(ClientConfig)
        other.table, other.originals, other._given = self.table, self.originals, self._given
        other._values = {**self._values, name: value}
        return other

    def seconds(self, name: str) -> float:
        """A setting in milliseconds, as seconds."""
        return min(float(self._values[name]) / 1000, FOR_EVER)


def _collect(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any], aliases: Mapping[str, Alias]
) -> dict[str, Any]:
    """What was given, with older names replaced; today's name wins over an older one."""
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            "bootstrap.servers",
            f"settings are a mapping by their names, or keywords (bootstrap_servers=…), not a {type(config).__name__}",
        )
    given: dict[str, Any] = {}
    for name, value in (config or {}).items():
        if not isinstance(name, str):
            raise ConfigError(str(name), "names of settings are text")
        given[name] = value
    given |= {name.replace("_", "."): value for name, value in keywords.items()}
    result = {name: value for name, value in given.items() if name not in aliases}
    for name, value in given.items():
        if name in aliases and value is not None:
            for today, converted in aliases[name](value).items():
                result.setdefault(today, converted)
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
                raise ConfigError(name, f"{value!r} is not allowed, it must be text in UTF-8") from None
        case _:
            raise ConfigError(name, f"a {type(value).__name__} is not allowed")


def parse_servers(servers: tuple[str, ...] | None) -> list[tuple[str, int]]:
    """`host:port`, `[v6]:port`, with or without `PLAINTEXT://` in front; ConfigError for anything else."""
    found: list[tuple[str, int]] = []
    for item in servers or ():
        if not item:
            continue
        host, colon, port = item.rpartition("://")[2].rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError("bootstrap.servers", f"'{item}' is not allowed, it must be host:port")
        if (host, int(port)) not in found:
            found.append((host, int(port)))
    if not found:
        raise ConfigError("bootstrap.servers", "it must be given: host:port of one broker or more")
    return found
