"""ACLs in the znode tree: Kafka's paths and formats, concurrent changes, notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kavka.metadata import paths
from kavka.metadata.acls import StoredAcls
from kavka.metadata.cluster import create_top_level_paths
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.notifications import NOTIFICATION_LIFETIME_MS
from kavka.metadata.store import MetadataStore, NoNode, Op, OpResult, StoreError
from kavka.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.support.logs import FakeClock
from tests.support.memory_tree import MemoryTree
from tests.unit.metadata.support import with_initialized_store

T = ResourcePattern(ResourceType.TOPIC, "t")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "tx-", PatternType.PREFIXED)
READ = Acl("User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = Acl("User:bob", "10.0.0.1", Operation.WRITE, Permission.DENY)


def test_znodes_have_kafkas_paths_and_formats(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        acls = StoredAcls(store)
        await acls.start()
        assert await store.children("/kafka-acl") == [
            "Cluster", "DelegationToken", "Group", "Topic", "TransactionalId", "User",
        ]  # fmt: skip
        assert await acls.create([AclBinding(T, READ), AclBinding(PREFIX, WRITE)]) == [None, None]
        assert (await store.get("/kafka-acl/Topic/t"))[0] == (
            b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"}]}'
        )
        assert (await store.get("/kafka-acl-extended/prefixed/TransactionalId/tx-"))[0] == (
            b'{"version":1,"acls":[{"principal":"User:bob","permissionType":"Deny","operation":"Write",'
            b'"host":"10.0.0.1"}]}'
        )
        assert (await store.get("/kafka-acl-changes/acl_changes_0000000000"))[0] == b"TOPIC:t"
        assert (await store.get("/kafka-acl-extended-changes/acl_changes_0000000000"))[0] == (
            b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"tx-","patternType":"PREFIXED"}'
        )
        assert acls.table.patterns == {T: {READ}, PREFIX: {WRITE}}
        removed = await acls.delete([AclFilter(PatternFilter(ResourceType.TOPIC)), AclFilter()])
        assert removed == [[(AclBinding(T, READ), None)], [(AclBinding(PREFIX, WRITE), None)]]
        with pytest.raises(NoNode):
            await store.get("/kafka-acl/Topic/t")
        assert not acls.table.patterns
        # Nothing changes, so there is no notification.
        assert await acls.delete([AclFilter()]) == [[]]
        assert len(await store.children("/kafka-acl-changes")) == 2
        await acls.stop()

    with_initialized_store(tmp_path, body)


def test_acls_survive_a_restart_and_a_malformed_node_stops_the_start(tmp_path: Path) -> None:
    async def first(store: EmbeddedStore) -> None:
        acls = StoredAcls(store)
        await acls.start()
        await acls.create([AclBinding(T, READ), AclBinding(T, WRITE), AclBinding(T, READ)])
        await acls.stop()

    async def second(store: EmbeddedStore) -> None:
        acls = StoredAcls(store)
        await acls.start()
        assert acls.table.patterns == {T: {READ, WRITE}}
        await acls.stop()
        await store.set("/kafka-acl/Topic/t", b'{"version":1,"acls":[{"principal":"User:a"}]}')
        with pytest.raises(StoreError, match="/kafka-acl/Topic/t: not an ACL"):
            await StoredAcls(store).start()

    with_initialized_store(tmp_path, first)
    with_initialized_store(tmp_path, second)


class Racing(MetadataStore):
    """A session in which another broker changes the tree before each of the first writes."""

    def __init__(self, store: MetadataStore, rivals: list[Callable[[], Awaitable[Any]]]) -> None:
        self._store = store
        self._rivals = rivals
        self.get = store.get  # type: ignore[method-assign]
        self.exists = store.exists  # type: ignore[method-assign]
        self.children = store.children  # type: ignore[method-assign]
        self.close = store.close  # type: ignore[method-assign]

    session_id = 1
    get = exists = children = close = None  # type: ignore[assignment]

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if self._rivals and any("/kafka-acl/Topic/" in op.path for op in ops):
            await self._rivals.pop(0)()
        return await self._store.multi(ops)


def in_tree(body: Callable[[MemoryTree], Awaitable[None]]) -> None:
    async def run() -> None:
        tree = MemoryTree()
        await create_top_level_paths(tree.session())
        await asyncio.wait_for(body(tree), 20)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_concurrent_changes_of_two_brokers_are_all_kept() -> None:
    async def body(tree: MemoryTree) -> None:
        other = StoredAcls(tree.session())
        await other.start()
        third = Acl("User:carol", "*", Operation.ALL, Permission.ALLOW)

        async def delete_all() -> None:
            await other.delete([AclFilter()])

        rivals = [
            lambda: other.create([AclBinding(T, WRITE)]),
            delete_all,
            lambda: other.create([AclBinding(T, third)]),
        ]
        ours = StoredAcls(Racing(tree.session(), list(rivals)))
        await ours.start()
        assert await ours.create([AclBinding(T, READ)]) == [None]
        assert ours.table.patterns == {T: {READ, third}}
        await until(lambda: other.table.patterns == ours.table.patterns)
        await asyncio.gather(ours.stop(), other.stop())

    in_tree(body)


def test_brokers_follow_each_other_and_keep_valid_acls() -> None:
    async def body(tree: MemoryTree) -> None:
        session = tree.session()
        first, second = StoredAcls(tree.session()), StoredAcls(tree.session())
        await first.start()
        await second.start()
        bindings = [AclBinding(ResourcePattern(ResourceType.GROUP, f"g{n}"), READ) for n in range(250)]
        assert set(await first.create([*bindings, AclBinding(PREFIX, WRITE)])) == {None}
        await until(lambda: second.table.patterns == first.table.patterns and len(second.table) == 251)
        # Data that cannot be parsed does not replace valid ACLs, and later changes still arrive.
        await session.set("/kafka-acl/Group/g0", b"?")
        await session.create("/kafka-acl-changes/acl_changes_", b"GROUP:g0", sequential=True)
        await session.create("/kafka-acl-changes/acl_changes_", b"nonsense", sequential=True)
        await second.create([AclBinding(T, READ)])
        await until(lambda: T in first.table.patterns)
        assert first.table.patterns[bindings[0].pattern] == {READ}
        await asyncio.gather(first.stop(), second.stop())

    in_tree(body)


def test_old_notifications_are_removed() -> None:
    async def body(tree: MemoryTree) -> None:
        clock = FakeClock()
        acls = StoredAcls(tree.session(), clock)
        await acls.start()
        await acls.create([AclBinding(T, READ)])
        clock.advance(NOTIFICATION_LIFETIME_MS + 1)
        await acls.create([AclBinding(T, WRITE)])
        session = tree.session()
        async with asyncio.timeout(5):
            while await session.children("/kafka-acl-changes"):
                await asyncio.sleep(0.001)
        await acls.stop()

    in_tree(body)


def test_names_that_no_znode_can_have_are_errors(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        acls = StoredAcls(store)
        await acls.start()
        names = ("..", "a\0b", "good")
        outcomes = await acls.create([AclBinding(ResourcePattern(ResourceType.GROUP, name), READ) for name in names])
        assert [type(outcome) for outcome in outcomes] == [ValueError, ValueError, type(None)]
        await acls.stop()

    with_initialized_store(tmp_path, body)


def test_notifications_round_trip() -> None:
    for pattern in (T, PREFIX, ResourcePattern(ResourceType.USER, "User:a:b")):
        data = paths.encode_acl_change(pattern)
        assert paths.decode_acl_change(pattern.pattern_type, data) == pattern
