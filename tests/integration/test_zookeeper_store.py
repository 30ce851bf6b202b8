"""The metadata store on a real ZooKeeper: what every store does, and what only a server over there
can do to it."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kavka.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SetData,
    StoreError,
    StoreUnavailable,
    WatchEvent,
    WatchType,
)
from kavka.metadata.zookeeper import ZooKeeperStore
from tests.support.proxy import Proxy
from tests.support.store_conformance import NewPlace, Run, StoreConformance
from tests.support.zookeeper import ZooKeeper

pytestmark = pytest.mark.java

Body = Callable[[ZooKeeperStore], Awaitable[Any]]

SESSION_MS = 2000


@pytest.fixture(scope="module")
def zookeeper(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def new_place(zookeeper: ZooKeeper) -> NewPlace:
    def make() -> Run:
        hosts = f"{zookeeper.connect}/{uuid.uuid4().hex}/tree"
        return lambda body: with_store(hosts, body)

    return make


@pytest.fixture
def hosts(zookeeper: ZooKeeper) -> str:
    return f"{zookeeper.connect}/{uuid.uuid4().hex}"


async def open_store(hosts: str, session_ms: int = SESSION_MS, max_in_flight: int = 10) -> ZooKeeperStore:
    return await ZooKeeperStore.open(
        hosts, session_timeout_ms=session_ms, connection_timeout_ms=30_000, max_in_flight=max_in_flight
    )


def with_store(hosts: str, body: Body, session_ms: int = SESSION_MS) -> Any:
    async def run() -> Any:
        store = await open_store(hosts, session_ms)
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def until(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


class Happenings:
    """The session events of a store, in order."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.seen: list[str] = []
        store.on_session_lost.append(lambda: self.seen.append("lost"))
        store.on_new_session.append(lambda: self.seen.append("new"))
        store.on_reconnected.append(lambda: self.seen.append("reconnected"))


class TestZooKeeperStore(StoreConformance):
    pass


def test_ephemeral_nodes_go_with_the_session_and_carry_its_number(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        other = await open_store(hosts)
        deletions: list[WatchEvent] = []
        await other.create("/ids")
        await other.create("/ids/1", b"x", ephemeral=True)
        stat = await store.exists("/ids/1", deletions.append)
        assert stat is not None and stat.ephemeral_owner == other.session_id != store.session_id
        await other.close()
        await until(lambda: bool(deletions), "the node of a closed session is deleted")
        assert deletions == [WatchEvent(WatchType.DELETED, "/ids/1")]
        assert await store.children("/ids") == []

    with_store(hosts, body)


def test_the_chroot_is_made_and_nothing_is_seen_of_what_is_outside(zookeeper: ZooKeeper, hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        assert await store.children("/") == []
        seen: list[WatchEvent] = []
        await store.children("/", seen.append)
        assert await store.create("/a", sequential=True) == "/a0000000000"
        assert seen == [WatchEvent(WatchType.CHILDREN, "/")]

    with_store(hosts + "/deep/down", body)

    async def outside(store: ZooKeeperStore) -> None:
        root = "/" + hosts.partition("/")[2]
        assert await store.children(root + "/deep/down") == ["a0000000000"]

    with_store(zookeeper.connect, outside)


def test_an_unreachable_server_is_one_error_after_the_connection_timeout() -> None:
    async def run() -> None:
        with pytest.raises(StoreUnavailable, match="no ZooKeeper server responded in 500 ms"):
            await ZooKeeperStore.open("127.0.0.1:1", session_timeout_ms=2000, connection_timeout_ms=500)

    asyncio.run(run())


def test_an_epoch_that_moved_on_fences_a_multi(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        await store.create("/controller_epoch", b"1")
        await store.multi([Check("/controller_epoch", 0), Create("/a", b"x"), SetData("/a", b"y", 0)])
        await store.set("/controller_epoch", b"2", 0)
        with pytest.raises(BadVersion) as refused:
            await store.multi([Create("/b"), Check("/controller_epoch", 0), Create("/a")])
        assert refused.value.path == "/controller_epoch"
        with pytest.raises(NodeExists) as exists:
            await store.multi([Create("/b"), Create("/a")])
        assert exists.value.path == "/a"
        assert await store.exists("/b") is None
        assert (await store.get("/a"))[0] == b"y"

    with_store(hosts, body)


def test_more_than_zookeeper_takes_is_an_error_and_not_a_broken_connection(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        happenings = Happenings(store)
        with pytest.raises(StoreError, match="limit of 1 MiB"):
            await store.create("/big", bytes(1 << 20))
        await store.create("/nearly", bytes(1_040_000))
        assert (await store.get("/nearly"))[1].data_length == 1_040_000
        assert happenings.seen == []

    with_store(hosts, body)


def test_two_thousand_nodes_are_made_read_and_deleted_in_order_and_quickly(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> float:
        await store.create("/t")
        paths = [f"/t/{number:04d}" for number in range(2000)]
        await asyncio.gather(*(store.create(path, path.encode()) for path in paths))
        began = time.monotonic()
        answered: list[int] = []

        async def read(number: int) -> bytes | None:
            data = (await store.get(paths[number]))[0]
            answered.append(number)
            return data

        assert await asyncio.gather(*map(read, range(2000))) == [path.encode() for path in paths]
        took = time.monotonic() - began
        assert answered == sorted(answered)
        assert len(await store.subtree("/t")) == 2001
        await asyncio.gather(*(store.delete(path) for path in paths))
        await store.delete("/t")
        return took

    assert with_store(hosts, body, 20_000) < 20


def test_no_more_is_in_flight_than_asked_for(hosts: str) -> None:
    async def run() -> None:
        store = await open_store(hosts, max_in_flight=3)
        largest = 0
        real = store._send

        def counted(operation: Any) -> bool:
            nonlocal largest
            sent = real(operation)
            largest = max(largest, len(store._in_flight))
            return sent

        store._send = counted  # type: ignore[method-assign]
        await asyncio.gather(*(store.exists(f"/{number}") for number in range(50)))
        assert largest == 3
        await store.close()

    asyncio.run(run())


def test_a_session_outlives_a_restart_of_the_server_and_what_was_asked_meanwhile_is_done(
    zookeeper: ZooKeeper, hosts: str
) -> None:
    async def body(store: ZooKeeperStore) -> None:
        happenings = Happenings(store)
        session = store.session_id
        await store.create("/e", b"mine", ephemeral=True)
        await store.create("/n", b"0")
        zookeeper.stop()
        await until(lambda: not store.connected, "the connection is lost")
        writes = [asyncio.ensure_future(store.set("/n", str(n + 1).encode(), n)) for n in range(20)]
        reads = [asyncio.ensure_future(store.exists(path)) for path in ("/e", "/missing")]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in writes + reads)
        zookeeper.start()
        stats = await asyncio.gather(*writes)
        assert [stat.version for stat in stats] == list(range(1, 21))
        assert await reads[1] is None
        assert store.session_id == session
        assert (await reads[0]).ephemeral_owner == session  # type: ignore[union-attr]
        assert happenings.seen == ["reconnected"]

    with_store(hosts, body, 20_000)


def test_every_watch_fires_once_when_the_connection_is_back_and_then_works_as_before(
    zookeeper: ZooKeeper, hosts: str
) -> None:
    path = hosts.partition("/")[2]

    async def body(store: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            watcher = await open_store(f"{proxy.address}/{path}", 20_000)
            seen: list[WatchEvent] = []
            await store.create("/d", b"1")
            await store.create("/c")
            await watcher.get("/d", seen.append)
            await watcher.exists("/not-yet", seen.append)
            await watcher.children("/c", seen.append)
            await watcher.get("/d", seen.append)
            proxy.refuse(True)
            await until(lambda: not watcher.connected, "the connection is lost")
            await store.create("/not-yet")
            proxy.refuse(False)
            await until(lambda: watcher.connected, "the connection is back")
            assert seen == [
                WatchEvent(WatchType.CHANGED, "/d"),
                WatchEvent(WatchType.CHANGED, "/not-yet"),
                WatchEvent(WatchType.CHILDREN, "/c"),
            ]
            seen.clear()
            await watcher.get("/d", seen.append)
            await store.set("/d", b"2")
            await until(lambda: bool(seen), "a watch of the new connection fires")
            assert seen == [WatchEvent(WatchType.CHANGED, "/d")]
            await watcher.close()

    with_store(hosts, body)


def test_an_expired_session_fails_pending_requests_and_a_new_one_follows(zookeeper: ZooKeeper, hosts: str) -> None:
    path = hosts.partition("/")[2]

    async def body(store: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            broker = await open_store(f"{proxy.address}/{path}")
            happenings = Happenings(broker)
            first = broker.session_id
            await broker.create("/controller", b"me", ephemeral=True)
            seen: list[WatchEvent] = []
            deletions: list[WatchEvent] = []
            await broker.exists("/controller", seen.append)
            await store.exists("/controller", deletions.append)
            proxy.stall()
            waiting = asyncio.ensure_future(broker.create("/later"))
            await until(lambda: bool(deletions), "the server ends the session")
            assert deletions == [WatchEvent(WatchType.DELETED, "/controller")]
            await asyncio.sleep(0.1)
            assert happenings.seen == [] and not waiting.done()
            proxy.drop_all()
            proxy.resume()
            with pytest.raises(StoreUnavailable, match="may have been applied"):
                await waiting
            await until(lambda: happenings.seen == ["lost", "new"], "a new session follows")
            assert broker.session_id not in (first, 0)
            await until(lambda: bool(seen), "the watches of the old session fire")
            assert await broker.exists("/controller") is None
            await broker.create("/controller", b"me again", ephemeral=True)
            await broker.close()

    with_store(hosts, body)


def test_a_paused_server_keeps_the_session_when_it_resumes_before_checking_its_clock(
    zookeeper: ZooKeeper, hosts: str
) -> None:
    """Sessions expire by the server's clock, which stood still. In either case the store
    continues."""

    async def body(store: ZooKeeperStore) -> None:
        await store.create("/n")
        zookeeper.pause()
        try:
            await until(lambda: not store.connected, "silence is taken for a broken connection")
        finally:
            zookeeper.resume()
        await until(lambda: store.connected, "the connection is back")
        await store.set("/n", b"1")
        assert (await store.get("/n"))[0] == b"1"

    with_store(hosts, body)


def lose_the_next_answers(proxy: Proxy) -> None:
    """The server processes the next requests, but the responses stay in the proxy, and the
    connection breaks."""
    proxy.stall()

    def drop() -> None:
        time.sleep(0.5)
        proxy.drop_all()
        proxy.resume()

    threading.Thread(target=drop, daemon=True).start()


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_write_that_was_made_before_the_connection_broke_is_not_made_again(
    zookeeper: ZooKeeper, hosts: str, ephemeral: bool
) -> None:
    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            happenings = Happenings(store)
            await store.create("/n", b"0")
            await store.create("/old")
            lose_the_next_answers(proxy)
            writes = [
                asyncio.ensure_future(store.set("/n", b"1", 0)),
                asyncio.ensure_future(store.set("/n", b"2", 1)),
                asyncio.ensure_future(
                    store.multi([Check("/n", 2), Create("/made", b"x", ephemeral), Delete("/old", 0)])
                ),
            ]
            deadline = time.monotonic() + 10
            while await direct.exists("/made") is None:
                assert time.monotonic() < deadline
            assert not any(write.done() for write in writes)
            first, second, third = await asyncio.gather(*writes)
            assert (first.version, second.version) == (1, 2)  # type: ignore[union-attr]
            assert third == [None, "/made", None]
            data, stat = await store.get("/n")
            assert (data, stat.version) == (b"2", 2)
            assert happenings.seen == ["reconnected"]
            await store.close()

    with_store(hosts, body)


def test_a_concurrent_write_of_another_client_is_not_taken_for_our_own(zookeeper: ZooKeeper, hosts: str) -> None:
    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            await store.create("/n", b"0")
            proxy.refuse(True)
            await until(lambda: not store.connected, "the connection is lost")
            mine = asyncio.ensure_future(store.set("/n", b"mine", 0))
            created = asyncio.ensure_future(store.create("/controller", b"me", ephemeral=True))
            await direct.set("/n", b"theirs", 0)
            await direct.create("/controller", b"me", ephemeral=True)
            proxy.refuse(False)
            outcomes = await asyncio.gather(mine, created, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [BadVersion, NodeExists]
            assert (await store.get("/n"))[0] == b"theirs"
            await store.close()

    with_store(hosts, body)


def test_connections_that_break_all_the_time_lose_no_write_and_double_none(zookeeper: ZooKeeper, hosts: str) -> None:
    """Every response may be the last of its connection: each write is conditional, so that a
    repeated write would show."""

    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            await store.create("/n", b"0")
            proxy.cut_after(700)
            for turn in range(0, 60, 3):
                stats = await asyncio.gather(*(store.set("/n", str(n + 1).encode(), n) for n in range(turn, turn + 3)))
                assert [stat.version for stat in stats] == [turn + 1, turn + 2, turn + 3]
            assert proxy.cuts > 5
            proxy.cut_after(None)
            data, stat = await direct.get("/n")
            assert (data, stat.version) == (b"60", 60)
            await store.close()

    with_store(hosts, body)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_connection_that_breaks_kazoos_thread_is_reopened(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(store: ZooKeeperStore) -> None:
        happenings = Happenings(store)
        first = store.session_id
        connection = store._client._connection
        real = connection._read_socket

        def garbage(timeout: float) -> Any:
            monkeypatch.setattr(connection, "_read_socket", real)
            raise RuntimeError("a response that no client understands")

        monkeypatch.setattr(connection, "_read_socket", garbage)
        with pytest.raises(StoreUnavailable):
            await store.exists("/")
        await until(lambda: happenings.seen == ["lost", "new"], "a new session follows")
        assert store.session_id != first
        assert await store.exists("/") is not None

    with_store(hosts, body)


def test_close_while_the_server_is_down_ends_soon_and_fails_pending_requests(zookeeper: ZooKeeper, hosts: str) -> None:
    async def run() -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
        await until(lambda: not store.connected, "the connection is lost")
        waiting = asyncio.ensure_future(store.exists("/"))
        await asyncio.sleep(0)
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < 10
        with pytest.raises(StoreUnavailable):
            await waiting
        with pytest.raises(StoreUnavailable):
            await store.get("/")

    asyncio.run(run())


def test_close_waits_for_what_was_asked_for(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        other = await open_store(hosts)
        writes = [asyncio.ensure_future(other.create(f"/n{number}")) for number in range(100)]
        await asyncio.sleep(0)
        await other.close()
        await asyncio.gather(*writes)
        assert len(await store.children("/")) == 100

    with_store(hosts, body)


def test_a_cancelled_wait_affects_no_other_request(zookeeper: ZooKeeper, hosts: str) -> None:
    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            proxy.stall()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.exists("/a"), 0.2)
            proxy.drop_all()
            await until(lambda: not store.connected, "the connection is lost")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.create("/given-up"), 0.01)
            proxy.resume()
            with pytest.raises(NoNode):
                await store.get("/a")
            assert await store.exists("/given-up") is None
            await store.close()

    with_store(hosts, body)
