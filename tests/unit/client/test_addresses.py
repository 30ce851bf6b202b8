"""Connecting to a name with several addresses."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop

from kavka.client import addresses as module
from kavka.client.addresses import Address, Addresses, canonical_servers
from kavka.client.admin_config import admin_config
from kavka.client.cluster import Cluster
from kavka.client.connection import Connection
from kavka.client.errors import Disconnected, KafkaTimeout
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.headers import RequestHeader, encode_response_header
from kavka.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from kavka.replication.peers import Peers

V4 = socket.AF_INET


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(test: Callable[[], Any]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test())

    return run


@contextmanager
def silent_port() -> Iterator[int]:
    """A port whose connections the kernel accepts, but no process serves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@asynccontextmanager
async def broker() -> Any:
    """A server that responds to ApiVersions. Yields its port and the accepted sockets."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            header, _ = RequestHeader.decode(await reader.readexactly(size), 0)
            keys = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=4)]
            body = ApiVersionsResponse(api_keys=keys).to_bytes(header.api_version)
            frame = encode_response_header(ApiKey.API_VERSIONS, header.api_version, header.correlation_id) + body
            writer.write(struct.pack(">i", len(frame)) + frame)
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], writers
    finally:
        server.close()


def name_of(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Make the name `many` resolve to an address with each of these ports."""

    async def lookup(host: str, port: int) -> list[Address]:
        assert host == "many"
        return [Address(V4, ("127.0.0.1", number)) for number in ports]

    monkeypatch.setattr(module, "_lookup", lookup)


def test_next_address_is_tried_after_a_refusal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with broker() as (port, _):
            name_of(monkeypatch, refused_port(), port)
            connection = await Connection.open("many", 9092, timeout=60)
            assert connection.name == "many:9092"
            connection.close()

    run(test)


def test_next_address_is_tried_after_the_setup_timeout(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with silent_port() as silent:
            async with broker() as (port, _):
                name_of(monkeypatch, silent, port)
                addresses = Addresses()
                first = await Connection.open("many", 9092, timeout=1.0, addresses=addresses)
                # The silent address is not tried again before the other.
                assert [a.sockaddr[1] for a in await addresses.resolve("many", 9092)] == [port, silent]
                second = await Connection.open("many", 9092, timeout=60, addresses=addresses)
                first.close()
                second.close()

    run(test)


def test_error_names_every_address(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with silent_port() as silent:
            refused = refused_port()
            name_of(monkeypatch, refused, silent)
            with pytest.raises(Disconnected) as caught:
                await Connection.open("many", 9092, timeout=0.2)
            message = str(caught.value)
            assert f"many:9092 (127.0.0.1:{refused})" in message
            assert f"many:9092 (127.0.0.1:{silent}) within 0.2 s" in message
            assert "\n" not in message
            name_of(monkeypatch, silent, silent)
            with pytest.raises(KafkaTimeout):
                await Connection.open("many", 9092, timeout=0.1)

    run(test)


def test_client_remembers_the_failed_address(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with silent_port() as silent:
            async with broker() as (port, writers):
                name_of(monkeypatch, silent, port)
                settings = {"bootstrap.servers": "many:9092", "socket.connection.setup.timeout.ms": 500}
                cluster = Cluster(admin_config(settings, {}))
                await cluster.start()
                try:
                    await cluster.connection(-1, "first", timeout=60)
                    ports: list[int] = []
                    opened = Connection._open

                    async def spy(self: Connection, host: str, address: Address, *args: Any) -> None:
                        ports.append(address.sockaddr[1])
                        await opened(self, host, address, *args)

                    monkeypatch.setattr(Connection, "_open", spy)
                    await cluster.connection(-1, "second", timeout=60)
                    assert ports == [port]
                finally:
                    await cluster.close()
                assert len(writers) >= 2

    run(test)


def test_broker_tries_every_address_of_its_peer(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with silent_port() as silent:
            async with broker() as (port, _):
                name_of(monkeypatch, silent, port)
                peers = Peers(1, lambda _broker: ("many", 9092), connect_timeout_s=0.5)
                assert not (await peers.connection(2)).closed
                await peers.close()

    run(test)


def test_failed_addresses_are_last_until_they_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        name_of(monkeypatch, 1, 2, 3)
        addresses = Addresses()

        async def order() -> list[int]:
            return [address.sockaddr[1] for address in await addresses.resolve("many", 9092)]

        addresses.mark_failed("many", 9092, Address(V4, ("127.0.0.1", 1)))
        assert await order() == [2, 3, 1]
        await asyncio.sleep(0.001)
        addresses.mark_failed("many", 9092, Address(V4, ("127.0.0.1", 2)))
        assert await order() == [3, 1, 2]
        addresses.mark_reached("many", 9092, Address(V4, ("127.0.0.1", 1)))
        assert await order() == [1, 3, 2]
        # An address that the name no longer has is forgotten.
        name_of(monkeypatch, 1, 3)
        assert await order() == [1, 3]
        assert addresses._failures == {("many", 9092): {}}

    asyncio.run(test())


def test_addresses_are_formatted_as_in_bootstrap_servers() -> None:
    assert str(Address(V4, ("127.0.0.1", 9092))) == "127.0.0.1:9092"
    assert str(Address(socket.AF_INET6, ("::1", 9092, 0, 0))) == "[::1]:9092"


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv4_address_is_tried_after_the_ipv6_address(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with broker() as (port, _):

            async def lookup(host: str, _port: int) -> list[Address]:
                return [Address(socket.AF_INET6, ("::1", port, 0, 0)), Address(V4, ("127.0.0.1", port))]

            monkeypatch.setattr(module, "_lookup", lookup)
            connection = await Connection.open("localhost", port, timeout=60)
            connection.close()

    run(test)


def test_client_sockets_have_keepalive(run: Any) -> None:
    async def test() -> None:
        async with broker() as (port, _):
            connection = await Connection.open("127.0.0.1", port, timeout=60, receive_buffer=20_000)
            assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            # Linux reports twice the value.
            assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (20_000, 40_000)
            connection.close()

    run(test)


def test_bootstrap_servers_are_replaced_by_their_canonical_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        name_of(monkeypatch, 1, 2)

        async def canonical_name(address: Address) -> str:
            return f"broker-{address.sockaddr[1]}"

        monkeypatch.setattr(module, "_canonical_name", canonical_name)
        settings = {
            "bootstrap.servers": "many:9092",
            "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
        }
        cluster = Cluster(admin_config(settings, {}))
        await cluster.start()
        assert [(node.host, node.port) for node in cluster.nodes.values()] == [("broker-1", 9092), ("broker-2", 9092)]
        await cluster.close()

    asyncio.run(test())


def test_server_that_cannot_be_resolved_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        assert await canonical_servers([("a..b", 9092)], 60) == [("a..b", 9092)]
        assert await canonical_servers([("127.0.0.1", 9092)], 60)

    asyncio.run(test())
    assert "Cannot resolve a..b" in caplog.text
