"""Incomplete requests, slow bodies and slow readers do not block other clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from kavka.web import connections
from kavka.web.connections import Gate
from kavka.web.server import DeadlineProtocol
from tests.support.missing import need_command

PATIENCE_S = 30.0
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def run(body: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop, as the console does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body. The response to `/large` has 40 MB. `/never` gets no response."""
    if scope["path"] == "/never":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-is", b"ok")]})
    for _ in range(40 if scope["path"] == "/large" else 0):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await send({"type": "http.response.body", "body": b"done"})


@contextlib.asynccontextmanager
async def gate(tls: ssl.SSLContext | None = None, **arguments: Any) -> AsyncIterator[tuple[Gate, int]]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=PATIENCE_S)  # type: ignore[arg-type]
    config.load()
    state = ServerState()

    def protocol(closed: Callable[[], None]) -> DeadlineProtocol:
        return DeadlineProtocol(closed, config=config, server_state=state, app_state={})

    opened = Gate(listener, protocol, tls, **arguments)
    opened.open()
    try:
        yield opened, listener.getsockname()[1]
    finally:
        opened.close()
        listener.close()
        for connection in list(state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        await asyncio.sleep(0.05)


async def peer(port: int, data: bytes = b"", source: str = "127.0.0.1", **more: Any) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), limit=1 << 16, **more)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection without a response."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


async def status(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return (await reader.readline())[9:12]


async def close(*peers: Any) -> None:
    for _, writer in peers:
        writer.close()


def test_connections_with_incomplete_requests_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_PER_ADDRESS", 10)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 25)

    async def body() -> None:
        async with gate() as (limits, port):
            peers = [await peer(port, HALF) for _ in range(30)]
            assert await ended(peers[0][0]) and len(limits) <= 10
            for number in range(2, 6):
                peers += [await peer(port, HALF, f"127.0.0.{number}") for _ in range(10)]
            whole = [await peer(port, WHOLE, f"127.0.0.{number}") for number in range(1, 8)]
            assert [await status(reader) for reader, _ in whole] == [b"200"] * 7
            assert len(limits) <= 25
            await close(*peers, *whole)

    run(body())


def test_requests_being_served_are_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_PER_ADDRESS", 3)
    never = WHOLE.replace(b"/ ", b"/never ")

    async def body() -> None:
        async with gate(exempt=["127.0.0.9"]) as (limits, port):
            served = [await peer(port, never) for _ in range(3)]
            while not all(connection.protocol and not connection.is_waiting for connection in limits._all):
                await asyncio.sleep(0.01)
            refused = await peer(port)
            assert await status(refused[0]) == b"503"
            other = await peer(port, WHOLE, "127.0.0.2")
            assert await status(other[0]) == b"200", "the limit applies to each address"
            proxied = [await peer(port, never, "127.0.0.9") for _ in range(6)]
            last = await peer(port, WHOLE, "127.0.0.9")
            assert await status(last[0]) == b"200", "a proxy has no limit per address"
            await close(*served, refused, other, *proxied, last)
            while len(limits):
                await asyncio.sleep(0.01)
            assert not limits._by_address

    run(body())


@pytest.mark.parametrize(
    ("limit", "start"),
    [
        ("HEADER_TIMEOUT_S", b""),
        ("HEADER_TIMEOUT_S", HALF),
        ("HEADER_TIMEOUT_S", WHOLE + HALF),
        ("BODY_TIMEOUT_S", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"),
        ("BODY_TIMEOUT_S", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
)
def test_slow_sender_is_disconnected(monkeypatch: pytest.MonkeyPatch, limit: str, start: bytes) -> None:
    monkeypatch.setattr(connections, limit, 0.3)
    monkeypatch.setattr(connections, "SWEEP_INTERVAL_S", 0.05)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        piece = b"1\r\nx\r\n" if b"chunked" in start else b"x"
        with contextlib.suppress(ConnectionError):
            while start:
                await asyncio.sleep(0.02)
                writer.write(piece)

    async def body() -> None:
        async with gate() as (_, port):
            reader, writer = await peer(port, start)
            task = asyncio.create_task(trickle(writer))
            if start.startswith(WHOLE):
                assert await status(reader) == b"200"
                await reader.readuntil(b"done")
                await reader.readexactly(len(b"\r\n0\r\n\r\n"))
            assert await ended(reader)
            task.cancel()
            await close((reader, writer))

    run(body())


def test_stalled_reader_is_disconnected_and_slow_reader_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(connections, "SWEEP_INTERVAL_S", 0.05)
    large = WHOLE.replace(b"/ ", b"/large ")

    async def body() -> None:
        async with gate() as (limits, port):
            deaf = socket.create_connection(("127.0.0.1", port))
            deaf.sendall(large)
            while len(limits) != 1:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(PATIENCE_S):
                while len(limits):
                    await asyncio.sleep(0.05)
            deaf.close()
            reader, writer = await peer(port, large)
            size = 0
            async with asyncio.timeout(PATIENCE_S):
                while piece := await reader.read(1 << 20):
                    size += len(piece)
                    await asyncio.sleep(0.002)
                    if size > 40 << 20:
                        break
            assert size > 40 << 20
            await close((reader, writer))

    run(body())


def test_connections_with_stalled_handshakes_are_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    need_command("openssl", "openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setattr(connections, "MAX_PER_ADDRESS", 5)

    async def body() -> None:
        async with gate(tls) as (limits, port):
            silent = [await peer(port) for _ in range(12)]
            assert await ended(silent[0][0]) and len(limits) <= 5
            trust = ssl.create_default_context(cafile=str(certificate))
            whole = await peer(port, WHOLE, ssl=trust, server_hostname="localhost")
            assert await status(whole[0]) == b"200"
            monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT_S", 0.2)
            last = await peer(port, b"\x16\x03")
            assert await ended(last[0])
            await close(*silent, whole, last)

    run(body())


def test_connection_accepted_while_the_gate_closes_is_closed() -> None:
    """The metrics listener waits for the last connection before its thread ends."""

    async def body() -> None:
        async with gate() as (limits, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                while not len(limits):
                    limits._accept()
                limits.close()
                limits.abort()
                await asyncio.sleep(0.05)
                assert len(limits) == 0
                client.settimeout(PATIENCE_S)
                assert client.recv(1) == b""

    run(body())
