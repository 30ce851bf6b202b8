"""SASL on connections: the allowed requests, failures, sessions and hostile peers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.common.errors import ErrorCode
from kavka.network import authentication
from kavka.network import server as servers
from kavka.network.listener_security import ListenerSecurity, Mechanism
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kavka.security.credentials import new_credential
from kavka.security.principal import SecurityProtocol
from kavka.security.sasl.oauth_bearer import OAuthBearerClient, OAuthBearerServer, Token
from kavka.security.sasl.plain import PlainClient, PlainServer
from kavka.security.sasl.scram import ScramClient, ScramServer
from tests.unit.network.harness import Peer, World, frame, in_world

USERS = {"alice": new_credential("SCRAM-SHA-256", "secret"), "bob": new_credential("SCRAM-SHA-256", "secret")}


def security(**changes: Any) -> ListenerSecurity:
    expires_at_ms = changes.pop("expires_at_ms", 0)
    max_reauth_ms = changes.pop("max_reauth_ms", 0)
    mechanisms = {
        "SCRAM-SHA-256": Mechanism(lambda: ScramServer("SCRAM-SHA-256", USERS.get), max_reauth_ms),
        "PLAIN": Mechanism(lambda: PlainServer(lambda user, password: password == "secret"), max_reauth_ms),
        "OAUTHBEARER": Mechanism(lambda: OAuthBearerServer(lambda text: Token(text, expires_at_ms)), max_reauth_ms),
    }
    return ListenerSecurity(
        "SASL", SecurityProtocol.SASL_PLAINTEXT, mechanisms=mechanisms, **{"failure_delay_s": 0.01, **changes}
    )


def connect(world: World, listener: ListenerSecurity | None = None) -> SaslPeer:
    world.server.services.clock = SimpleNamespace(now_ms=lambda: 1000)  # type: ignore[misc]
    import socket

    server_side, client_side = socket.socketpair()
    for sock in (server_side, client_side):
        sock.setblocking(False)
    listener = listener or security()
    assert world.server.limits.admit(listener.name, "peer", 0) is None
    before = set(world.server.connections)
    world.server._on_connection(listener, server_side, "peer")
    [connection] = world.server.connections - before
    peer = SaslPeer(client_side, connection)
    world.peers.append(peer)
    return peer


class SaslPeer(Peer):
    async def request(self, request: Any, version: int) -> Any:
        body: list[Any] = []
        request.encode(body, version)
        tags = b"\x00" if request.API_KEY == 36 and version >= 2 else b""
        await self.send(frame(tags + b"".join(map(bytes, body)), 5, request.API_KEY, version))
        _, data = await self.response()
        response_class = SaslHandshakeResponse if request.API_KEY == 17 else SaslAuthenticateResponse
        return response_class.decode(memoryview(data[len(tags) :]), 0, version)[0]

    async def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        return await self.request(SaslHandshakeRequest(mechanism=mechanism), version)

    async def authenticate(self, client: Any, version: int = 2) -> SaslAuthenticateResponse:
        """Run a whole exchange. Returns the last response."""
        assert (await self.handshake(client.mechanism)).error_code == 0
        message = client.initial()
        while True:
            response = await self.request(SaslAuthenticateRequest(auth_bytes=message), version)
            if response.error_code:
                return response
            message = client.respond(bytes(response.auth_bytes))
            if message is None:
                return response


def scram(user: str = "alice", password: str = "secret") -> ScramClient:
    return ScramClient("SCRAM-SHA-256", user, password)


def run(body: Callable[[World], Awaitable[None]]) -> None:
    in_world(body)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_authentication(version: int) -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        response = await peer.authenticate(scram(), version)
        assert response.error_code == 0 and response.session_lifetime_ms == 0
        assert str(peer.connection.principal) == "User:alice"
        await peer.send(frame("a"))
        assert await peer.responses(1) == ["a"]
        assert not world.server._unauthenticated

    run(body)


def test_raw_tokens() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        assert (await peer.handshake("SCRAM-SHA-256", 0)).error_code == 0
        client = scram()
        message: bytes | None = client.initial()
        while message is not None:
            await peer.send(struct.pack(">i", len(message)) + message)
            (size,) = struct.unpack(">i", await peer.receive(4))
            message = client.respond(await peer.receive(size))
        assert client.is_complete
        await peer.send(frame("a"))
        assert await peer.responses(1) == ["a"]

    run(body)


def test_raw_tokens_in_the_same_packet_as_the_handshake() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        token = PlainClient("alice", "secret").initial()
        await peer.send(
            frame(struct.pack(">h", 5) + b"PLAIN", 5, 17, 0), struct.pack(">i", len(token)) + token, frame("a")
        )
        assert (await peer.response())[0] == 5
        assert await peer.receive(4) == b"\x00\x00\x00\x00"
        assert await peer.responses(1) == ["a"]

    run(body)


@pytest.mark.parametrize("message", [b"\x00alice\x00wrong", b"", b"garbage"])
def test_wrong_raw_tokens_end_the_connection(message: bytes) -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        await peer.handshake("PLAIN", 0)
        await peer.send(struct.pack(">i", len(message)) + message, frame("a"))
        await peer.assert_closed()
        assert world.api.handled == []

    run(body)


def test_api_versions_before_authentication() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        for version in (0, 99):
            await peer.send(frame(b"", 7, 18, version))
            assert (await peer.response())[0] == 7
        assert (await peer.authenticate(scram())).error_code == 0

    run(body)


@pytest.mark.parametrize("start", ["", "SCRAM-SHA-256"])
def test_other_requests_before_authentication_end_the_connection(start: str) -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        if start:
            await peer.handshake(start)
        await peer.send(frame("a"))
        await peer.assert_closed()
        assert world.api.handled == []

    run(body)


def test_a_wrong_password_is_delayed_and_ends_the_connection() -> None:
    async def body(world: World) -> None:
        loop = asyncio.get_running_loop()
        for user in ("alice", "nobody"):
            peer = connect(world, security(failure_delay_s=0.1))
            start = loop.time()
            response = await peer.authenticate(scram(user, "wrong"))
            assert loop.time() - start >= 0.1
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "invalid credentials" in (response.error_message or "")
            await peer.assert_closed()

    run(body)


def test_requests_behind_a_failure_are_not_handled() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        await peer.handshake("PLAIN")
        token = b"\x00alice\x00wrong"
        await peer.send(frame(struct.pack(">i", len(token)) + token, 5, 36, 0), frame("a"), frame("b"))
        _, data = await peer.response()
        assert struct.unpack(">h", data[:2])[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
        await peer.assert_closed()
        assert world.api.handled == []

    run(body)


def test_an_unknown_mechanism() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        response = await peer.handshake("GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["OAUTHBEARER", "PLAIN", "SCRAM-SHA-256"]
        await peer.assert_closed()

    run(body)


def test_authenticate_without_a_handshake() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        await peer.send(frame(struct.pack(">i", 0), 5, 36, 0))
        await peer.assert_closed()

    run(body)


def test_messages_after_the_last_and_endless_exchanges() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        assert (await peer.authenticate(scram())).error_code == 0
        response = await peer.request(SaslAuthenticateRequest(auth_bytes=b"x"), 2)
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        await peer.assert_closed()

    run(body)


@pytest.mark.parametrize("size", [524289, 100_000_000, -1])
def test_oversized_messages_end_the_connection(size: int) -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        await peer.handshake("PLAIN")
        await peer.send(struct.pack(">i", size) + b"\x00" * 1000)
        await peer.assert_closed()

    run(body)


def test_a_limit_of_the_listener_and_large_requests_afterwards() -> None:
    async def body(world: World) -> None:
        peer = connect(world, security(max_receive_bytes=1000))
        assert (await peer.authenticate(scram())).error_code == 0
        peer.start_sending(frame("x" * 300_000))
        assert [len(text) for text in await peer.responses(1)] == [300_000]
        refused = connect(world, security(max_receive_bytes=1000))
        await refused.handshake("PLAIN")
        await refused.send(frame(b"x" * 1000, 5, 36, 0))
        await refused.assert_closed()

    run(body)


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x01x", frame(b"\xff\xff", 5, 17, 1), frame(b"\x7f\xff", 5, 17, 1)])
def test_truncated_requests(data: bytes) -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        await peer.send(data)
        await peer.assert_closed()

    run(body)


def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "TIMEOUT_S", 0.05)

    async def body(world: World) -> None:
        silent, halfway, authenticated = connect(world), connect(world), connect(world)
        await halfway.handshake("PLAIN")
        await authenticated.authenticate(scram())
        await silent.assert_closed()
        await halfway.assert_closed()
        await authenticated.send(frame("a"))
        assert await authenticated.responses(1) == ["a"]

    run(body)


def test_a_new_connection_ends_the_oldest_without_authentication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MAX_UNAUTHENTICATED", 5)

    async def body(world: World) -> None:
        authenticated = connect(world)
        await authenticated.authenticate(scram())
        idle = [connect(world) for _ in range(10)]
        for peer in idle[:5]:
            await peer.assert_closed()
        assert not any(peer.connection.closed for peer in (*idle[5:], authenticated))

    run(body)


def test_re_authentication() -> None:
    async def body(world: World) -> None:
        peer = connect(world, security(max_reauth_ms=100))
        response = await peer.authenticate(scram())
        assert response.session_lifetime_ms == 100
        for _ in range(3):
            await asyncio.sleep(0.06)
            assert (await peer.authenticate(scram())).session_lifetime_ms == 100
            await peer.send(frame("a"))
            assert await peer.responses(1) == ["a"]
        await asyncio.sleep(0.15)
        assert (await peer.authenticate(scram())).error_code == 0
        await asyncio.sleep(0.15)
        await peer.send(frame("b"))
        await peer.assert_closed()
        assert "b" not in world.api.handled

    run(body)


def test_re_authentication_cannot_change_the_principal_or_the_mechanism() -> None:
    async def body(world: World) -> None:
        peer = connect(world)
        await peer.authenticate(scram())
        response = await peer.authenticate(scram("bob"))
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals" in (response.error_message or "")
        await peer.assert_closed()
        peer = connect(world)
        await peer.authenticate(scram())
        assert (await peer.handshake("PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await peer.assert_closed()

    run(body)


@pytest.mark.parametrize(
    ("expires_at_ms", "max_reauth_ms", "lifetime_ms"), [(1100, 0, 100), (9000, 50, 50), (900, 50, 0)]
)
def test_a_session_ends_with_its_token(expires_at_ms: int, max_reauth_ms: int, lifetime_ms: int) -> None:
    async def body(world: World) -> None:
        peer = connect(world, security(expires_at_ms=expires_at_ms, max_reauth_ms=max_reauth_ms))
        response = await peer.authenticate(OAuthBearerClient("alice"))
        assert response.session_lifetime_ms == lifetime_ms
        await asyncio.sleep(lifetime_ms / 1000 + 0.05)
        await peer.send(frame("a"))
        await peer.assert_closed()
        assert world.api.handled == []

    run(body)


def test_counters() -> None:
    async def body(world: World) -> None:
        metrics = world.server.services.metrics
        listener = security()
        listener.failures = metrics.counter("failures", "", ("listener",)).labels("SASL")
        listener.successes = metrics.counter("successes", "", ("listener",)).labels("SASL")
        await connect(world, listener).authenticate(scram())
        await connect(world, listener).authenticate(scram(password="wrong"))
        assert (listener.successes.value, listener.failures.value) == (1, 1)

    run(body)
