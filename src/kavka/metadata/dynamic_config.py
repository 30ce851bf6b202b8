"""Settings that change while brokers run: what is under /config, kept in memory and kept up to date.

A change is made from what the node of the topic, broker or group says, and written only if the node still has the
version that was read; else it is made again from what another broker has written meanwhile. In the same transaction it
is announced by a node under /config/changes, which every broker watches; each reads the announced node anew and takes
it over. The broker that made the change takes it over before it answers. Announcements are removed when they are older
than a quarter of an hour.

What topics and groups set themselves is here; how they fall back to the broker's settings is `common.config_view`'s
matter. A group that sets nothing has no node. Kafka 3.9, whose tree has no groups, logs their announcements as unknown.
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
from kavka.metadata.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    Op,
    SetData,
    StoreUnavailable,
    WatchEvent,
)
from kavka.storage.log_config import LogConfig

log = logging.getLogger(__name__)

# Makes the new values from those that are set; None leaves them. Called again where another change was first.
Change = Callable[[dict[str, str]], Mapping[str, str] | None]

ANNOUNCEMENT_LIFE_MS = 15 * 60 * 1000
RETRY_S = 1.0


class LiveSettings(Protocol):
    """The broker's settings (`broker.settings.Settings`)."""

    @property
    def configs(self) -> BrokerConfigs: ...

    def set_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> frozenset[str]: ...


class DynamicConfig:
    """Only the loop touches it.

    `on_topic` is called with the name of every topic whose log configuration may have changed, `on_group` with the
    name of every group whose own settings have, `on_broker` with the names of the broker settings that have.
    """

    def __init__(
        self, store: MetadataStore, broker_id: int, settings: LiveSettings, clock: Clock | None = None
    ) -> None:
        self.on_topic: list[Callable[[str], Any]] = []
        self.on_group: list[Callable[[str], Any]] = []
        self.on_broker: list[Callable[[frozenset[str]], Any]] = []
        self._store = store
        self._broker_id = broker_id
        self._settings = settings
        self._clock = clock or SystemClock()
        self._topics: dict[str, dict[str, str]] = {}
        # Only groups that set something.
        self._groups: dict[str, dict[str, str]] = {}
        self._log_configs: dict[str, LogConfig] = {}
        self._default_log_config: LogConfig | None = None
        self._announced = -1
        self._catching_up: asyncio.Task[None] | None = None
        self._again = False
        # Changes through this broker wait for each other here, so that only those of other brokers are in their way.
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Read everything, then follow the changes."""
        self._announced = max(map(_number, await self._store.children(paths.CONFIG_CHANGES, self._changed)), default=-1)
        await self._read_broker(None)
        await self._read_broker(self._broker_id)
        await self.load_topics(await self._store.children(f"{paths.CONFIG}/{paths.TOPIC_CONFIGS}"))
        with contextlib.suppress(NoNode):
            nodes = await self._store.children(_GROUPS)
            found = await asyncio.gather(*(self._read(f"{_GROUPS}/{node}") for node in nodes))
            for node, overrides in zip(nodes, found, strict=True):
                self._take_group(paths.desanitize(node), overrides)

    async def stop(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)

    # ---- what is set

    @property
    def broker(self) -> BrokerConfigs:
        return self._settings.configs

    def topic_overrides(self, topic: str) -> dict[str, str]:
        """What the topic sets itself, by name."""
        return dict(self._topics.get(topic, {}))

    def log_config(self, topic: str) -> LogConfig:
        config = self._log_configs.get(topic)
        if config is None:
            overrides = self._topics.get(topic)
            if overrides:
                config = LogConfig.from_values(self.broker.topic_values(_without_wrong(TOPIC_CONFIGS, overrides)))
            else:
                if self._default_log_config is None:
                    self._default_log_config = LogConfig.from_values(self.broker.topic_values({}))
                config = self._default_log_config
            self._log_configs[topic] = config
        return config

    @property
    def groups(self) -> list[str]:
        """Those that set something themselves."""
        return sorted(self._groups)

    def group_overrides(self, group: str) -> dict[str, str]:
        """What the group sets itself, by name."""
        return dict(self._groups.get(group, {}))

    def group_values(self, group: str) -> dict[str, int]:
        """What the group is run with."""
        return self.broker.group_values(self._groups.get(group, {}))

    async def load_topics(self, topics: Iterable[str]) -> None:
        """Make sure that the settings of these topics are known; to be called before their logs are made."""
        unknown = [topic for topic in dict.fromkeys(topics) if topic not in self._topics]
        found = await asyncio.gather(*(self._read(paths.topic_config(topic)) for topic in unknown))
        for topic, overrides in zip(unknown, found, strict=True):
            self._topics[topic] = overrides
            self._log_configs.pop(topic, None)

    def forget_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._log_configs.pop(topic, None)

    # ---- changes, which may come through several brokers at once

    async def change_topic(self, topic: str, change: Change) -> None:
        """What the topic sets itself. `change` checks the values (`BrokerConfigs.check_topic`)."""
        values = await self._change(paths.topic_config(topic), f"{paths.TOPIC_CONFIGS}/{topic}", None, change)
        if values is not None:
            self._take_topic(topic, values)

    async def change_broker(self, broker_id: int | None, change: Change) -> None:
        """What is set for one broker, or with None for all. `change` checks the values (`check_dynamic`)."""
        name = paths.DEFAULT_ENTITY if broker_id is None else str(broker_id)
        entity = f"{paths.BROKER_CONFIGS}/{name}"
        values = await self._change(paths.broker_config(broker_id), entity, BROKER_CONFIGS, change)
        if values is not None and broker_id in (None, self._broker_id):
            self._take_broker(broker_id, values)

    async def change_group(self, group: str, change: Change) -> None:
        """What the group sets itself. `change` checks the values (`BrokerConfigs.check_group`)."""
        await self._store.ensure(_GROUPS)
        entity = f"{paths.GROUP_CONFIGS}/{paths.group_node(group)}"
        values = await self._change(paths.group_config(group), entity, SINGLE_GROUP_CONFIGS, change, keep_empty=False)
        if values is not None:
            self._take_group(group, values)

    async def _change(
        self, path: str, entity: str, table: ConfigTable | None, change: Change, *, keep_empty: bool = True
    ) -> dict[str, str] | None:
        """The values that were written; None where `change` has left them. Values that are wrong by `table` are
        dropped. A try that fails has let another broker's change pass, so there is no limit to them."""
        async with self._changing:
            while True:
                before, version = await self._read_version(path)
                changed = change(before if table is None else _without_wrong(table, before))
                if changed is None:
                    return None
                values = dict(changed)
                try:
                    await self._store.multi(_write(path, entity, values, version, keep_empty))
                    return values
                except (BadVersion, NoNode, NodeExists) as error:
                    if error.path != path:
                        raise
                    log.info("%s was changed by another broker at the same time: trying again", path)

    # ---- following

    def _changed(self, event: WatchEvent) -> None:
        if self._catching_up is not None and not self._catching_up.done():
            self._again = True
        else:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        while True:
            self._again = False
            try:
                await self._take_all_announced()
            except StoreUnavailable as error:
                # Without this round nothing would be watched any more.
                log.warning("Changes of configuration are looked for again: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if not self._again:
                return

    async def _take_all_announced(self) -> None:
        names = await self._store.children(paths.CONFIG_CHANGES, self._changed)
        for name in sorted(names, key=_number):
            if _number(name) > self._announced:
                await self._take_announced(f"{paths.CONFIG_CHANGES}/{name}")
                self._announced = _number(name)
        await self._purge(names)

    async def _take_announced(self, path: str) -> None:
        try:
            kind, _, name = paths.decode_config_change((await self._store.get(path))[0]).partition("/")
            if kind == paths.TOPIC_CONFIGS:
                self._take_topic(name, await self._read(paths.topic_config(name)))
            elif kind == paths.GROUP_CONFIGS:
                self._take_group(paths.desanitize(name), await self._read(f"{_GROUPS}/{name}"))
            elif kind == paths.BROKER_CONFIGS and name in (paths.DEFAULT_ENTITY, str(self._broker_id)):
                await self._read_broker(None if name == paths.DEFAULT_ENTITY else self._broker_id)
        except (NoNode, paths.MalformedNode) as error:
            log.warning("A change of configuration is ignored: %s", error)

    async def _purge(self, names: Iterable[str]) -> None:
        for name in names:
            path = f"{paths.CONFIG_CHANGES}/{name}"
            stat = await self._store.exists(path)
            if stat is not None and self._clock.now_ms() - stat.ctime > ANNOUNCEMENT_LIFE_MS:
                with contextlib.suppress(NoNode):
                    await self._store.delete(path)

    async def _read_broker(self, broker_id: int | None) -> None:
        self._take_broker(broker_id, await self._read(paths.broker_config(broker_id)))

    async def _read(self, path: str) -> dict[str, str]:
        return (await self._read_version(path))[0]

    async def _read_version(self, path: str) -> tuple[dict[str, str], int | None]:
        """The values with the node's version; None where there is no node."""
        try:
            data, stat = await self._store.get(path)
        except NoNode:
            return {}, None
        try:
            return paths.decode_config(data), stat.version
        except paths.MalformedNode as error:
            log.error("What %s says is ignored: %s", path, error)
            return {}, stat.version

    def _take_topic(self, topic: str, overrides: dict[str, str]) -> None:
        if self._topics.get(topic) == overrides:
            return
        self._topics[topic] = overrides
        self._log_configs.pop(topic, None)
        self._tell(self.on_topic, topic)

    def _take_group(self, group: str, overrides: dict[str, str]) -> None:
        overrides = _without_wrong(SINGLE_GROUP_CONFIGS, overrides)
        if self._groups.get(group, {}) == overrides:
            return
        if overrides:
            self._groups[group] = overrides
        else:
            del self._groups[group]
        self._tell(self.on_group, group)

    def _take_broker(self, broker_id: int | None, values: dict[str, str]) -> None:
        current = self.broker.dynamic_default if broker_id is None else self.broker.dynamic_broker
        if current == values:
            return
        values = _without_wrong(BROKER_CONFIGS, values)
        try:
            if broker_id is None:
                changed = self._settings.set_dynamic(default=values)
            else:
                changed = self._settings.set_dynamic(broker=values)
        except ConfigError as error:
            log.error("Settings that do not fit together are ignored: %s", error)
            return
        if not changed:
            return
        if changed & _BEHIND_TOPICS:
            self._default_log_config = None
            topics = list(self._log_configs)
            self._log_configs.clear()
            for topic in topics:
                self._tell(self.on_topic, topic)
        self._tell(self.on_broker, changed)

    @staticmethod
    def _tell(listeners: list[Callable[[Any], Any]], what: Any) -> None:
        for listener in listeners:
            try:
                listener(what)
            except Exception:
                log.exception("A change of configuration was not taken over")


def _write(path: str, entity: str, values: Mapping[str, str], version: int | None, keep_empty: bool) -> list[Op]:
    """Replaces the node that has `version`, or makes it where that is None, and announces it."""
    announcement = f"{paths.CONFIG_CHANGES}/{paths.CONFIG_CHANGE_PREFIX}"
    ops: list[Op] = [Create(announcement, paths.encode_config_change(entity), sequential=True)]
    data = paths.encode_config(values)
    if not values and not keep_empty:
        return ops if version is None else [*ops, Delete(path, version)]
    return [*ops, Create(path, data) if version is None else SetData(path, data, version)]


_GROUPS = f"{paths.CONFIG}/{paths.GROUP_CONFIGS}"
# The broker settings that topics fall back to.
_BEHIND_TOPICS = frozenset(synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms)


def _number(announcement: str) -> int:
    digits = announcement.removeprefix(paths.CONFIG_CHANGE_PREFIX)
    return int(digits) if digits.isdecimal() else -1


def _without_wrong(table: ConfigTable, overrides: Mapping[str, str]) -> dict[str, str]:
    """What can be parsed: a value that another release wrote must not keep a partition from being served."""
    return {name: text for name, text in overrides.items() if not _is_wrong(table.get(name), text)}


def _is_wrong(key: Any, text: str) -> bool:
    try:
        if key is not None:
            key.parse(text)
    except ConfigError as error:
        log.error("A value under /config is ignored: %s", error)
        return True
    return False
