"""Tests that every metadata store must pass. The tests of a store inherit them.

A module that inherits them has a module-scoped fixture `new_place`. It returns a function that
creates an empty place for a store and returns `run`. Each call of `run(body)` opens the store,
awaits `body(store)` and closes the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kavka.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetData,
    StoreError,
    StoreUnavailable,
    WatchEvent,
    WatchType,
)

Body = Callable[[Any], Awaitable[Any]]
Run = Callable[[Body], Any]
NewPlace = Callable[[], Run]


_names = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/z"])
_versions = st.sampled_from([-1, 0, 1])
_ops = st.one_of(
    st.builds(Create, _names, st.sampled_from([None, b"1"])),
    st.builds(SetData, _names, st.just(b"2"), _versions),
    st.builds(Delete, _names, _versions),
    st.builds(Check, _names, _versions),
)


class _Model:
    """The expected tree: a dict from the path to (data, version)."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes | None, int]] = {}

    def apply(self, ops: list[Op]) -> type[StoreError] | None:
        nodes = dict(self.nodes)
        for op in ops:
            parent = op.path.rpartition("/")[0]
            if isinstance(op, Create):
                if parent and parent not in nodes:
                    return NoNode
                if op.path in nodes:
                    return NodeExists
                nodes[op.path] = (op.data, 0)
                continue
            if op.path not in nodes:
                return NoNode
            _data, version = nodes[op.path]
            if op.version not in (-1, version):
                return BadVersion
            if isinstance(op, SetData):
                nodes[op.path] = (op.data, version + 1)
            elif isinstance(op, Delete):
                if any(path.startswith(op.path + "/") for path in nodes):
                    return NotEmpty
                del nodes[op.path]
        self.nodes = nodes
        return None


class StoreConformance:
    def test_node_is_read_back_with_its_stat(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            assert await store.create("/a", b"one") == "/a"
            stat = await store.set("/a", b"two")
            data, read = await store.get("/a")
            assert data == b"two"
            assert read == stat
            assert (read.version, read.data_length, read.children_count, read.ephemeral_owner) == (1, 3, 0, 0)
            assert read.mzxid > read.czxid
            await store.create("/none")
            assert (await store.get("/none"))[0] is None

        run(body)

    def test_data_survives_a_restart_with_versions_and_zxids(self, new_place: NewPlace) -> None:
        run = new_place()

        async def first(store: MetadataStore) -> Any:
            await store.create("/a")
            await store.create("/a/b", b"x")
            await store.set("/a/b", b"y")
            return await store.get("/a/b"), await store.exists("/a")

        async def second(store: MetadataStore) -> Any:
            stored = await store.get("/a/b"), await store.exists("/a")
            await store.create("/later")
            return stored, await store.exists("/later")

        written = run(first)
        reopened, later = run(second)
        assert reopened == written
        assert later.czxid > written[0][1].mzxid

    def test_ephemeral_node_cannot_have_children(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            await store.create("/e", ephemeral=True)
            with pytest.raises(NoChildrenForEphemerals):
                await store.create("/e/child")

        run(body)

    def test_sequence_numbers_continue_after_deletes_and_restarts(self, new_place: NewPlace) -> None:
        run = new_place()

        async def first(store: MetadataStore) -> None:
            await store.create("/q")
            assert await store.create("/q/n_", sequential=True) == "/q/n_0000000000"
            assert await store.create("/q/n_", sequential=True) == "/q/n_0000000001"
            await store.delete("/q/n_0000000001")

        async def second(store: MetadataStore) -> str:
            return await store.create("/q/n_", sequential=True)

        run(first)
        assert run(second) == "/q/n_0000000002"

    def test_invalid_operation_raises_its_error_and_changes_nothing(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            await store.create("/a", b"1")
            await store.create("/a/b")
            with pytest.raises(NodeExists):
                await store.create("/a")
            with pytest.raises(NoNode):
                await store.create("/missing/child")
            with pytest.raises(NoNode):
                await store.get("/missing")
            with pytest.raises(NoNode):
                await store.children("/missing")
            with pytest.raises(BadVersion):
                await store.set("/a", b"2", version=5)
            with pytest.raises(BadVersion):
                await store.delete("/a/b", version=5)
            with pytest.raises(NotEmpty):
                await store.delete("/a")
            with pytest.raises(ValueError):
                await store.create("no-slash")
            assert (await store.get("/a"))[0] == b"1"
            assert await store.exists("/missing") is None

        run(body)

    def test_multi_is_atomic(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            await store.create("/epoch", b"1")
            results = await store.multi(
                [Check("/epoch", 0), Create("/a"), Create("/a/b", b"x"), SetData("/epoch", b"2", 0), Delete("/a/b")]
            )
            assert results[1:3] == ["/a", "/a/b"]
            assert results[3] == await store.exists("/epoch")
            assert await store.children("/a") == []
            with pytest.raises(BadVersion):
                await store.multi([Create("/c"), Check("/epoch", 0)])
            assert await store.exists("/c") is None

        run(body)

    def test_write_is_checked_against_earlier_writes_that_are_not_on_disk_yet(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            outcomes = await asyncio.gather(
                store.create("/a"),
                store.create("/a/b"),
                store.create("/a"),
                store.get("/a/b"),
                store.set("/a", b"x", version=0),
                store.set("/a", b"y", version=0),
                return_exceptions=True,
            )
            assert outcomes[:2] == ["/a", "/a/b"]
            assert isinstance(outcomes[2], NodeExists)
            assert isinstance(outcomes[3], tuple)
            assert isinstance(outcomes[5], BadVersion)
            assert (await store.get("/a"))[0] == b"x"

        run(body)

    def test_watch_fires_once_and_before_the_write_returns(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            events: list[WatchEvent] = []
            await store.create("/a")
            await store.get("/a", events.append)
            await store.get("/a", events.append)
            await store.set("/a", b"1")
            assert events == [WatchEvent(WatchType.CHANGED, "/a")]
            await store.set("/a", b"2")
            assert len(events) == 1

        run(body)

    def test_watches_report_the_same_events_as_zookeeper(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            data: list[WatchEvent] = []
            children: list[WatchEvent] = []
            assert await store.exists("/a", data.append) is None
            await store.create("/a")
            await store.exists("/a", data.append)
            await store.children("/a", children.append)
            await store.create("/a/b")
            await store.set("/a/b", b"a change of a child's data does not fire the watch of its parent")
            await store.children("/a", children.append)
            await store.delete("/a/b")
            await store.children("/a", children.append)
            await store.delete("/a")
            assert data == [WatchEvent(WatchType.CREATED, "/a"), WatchEvent(WatchType.DELETED, "/a")]
            assert children == [
                WatchEvent(WatchType.CHILDREN, "/a"),
                WatchEvent(WatchType.CHILDREN, "/a"),
                WatchEvent(WatchType.DELETED, "/a"),
            ]
            with pytest.raises(NoNode):
                await store.children("/a", children.append)

        run(body)

    def test_failing_watch_affects_neither_the_write_nor_other_watches(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            events: list[WatchEvent] = []

            def broken(event: WatchEvent) -> None:
                raise RuntimeError("expected by the test")

            await store.exists("/a", broken)
            await store.exists("/a", events.append)
            await store.create("/a")
            assert len(events) == 1

        run(body)

    def test_write_after_close_raises_an_error(self, new_place: NewPlace) -> None:
        run = new_place()

        stores: list[MetadataStore] = []

        async def body(store: MetadataStore) -> None:
            stores.append(store)

        run(body)
        with pytest.raises(StoreUnavailable):
            asyncio.run(stores[0].create("/a"))

    def test_ensure_creates_parents_and_subtree_lists_descendants_first(self, new_place: NewPlace) -> None:
        run = new_place()

        async def body(store: MetadataStore) -> None:
            await store.ensure("/a/b/c")
            await store.ensure("/a/b/c")
            await store.create("/a/b/d")
            assert await store.subtree("/a") == ["/a/b/c", "/a/b/d", "/a/b", "/a"]
            await store.multi([Delete(path) for path in await store.subtree("/a")])
            assert await store.subtree("/a") == []

        run(body)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(st.lists(_ops, min_size=1, max_size=4), max_size=12), st.booleans())
    def test_any_sequence_of_writes_leaves_the_same_tree_as_the_model(
        self, new_place: NewPlace, multis: list[list[Op]], pipelined: bool
    ) -> None:
        run = new_place()
        model = _Model()

        async def write(store: MetadataStore) -> None:
            expected = [model.apply(ops) for ops in multis]
            if pipelined:
                outcomes = await asyncio.gather(*(store.multi(ops) for ops in multis), return_exceptions=True)
            else:
                outcomes = [(await asyncio.gather(store.multi(ops), return_exceptions=True))[0] for ops in multis]
            assert [type(o) if isinstance(o, BaseException) else None for o in outcomes] == expected
            await compare(store)

        async def compare(store: MetadataStore) -> None:
            paths = [path for path in await store.subtree("/") if path != "/"]
            assert {path: await value(store, path) for path in paths} == model.nodes
            for path in paths:
                stat = await store.exists(path)
                assert stat is not None and stat.children_count == len(await store.children(path))

        async def value(store: MetadataStore, path: str) -> tuple[bytes | None, int]:
            data, stat = await store.get(path)
            return data, stat.version

        run(write)
        run(compare)
