from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.store import StoreUnavailable, check_path
from tests.support.store_conformance import NewPlace, Run, StoreConformance

Body = Callable[[EmbeddedStore], Awaitable[Any]]


def with_store(folder: Path, body: Body) -> Any:
    """Run `body` with a store that is opened before and closed afterwards."""

    async def run() -> Any:
        store = EmbeddedStore.open(folder / "metadata.db")
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def new_place(tmp_path_factory: pytest.TempPathFactory) -> NewPlace:
    def make() -> Run:
        folder = tmp_path_factory.mktemp("store")
        return lambda body: with_store(folder, body)

    return make


class TestEmbeddedStore(StoreConformance):
    pass


def test_ephemeral_nodes_are_removed_after_crash_and_close(tmp_path: Path) -> None:
    async def crash() -> int:
        store = EmbeddedStore.open(tmp_path / "metadata.db")
        await store.create("/ids")
        await store.create("/ids/0", b"x", ephemeral=True)
        stat = await store.exists("/ids/0")
        assert stat is not None and stat.ephemeral_owner == store.session_id
        store._worker.shutdown()
        store._connection.close()
        return stat.czxid

    async def after_crash(store: EmbeddedStore) -> int:
        assert await store.children("/ids") == []
        await store.create("/ids/0", ephemeral=True)
        stat = await store.exists("/ids/0")
        assert stat is not None
        return stat.czxid

    async def after_clean_close(store: EmbeddedStore) -> list[str]:
        return await store.children("/ids")

    first_epoch = asyncio.run(crash())
    assert with_store(tmp_path, after_crash) > first_epoch
    assert with_store(tmp_path, after_clean_close) == []


def test_writes_of_one_turn_share_a_commit(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> int:
        commits = 0
        real = store._commit

        def counting_commit(batch: Any) -> None:
            nonlocal commits
            commits += 1
            real(batch)

        store._commit = counting_commit  # type: ignore[method-assign]
        await asyncio.gather(*(store.create(f"/n{i}") for i in range(200)))
        return commits

    assert with_store(tmp_path, body) == 1


def test_failed_commit_fails_queued_writes_and_store_recovers(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        real = store._commit

        def failing_commit(batch: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        store._commit = failing_commit  # type: ignore[method-assign]
        first = asyncio.ensure_future(store.create("/a"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(store.create("/a/b"))
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(o) for o in outcomes] == [StoreUnavailable, StoreUnavailable]
        assert await store.exists("/a") is None
        store._commit = real  # type: ignore[method-assign]
        assert await store.create("/a") == "/a"

    with_store(tmp_path, body)


def test_second_process_cannot_open_file(tmp_path: Path) -> None:
    async def body(store: EmbeddedStore) -> None:
        with pytest.raises(StoreUnavailable, match=r"metadata\.db"):
            EmbeddedStore.open(tmp_path / "metadata.db")

    with_store(tmp_path, body)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/./a", "/a/..", "/a\x00", "/a\x1f", "/\ufff0"])
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(ValueError):
        check_path(path)


@pytest.mark.parametrize("path", ["/", "/a", "/config/brokers/<default>", "/a/.b", "/a/...", "/ž"])
def test_valid_path_is_accepted(path: str) -> None:
    check_path(path)
