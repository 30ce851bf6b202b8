"""A broker's settings, parsed and validated from a properties file.

`settings.num_partitions` and `settings["num.partitions"]` return the current value, including
dynamic updates. The attributes that `Settings` declares, for example `listeners` and `log_dirs`,
are parsed further than the values by name.
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
KNOWN_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# The value of `broker.id` for an id that the cluster generates.
GENERATED_ID = -1


class SettingsError(ValueError):
    """An invalid file or argument. `str()` is one line."""


class Listener(NamedTuple):
    """An address to listen on, or an advertised address. An empty host means every interface.
    Port 0 means any free port."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Settings:
    """Owns the settings of one broker. After startup only `set_dynamic` changes them, on the event
    loop.

    `configs` has the layers for DescribeConfigs. `warnings` are the lines to log at startup.
    """

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
        """Parse `static`, the configured texts by name. Raises ConfigError for the first invalid
        value."""
        static = _with_both_ids(static)
        warnings: list[str] = []
        parsed = BROKER_CONFIGS.parse(static, warnings=warnings)
        self.warnings = tuple(warnings)
        self.in_cluster = bool(parsed["zookeeper.connect"])
        if not self.in_cluster:
            _drop_generated_id(static, parsed)
            defaults = {**SINGLE_NODE_DEFAULTS, **(defaults or {})}
        self._apply(BrokerConfigs(static, defaults=defaults or {}))

        values = self.configs.values
        _check_broker_id(values, may_be_generated=self.in_cluster)
        protocols = _protocol_map(values["listener.security.protocol.map"])
        self.listeners = _parse_listeners("listeners", values["listeners"], protocols)
        _check_ports(self.listeners)
        self.advertised_listeners = _advertised(values["advertised.listeners"], self.listeners, protocols)
        self.inter_broker_listener = _inter_broker_listener(
            self.configs, self.advertised_listeners, in_cluster=self.in_cluster
        )
        self.log_dirs = _log_dirs(values)
        self.metadata_dir = Path(values["metadata.dir"]).absolute() if values["metadata.dir"] else self.log_dirs[0]
        self.metrics_listener = _http_address(values["metrics.listener"])

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> Settings:
        """Read a properties file; `name=value` texts in `overrides` take precedence.

        Without a file the broker listens only on localhost, so that it does not open a port to the
        network by accident.
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

    def get(self, name: str, default: Any) -> Any:
        """Return the value, or `default` if the name is not in the table and not set, such as a
        setting of a single listener."""
        return self.configs.values.get(name, default)

    def __getattr__(self, attribute: str) -> Any:
        try:
            return self._by_attribute[attribute]
        except KeyError:
            raise AttributeError(f"there is no broker config {attribute!r}") from None

    def set_generated_id(self, broker_id: int) -> None:
        """Set the generated id of a broker without `broker.id`."""
        static = {**self.configs.static, "broker.id": str(broker_id), "node.id": str(broker_id)}
        self._apply(BrokerConfigs(static, defaults=self.configs.defaults))

    def is_set(self, name: str) -> bool:
        """Whether the value is configured, not a default."""
        return self.configs.is_set(name)

    def set_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        """Replace the dynamic settings of all brokers or of this broker. Returns the names of the
        changed settings.

        Raises ConfigError and changes nothing if the values are invalid together.
        """
        previous = self.configs.values
        self._apply(self.configs.with_dynamic(default=default, broker=broker))
        values = self.configs.values
        names = {*previous, *values}
        return frozenset(name for name in names if previous.get(name, _MISSING) != values.get(name, _MISSING))

    def _apply(self, configs: BrokerConfigs) -> None:
        overrides = _per_ip_overrides(configs.values)
        self.configs = configs
        self.max_connections_per_ip_overrides = overrides
        self._by_attribute = {key.attribute: configs.values[key.name] for key in BROKER_CONFIGS}


_MISSING = object()


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a properties file. Raises SettingsError with the path if the file cannot be read or
    parsed."""
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
    """Set both `broker.id` and `node.id`, which are names of the same setting."""
    static = dict(static)
    broker, node = static.get("broker.id"), static.get("node.id")
    if broker is not None and node is not None and broker.strip() != node.strip():
        raise ConfigError("node.id", f"{node} is not allowed; it must be the same as broker.id ({broker})")
    if node is not None:
        static["broker.id"] = node
    elif broker is not None:
        static["node.id"] = broker
    return static


def _drop_generated_id(static: dict[str, str], values: Mapping[str, Any]) -> None:
    """Replace a generated id (-1) of a single node by its default id."""
    if values["broker.id"] == GENERATED_ID and values["broker.id.generation.enable"]:
        for name in ("broker.id", "node.id"):
            static.pop(name, None)


def _check_broker_id(values: Mapping[str, Any], *, may_be_generated: bool) -> None:
    if may_be_generated and values["broker.id"] == GENERATED_ID and values["broker.id.generation.enable"]:
        return
    highest = values["reserved.broker.max.id"] if values["broker.id.generation.enable"] else INT_MAX
    BROKER_CONFIGS["broker.id"].check(values["broker.id"], AtLeast(0))
    BROKER_CONFIGS["broker.id"].check(values["broker.id"], AtMost(highest, "reserved.broker.max.id"))


def _pairs(name: str, text: str, expected: str) -> list[tuple[str, str]]:
    """Return the pairs of `a:b,c:d`, each split at its last colon. Raises ConfigError."""
    pairs = []
    for item in text.split(","):
        if item.strip():
            key, colon, value = item.strip().rpartition(":")
            if not colon or not key or not value:
                raise ConfigError(name, f"'{item.strip()}' is not allowed; it must be {expected}")
            pairs.append((key.strip(), value.strip()))
    return pairs


def _protocol_map(text: str) -> dict[str, str]:
    name = "listener.security.protocol.map"
    protocols = {}
    for listener, protocol in _pairs(name, text, "listener:protocol"):
        if protocol.upper() not in KNOWN_PROTOCOLS:
            allowed = ", ".join(KNOWN_PROTOCOLS)
            raise ConfigError(name, f"'{protocol}' is not allowed as a protocol, it must be one of {allowed}")
        if listener.upper() in protocols:
            raise ConfigError(name, f"{listener} is listed twice")
        protocols[listener.upper()] = protocol.upper()
    return protocols


_ENDPOINT = re.compile(r"([^:/]+)://(?:\[([0-9a-fA-F:%.]+)\]|([^:\[\]/]*)):([0-9]+)", re.ASCII)


def _parse_listeners(key: str, text: str, protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    listeners: list[Listener] = []
    for item in filter(None, map(str.strip, text.split(","))):
        match = _ENDPOINT.fullmatch(item)
        if match is None or int(match[4]) > 65535:
            raise ConfigError(
                key, f"'{item}' is not allowed; it must be name://host:port, such as PLAINTEXT://localhost:9092"
            )
        name = match[1].upper()
        if name not in protocols:
            raise ConfigError(key, f"there is no security protocol for {name} in listener.security.protocol.map")
        if any(other.name == name for other in listeners):
            raise ConfigError(key, f"{name} is listed twice, each listener needs a unique name")
        listeners.append(Listener(name, protocols[name], match[2] or match[3], int(match[4])))
    if not listeners:
        raise ConfigError(key, "at least one listener must be set, such as PLAINTEXT://localhost:9092")
    return tuple(listeners)


def _check_ports(listeners: tuple[Listener, ...]) -> None:
    by_port: dict[int, Listener] = {}
    for listener in listeners:
        other = by_port.setdefault(listener.port, listener)
        # Two listeners may have the same port only if one is IPv4 and one is IPv6, or if the
        # port is 0.
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
                key, f"clients cannot connect to {listener.host}; set the name by which they reach this broker"
            )
    return tuple(listener if listener.host else listener._replace(host=_canonical_host()) for listener in chosen)


def _canonical_host() -> str:
    """The fully qualified name of this machine."""
    return socket.getfqdn() or socket.gethostname()


def _inter_broker_listener(configs: BrokerConfigs, advertised: tuple[Listener, ...], *, in_cluster: bool) -> str:
    """Return the name of the listener for other brokers. A single node has no other brokers, so its
    first listener is the default."""
    name, protocol = configs.values["inter.broker.listener.name"], configs.values["security.inter.broker.protocol"]
    if name and configs.is_set("security.inter.broker.protocol"):
        raise ConfigError("inter.broker.listener.name", "cannot be set together with security.inter.broker.protocol")
    chosen: str = (name or protocol).upper()
    names = [listener.name for listener in advertised]
    is_set = name or configs.is_set("security.inter.broker.protocol")
    if chosen not in names and not in_cluster and not is_set:
        return names[0]
    if chosen not in names:
        raise ConfigError(
            "inter.broker.listener.name", f"'{chosen}' is not allowed; it must be one of {', '.join(names)}"
        )
    return chosen


def _log_dirs(values: Mapping[str, Any]) -> tuple[Path, ...]:
    text = values["log.dirs"] or values["log.dir"]
    dirs = tuple(Path(item.strip()).absolute() for item in text.split(",") if item.strip())
    if not dirs:
        raise ConfigError("log.dirs", "at least one directory must be set")
    for path in dirs:
        if dirs.count(path) > 1:
            raise ConfigError("log.dirs", f"{path} is listed twice")
    return dirs


def _http_address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)


def _per_ip_overrides(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits by IP address. A host name is resolved to all its addresses. A name that
    does not resolve stays in the result."""
    key = "max.connections.per.ip.overrides"
    limits: dict[str, int] = {}
    for host, count in _pairs(key, values[key], "host:number"):
        if not count.isdecimal():
            raise ConfigError(key, f"'{count}' is not allowed for {host}; it must be an integer")
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
        return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None)))
    except OSError:
        return [host]
