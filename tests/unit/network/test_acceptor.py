"""Listening sockets: binding, and accepting connections within the limits."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from kavka.network.acceptor import Acceptor, SocketBuffers
from kavka.network.limits import Bounds, ConnectionLimits, LimitSettings
from kavka.security.rates import Window
from tests.support import virtual_time


class Listening:
    """An acceptor on a free port of 127.0.0.1; accepted connections are in `accepted`."""

    def __init__(self, limits: ConnectionLimits, buffers: SocketBuffers = SocketBuffers()) -> None:
        self.limits = limits
        self.accepted: list[socket.socket] = []
        self.times: list[float] = []
        self.must_fail = False
        self.acceptor = Acceptor(asyncio.get_running_loop(), "PLAINTEXT", limits, self._on_connection, buffers)
        self.port = self.acceptor.bind("127.0.0.1", 0, 50)
        self.acceptor.start()
        self.clients: list[socket.socket] = []

    def _on_connection(self, sock: socket.socket, address: str) -> None:
        if self.must_fail:
            raise OSError(errno.EINVAL, "the connection was reset")
        self.accepted.append(sock)
        self.times.append(asyncio.get_running_loop().time())

    async def connect(self) -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        self.clients.append(client)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return client

    async def accepted_count(self) -> int:
        for _ in range(5):
            await asyncio.sleep(0.005)
        return len(self.accepted)

    def close(self) -> None:
        self.acceptor.close()
        for sock in (*self.accepted, *self.clients):
            sock.close()


def with_acceptor(body, limits: ConnectionLimits, **options) -> None:
    async def scenario() -> None:
        world = Listening(limits, **options)
        try:
            await body(world)
        finally:
            world.close()

    virtual_time.run(scenario())


def test_a_full_broker_keeps_connections_in_the_backlog():
    async def body(world: Listening) -> None:
        for _ in range(3):
            await world.connect()
        assert await world.accepted_count() == 2
        world.limits.release("PLAINTEXT", "127.0.0.1")
        world.acceptor.start()
        assert await world.accepted_count() == 3

    with_acceptor(body, ConnectionLimits(LimitSettings(Bounds(2))))


def test_an_address_with_too_many_connections_is_refused():
    async def body(world: Listening) -> None:
        await world.connect()
        refused = await world.connect()
        assert await asyncio.get_running_loop().sock_recv(refused, 1) == b""
        assert await world.accepted_count() == 1

    with_acceptor(body, ConnectionLimits(LimitSettings(max_per_ip=1)))


def test_more_connections_than_the_rate_allows_wait():
    async def body(world: Listening) -> None:
        for _ in range(5):
            await world.connect()
        async with asyncio.timeout(60):
            while len(world.accepted) < 5:
                world.acceptor.start()  # a closed connection does not raise the rate
                await asyncio.sleep(0.005)
        assert world.times[4] - world.times[0] > 0.1

    # Two samples of 0.1 s: a burst of four connections, then twenty per second.
    with_acceptor(body, ConnectionLimits(LimitSettings(Bounds(max_rate=20)), Window(2, 100)))


def test_an_address_beyond_its_connection_rate_is_refused_after_a_delay():
    async def body(world: Listening) -> None:
        world.limits.set_ip_rate("127.0.0.1", 1)
        await world.connect()
        started_at = asyncio.get_running_loop().time()
        refused = await world.connect()
        assert await asyncio.get_running_loop().sock_recv(refused, 1) == b""
        assert asyncio.get_running_loop().time() - started_at > 0.05
        assert len(world.accepted) == 1
        assert world.acceptor.refusals == {"connection_creation_rate": 1}

    with_acceptor(body, ConnectionLimits(LimitSettings(), Window(11, 100)))


def test_a_connection_that_closes_before_accept_does_not_count():
    async def body(world: Listening) -> None:
        world.must_fail = True
        await world.connect()
        assert await world.accepted_count() == 0
        assert world.limits.count == 0
        world.must_fail = False
        await world.connect()
        assert await world.accepted_count() == 1

    with_acceptor(body, ConnectionLimits(LimitSettings()))


def test_accepting_pauses_without_file_descriptors(monkeypatch):
    real = socket.socket.accept
    errors = [OSError(errno.EMFILE, "Too many open files")]
    attempts: list[float] = []

    def accept(self):
        attempts.append(asyncio.get_running_loop().time())
        if errors:
            raise errors.pop()
        return real(self)

    async def body(world: Listening) -> None:
        monkeypatch.setattr(socket.socket, "accept", accept)
        await world.connect()
        async with asyncio.timeout(60):
            while await world.accepted_count() == 0:
                await asyncio.sleep(0.01)
        assert attempts[1] - attempts[0] > 0.09

    with_acceptor(body, ConnectionLimits(LimitSettings()))


def test_socket_buffers_are_set_if_configured():
    async def body(world: Listening) -> None:
        await world.connect()
        assert await world.accepted_count() == 1
        sock = world.accepted[0]
        # The kernel doubles the configured size.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 20_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 30_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    with_acceptor(body, ConnectionLimits(LimitSettings()), buffers=SocketBuffers(20_000, 30_000))


def test_a_port_in_use_leaves_nothing_bound():
    async def scenario() -> None:
        limits = ConnectionLimits(LimitSettings())
        first = Acceptor(asyncio.get_running_loop(), "PLAINTEXT", limits, lambda sock, address: None)
        port = first.bind("127.0.0.1", 0, 5)
        second = Acceptor(asyncio.get_running_loop(), "PLAINTEXT", limits, lambda sock, address: None)
        with pytest.raises(OSError) as raised:
            second.bind("localhost", port, 5)
        assert raised.value.errno == errno.EADDRINUSE
        assert not second._sockets
        first.close()
        assert second.bind("127.0.0.1", port, 5) == port
        second.close()

    asyncio.run(scenario())
