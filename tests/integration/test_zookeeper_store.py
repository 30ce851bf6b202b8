"""The metadata store on a real ZooKeeper: the behaviour of every store, and lost connections and
sessions."""

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
    def new_run() -> Run:
        hosts = f"{zookeeper.connect}/{uuid.uuid4().hex}/tree"
        return lambda body: with_store(hosts, body)

    return new_run


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


async def until(condition: Callable[[], bool], description: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, description
        await asyncio.sleep(0.01)


class SessionEvents:
    """The session events of a store, in order."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.events: list[str] = []
        store.on_session_lost.append(lambda: self.events.append("lost"))
        store.on_new_session.append(lambda: self.events.append("new"))
        store.on_reconnected.append(lambda: self.events.append("reconnected"))


class TestZooKeeperStore(StoreConformance):
    pass


def test_ephemeral_nodes_have_the_session_id_and_are_deleted_with_the_session(hosts: str) -> None:
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


def test_the_chroot_is_created_and_hides_nodes_outside(zookeeper: ZooKeeper, hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        assert await store.children("/") == []
        events: list[WatchEvent] = []
        await store.children("/", events.append)
        assert await store.create("/a", sequential=True) == "/a0000000000"
        assert events == [WatchEvent(WatchType.CHILDREN, "/")]

    with_store(hosts + "/deep/down", body)

    async def outside(store: ZooKeeperStore) -> None:
        root = "/" + hosts.partition("/")[2]
        assert await store.children(root + "/deep/down") == ["a0000000000"]

    with_store(zookeeper.connect, outside)


def test_an_unreachable_server_is_an_error_after_the_connection_timeout() -> None:
    async def run() -> None:
        with pytest.raises(StoreUnavailable, match="no ZooKeeper server responded in 500 ms"):
            await ZooKeeperStore.open("127.0.0.1:1", session_timeout_ms=2000, connection_timeout_ms=500)

    asyncio.run(run())


def test_a_changed_epoch_fences_a_multi(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        await store.create("/controller_epoch", b"1")
        await store.multi([Check("/controller_epoch", 0), Create("/a", b"x"), SetData("/a", b"y", 0)])
        await store.set("/controller_epoch", b"2", 0)
        with pytest.raises(BadVersion) as rejected:
            await store.multi([Create("/b"), Check("/controller_epoch", 0), Create("/a")])
        assert rejected.value.path == "/controller_epoch"
        with pytest.raises(NodeExists) as exists:
            await store.multi([Create("/b"), Create("/a")])
        assert exists.value.path == "/a"
        assert await store.exists("/b") is None
        assert (await store.get("/a"))[0] == b"y"

    with_store(hosts, body)


def test_data_beyond_zookeepers_limit_is_an_error_and_the_connection_stays_open(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        session = SessionEvents(store)
        with pytest.raises(StoreError, match="limit of 1 MiB"):
            await store.create("/big", bytes(1 << 20))
        await store.create("/below-limit", bytes(1_040_000))
        assert (await store.get("/below-limit"))[1].data_length == 1_040_000
        assert session.events == []

    with_store(hosts, body)


def test_two_thousand_nodes_are_created_read_and_deleted_in_order_and_quickly(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> float:
        await store.create("/t")
        paths = [f"/t/{number:04d}" for number in range(2000)]
        await asyncio.gather(*(store.create(path, path.encode()) for path in paths))
        start_time = time.monotonic()
        completed: list[int] = []

        async def read(number: int) -> bytes | None:
            data = (await store.get(paths[number]))[0]
            completed.append(number)
            return data

        assert await asyncio.gather(*map(read, range(2000))) == [path.encode() for path in paths]
        duration = time.monotonic() - start_time
        assert completed == sorted(completed)
        assert len(await store.subtree("/t")) == 2001
        await asyncio.gather(*(store.delete(path) for path in paths))
        await store.delete("/t")
        return duration

    assert with_store(hosts, body, 20_000) < 20


def test_the_number_of_requests_in_flight_is_limited(hosts: str) -> None:
    async def run() -> None:
        store = await open_store(hosts, max_in_flight=3)
        max_in_flight = 0
        send = store._send

        def counted(operation: Any) -> bool:
            nonlocal max_in_flight
            is_sent = send(operation)
            max_in_flight = max(max_in_flight, len(store._in_flight))
            return is_sent

        store._send = counted  # type: ignore[method-assign]
        await asyncio.gather(*(store.exists(f"/{number}") for number in range(50)))
        assert max_in_flight == 3
        await store.close()

    asyncio.run(run())


def test_a_session_survives_a_restart_of_the_server_and_pending_requests_complete(
    zookeeper: ZooKeeper, hosts: str
) -> None:
    async def body(store: ZooKeeperStore) -> None:
        session = SessionEvents(store)
        session_id = store.session_id
        await store.create("/e", b"x", ephemeral=True)
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
        assert store.session_id == session_id
        assert (await reads[0]).ephemeral_owner == session_id  # type: ignore[union-attr]
        assert session.events == ["reconnected"]

    with_store(hosts, body, 20_000)


def test_every_watch_fires_once_after_a_reconnect_and_later_watches_work(zookeeper: ZooKeeper, hosts: str) -> None:
    path = hosts.partition("/")[2]

    async def body(store: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            watcher = await open_store(f"{proxy.address}/{path}", 20_000)
            events: list[WatchEvent] = []
            await store.create("/d", b"1")
            await store.create("/c")
            await watcher.get("/d", events.append)
            await watcher.exists("/not-yet", events.append)
            await watcher.children("/c", events.append)
            await watcher.get("/d", events.append)
            proxy.refuse(True)
            await until(lambda: not watcher.connected, "the connection is lost")
            await store.create("/not-yet")
            proxy.refuse(False)
            await until(lambda: watcher.connected, "the connection is restored")
            assert events == [
                WatchEvent(WatchType.CHANGED, "/d"),
                WatchEvent(WatchType.CHANGED, "/not-yet"),
                WatchEvent(WatchType.CHILDREN, "/c"),
            ]
            events.clear()
            await watcher.get("/d", events.append)
            await store.set("/d", b"2")
            await until(lambda: bool(events), "a watch of the new connection fires")
            assert events == [WatchEvent(WatchType.CHANGED, "/d")]
            await watcher.close()

    with_store(hosts, body)


def test_an_expired_session_fails_pending_requests_and_a_new_one_follows(zookeeper: ZooKeeper, hosts: str) -> None:
    path = hosts.partition("/")[2]

    async def body(store: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            broker = await open_store(f"{proxy.address}/{path}")
            session = SessionEvents(broker)
            first_id = broker.session_id
            await broker.create("/controller", b"me", ephemeral=True)
            events: list[WatchEvent] = []
            deletions: list[WatchEvent] = []
            await broker.exists("/controller", events.append)
            await store.exists("/controller", deletions.append)
            proxy.stall()
            pending = asyncio.ensure_future(broker.create("/later"))
            await until(lambda: bool(deletions), "the server ends the session")
            assert deletions == [WatchEvent(WatchType.DELETED, "/controller")]
            await asyncio.sleep(0.1)
            assert session.events == [] and not pending.done()
            proxy.drop_all()
            proxy.resume()
            with pytest.raises(StoreUnavailable, match="may have been applied"):
                await pending
            await until(lambda: session.events == ["lost", "new"], "a new session follows")
            assert broker.session_id not in (first_id, 0)
            await until(lambda: bool(events), "the watches of the old session fire")
            assert await broker.exists("/controller") is None
            await broker.create("/controller", b"me again", ephemeral=True)
            await broker.close()

    with_store(hosts, body)


def test_the_store_continues_after_the_server_was_paused(zookeeper: ZooKeeper, hosts: str) -> None:
    """The session may expire or not, depending on when the resumed server checks its clock."""

    async def body(store: ZooKeeperStore) -> None:
        await store.create("/n")
        zookeeper.pause()
        try:
            await until(lambda: not store.connected, "a server that does not respond is disconnected")
        finally:
            zookeeper.resume()
        await until(lambda: store.connected, "the connection is restored")
        await store.set("/n", b"1")
        assert (await store.get("/n"))[0] == b"1"

    with_store(hosts, body)


def lose_the_next_responses(proxy: Proxy) -> None:
    """The server processes the next requests, but the responses stay in the proxy, and the
    connection breaks."""
    proxy.stall()

    def drop() -> None:
        time.sleep(0.5)
        proxy.drop_all()
        proxy.resume()

    threading.Thread(target=drop, daemon=True).start()


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_write_that_was_applied_before_the_connection_broke_is_not_repeated(
    zookeeper: ZooKeeper, hosts: str, ephemeral: bool
) -> None:
    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            session = SessionEvents(store)
            await store.create("/n", b"0")
            await store.create("/old")
            lose_the_next_responses(proxy)
            writes = [
                asyncio.ensure_future(store.set("/n", b"1", 0)),
                asyncio.ensure_future(store.set("/n", b"2", 1)),
                asyncio.ensure_future(
                    store.multi([Check("/n", 2), Create("/created", b"x", ephemeral), Delete("/old", 0)])
                ),
            ]
            deadline = time.monotonic() + 10
            while await direct.exists("/created") is None:
                assert time.monotonic() < deadline
            assert not any(write.done() for write in writes)
            first, second, third = await asyncio.gather(*writes)
            assert (first.version, second.version) == (1, 2)  # type: ignore[union-attr]
            assert third == [None, "/created", None]
            data, stat = await store.get("/n")
            assert (data, stat.version) == (b"2", 2)
            assert session.events == ["reconnected"]
            await store.close()

    with_store(hosts, body)


def test_a_concurrent_write_of_another_client_is_not_mistaken_for_the_stores_write(
    zookeeper: ZooKeeper, hosts: str
) -> None:
    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            await store.create("/n", b"0")
            proxy.refuse(True)
            await until(lambda: not store.connected, "the connection is lost")
            write = asyncio.ensure_future(store.set("/n", b"store", 0))
            creation = asyncio.ensure_future(store.create("/controller", b"me", ephemeral=True))
            await direct.set("/n", b"other client", 0)
            await direct.create("/controller", b"me", ephemeral=True)
            proxy.refuse(False)
            outcomes = await asyncio.gather(write, creation, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [BadVersion, NodeExists]
            assert (await store.get("/n"))[0] == b"other client"
            await store.close()

    with_store(hosts, body)


def test_no_write_is_lost_or_repeated_when_connections_break_often(zookeeper: ZooKeeper, hosts: str) -> None:
    """Each write is conditional, so that a repeated write fails."""

    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            await store.create("/n", b"0")
            proxy.cut_after(700)
            for first in range(0, 60, 3):
                writes = (store.set("/n", str(n + 1).encode(), n) for n in range(first, first + 3))
                stats = await asyncio.gather(*writes)
                assert [stat.version for stat in stats] == [first + 1, first + 2, first + 3]
            assert proxy.cuts > 5
            proxy.cut_after(None)
            data, stat = await direct.get("/n")
            assert (data, stat.version) == (b"60", 60)
            await store.close()

    with_store(hosts, body)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_store_reconnects_after_a_failure_of_kazoos_thread(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(store: ZooKeeperStore) -> None:
        session = SessionEvents(store)
        first_id = store.session_id
        connection = store._client._connection
        read_socket = connection._read_socket

        def fail(timeout: float) -> Any:
            monkeypatch.setattr(connection, "_read_socket", read_socket)
            raise RuntimeError("an invalid response")

        monkeypatch.setattr(connection, "_read_socket", fail)
        with pytest.raises(StoreUnavailable):
            await store.exists("/")
        await until(lambda: session.events == ["lost", "new"], "a new session follows")
        assert store.session_id != first_id
        assert await store.exists("/") is not None

    with_store(hosts, body)


def test_close_while_the_server_is_down_ends_soon_and_fails_pending_requests(zookeeper: ZooKeeper, hosts: str) -> None:
    async def run() -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
        await until(lambda: not store.connected, "the connection is lost")
        pending = asyncio.ensure_future(store.exists("/"))
        await asyncio.sleep(0)
        start_time = time.monotonic()
        await store.close()
        assert time.monotonic() - start_time < 10
        with pytest.raises(StoreUnavailable):
            await pending
        with pytest.raises(StoreUnavailable):
            await store.get("/")

    asyncio.run(run())


def test_close_waits_for_pending_requests(hosts: str) -> None:
    async def body(store: ZooKeeperStore) -> None:
        other = await open_store(hosts)
        writes = [asyncio.ensure_future(other.create(f"/n{number}")) for number in range(100)]
        await asyncio.sleep(0)
        await other.close()
        await asyncio.gather(*writes)
        assert len(await store.children("/")) == 100

    with_store(hosts, body)


def test_a_cancelled_request_affects_no_other_request(zookeeper: ZooKeeper, hosts: str) -> None:
    async def body(direct: ZooKeeperStore) -> None:
        with Proxy(zookeeper.address) as proxy:
            store = await open_store(f"{proxy.address}/{hosts.partition('/')[2]}", 20_000)
            proxy.stall()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.exists("/a"), 0.2)
            proxy.drop_all()
            await until(lambda: not store.connected, "the connection is lost")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.create("/cancelled"), 0.01)
            proxy.resume()
            with pytest.raises(NoNode):
                await store.get("/a")
            assert await store.exists("/cancelled") is None
            await store.close()

    with_store(hosts, body)
