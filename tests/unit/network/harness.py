"""A server with connections over socket pairs, and a fake API. The prefix of a request selects how
the API handles it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from kavka.api.produce import ConnectionMustClose
from kavka.api.registry import NEVER
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.network.connection import Connection
from kavka.network.listener_security import ListenerSecurity
from kavka.network.server import Server
from kavka.security.principal import SecurityProtocol
from tests.support import virtual_time

KEY = 3
TIMEOUT_S = 5.0


class Settings(SimpleNamespace):
    def __getitem__(self, name: str) -> Any:
        return getattr(self, name.replace(".", "_"))

    def is_set(self, name: str) -> bool:
        return False

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name.replace(".", "_"), default)


def settings(**changes: Any) -> Settings:
    return Settings(
        **{
            "listeners": (),
            "inter_broker_listener": "PLAINTEXT",
            "quota_window_num": 11,
            "quota_window_size_seconds": 1,
            "socket_request_max_bytes": 100 * 1024 * 1024,
            "max_connections": 1000,
            "max_connections_per_ip": 1000,
            "max_connections_per_ip_overrides": {},
            "max_connection_creation_rate": 1000,
            "queued_max_request_bytes": -1,
            "connections_max_idle_ms": 600_000,
            "socket_listen_backlog_size": 50,
            "socket_send_buffer_bytes": 102400,
            "socket_receive_buffer_bytes": 102400,
            **changes,
        }
    )


class Text:
    """A request or a response whose body is its bytes."""

    throttle_time_ms = 0

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def decode(cls, buffer: memoryview, position: int, version: int) -> tuple[Text, int]:
        return cls(bytes(buffer[position:])), len(buffer)

    def encode(self, out: list[Any], version: int) -> None:
        out.append(self.data)


class Unencodable(Text):
    def encode(self, out: list[Any], version: int) -> None:
        raise TypeError("cannot be encoded")


class EchoApi:
    """Responds to `x` with `x`. A prefix selects another behaviour:

    future:x          responds when the test sets the result of `futures[x]`
    task:x            like future:x, in a coroutine
    task of future:x  a coroutine returns the future
    fail:x            raises a KafkaError
    crash:x           raises an unexpected error
    close:x           closes the connection; `later close:x` does so in a coroutine
    broken:x          returns a response that cannot be encoded
    none:x            sends no response; `later none:x` does so in a coroutine
    """

    key = KEY
    name = "Echo"
    min_version = max_version = 0
    flexible_from = NEVER
    request_class = Text

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.futures: dict[str, asyncio.Future[Any]] = {}

    def on_error(self, request: Text, version: int, error: KafkaError) -> Text:
        if request.data.startswith(b"crash:in the error"):
            raise TypeError("the error handler fails too")
        return Text(b"error %d" % error.code)

    def handle(self, ctx: Any, request: Text) -> Any:
        text = request.data.decode()
        self.handled.append(text)
        behaviour, _, name = text.rpartition(":")
        match behaviour:
            case "future" | "task":
                future = self.futures[name] = asyncio.get_running_loop().create_future()
                return future if behaviour == "future" else self._await(future)
            case "fail":
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            case "crash":
                raise ZeroDivisionError
            case "close":
                raise ConnectionMustClose
            case "broken":
                return Unencodable(b"")
            case "none":
                return None
            case "later none" | "later close" | "task of future":
                self.futures[name] = asyncio.get_running_loop().create_future()
                return self._in_coroutine(behaviour, name)
        return Text(request.data)

    async def _await(self, future: asyncio.Future[Any]) -> Any:
        return await asyncio.shield(future)

    async def _in_coroutine(self, behaviour: str, name: str) -> Any:
        await asyncio.sleep(0)
        if behaviour == "later close":
            raise ConnectionMustClose
        return self.futures[name] if behaviour == "task of future" else None

    def respond(self, name: str, throttle_time_ms: int = 0) -> None:
        """Complete the pending request of that name."""
        response = Text(name.encode())
        response.throttle_time_ms = throttle_time_ms
        self.futures[name].set_result(response)


def frame(text: str | bytes, correlation: int = 0, key: int = KEY, version: int = 0) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    head = struct.pack(">hhih", key, version, correlation, 1) + b"c"
    return struct.pack(">i", len(head) + len(body)) + head + body


class Peer:
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        self.sock = sock
        self.connection = connection
        self._loop = asyncio.get_running_loop()

    async def send(self, *frames: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.sock, b"".join(frames)), TIMEOUT_S)

    def start_sending(self, *frames: bytes) -> asyncio.Task[None]:
        """Send in the background, because the broker may not read all bytes at once."""
        self.sending = self._loop.create_task(self.send(*frames))
        return self.sending

    async def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await asyncio.wait_for(self._loop.sock_recv(self.sock, size - len(data)), TIMEOUT_S)
            if not piece:
                raise EOFError(bytes(data))
            data += piece
        return bytes(data)

    async def response(self) -> tuple[int, bytes]:
        """(correlation id, body) of the next response."""
        (size,) = struct.unpack(">i", await self.receive(4))
        data = await self.receive(size)
        return struct.unpack(">i", data[:4])[0], data[4:]

    async def responses(self, count: int) -> list[str]:
        return [(await self.response())[1].decode() for _ in range(count)]

    async def assert_no_response(self) -> None:
        """Run the loop a few times, and check that no response arrives."""
        for _ in range(5):
            await asyncio.sleep(0.005)
        try:
            data = self.sock.recv(1)
        except BlockingIOError:
            return
        raise AssertionError(f"received {data!r}")

    async def assert_closed(self) -> None:
        """Check that the broker closes the connection without another response."""
        try:
            data = await asyncio.wait_for(self._loop.sock_recv(self.sock, 100), TIMEOUT_S)
        except ConnectionError:
            data = b""
        assert data == b""
        assert self.connection.closed


class World:
    def __init__(self, **changes: Any) -> None:
        self.writes = 0
        loop = asyncio.get_running_loop()
        services = SimpleNamespace(
            settings=settings(**changes),
            in_cluster=False,
            metrics=Registry(),
            now_ms=lambda: int(loop.time() * 1000),
            authorizer=None,
            replica_manager=SimpleNamespace(staged_appends=SimpleNamespace(write=self._write_staged)),
        )
        self.server = Server(services)  # type: ignore[arg-type]
        self.api = EchoApi()
        self.server.apis = {**self.server.apis, KEY: self.api}  # type: ignore[dict-item]
        self.peers: list[Peer] = []

    def _write_staged(self) -> None:
        self.writes += 1

    def connect(self, send_buffer: int | None = None) -> Peer:
        server_side, client_side = socket.socketpair()
        for sock in (server_side, client_side):
            sock.setblocking(False)
            if send_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        assert self.server.limits.admit("PLAINTEXT", "peer", 0) is None
        self.server._on_connection(ListenerSecurity("PLAINTEXT", SecurityProtocol.PLAINTEXT), server_side, "peer")
        connected = {peer.connection for peer in self.peers}
        [connection] = [connection for connection in self.server.connections if connection not in connected]
        peer = Peer(client_side, connection)
        self.peers.append(peer)
        return peer

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        for future in self.api.futures.values():
            if not future.done():
                future.cancel()
        await self.server.stop()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.sock.close()


def in_world(body: Callable[[World], Awaitable[None]], **changes: Any) -> None:
    """Run `body` in virtual time, with a server whose settings have `changes`."""

    async def scenario() -> None:
        world = World(**changes)
        try:
            await body(world)
            assert world.server.limits.count == len(world.server.connections)
        finally:
            await world.close()
        assert not world.server.connections
        assert not world.server.large_frame_bytes

    virtual_time.run(scenario())
