"""How `Peers` shows that a broker's process has ended."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kavka.client.addresses import Address, Addresses
from kavka.client.errors import ConnectionRefused, Disconnected
from kavka.replication import peers as peers_module
from kavka.replication.peers import Peers


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class FakeConnection:
    name = "127.0.0.1:1"

    def __init__(self) -> None:
        self.closed = False
        self.on_close: Callable[[Any], None] | None = None

    def close(self, error: BaseException | None = None) -> None:
        self.closed = True
        if self.on_close is not None:
            self.on_close(self)


def test_a_closed_port_is_a_refused_connection() -> None:
    async def body() -> None:
        peers = Peers(1, lambda broker_id: ("127.0.0.1", closed_port()))
        with pytest.raises(ConnectionRefused):
            await peers.connection(2)
        await peers.close()

    asyncio.run(body())


def test_a_connection_that_is_closed_without_a_response_is_not_refused() -> None:
    async def body() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        peers = Peers(1, lambda broker_id: server.sockets[0].getsockname())
        with pytest.raises(Disconnected) as error:
            await peers.connection(2)
        assert not isinstance(error.value, ConnectionRefused)
        await peers.close()
        server.close()

    asyncio.run(body())


def test_an_unusable_address_does_not_hide_that_the_host_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example `localhost`, on a machine without IPv6."""

    async def body() -> None:
        port = closed_port()

        async def resolve(self: Addresses, host: str, requested: int) -> list[Address]:
            unusable = Address(socket.AF_INET6, ("2001:db8::1", port, 0, 0))
            return [unusable, Address(socket.AF_INET, ("127.0.0.1", port))]

        monkeypatch.setattr(Addresses, "resolve", resolve)
        peers = Peers(1, lambda broker_id: ("localhost", port), connect_timeout_s=2.0)
        with pytest.raises((ConnectionRefused, Disconnected)) as error:
            await peers.connection(2)
        if "within" not in str(error.value):  # the unusable address timed out: the host may be slow
            assert isinstance(error.value, ConnectionRefused)
        await peers.close()

    asyncio.run(body())


@pytest.mark.parametrize("by_peer", [True, False])
def test_waiters_learn_of_a_closed_connection(by_peer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        connection = FakeConnection()

        async def open_connection(*arguments: Any, **options: Any) -> FakeConnection:
            return connection

        monkeypatch.setattr(peers_module.Connection, "open", open_connection)
        peers = Peers(1, lambda broker_id: ("127.0.0.1", 1))
        opened = await peers.connection(2, "controller")
        assert peers.open_connection(2, "controller") is opened
        first, second = (asyncio.ensure_future(peers.wait_until_closed(opened)) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        assert not first.done()
        if by_peer:
            connection.close()
        else:
            peers.close_channel(2, "controller")
        await asyncio.wait_for(first, 5)
        assert peers.open_connection(2, "controller") is None
        await asyncio.wait_for(peers.wait_until_closed(opened), 5)
        assert not peers._close_waiters

    asyncio.run(body())


def test_an_attempt_that_fails_after_its_waiter_was_cancelled_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
        may_fail = asyncio.Event()

        async def open_connection(*arguments: Any, **options: Any) -> FakeConnection:
            await may_fail.wait()
            raise Disconnected("reset")

        monkeypatch.setattr(peers_module.Connection, "open", open_connection)
        peers = Peers(1, lambda broker_id: ("127.0.0.1", 1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await peers.connection(2)
        may_fail.set()
        await asyncio.sleep(0.01)
        gc.collect()
        assert reports == []
        await peers.close()

    asyncio.run(body())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_cancelled_waiter_ends_when_its_channel_is_closed(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async def open_connection(*arguments: Any, **options: Any) -> FakeConnection:
            await asyncio.sleep(3600)
            raise AssertionError

        monkeypatch.setattr(peers_module.Connection, "open", open_connection)
        peers = Peers(1, lambda broker_id: ("127.0.0.1", 1))
        waiter = asyncio.ensure_future(peers.connection(2, "controller"))
        await asyncio.sleep(0.01)
        # A term ends in this way: it cancels the task that watches a broker, and closes its
        # channel.
        peers.close_channel(2, "controller")
        await asyncio.sleep(0)
        if is_cancelled:
            waiter.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else Disconnected):
            await waiter

    asyncio.run(body())
