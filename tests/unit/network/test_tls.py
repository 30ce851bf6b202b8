"""TLS connections: transport, handshakes and principals, with a client over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kavka.network import handshakes, transport
from kavka.network.listener_security import ListenerSecurity
from kavka.network.transport import TlsTransport
from kavka.network.zero_copy import FileShrank
from kavka.security.authority import DAY, Authority
from kavka.security.certificates import subject_of
from kavka.security.principal import SecurityProtocol
from kavka.security.tls import TlsSettings, client_context, server_context
from kavka.storage.file_slice import FileSlice, LogFile
from tests.unit.network.harness import Text, World, frame, in_world

AUTHORITY = Authority()
BROKER = AUTHORITY.certificate_of("broker", hosts=("localhost",))
SERVER = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": BROKER.key_pem,
    "ssl.keystore.certificate.chain": BROKER.chain_pem,
    "ssl.truststore.type": "PEM",
    "ssl.truststore.certificates": AUTHORITY.pem,
}
TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": AUTHORITY.pem}


def security(**changes: Any) -> ListenerSecurity:
    context = server_context(TlsSettings.from_values({**SERVER, **changes}))
    return ListenerSecurity("SSL", SecurityProtocol.SSL, context, certificate_name=subject_of, failure_delay_s=0.01)


def inline(certificate: Any) -> dict[str, Any]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": certificate.key_pem,
        "ssl.keystore.certificate.chain": certificate.chain_pem,
    }


class TlsPeer:
    """A client with asyncio's TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def response(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return (await self.reader.readexactly(size))[4:]

    async def exchange(self, *frames: bytes) -> list[bytes]:
        self.writer.write(b"".join(frames))
        return [await self.response() for _ in frames]


def accept(world: World, listener: ListenerSecurity) -> socket.socket:
    """Return the client's socket of an accepted connection."""
    server_side, client_side = socket.socketpair()
    for sock in (server_side, client_side):
        sock.setblocking(False)
    assert world.server.limits.admit(listener.name, "peer", 0) is None
    world.server._on_connection(listener, server_side, "peer")
    return client_side


async def connect(world: World, listener: ListenerSecurity, **changes: Any) -> TlsPeer:
    context = client_context(TlsSettings.from_values({**TRUST, **changes}))
    sock = accept(world, listener)
    return TlsPeer(
        *await asyncio.wait_for(asyncio.open_connection(sock=sock, ssl=context, server_hostname="localhost"), 5)
    )


def run(body: Callable[[World], Awaitable[None]]) -> None:
    async def with_free_limits(world: World) -> None:
        await body(world)
        await world.until(lambda: not len(world.server._handshakes))

    in_world(with_free_limits)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_requests_and_responses(version: str) -> None:
    async def body(world: World) -> None:
        peer = await connect(world, security(**{"ssl.enabled.protocols": (version,)}))
        assert await peer.exchange(frame("a"), frame("b")) == [b"a", b"b"]
        large = os.urandom(1_500_000).hex().encode()
        assert await peer.exchange(frame(large)) == [large]
        many = [frame(b"x" * size) for size in (1, 16384, 16385, 70_000, 200_000) * 4]
        assert [len(response) for response in await peer.exchange(*many)] == [1, 16384, 16385, 70_000, 200_000] * 4
        peer.writer.close()
        await world.until(lambda: not world.server.connections)

    run(body)


def test_bytes_that_arrive_one_by_one() -> None:
    async def body(world: World) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(TlsSettings.from_values(TRUST)).wrap_bio(
            incoming, outgoing, server_hostname="localhost"
        )
        sock = accept(world, security())
        loop = asyncio.get_running_loop()

        async def step(action: Callable[[], Any]) -> Any:
            while True:
                try:
                    result = action()
                except ssl.SSLWantReadError:
                    result = None
                for byte in outgoing.read():
                    await loop.sock_sendall(sock, bytes([byte]))
                if result is not None:
                    return result
                incoming.write(await asyncio.wait_for(loop.sock_recv(sock, 65536), 5))

        await step(lambda: client.do_handshake() or True)
        await step(lambda: client.write(frame("slow")))
        assert (await step(lambda: client.read(100))).endswith(b"slow")
        sock.close()

    run(body)


def test_the_principal_of_a_certificate() -> None:
    async def body(world: World) -> None:
        listener = security(**{"ssl.client.auth": "required"})
        await connect(world, listener, **inline(AUTHORITY.certificate_of("CN=alice,O=Example")))
        [connection] = world.server.connections
        assert str(connection.principal) == "User:CN=alice,O=Example"

    run(body)


@pytest.mark.parametrize("mode", ["none", "requested"])
def test_a_client_without_a_certificate_is_anonymous(mode: str) -> None:
    async def body(world: World) -> None:
        await connect(world, security(**{"ssl.client.auth": mode}))
        [connection] = world.server.connections
        assert str(connection.principal) == "User:ANONYMOUS"

    run(body)


def test_refused_certificates(caplog: pytest.LogCaptureFixture) -> None:
    refused = {
        "expired": AUTHORITY.certificate_of("alice", valid_for=-DAY),
        "self-signed": AUTHORITY.certificate_of("alice", self_signed=True),
        "self-signed certificate in certificate chain": Authority("Other").certificate_of("alice"),
    }

    async def body(world: World) -> None:
        listener = security(**{"ssl.client.auth": "required"})
        for reason, certificate in refused.items():
            caplog.clear()
            peer = await connect(world, listener, **inline(certificate))
            with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError, ConnectionError)):
                await peer.exchange(frame("a"))
            assert reason in caplog.text
        await world.until(lambda: not len(world.server._handshakes))
        assert not world.server.connections and not world.server.limits.count

    with caplog.at_level("INFO"):
        run(body)


def test_no_mapping_rule(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(certificate: bytes) -> str:
        raise ValueError("no rule applies")

    async def body(world: World) -> None:
        listener = security(**{"ssl.client.auth": "required"})
        listener.certificate_name = refuse
        peer = await connect(world, listener, **inline(AUTHORITY.certificate_of("alice")))
        assert await asyncio.wait_for(peer.reader.read(), 5) == b""
        assert "no rule applies" in caplog.text

    with caplog.at_level("INFO"):
        run(body)


@pytest.mark.parametrize("data", [frame("a"), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", bytes(64)])
def test_bytes_that_are_not_a_handshake(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        sock = accept(world, security())
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, data)
        with pytest.raises(ConnectionError):
            while await asyncio.wait_for(loop.sock_recv(sock, 100), 5):
                pass
            raise ConnectionError("closed")
        assert "Failed TLS handshake" in caplog.text
        assert not world.server.limits.count
        sock.close()

    with caplog.at_level("INFO"):
        run(body)


def test_a_plain_request_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        sock = accept(world, security())
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, frame("a"))
        while await asyncio.wait_for(loop.sock_recv(sock, 100), 5):
            pass
        assert "does not use TLS" in caplog.text
        sock.close()

    with caplog.at_level("INFO"):
        run(body)


def test_tls_on_a_plain_listener_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(50))
        await peer.assert_closed()
        assert "uses TLS on a listener without TLS" in caplog.text

    with caplog.at_level("INFO"):
        run(body)


def test_idle_handshakes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "TIMEOUT_S", 0.05)

    async def body(world: World) -> None:
        listener = security()
        sockets = [accept(world, listener) for _ in range(20)]
        assert len(world.server._handshakes) == 20
        await world.until(lambda: not len(world.server._handshakes))
        assert not world.server.limits.count
        for sock in sockets:
            sock.close()

    run(body)


def test_a_new_handshake_ends_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "MAX_PENDING", 10)

    async def body(world: World) -> None:
        listener = security()
        sockets = [accept(world, listener) for _ in range(30)]
        assert len(world.server._handshakes) == 10
        peer = await connect(world, listener)
        assert await peer.exchange(frame("a")) == [b"a"]
        for sock in sockets:
            sock.close()
        peer.writer.close()

    run(body)


def test_a_turn_has_few_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    original = TlsTransport.handshake
    turns = 0

    def counted(self: TlsTransport) -> bool:
        steps.append(turns)
        return original(self)

    async def body(world: World) -> None:
        nonlocal turns
        listener = security()
        monkeypatch.setattr(TlsTransport, "handshake", counted)

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        peers = await asyncio.gather(*(connect(world, listener) for _ in range(60)))
        counting.cancel()
        assert max(steps.count(turn) for turn in set(steps)) <= 2 * handshakes.MAX_STEPS_PER_TURN
        for peer in peers:
            peer.writer.close()

    run(body)


def test_a_reader_that_is_slow() -> None:
    async def body(world: World) -> None:
        peer = await connect(world, security())
        [connection] = world.server.connections
        size = 6_000_000
        peer.writer.write(frame(b"x" * size))
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await world.until(lambda: bool(world.api.handled))
        await asyncio.sleep(0.05)
        assert not connection._outbox.is_empty
        assert connection._outbox.queued_bytes > 1_000_000
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await asyncio.wait_for(peer.response(), 5)) == size
        assert connection._outbox.is_empty
        peer.writer.close()

    run(body)


class FullSocket:
    """A socket that accepts `limit` bytes, and refuses more once."""

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self._sock = sock
        self._limits = [limit, 0]

    def send(self, data: memoryview) -> int:
        if not self._limits:
            return self._sock.send(data)
        if not (limit := self._limits.pop(0)):
            raise BlockingIOError
        return self._sock.send(data[:limit])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_a_small_response_that_the_socket_does_not_accept_at_once() -> None:
    async def body(world: World) -> None:
        peer = await connect(world, security())
        [connection] = world.server.connections
        tls: Any = connection._transport
        tls._sock = FullSocket(tls._sock, 10)
        peer.writer.write(frame(b"small"))
        assert await asyncio.wait_for(peer.response(), 5) == b"small"
        assert connection._outbox.is_empty and not connection._outbox._is_waiting
        peer.writer.close()

    run(body)


class SliceResponse(Text):
    """A response with bytes and a file slice."""

    def __init__(self, piece: FileSlice) -> None:
        self.piece = piece

    def encode(self, out: list[Any], version: int) -> None:
        out.extend([b"head", self.piece, b"tail"])


def test_file_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(3_000_000)
    path = tmp_path / "0.log"
    path.write_bytes(content)
    file = LogFile(str(path), len(content))

    async def body(world: World) -> None:
        monkeypatch.setattr(world.api, "handle", lambda ctx, request: SliceResponse(FileSlice(file, 10, 2_500_000)))
        peer = await connect(world, security())
        for _ in range(2):
            [response] = await peer.exchange(frame("a"))
            assert response == b"head" + content[10:2_500_010] + b"tail"
        monkeypatch.setattr(world.api, "handle", lambda ctx, request: SliceResponse(FileSlice(file, 2_999_000, 5_000)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.exchange(frame("a"))
        peer.writer.close()

    run(body)
    assert FileShrank is not None and transport._MAX_SENT_BYTES < 2_500_000


def test_a_changed_context_serves_new_connections() -> None:
    async def body(world: World) -> None:
        listener = security()
        first = await connect(world, listener)
        renewed = AUTHORITY.certificate_of("broker", hosts=("localhost",))
        listener.context = server_context(TlsSettings.from_values({**SERVER, **inline(renewed)}))
        second = await connect(world, listener)
        for peer, certificate in ((first, BROKER), (second, renewed)):
            assert await peer.exchange(frame("a")) == [b"a"]
            tls = peer.writer.get_extra_info("ssl_object")
            assert tls.getpeercert(binary_form=True) == certificate.der
            peer.writer.close()

    run(body)
