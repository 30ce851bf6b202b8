"""A broker's settings as the code uses them: read from a properties file, checked, parsed.

`settings.num_partitions` and `settings["num.partitions"]` give the value in force now, changes made while the broker
runs included. A few have a more useful form under the attribute than under the name: `listeners`,
`advertised_listeners`, `log_dirs`, `metadata_dir`, `metrics_listener`, `max_connections_per_ip_overrides`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kavka.common.broker_config import BROKER_CONFIGS, SINGLE_NODE_DEFAULTS
from kavka.common.config import INT_MAX, AtLeast, AtMost, ConfigError
from kavka.common.config_view import BrokerConfigs
from kavka.common.properties import PropertiesError, parse_properties

LOCAL_LISTENERS = "PLAINTEXT://localhost:9092"
SERVED_PROTOCOLS = ("PLAINTEXT",)
KNOWN_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# A broker of a cluster that has no id of its own gets the next free one.
GENERATED_ID = -1


class SettingsError(ValueError):
    """A file or an argument that cannot be read. `str()` is one line."""


class Listener(NamedTuple):
    """An address to listen at, or one to be reached at. The empty host is every interface, port 0 any free one."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Settings:
    """Made once at the start; afterwards only `set_dynamic` changes it, on the event loop.

    `configs` has the layers that DescribeConfigs answers from; `warnings` the lines to show at the start.
    """

    __slots__ = (
        "_by_attribute",
        "advertised_listeners",
        "configs",
        "in_cluster",
        "inter_broker_listener",
        "listeners",
        "log_dirs",
        "max_connections_per_ip_overrides",
        "metadata_dir",
        "metrics_listener",
        "warnings",
    )

    configs: BrokerConfigs
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    in_cluster: bool
    inter_broker_listener: str
    log_dirs: tuple[Path, ...]
    metadata_dir: Path
    metrics_listener: tuple[str, int] | None
    max_connections_per_ip_overrides: dict[str, int]
    warnings: tuple[str, ...]

    def __init__(self, static: Mapping[str, str], *, defaults: Mapping[str, Any] | None = None) -> None:
        """From names and text. Raises ConfigError with one line about the first value that is wrong."""
        static = _with_both_ids(static)
        warnings: list[str] = []
        parsed = BROKER_CONFIGS.parse(static, warnings=warnings)
        self.warnings = tuple(warnings)
        self.in_cluster = bool(parsed["zookeeper.connect"])
        if not self.in_cluster:
            _drop_generated_id(static, parsed)
            defaults = {**SINGLE_NODE_DEFAULTS, **(defaults or {})}
        self._take(BrokerConfigs(static, defaults=defaults or {}))

        values = self.configs.values
        _check_broker_id(values, may_be_generated=self.in_cluster)
        protocols = _protocol_map(values["listener.security.protocol.map"])
        self.listeners = _parse_listeners("listeners", values["listeners"], protocols)
        _check_ports(self.listeners)
        self.advertised_listeners = _advertised(values["advertised.listeners"], self.listeners, protocols)
        self.inter_broker_listener = _inter_broker_listener(self.configs, self.advertised_listeners)
        self.log_dirs = _log_dirs(values)
        self.metadata_dir = Path(values["metadata.dir"]).absolute() if values["metadata.dir"] else self.log_dirs[0]
        self.metrics_listener = _http_address(values["metrics.listener"])

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> Settings:
        """From a file, then `name=value` texts that take precedence over it.

        Without a file the broker listens only for this machine: nobody should open a port to the world by accident.
        """
        static = {} if path is None else read_properties(path)
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise SettingsError(f"--override {text}: expected name=value")
            static[name.strip()] = value
        return cls(static, defaults={"listeners": LOCAL_LISTENERS} if path is None else None)

    def __getitem__(self, name: str) -> Any:
        return self.configs.values[name]

    def __getattr__(self, attribute: str) -> Any:
        try:
            return self._by_attribute[attribute]
        except KeyError:
            raise AttributeError(f"there is no broker config for {attribute!r}") from None

    def take_generated_id(self, broker_id: int) -> None:
        """The id that the cluster gave to this broker, which has none in its settings."""
        static = {**self.configs.static, "broker.id": str(broker_id), "node.id": str(broker_id)}
        self._take(BrokerConfigs(static, defaults=self.configs.defaults))

    def is_set(self, name: str) -> bool:
        """Whether somebody chose the value, rather than it being built in."""
        return self.configs.is_set(name)

    def topic_values(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        """A topic's parsed settings: its own, else this broker's."""
        return self.configs.topic_values(overrides)

    def set_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        """Replace what is set while running, for all brokers or for this one; returns the names that now differ.

        Raises ConfigError, with nothing changed, when the values do not fit together.
        """
        before = self.configs
        self._take(before.with_dynamic(default=default, broker=broker))
        after = self.configs.values
        return frozenset(
            name for name in {*before.values, *after} if before.values.get(name, _MISSING) != after.get(name, _MISSING)
        )

    def _take(self, configs: BrokerConfigs) -> None:
        overrides = _per_ip_overrides(configs.values)
        self.configs = configs
        self.max_connections_per_ip_overrides = overrides
        self._by_attribute = {key.attribute: configs.values[key.name] for key in BROKER_CONFIGS}


_MISSING = object()


def read_properties(path: str | Path) -> dict[str, str]:
    """A properties file; SettingsError, in one line that names the file, when it cannot be read."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    try:
        return parse_properties(text)
    except PropertiesError as error:
        raise SettingsError(f"{path}, {error}") from None


def _with_both_ids(static: Mapping[str, str]) -> dict[str, str]:
    """`broker.id` and `node.id` are one setting under two names."""
    static = dict(static)
    broker, node = static.get("broker.id"), static.get("node.id")
    if broker is not None and node is not None and broker.strip() != node.strip():
        raise ConfigError("node.id", f"{node} is not allowed, it must be the same as broker.id ({broker})")
    if node is not None:
        static["broker.id"] = node
    elif broker is not None:
        static["node.id"] = broker
    return static


def _drop_generated_id(static: dict[str, str], values: Mapping[str, Any]) -> None:
    """A single node that asks for a generated id (-1) gets the one that it has by default."""
    if values["broker.id"] == GENERATED_ID and values["broker.id.generation.enable"]:
        for name in ("broker.id", "node.id"):
            static.pop(name, None)


def _check_broker_id(values: Mapping[str, Any], *, may_be_generated: bool) -> None:
    if may_be_generated and values["broker.id"] == GENERATED_ID and values["broker.id.generation.enable"]:
        return
    highest = values["reserved.broker.max.id"] if values["broker.id.generation.enable"] else INT_MAX
    BROKER_CONFIGS["broker.id"].check(values["broker.id"], AtLeast(0))
    BROKER_CONFIGS["broker.id"].check(values["broker.id"], AtMost(highest, "reserved.broker.max.id"))


def _pairs(name: str, text: str, what: str) -> list[tuple[str, str]]:
    """`a:b,c:d`, split at the last colon of each."""
    pairs = []
    for item in text.split(","):
        if item.strip():
            left, colon, right = item.strip().rpartition(":")
            if not colon or not left or not right:
                raise ConfigError(name, f"'{item.strip()}' is not allowed, it must be {what}")
            pairs.append((left.strip(), right.strip()))
    return pairs


def _protocol_map(text: str) -> dict[str, str]:
    name = "listener.security.protocol.map"
    protocols = {}
    for listener, protocol in _pairs(name, text, "listener:protocol"):
        if protocol.upper() not in KNOWN_PROTOCOLS:
            allowed = ", ".join(KNOWN_PROTOCOLS)
            raise ConfigError(name, f"'{protocol}' is not allowed as a protocol, it must be one of {allowed}")
        if listener.upper() in protocols:
            raise ConfigError(name, f"{listener} is there twice")
        protocols[listener.upper()] = protocol.upper()
    return protocols


_ENDPOINT = re.compile(r"([^:/]+)://(?:\[([0-9a-fA-F:%.]+)\]|([^:\[\]/]*)):([0-9]+)", re.ASCII)


def _parse_listeners(key: str, text: str, protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    listeners: list[Listener] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _ENDPOINT.fullmatch(item)
        if match is None or int(match[4]) > 65535:
            raise ConfigError(
                key, f"'{item}' is not allowed, it must be name://host:port, as PLAINTEXT://localhost:9092"
            )
        name = match[1].upper()
        if name not in protocols:
            raise ConfigError(key, f"there is no security protocol for {name} in listener.security.protocol.map")
        if protocols[name] not in SERVED_PROTOCOLS:
            raise ConfigError(key, f"{protocols[name]} ({name}) is not served yet, only {', '.join(SERVED_PROTOCOLS)}")
        if any(other.name == name for other in listeners):
            raise ConfigError(key, f"{name} is there twice, each listener needs a name of its own")
        listeners.append(Listener(name, protocols[name], match[2] or match[3], int(match[4])))
    if not listeners:
        raise ConfigError(key, "at least one must be given, as PLAINTEXT://localhost:9092")
    return tuple(listeners)


def _check_ports(listeners: tuple[Listener, ...]) -> None:
    seen: dict[int, Listener] = {}
    for listener in listeners:
        other = seen.setdefault(listener.port, listener)
        # The same port twice is fine only for one IPv4 and one IPv6 address, or when any free port will do.
        if listener.port and other is not listener and (":" in other.host) == (":" in listener.host):
            raise ConfigError("listeners", f"{other} and {listener} have the same port, each listener needs its own")


def _advertised(
    text: str | None, listeners: tuple[Listener, ...], protocols: Mapping[str, str]
) -> tuple[Listener, ...]:
    key = "advertised.listeners"
    chosen = _parse_listeners(key, text, protocols) if text else listeners
    names = {listener.name for listener in listeners}
    for listener in chosen:
        if listener.name not in names:
            raise ConfigError(key, f"{listener.name} is not among the listeners ({', '.join(sorted(names))})")
        if listener.host in ("0.0.0.0", "::"):
            raise ConfigError(
                key, f"clients cannot connect to {listener.host}; say by which name they reach this broker"
            )
    return tuple(listener if listener.host else listener._replace(host=_own_name()) for listener in chosen)


def _own_name() -> str:
    """What other machines call this one, as far as it knows."""
    return socket.getfqdn() or socket.gethostname()


def _inter_broker_listener(configs: BrokerConfigs, advertised: tuple[Listener, ...]) -> str:
    name, protocol = configs.values["inter.broker.listener.name"], configs.values["security.inter.broker.protocol"]
    if name and configs.is_set("security.inter.broker.protocol"):
        raise ConfigError("inter.broker.listener.name", "cannot be set together with security.inter.broker.protocol")
    chosen: str = (name or protocol).upper()
    names = [listener.name for listener in advertised]
    if chosen not in names:
        raise ConfigError(
            "inter.broker.listener.name", f"'{chosen}' is not allowed, it must be one of {', '.join(names)}"
        )
    return chosen


def _log_dirs(values: Mapping[str, Any]) -> tuple[Path, ...]:
    text = values["log.dirs"] or values["log.dir"]
    dirs = tuple(Path(part.strip()).absolute() for part in text.split(",") if part.strip())
    if not dirs:
        raise ConfigError("log.dirs", "at least one directory must be given")
    for path in dirs:
        if dirs.count(path) > 1:
            raise ConfigError("log.dirs", f"{path} is there twice")
    return dirs


def _http_address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)


def _per_ip_overrides(values: Mapping[str, Any]) -> dict[str, int]:
    """Limits by address. A host name stands for all its addresses; one that cannot be found, for itself."""
    key = "max.connections.per.ip.overrides"
    limits: dict[str, int] = {}
    for host, count in _pairs(key, values[key], "host:number"):
        if not count.isdecimal():
            raise ConfigError(key, f"'{count}' is not allowed for {host}, it must be a whole number")
        for address in _addresses(host.strip("[]")):
            limits[address] = int(count)
    if values["max.connections.per.ip"] == 0 and not limits:
        raise ConfigError("max.connections.per.ip", f"0 is allowed only together with {key}")
    return limits


def _addresses(host: str) -> list[str]:
    from ipaddress import ip_address

    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))
    except OSError:
        return [host]
