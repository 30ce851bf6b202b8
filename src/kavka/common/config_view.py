"""The current value of every setting, and its source.

A broker's settings have four layers, highest precedence first: dynamic for this broker, dynamic for
all brokers, the properties file, the defaults. Settings of a topic or a group override all layers.
`BrokerConfigs` is an immutable snapshot of the layers. `describe_*` return the entries of a
DescribeConfigs response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kavka.common.broker_config import BROKER_CONFIGS, base_name
from kavka.common.config import LONG_MAX, AtLeast, AtMost, ConfigError, ConfigKey, ConfigTable, Dynamic
from kavka.common.group_config import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, SINGLE_GROUP_CONFIGS, bounds
from kavka.common.topic_config import TOPIC_CONFIGS


class ConfigSource(IntEnum):
    """The source of a value, numbered as `config_source` of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class SynonymEntry:
    """A layer that sets a setting or one of its synonyms."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting in a DescribeConfigs response. `value` is None for a secret and for a setting
    that is not set; `type` is 0 for an unknown name."""

    name: str
    value: str | None
    source: ConfigSource
    synonyms: tuple[SynonymEntry, ...]
    is_sensitive: bool
    read_only: bool
    type: int
    documentation: str


class BrokerConfigs:
    """The layers of one broker's settings and the resulting parsed values. Immutable.

    `static` has the texts of the properties file. `defaults` overrides defaults of the table, for
    example for a single node. `values` has every name of the table. The constructor raises
    ConfigError if a value in any layer is invalid.
    """

    __slots__ = ("_topic_defaults", "defaults", "dynamic_broker", "dynamic_default", "static", "values")

    def __init__(
        self,
        static: Mapping[str, str],
        *,
        defaults: Mapping[str, Any] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        self.static = dict(static)
        self.defaults: dict[str, Any] = {**BROKER_CONFIGS.defaults(), **(defaults or {})}
        self.dynamic_default = dict(dynamic_default or {})
        self.dynamic_broker = dict(dynamic_broker or {})
        self.values = dict(self.defaults)
        for layer in (self.static, self.dynamic_default, self.dynamic_broker):
            for name, text in layer.items():
                if (key := BROKER_CONFIGS.get(name)) is not None:
                    self.values[name] = key.parse(text)
        BROKER_CONFIGS.cross_check(self.values)
        self._topic_defaults = {key.name: self.default_of(key) for key in TOPIC_CONFIGS}

    def with_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> BrokerConfigs:
        """Return a copy with one or both of the dynamic layers replaced. Raises ConfigError."""
        return BrokerConfigs(
            self.static,
            defaults=self.defaults,
            dynamic_default=self.dynamic_default if default is None else default,
            dynamic_broker=self.dynamic_broker if broker is None else broker,
        )

    def is_set(self, name: str) -> bool:
        return name in self.static or name in self.dynamic_default or name in self.dynamic_broker

    def topic_values(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        """Return every setting of a topic, parsed: the topic's override or the broker's default.

        Unknown names are ignored. `check_topic` rejects them, so only another version of Kavka can
        have stored them.
        """
        parsed = {name: key.parse(text) for name, text in overrides.items() if (key := TOPIC_CONFIGS.get(name))}
        values = {**self._topic_defaults, **parsed}
        self._apply_timestamp_difference(values, parsed)
        return values

    def check_topic(self, overrides: Mapping[str, str]) -> None:
        """Raise ConfigError if a topic may not have these overrides, or a name is unknown."""
        for name, text in overrides.items():
            TOPIC_CONFIGS.parse_one(name, text)
        TOPIC_CONFIGS.cross_check(self.topic_values(overrides))

    def check_group(self, overrides: Mapping[str, str]) -> None:
        """Raise ConfigError if a group may not have these overrides, or a name is unknown."""
        for name, text in overrides.items():
            value = SINGLE_GROUP_CONFIGS.parse_one(name, text)
            low, high = bounds(name)
            SINGLE_GROUP_CONFIGS[name].check(value, AtLeast(self.values[low], low))
            SINGLE_GROUP_CONFIGS[name].check(value, AtMost(self.values[high], high))
        if SESSION_TIMEOUT in overrides or HEARTBEAT_INTERVAL in overrides:
            values = self.group_values(overrides)
            min_session_timeout = AtLeast(values[HEARTBEAT_INTERVAL] + 1, f"more than {HEARTBEAT_INTERVAL}")
            SINGLE_GROUP_CONFIGS[SESSION_TIMEOUT].check(values[SESSION_TIMEOUT], min_session_timeout)

    def group_values(self, overrides: Mapping[str, str]) -> dict[str, int]:
        """Return every setting of a group, parsed: the group's override or the broker's default.

        An override outside the broker's bounds is clamped: the bounds may have changed.
        """
        values: dict[str, int] = {key.name: self.default_of(key) for key in SINGLE_GROUP_CONFIGS}
        for name, text in overrides.items():
            if (key := SINGLE_GROUP_CONFIGS.get(name)) is not None:
                low, high = bounds(name)
                values[name] = min(max(key.parse(text), self.values[low]), self.values[high])
        return values

    def default_of(self, key: ConfigKey) -> Any:
        """Return the value of a topic or group setting without an override."""
        for synonym in key.synonyms:
            if (value := self.values[synonym.name]) is not None:
                return synonym.convert(value)
        return key.default

    def _apply_timestamp_difference(self, values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
        """Replace `before` and `after` with the deprecated difference, unless they are set at the
        same level (topic or broker) or above."""
        difference = values["message.timestamp.difference.max.ms"]
        if difference == LONG_MAX:
            return
        is_topic_level = "message.timestamp.difference.max.ms" in overrides
        for direction in ("before", "after"):
            name = f"message.timestamp.{direction}.max.ms"
            if name not in overrides and (is_topic_level or not self.is_set(f"log.{name}")):
                values[name] = difference


def check_dynamic(changes: Mapping[str, str], *, per_broker: bool) -> None:
    """Raise ConfigError if a dynamic update may not set these values, for a single broker
    (`per_broker`) or for all.

    Unknown names are accepted, as in Kafka: they may belong to a plug-in.
    """
    for name, text in changes.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            continue
        if key.dynamic is Dynamic.READ_ONLY:
            raise ConfigError(name, "cannot be changed at run time; set it in the broker's properties file")
        if key.dynamic is Dynamic.PER_BROKER and not per_broker:
            raise ConfigError(name, "cannot be set for all brokers, only per broker")
        key.parse(text)


def describe_broker(configs: BrokerConfigs, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """Return every setting of this broker, or the settings in `names` if it is not empty."""
    names_to_list = {key.name: None for key in BROKER_CONFIGS if not key.internal}
    for layer in (configs.static, configs.dynamic_default, configs.dynamic_broker):
        names_to_list.update(dict.fromkeys(layer))
    return [_broker_entry(configs, name, configs.values.get(name)) for name in _requested(names_to_list, names)]


def describe_broker_defaults(configs: BrokerConfigs, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """Return the cluster-wide dynamic defaults: the entries for the broker with the empty name."""
    entries = []
    for name in _requested(configs.dynamic_default, names):
        key = BROKER_CONFIGS.get(name)
        value = None if key is None else key.parse(configs.dynamic_default[name])
        entries.append(_broker_entry(configs, name, value, only=ConfigSource.DYNAMIC_DEFAULT_BROKER))
    return entries


def describe_topic(
    configs: BrokerConfigs, overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Return every setting of a topic with these overrides, or the settings in `names` if it is not
    empty."""
    return _describe_overrides(TOPIC_CONFIGS, ConfigSource.TOPIC, configs, overrides, names)


def describe_group(
    configs: BrokerConfigs, overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """Return every setting of a group with these overrides, or the settings in `names` if it is not
    empty."""
    return _describe_overrides(SINGLE_GROUP_CONFIGS, ConfigSource.GROUP, configs, overrides, names)


def _describe_overrides(
    table: ConfigTable,
    source: ConfigSource,
    configs: BrokerConfigs,
    overrides: Mapping[str, str],
    names: Iterable[str] | None,
) -> list[ConfigEntry]:
    names_to_list = {key.name: None for key in table if not key.internal} | dict.fromkeys(overrides)
    return [_override_entry(table, source, configs, overrides, name) for name in _requested(names_to_list, names)]


def _requested(names_to_list: Iterable[str], names: Iterable[str] | None) -> list[str]:
    requested = set(names or ())
    return [name for name in names_to_list if not requested or name in requested]


def _broker_entry(configs: BrokerConfigs, name: str, value: Any, only: ConfigSource | None = None) -> ConfigEntry:
    key = BROKER_CONFIGS.get(name)
    synonyms = _broker_synonyms(configs, name)
    if only is not None:
        synonyms = tuple(entry for entry in synonyms if entry.source is only)
    text = None if key is None else key.format(value)
    return _entry(name, key, text, synonyms, read_only=key is None or key.dynamic is Dynamic.READ_ONLY)


def _override_entry(
    table: ConfigTable, source: ConfigSource, configs: BrokerConfigs, overrides: Mapping[str, str], name: str
) -> ConfigEntry:
    key = table.get(name)
    synonyms: tuple[SynonymEntry, ...] = ()
    value = None
    if key is not None:
        value = key.format(key.parse(overrides[name]) if name in overrides else configs.default_of(key))
        if key.synonyms:
            synonyms = _broker_synonyms(configs, key.synonyms[0].name)
    if name in overrides:
        synonyms = (SynonymEntry(name, value, source), *synonyms)
    return _entry(name, key, value, synonyms, read_only=False)


def _entry(
    name: str, key: ConfigKey | None, value: str | None, synonyms: tuple[SynonymEntry, ...], *, read_only: bool
) -> ConfigEntry:
    # The value of a name that is not in the table may be a secret, so it is hidden.
    is_sensitive = key is None or key.is_sensitive
    return ConfigEntry(
        name=name,
        value=None if is_sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        synonyms=synonyms,
        is_sensitive=is_sensitive,
        read_only=read_only,
        type=0 if key is None else int(key.type),
        documentation="" if key is None else key.help,
    )


def _broker_synonyms(configs: BrokerConfigs, name: str) -> tuple[SynonymEntry, ...]:
    """Return the layers that set `name` or a synonym, highest precedence first.

    As in Kafka, entries before the first entry of the name itself are dropped: `log.retention.ms`
    has no synonyms while only `log.retention.hours` is set.
    """
    key = BROKER_CONFIGS.get(name)
    is_sensitive = key is None or key.is_sensitive
    entries: list[SynonymEntry] = []
    for layer, source in (
        (configs.dynamic_broker, ConfigSource.DYNAMIC_BROKER),
        (configs.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (configs.static, ConfigSource.STATIC_BROKER),
    ):
        for synonym in _chain(name):
            if synonym in layer:
                entries.append(SynonymEntry(synonym, None if is_sensitive else layer[synonym], source))
    for synonym in _chain(name):
        if (default := configs.defaults.get(synonym)) is not None:
            text = None if is_sensitive else BROKER_CONFIGS[synonym].format(default)
            entries.append(SynonymEntry(synonym, text, ConfigSource.DEFAULT))
    while entries and entries[0].name != name:
        del entries[0]
    return tuple(entries)


_CHAINS = {
    member: chain
    for chain in ((key.name, *(s.name for s in key.synonyms)) for key in BROKER_CONFIGS if key.synonyms)
    for member in chain
}


def _chain(name: str) -> tuple[str, ...]:
    """Return a setting and its synonyms, the finest unit first (log.retention.ms, .minutes,
    .hours). For a setting with a listener's prefix, return the name with and without the prefix."""
    base = base_name(name)
    return (name, base) if base != name else _CHAINS.get(name, (name,))
