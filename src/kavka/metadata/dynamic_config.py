"""The dynamic settings of a cluster: a cache of the znodes under /config, kept up to date.

A change reads the znode of a topic, broker or group, and writes the znode if its version is still
the same. Otherwise another broker has changed the znode, and the change is computed again. The same
transaction creates a notification under /config/changes. Every broker follows the notifications
(`notifications.py`), reads the changed znode and applies it. The broker that handles the request
applies the change before it responds.

This module owns the overrides of topics and groups; `common.config_view` resolves their defaults. A
group without overrides has no znode. Kafka 3.9 has no groups under /config and logs their
notifications as unknown. `entity_configs` owns the settings of users, clients and addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kavka.common.broker_config import BROKER_CONFIGS
from kavka.common.clock import Clock, SystemClock
from kavka.common.config import ConfigError, ConfigTable
from kavka.common.config_view import BrokerConfigs
from kavka.common.group_config import SINGLE_GROUP_CONFIGS
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.metadata import paths
from kavka.metadata.entity_configs import ENTITY_TYPES, EntityConfigs
from kavka.metadata.notifications import NotificationFollower
from kavka.metadata.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetData,
    parent_of,
)
from kavka.security.password_encoder import EncodingError, PasswordEncoder
from kavka.storage.log_config import LogConfig

logger = logging.getLogger(__name__)

# A function from the current values to the new values, or to None to leave them unchanged. It is
# called again after a concurrent change.
Change = Callable[[dict[str, str]], Mapping[str, str] | None]


class LiveSettings(Protocol):
    """The broker's settings (`broker.settings.Settings`)."""

    @property
    def configs(self) -> BrokerConfigs: ...

    def set_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> frozenset[str]: ...


class DynamicConfig:
    """Owns the overrides of topics and groups, and the log configurations of topics. Only the event
    loop may call the methods.

    `on_topic` is called with every topic whose log configuration may have changed, `on_group` with
    every group whose overrides changed, `on_broker` with the names of the changed broker settings.
    """

    def __init__(
        self, store: MetadataStore, broker_id: int, settings: LiveSettings, clock: Clock | None = None
    ) -> None:
        self.on_topic: list[Callable[[str], Any]] = []
        self.on_group: list[Callable[[str], Any]] = []
        self.on_broker: list[Callable[[frozenset[str]], Any]] = []
        self.entities = EntityConfigs(store)
        self._store = store
        self._broker_id = broker_id
        self._settings = settings
        self._topics: dict[str, dict[str, str]] = {}
        # Only groups with overrides.
        self._groups: dict[str, dict[str, str]] = {}
        self._log_configs: dict[str, LogConfig] = {}
        self._default_log_config: LogConfig | None = None
        self._follower = NotificationFollower(
            store, paths.CONFIG_CHANGES, paths.CONFIG_CHANGE_PREFIX, self._apply_notification, clock or SystemClock()
        )
        # Serializes the changes of this broker, so that they conflict only with other brokers.
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Read all settings, and watch for changes. Raises StoreUnavailable."""
        await self._follower.start()
        await self._read_broker(None)
        await self._read_broker(self._broker_id)
        await self.load_topics(await self._store.children(f"{paths.CONFIG}/{paths.TOPIC_CONFIGS}"))
        with contextlib.suppress(NoNode):
            nodes = await self._store.children(_GROUPS)
            all_overrides = await asyncio.gather(*(self._read(f"{_GROUPS}/{node}") for node in nodes))
            for node, overrides in zip(nodes, all_overrides, strict=True):
                self._apply_group(paths.desanitize(node), overrides)
        await self.entities.load()

    async def stop(self) -> None:
        await self._follower.stop()

    # ---- current settings

    @property
    def broker(self) -> BrokerConfigs:
        return self._settings.configs

    def topic_overrides(self, topic: str) -> dict[str, str]:
        """The overrides of the topic, by name."""
        return dict(self._topics.get(topic, {}))

    def log_config(self, topic: str) -> LogConfig:
        """Return the log configuration of a topic: its overrides and the broker's defaults."""
        config = self._log_configs.get(topic)
        if config is None:
            overrides = self._topics.get(topic)
            if overrides:
                config = LogConfig.from_values(self.broker.topic_values(_valid_only(TOPIC_CONFIGS, overrides)))
            else:
                if self._default_log_config is None:
                    self._default_log_config = LogConfig.from_values(self.broker.topic_values({}))
                config = self._default_log_config
            self._log_configs[topic] = config
        return config

    @property
    def groups(self) -> list[str]:
        """The groups with overrides."""
        return sorted(self._groups)

    def group_overrides(self, group: str) -> dict[str, str]:
        """The overrides of the group, by name."""
        return dict(self._groups.get(group, {}))

    def group_values(self, group: str) -> dict[str, int]:
        """Every setting of the group: its override or the broker's default."""
        return self.broker.group_values(self._groups.get(group, {}))

    async def load_topics(self, topics: Iterable[str]) -> None:
        """Read the overrides of topics that are not cached. Call this before their logs are
        created."""
        uncached = [topic for topic in dict.fromkeys(topics) if topic not in self._topics]
        all_overrides = await asyncio.gather(*(self._read(paths.topic_config(topic)) for topic in uncached))
        for topic, overrides in zip(uncached, all_overrides, strict=True):
            self._topics[topic] = overrides
            self._log_configs.pop(topic, None)

    def forget_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._log_configs.pop(topic, None)

    # ---- changes, which several brokers may make at the same time

    async def change_topic(self, topic: str, change: Change) -> None:
        """Change the overrides of a topic. `change` validates them
        (`BrokerConfigs.check_topic`)."""
        values = await self._change(paths.topic_config(topic), f"{paths.TOPIC_CONFIGS}/{topic}", None, change)
        if values is not None:
            self._apply_topic(topic, values)

    async def change_broker(self, broker_id: int | None, change: Change) -> None:
        """Change the dynamic settings of a broker, or of all brokers if `broker_id` is None.
        `change` validates them (`check_dynamic`). Passwords are stored encrypted. Raises
        ConfigError if a password cannot be encrypted."""
        plain_values: dict[str, str] = {}

        def change_decoded(stored: dict[str, str]) -> Mapping[str, str] | None:
            current = self._decoded(stored)
            new_values = change(dict(current))
            if new_values is None:
                return None
            plain_values.clear()
            plain_values.update(new_values)
            return {
                name: stored[name] if current.get(name) == text else self._encoded(name, text)
                for name, text in new_values.items()
            }

        name = paths.DEFAULT_ENTITY if broker_id is None else str(broker_id)
        entity = f"{paths.BROKER_CONFIGS}/{name}"
        values = await self._change(paths.broker_config(broker_id), entity, BROKER_CONFIGS, change_decoded)
        if values is not None and broker_id in (None, self._broker_id):
            self._apply_broker(broker_id, plain_values)

    async def change_group(self, group: str, change: Change) -> None:
        """Change the overrides of a group. `change` validates them
        (`BrokerConfigs.check_group`)."""
        entity = f"{paths.GROUP_CONFIGS}/{paths.entity_node(group)}"
        values = await self._change(paths.group_config(group), entity, SINGLE_GROUP_CONFIGS, change, keep_empty=False)
        if values is not None:
            self._apply_group(group, values)

    async def change_entity(self, entity_path: str, change: Change) -> None:
        """Change the settings of a user, client or address (`users/alice/clients/c`). `change` gets
        all settings of the znode and must keep those that it does not own. A znode without settings
        and children is removed."""
        keep_empty = await self.entities.has_children(entity_path)
        values = await self._change(f"{paths.CONFIG}/{entity_path}", entity_path, None, change, keep_empty=keep_empty)
        if values is not None:
            self.entities.apply(entity_path, values)
            if not values:
                await self.entities.remove_empty_parents(entity_path)

    async def _change(
        self, path: str, entity: str, table: ConfigTable | None, change: Change, *, keep_empty: bool = True
    ) -> dict[str, str] | None:
        """Apply `change` to a znode. Returns the written values, or None if `change` left them
        unchanged. Current values that are invalid according to `table` are dropped. Every failed
        attempt means that a change of another broker succeeded, so the number of attempts has no
        limit."""
        async with self._changing:
            while True:
                current, version = await self._read_with_version(path)
                new_values = change(current if table is None else _valid_only(table, current))
                if new_values is None:
                    return None
                values = dict(new_values)
                try:
                    if version is None and values:
                        await self._store.ensure(parent_of(path))
                    await self._store.multi(_write(path, entity, values, version, keep_empty))
                    return values
                except NotEmpty:
                    keep_empty = True
                except (BadVersion, NoNode, NodeExists) as error:
                    if error.path != path:
                        raise
                    logger.info("Another broker changed %s at the same time: retrying", path)

    # ---- changes of other brokers

    async def catch_up(self) -> None:
        """Apply the changes that other brokers have completed (`NotificationFollower.catch_up`)."""
        await self._follower.catch_up()

    async def _apply_notification(self, data: bytes | None) -> None:
        entity_path = paths.decode_config_change(data)
        entity_type, _, name = entity_path.partition("/")
        if entity_type in ENTITY_TYPES:
            self.entities.apply(entity_path, await self.entities.read(entity_path))
        elif entity_type == paths.TOPIC_CONFIGS:
            self._apply_topic(name, await self._read(paths.topic_config(name)))
        elif entity_type == paths.GROUP_CONFIGS:
            self._apply_group(paths.desanitize(name), await self._read(f"{_GROUPS}/{name}"))
        elif entity_type == paths.BROKER_CONFIGS and name in (paths.DEFAULT_ENTITY, str(self._broker_id)):
            await self._read_broker(None if name == paths.DEFAULT_ENTITY else self._broker_id)

    async def _read_broker(self, broker_id: int | None) -> None:
        self._apply_broker(broker_id, self._decoded(await self._read(paths.broker_config(broker_id))))

    def _encoded(self, name: str, text: str) -> str:
        key = BROKER_CONFIGS.get(name)
        if key is None or not key.is_sensitive:
            return text
        encoder = PasswordEncoder.from_values(self.broker.values)
        if encoder is None:
            raise ConfigError(name, "a password can be changed at run time only if password.encoder.secret is set")
        try:
            return encoder.encode(text)
        except EncodingError as error:
            raise ConfigError(name, str(error)) from None

    def _decoded(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return the values with passwords in plain text. A password that cannot be decoded is
        dropped."""
        values: dict[str, str] = {}
        for name, text in stored.items():
            key = BROKER_CONFIGS.get(name)
            if key is not None and key.is_sensitive:
                encoder = PasswordEncoder.from_values(self.broker.values)
                try:
                    if encoder is None:
                        raise EncodingError("password.encoder.secret is not set")
                    text = encoder.decode(text)
                except EncodingError as error:
                    logger.error("Ignoring the stored setting %s: %s", name, error)
                    continue
            values[name] = text
        return values

    async def _read(self, path: str) -> dict[str, str]:
        return (await self._read_with_version(path))[0]

    async def _read_with_version(self, path: str) -> tuple[dict[str, str], int | None]:
        """Return the values and the version of a znode. The version is None if there is no
        znode."""
        try:
            data, stat = await self._store.get(path)
        except NoNode:
            return {}, None
        try:
            return paths.decode_config(data), stat.version
        except paths.MalformedNode as error:
            logger.error("Ignoring the settings in %s: %s", path, error)
            return {}, stat.version

    def _apply_topic(self, topic: str, overrides: dict[str, str]) -> None:
        if self._topics.get(topic) == overrides:
            return
        self._topics[topic] = overrides
        self._log_configs.pop(topic, None)
        self._notify(self.on_topic, topic)

    def _apply_group(self, group: str, overrides: dict[str, str]) -> None:
        overrides = _valid_only(SINGLE_GROUP_CONFIGS, overrides)
        if self._groups.get(group, {}) == overrides:
            return
        if overrides:
            self._groups[group] = overrides
        else:
            del self._groups[group]
        self._notify(self.on_group, group)

    def _apply_broker(self, broker_id: int | None, values: dict[str, str]) -> None:
        current = self.broker.dynamic_default if broker_id is None else self.broker.dynamic_broker
        if current == values:
            return
        values = _valid_only(BROKER_CONFIGS, values)
        try:
            if broker_id is None:
                changed = self._settings.set_dynamic(default=values)
            else:
                changed = self._settings.set_dynamic(broker=values)
        except ConfigError as error:
            logger.error("Ignoring a change of the broker settings: %s", error)
            return
        if not changed:
            return
        if changed & _TOPIC_DEFAULTS:
            self._default_log_config = None
            topics = list(self._log_configs)
            self._log_configs.clear()
            for topic in topics:
                self._notify(self.on_topic, topic)
        self._notify(self.on_broker, changed)

    @staticmethod
    def _notify(listeners: list[Callable[[Any], Any]], change: Any) -> None:
        for listener in listeners:
            try:
                listener(change)
            except Exception:
                logger.exception("A listener failed to apply a configuration change")


def _write(path: str, entity: str, values: Mapping[str, str], version: int | None, keep_empty: bool) -> list[Op]:
    """Return the operations that replace the znode, if it has `version`, and notify the brokers. If
    `version` is None, the znode is created. With `keep_empty` False, empty `values` delete it."""
    notification = f"{paths.CONFIG_CHANGES}/{paths.CONFIG_CHANGE_PREFIX}"
    ops: list[Op] = [Create(notification, paths.encode_config_change(entity), sequential=True)]
    data = paths.encode_config(values)
    if not values and not keep_empty:
        return ops if version is None else [*ops, Delete(path, version)]
    return [*ops, Create(path, data) if version is None else SetData(path, data, version)]


_GROUPS = f"{paths.CONFIG}/{paths.GROUP_CONFIGS}"
# The broker settings that are defaults of topic settings.
_TOPIC_DEFAULTS = frozenset(synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms)


def _valid_only(table: ConfigTable, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides that can be parsed. An invalid value, written by another release, must
    not make a partition unavailable."""
    return {name: text for name, text in overrides.items() if not _is_invalid(table.get(name), text)}


def _is_invalid(key: Any, text: str) -> bool:
    try:
        if key is not None:
            key.parse(text)
    except ConfigError as error:
        logger.error("Ignoring a value under /config: %s", error)
        return True
    return False
