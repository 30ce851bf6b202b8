"""Back-pressure: when a connection is not read, when it is read again, and when it is closed."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from kavka.network.connection import MAX_PENDING_RESPONSES, MAX_UNSENT_BYTES, MAX_UNSENT_PIECES
from kavka.storage.file_slice import FileSlice, LogFile
from tests.support.logs import FakeClock
from tests.unit.network.harness import Text, World, frame, in_world

LARGE = 1_000_000


async def settle(world: World) -> int:
    """Wait until no more requests are handled. Returns the number of handled requests."""
    previous_count = -1
    while previous_count != len(world.api.handled):
        previous_count = len(world.api.handled)
        await asyncio.sleep(0.03)
    return previous_count


def test_reading_stops_while_the_peer_does_not_receive_its_responses():
    async def body(world: World) -> None:
        size = 100_000
        world.api.handle = lambda ctx, request: world.api.handled.append("") or Text(bytes(size))
        peer = world.connect()
        count = 2 * MAX_UNSENT_BYTES // size
        for _ in range(count):
            await peer.send(frame("x"))
            await asyncio.sleep(0)
        assert await settle(world) < count
        assert peer.connection._outbox.queued_bytes < MAX_UNSENT_BYTES + 2 * size
        for _ in range(count):
            assert len((await peer.response())[1]) == size

    in_world(body)


def test_reading_stops_while_the_peer_does_not_receive_file_slices(tmp_path):
    (tmp_path / "a.log").write_bytes(bytes(1_000_000))
    file = LogFile(str(tmp_path / "a.log"), 1_000_000)

    async def body(world: World) -> None:
        world.api.handle = lambda ctx, request: world.api.handled.append("") or Text(FileSlice(file, 0, 1_000_000))
        peer = world.connect()
        count = 3 * MAX_UNSENT_PIECES
        sending = peer.start_sending(*(frame(bytes(1000)) for _ in range(count)))
        handled = await settle(world)
        assert handled < MAX_UNSENT_PIECES
        sending.cancel()

    in_world(body)


def test_a_slow_peer_gets_all_responses_in_order():
    async def body(world: World) -> None:
        peer = world.connect(send_buffer=4096)
        texts = [f"{n}-" + "x" * 3000 for n in range(500)]
        sending = peer.start_sending(*map(frame, texts))
        assert await peer.responses(len(texts)) == texts
        await sending
        assert peer.connection._outbox.queued_bytes == 0

    in_world(body)


def test_reading_stops_with_too_many_pending_responses():
    async def body(world: World) -> None:
        peer = world.connect()
        count = MAX_PENDING_RESPONSES + 50
        for n in range(count):
            await peer.send(frame(f"future:{n}"))
            await asyncio.sleep(0)
        assert await settle(world) == MAX_PENDING_RESPONSES
        for n in range(MAX_PENDING_RESPONSES - 1, -1, -1):
            world.api.respond(str(n))
        assert await peer.responses(MAX_PENDING_RESPONSES) == [str(n) for n in range(MAX_PENDING_RESPONSES)]
        await world.until(lambda: len(world.api.handled) == count)
        for n in range(MAX_PENDING_RESPONSES, count):
            world.api.respond(str(n))
        assert len(await peer.responses(50)) == 50

    in_world(body)


def first_half(size: int = LARGE) -> bytes:
    """The first half of a large request."""
    return frame(bytes(size))[: size // 2]


def test_large_requests_wait_for_queued_bytes_and_small_ones_do_not():
    async def body(world: World) -> None:
        first, second, small = world.connect(), world.connect(), world.connect()
        await first.send(first_half())
        await world.until(lambda: world.server.large_frame_bytes > 0)
        reserved = world.server.large_frame_bytes
        sending = second.start_sending(frame("first"), frame(b"2" * LARGE), frame("last"))
        assert await second.responses(1) == ["first"]
        await second.assert_no_response()
        assert world.server.large_frame_bytes == reserved
        await small.send(frame("small"))
        assert await small.responses(1) == ["small"]
        await first.send(frame(bytes(LARGE))[LARGE // 2 :])
        assert len((await first.response())[1]) == LARGE
        assert (await second.response())[1] == b"2" * LARGE
        assert await second.responses(1) == ["last"]
        await sending

    in_world(body, queued_max_request_bytes=LARGE)


def test_bytes_of_an_aborted_large_request_are_released():
    async def body(world: World) -> None:
        first, second = world.connect(), world.connect()
        await first.send(first_half())
        await world.until(lambda: world.server.large_frame_bytes > 0)
        sending = second.start_sending(frame(b"2" * LARGE))
        await second.assert_no_response()
        first.sock.close()
        assert (await second.response())[1] == b"2" * LARGE
        await sending

    in_world(body, queued_max_request_bytes=1)


@pytest.mark.parametrize("behaviour", ["task", "task of future"])
def test_bytes_of_a_large_request_are_released_when_its_coroutine_ends(behaviour: str):
    """A Produce may wait for a worker that decodes its batches. Its bytes stay in memory until
    then."""

    async def body(world: World) -> None:
        first, second = world.connect(), world.connect()
        handle = world.api.handle
        world.api.handle = lambda ctx, request: handle(ctx, Text(request.data.strip(b" ")))
        gate = asyncio.Event()
        if behaviour == "task of future":
            in_coroutine = world.api._in_coroutine

            async def later(*args: str) -> object:
                await gate.wait()
                return await in_coroutine(*args)

            world.api._in_coroutine = later
        first.start_sending(frame(b" " * LARGE + f"{behaviour}:x".encode()))
        await world.until(lambda: bool(world.api.handled))
        assert world.server.large_frame_bytes > LARGE
        sending = second.start_sending(frame(b"2" * LARGE))
        await second.assert_no_response()
        if behaviour == "task":
            world.api.respond("x")
        else:
            gate.set()
        # A response that waits for replicas does not need the bytes.
        assert (await second.response())[1] == b"2" * LARGE
        if behaviour != "task":
            world.api.respond("x")
        assert await first.responses(1) == ["x"]
        await sending

    in_world(body, queued_max_request_bytes=1)


def test_an_invalid_request_after_a_wait_for_bytes_closes_only_its_connection():
    async def body(world: World) -> None:
        first, second = world.connect(), world.connect()
        await first.send(first_half())
        await world.until(lambda: world.server.large_frame_bytes > 0)
        sending = second.start_sending(frame(b"2" * LARGE, key=999))
        await second.assert_no_response()
        await first.send(frame(bytes(LARGE))[LARGE // 2 :])
        assert len((await first.response())[1]) == LARGE
        await asyncio.wait((sending,))
        await second.assert_closed()

    in_world(body, queued_max_request_bytes=1)


def test_a_connection_that_closes_while_it_waits_for_bytes_is_removed():
    async def body(world: World) -> None:
        first, second = world.connect(), world.connect()
        await first.send(first_half())
        await world.until(lambda: world.server.large_frame_bytes > 0)
        await second.send(first_half()[:200_000])
        await world.until(lambda: bool(world.server._waiting_for_bytes))
        second.connection.close()
        assert not world.server._waiting_for_bytes
        await first.send(frame(bytes(LARGE))[LARGE // 2 :])
        assert len((await first.response())[1]) == LARGE

    in_world(body, queued_max_request_bytes=1)


def test_a_length_alone_allocates_no_memory():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(struct.pack(">i", 90_000_000) + b"x" * 1000)
        await peer.assert_no_response()
        assert len(peer.connection._frame) < 300_000

    in_world(body)


def test_an_idle_connection_is_closed_unless_a_response_is_pending():
    async def body(world: World) -> None:
        world.server.start()
        idle, busy, waiting = world.connect(), world.connect(), world.connect()
        await waiting.send(frame("future:a"))
        for _ in range(30):
            await busy.send(frame("x"))
            assert await busy.responses(1) == ["x"]
            await asyncio.sleep(0.01)
        await idle.assert_closed()
        assert not busy.connection.closed
        assert not waiting.connection.closed
        world.api.respond("a")
        assert await waiting.responses(1) == ["a"]
        await asyncio.sleep(0.05)
        assert not waiting.connection.closed
        await waiting.assert_closed()

    in_world(body, connections_max_idle_ms=150)


def test_a_peer_that_receives_nothing_for_the_idle_time_is_closed():
    async def body(world: World) -> None:
        world.server.start()
        peer = world.connect()
        world.api.handle = lambda ctx, request: Text(bytes(3_000_000))
        await peer.send(frame("a"))
        await world.until(lambda: peer.connection.closed)

    in_world(body, connections_max_idle_ms=100)


def test_the_stop_cancels_futures_and_waits_for_coroutines_up_to_its_grace_time(monkeypatch):
    monkeypatch.setattr("kavka.network.server.STOP_GRACE_S", 0.1)

    async def body(world: World) -> None:
        quick, slow = world.connect(), world.connect()
        await quick.send(frame("future:a"), frame("task:b"))
        await slow.send(frame("task:c"))
        await world.until(lambda: len(world.api.futures) == 3)
        asyncio.get_running_loop().call_later(0.02, world.api.respond, "b")
        tasks = [task for peer in (quick, slow) for task in peer.connection.tasks()]
        await world.server.stop()
        assert world.api.futures["a"].cancelled()
        assert all(task.done() for task in tasks)
        await quick.assert_closed()
        await slow.assert_closed()

    in_world(body)


def test_a_pipelining_connection_does_not_starve_others(monkeypatch):
    """One read contains hundreds of requests of a millisecond each. Another connection is served
    between them."""

    async def body(world: World) -> None:
        clock = FakeClock()
        monkeypatch.setattr("kavka.network.connection.perf_counter", clock.monotonic)

        def handle(ctx, request):
            clock.advance(1)
            return echo(ctx, request)

        echo, world.api.handle = world.api.handle, handle  # type: ignore[method-assign]
        greedy, other = world.connect(), world.connect()
        names = [f"greedy {n}" for n in range(300)]
        await greedy.send(*(frame(name) for name in names))
        await world.until(lambda: len(world.api.handled) > 0)
        await other.send(frame("other"))
        assert await other.responses(1) == ["other"]
        assert world.api.handled.index("other") < 150
        assert await greedy.responses(len(names)) == names

    in_world(body)


def test_carried_requests_are_handled_without_new_input(monkeypatch):
    """Every request uses up its turn. The other requests are handled although the socket never
    becomes readable again."""
    monkeypatch.setattr("kavka.network.connection.MAX_TURN_S", -1.0)

    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("a"), frame("future:b"), frame("task:c"), frame("d"), frame("fail:e"), frame("f"))
        assert await peer.responses(1) == ["a"]
        await world.until(lambda: "c" in world.api.futures)
        world.api.respond("b")
        assert await peer.responses(1) == ["b"]
        world.api.respond("c")
        assert await peer.responses(4) == ["c", "d", "error 42", "f"]
        # The turn ends after an incomplete request. Then the peer sends the last byte.
        last = frame("h")
        await peer.send(frame("g"), last[:-1])
        assert await peer.responses(1) == ["g"]
        await peer.send(last[-1:])
        assert await peer.responses(1) == ["h"]

    in_world(body)


def test_a_connection_may_close_between_its_turns(monkeypatch):
    monkeypatch.setattr("kavka.network.connection.MAX_TURN_S", -1.0)

    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("a"), frame("close:b"), frame("c"))
        assert await peer.responses(1) == ["a"]
        await peer.assert_closed()
        other = world.connect()
        await other.send(*(frame(str(n)) for n in range(50)))
        other.sock.shutdown(socket.SHUT_WR)
        assert await other.responses(50) == [str(n) for n in range(50)]
        await other.assert_closed()

    in_world(body)
