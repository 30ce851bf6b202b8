"""Dynamic settings of topics, brokers, groups, users and clients in the znode tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kavka.common.config_view import BrokerConfigs
from kavka.metadata import paths
from kavka.metadata.cluster import create_top_level_paths
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.notifications import NOTIFICATION_LIFETIME_MS
from kavka.metadata.store import MetadataStore, Op, OpResult
from tests.support.logs import FakeClock
from tests.support.memory_tree import MemoryTree
from tests.unit.metadata.support import to, with_initialized_store


class Settings:
    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        self.configs = BrokerConfigs(static or {})

    def set_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        previous_values = self.configs.values
        self.configs = self.configs.with_dynamic(default=default, broker=broker)
        return frozenset(name for name, value in self.configs.values.items() if previous_values.get(name) != value)


def test_topic_overrides_take_precedence_and_survive_restart(tmp_path: Path) -> None:
    async def first(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings({"log.retention.ms": "5000"}))
        await configs.start()
        assert configs.log_config("t").retention_ms == 5000
        changed: list[str] = []
        configs.on_topic.append(changed.append)
        await configs.change_topic("t", to({"retention.ms": "77"}))
        assert changed == ["t"]
        assert configs.log_config("t").retention_ms == 77
        assert configs.log_config("other").retention_ms == 5000
        assert (await store.get("/config/topics/t"))[0] == b'{"version":1,"config":{"retention.ms":"77"}}'
        assert (await store.get("/config/changes/config_change_0000000000"))[0] == (
            b'{"version":2,"entity_path":"topics/t"}'
        )
        await configs.stop()

    async def second(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        assert configs.topic_overrides("t") == {"retention.ms": "77"}
        assert configs.log_config("t").retention_ms == 77

    with_initialized_store(tmp_path, first)
    with_initialized_store(tmp_path, second)


def test_broker_settings_override_defaults_and_update_log_configs(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        settings = Settings()
        configs = DynamicConfig(store, 0, settings)
        await configs.start()
        configs.log_config("t")
        topics: list[str] = []
        names: list[frozenset[str]] = []
        configs.on_topic.append(topics.append)
        configs.on_broker.append(names.append)
        await configs.change_broker(None, to({"log.retention.ms": "1000"}))
        assert configs.log_config("t").retention_ms == 1000
        await configs.change_broker(0, to({"log.retention.ms": "2000"}))
        assert configs.log_config("t").retention_ms == 2000
        await configs.change_broker(0, to({}))
        assert configs.log_config("t").retention_ms == 1000
        assert topics == ["t", "t", "t"]
        assert all("log.retention.ms" in changed for changed in names) and len(names) == 3
        await configs.change_broker(None, to({"log.retention.ms": "1000", "background.threads": "3"}))
        assert topics == ["t", "t", "t"]
        assert await store.children("/config/brokers") == ["0", "<default>"]
        await configs.stop()

    with_initialized_store(tmp_path, body)


def test_change_by_another_broker_is_applied(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        broker_0 = DynamicConfig(store, 0, Settings())
        broker_1 = DynamicConfig(store, 1, Settings())
        await broker_0.start()
        await broker_1.start()
        applied = asyncio.Event()
        broker_0.on_topic.append(lambda topic: applied.set())
        await broker_1.change_topic("t", to({"retention.ms": "5"}))
        await asyncio.wait_for(applied.wait(), 5)
        assert broker_0.log_config("t").retention_ms == 5
        applied.clear()
        broker_0.on_broker.append(lambda names: applied.set())
        await broker_1.change_broker(None, to({"log.retention.ms": "9"}))
        await asyncio.wait_for(applied.wait(), 5)
        assert broker_0.broker.values["log.retention.ms"] == 9
        await broker_0.stop()
        await broker_1.stop()

    with_initialized_store(tmp_path, body)


def test_old_notifications_are_removed(tmp_path: Path) -> None:
    clock = FakeClock()

    async def run() -> list[str]:
        store = EmbeddedStore.open(tmp_path / "metadata.db", clock)
        await store.ensure("/config/changes")
        await store.ensure("/config/topics")
        configs = DynamicConfig(store, 0, Settings(), clock)
        await configs.start()
        await configs.change_topic("a", to({}))
        # `catch_up` waits for the follower, which removes old notifications.
        await configs.catch_up()
        clock.advance(NOTIFICATION_LIFETIME_MS + 1)
        await configs.change_topic("b", to({"retention.ms": "1"}))
        await configs.catch_up()
        await configs.stop()
        names = await store.children(paths.CONFIG_CHANGES)
        await store.close()
        return names

    assert asyncio.run(asyncio.wait_for(run(), 20)) == ["config_change_0000000001"]


def test_invalid_value_is_ignored_and_others_are_applied(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        await store.create("/config/topics/t", paths.encode_config({"retention.ms": "soon", "segment.bytes": "2000"}))
        await store.create("/config/topics/junk", b"not json")
        await store.create(
            "/config/brokers/0", paths.encode_config({"log.retention.ms": "x", "background.threads": "4"})
        )
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        assert configs.log_config("t").segment_bytes == 2000
        assert configs.log_config("t").retention_ms == 604800000
        assert configs.topic_overrides("junk") == {}
        assert configs.broker.values["background.threads"] == 4

    with_initialized_store(tmp_path, body)


def test_recreated_topic_does_not_inherit_overrides(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        await configs.change_topic("t", to({"retention.ms": "1"}))
        await store.delete("/config/topics/t")
        configs.forget_topic("t")
        await configs.load_topics(["t"])
        assert configs.topic_overrides("t") == {}
        await configs.stop()

    with_initialized_store(tmp_path, body)


def test_group_overrides_survive_restart_for_any_name(tmp_path: Path) -> None:
    names = ["g", "a/b c%", ".", "..", "...", "příliš", "\x00", "~", "%2E"]
    overrides = {"consumer.session.timeout.ms": "50000"}

    async def first(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        assert configs.groups == []
        for name in names:
            await configs.change_group(name, to(overrides))
        assert (await store.get("/config/groups/g"))[0] == (
            b'{"version":1,"config":{"consumer.session.timeout.ms":"50000"}}'
        )
        assert (await store.get("/config/changes/config_change_0000000001"))[0] == (
            b'{"version":2,"entity_path":"groups/a%2Fb%20c%25"}'
        )
        await configs.stop()

    async def second(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        assert configs.groups == sorted(names)
        for name in names:
            assert configs.group_overrides(name) == overrides
            assert configs.group_values(name)["consumer.session.timeout.ms"] == 50000
        assert configs.group_values("other")["consumer.session.timeout.ms"] == 45000
        for name in names:
            await configs.change_group(name, to({}))
        assert await store.children("/config/groups") == []
        assert configs.groups == []
        await configs.stop()

    with_initialized_store(tmp_path, first)
    with_initialized_store(tmp_path, second)


def test_group_overrides_reach_other_brokers(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        broker_0 = DynamicConfig(store, 0, Settings())
        broker_1 = DynamicConfig(store, 1, Settings())
        await broker_0.start()
        await broker_1.start()
        applied: asyncio.Queue[str] = asyncio.Queue()
        broker_0.on_group.append(applied.put_nowait)
        for values in ({"consumer.session.timeout.ms": "50000"}, {}):
            await broker_1.change_group("a/b", to(values))
            assert await asyncio.wait_for(applied.get(), 60) == "a/b"
            assert broker_0.group_overrides("a/b") == values
        # An invalid value changes nothing.
        await broker_1.change_group("a/b", to({"consumer.session.timeout.ms": "soon"}))
        await broker_1.change_group("c", to({"consumer.session.timeout.ms": "50000"}))
        assert await asyncio.wait_for(applied.get(), 60) == "c"
        assert broker_0.groups == ["c"]
        await broker_0.stop()
        await broker_1.stop()

    with_initialized_store(tmp_path, body)


def run_before_next_write(store: MetadataStore, function: Callable[[], Awaitable[Any]]) -> None:
    """Run `function` just before the next write of `store`."""
    write = store.multi

    async def multi(ops: Sequence[Op]) -> list[OpResult]:
        store.multi = write  # type: ignore[method-assign]
        await function()
        return await write(ops)

    store.multi = multi  # type: ignore[method-assign]


def with_setting(name: str, value: str) -> Callable[[dict[str, str]], dict[str, str]]:
    return lambda current: current | {name: value}


def test_change_succeeds_after_concurrent_creation_or_deletion(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        await store.ensure("/config/groups")
        path = "/config/groups/g"
        run_before_next_write(store, lambda: store.create(path))
        await configs.change_group("g", to({"consumer.session.timeout.ms": "50000"}))
        assert await store.exists(path) is not None
        run_before_next_write(store, lambda: store.delete(path))
        await configs.change_group("g", to({}))
        assert await store.exists(path) is None
        assert len(await store.children("/config/changes")) == 2
        await configs.stop()

    with_initialized_store(tmp_path, body)


def test_concurrent_changes_of_two_brokers_are_both_applied(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        broker_0, broker_1 = DynamicConfig(store, 0, Settings()), DynamicConfig(store, 1, Settings())
        for configs in (broker_0, broker_1):
            await configs.start()
        changes = {
            "topics": (lambda configs, change: configs.change_topic("t", change), "retention.ms", "segment.bytes"),
            "brokers": (
                lambda configs, change: configs.change_broker(None, change),
                "log.retention.ms",
                "background.threads",
            ),
            "groups": (
                lambda configs, change: configs.change_group("g", change),
                "consumer.session.timeout.ms",
                "consumer.heartbeat.interval.ms",
            ),
        }
        nodes = {"topics": "t", "brokers": "<default>", "groups": "g"}
        for kind, (change, first, second) in changes.items():
            path = f"/config/{kind}/{nodes[kind]}"
            # The first change creates the znode, the second change replaces its data.
            for value in ("50000", "50001"):
                run_before_next_write(store, lambda c=change, n=first, v=value: c(broker_1, with_setting(n, v)))  # type: ignore[misc]
                await change(broker_0, with_setting(second, value))
                stored = paths.decode_config((await store.get(path))[0])
                assert stored == {first: value, second: value}, path
        assert broker_0.topic_overrides("t") == {"retention.ms": "50001", "segment.bytes": "50001"}
        for configs in (broker_0, broker_1):
            await configs.stop()

    with_initialized_store(tmp_path, body)


def test_many_concurrent_changes_are_all_applied() -> None:
    async def run() -> None:
        tree = MemoryTree()
        await create_top_level_paths(tree.session())
        brokers = [DynamicConfig(tree.session(), number, Settings()) for number in range(4)]
        await asyncio.gather(*(configs.start() for configs in brokers))
        await asyncio.gather(
            *(
                configs.change_topic("t", with_setting(f"name-{number}-{change}", "1"))
                for number, configs in enumerate(brokers)
                for change in range(10)
            )
        )
        stored = paths.decode_config((await tree.session().get("/config/topics/t"))[0])
        assert len(stored) == 40
        for configs in brokers:
            await configs.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_entity_settings_reach_other_brokers_and_survive_restart(tmp_path: Path) -> None:
    path = "users/alice/clients/<default>"

    async def body(store: EmbeddedStore) -> None:
        broker_0 = DynamicConfig(store, 0, Settings())
        broker_1 = DynamicConfig(store, 1, Settings())
        await broker_0.start()
        await broker_1.start()
        applied: asyncio.Queue[tuple[str, dict[str, str]]] = asyncio.Queue()
        broker_0.entities.on_change.append(lambda *change: applied.put_nowait(change))
        for values in ({"producer_byte_rate": "5"}, {}, {"consumer_byte_rate": "7"}):
            await broker_1.change_entity(path, to(values))
            assert await asyncio.wait_for(applied.get(), 60) == (path, values)
            assert broker_0.entities[path] == values
        restarted = DynamicConfig(store, 2, Settings())
        await restarted.start()
        assert restarted.entities.items() == [(path, {"consumer_byte_rate": "7"})]
        for broker in (broker_0, broker_1, restarted):
            await broker.stop()

    with_initialized_store(tmp_path, body)


def test_catching_up_applies_completed_changes(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        configs = DynamicConfig(store, 0, Settings())
        await configs.start()
        await store.create("/config/clients/c", b'{"version":1,"config":{"producer_byte_rate":"5"}}')
        data = paths.encode_config_change("clients/c")
        await store.create("/config/changes/config_change_", data, sequential=True)
        await configs.catch_up()
        assert configs.entities["clients/c"] == {"producer_byte_rate": "5"}
        await configs.stop()

    with_initialized_store(tmp_path, body)
