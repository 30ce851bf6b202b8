"""One connection: the order of responses, waits, partial frames, and closing."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from kavka.network import connection as connections
from kavka.protocol.messages.api_versions import ApiVersionsResponse
from tests.unit.network.harness import KEY, World, frame, in_world


def test_responses_are_sent_in_the_order_of_the_requests():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a", 1), frame("b", 2), frame("future:c", 3), frame("d", 4))
        await peer.assert_no_response()
        assert world.api.handled == ["future:a", "b", "future:c", "d"]
        world.api.respond("c")
        await peer.assert_no_response()
        world.api.respond("a")
        assert [await peer.response() for _ in range(4)] == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]

    in_world(body)


def test_a_coroutine_delays_later_requests_until_it_is_done():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("task:a"), frame("b"))
        await peer.send(frame("c"))
        await peer.assert_no_response()
        assert world.api.handled == ["task:a"]
        world.api.respond("a")
        assert await peer.responses(3) == ["a", "b", "c"]
        await peer.send(frame("d"))
        assert await peer.responses(1) == ["d"]

    in_world(body)


def test_a_completed_future_does_not_resume_reading_during_a_coroutine():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("task:b"), frame("c"))
        await peer.assert_no_response()
        world.api.respond("a")
        assert await peer.responses(1) == ["a"]
        await peer.assert_no_response()
        assert world.api.handled == ["future:a", "task:b"]
        world.api.respond("b")
        assert await peer.responses(2) == ["b", "c"]

    in_world(body)


def test_requests_may_arrive_byte_by_byte():
    async def body(world: World) -> None:
        peer = world.connect()
        for byte in frame("abc", 7) + frame("d", 8):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [await peer.response() for _ in range(2)] == [(7, b"abc"), (8, b"d")]

    in_world(body)


def test_every_request_has_the_client_id_of_its_header():
    def tagged(client: str | None, tags: bytes = b"\0") -> bytes:
        name = b"" if client is None else client.encode()
        head = struct.pack(">hhih", KEY, 9, 0, -1 if client is None else len(name)) + name + tags + b"x"
        return struct.pack(">i", len(head)) + head

    async def body(world: World) -> None:
        client_ids: list[str | None] = []

        def handle(ctx, request):
            client_ids.append(ctx.client_id)
            return request

        world.api.max_version = world.api.flexible_from = 9
        world.api.handle = handle
        peer = world.connect()
        clients = ["a", "a", "ab", "a", None, None, "", "long" * 200, "long" * 200, "a"]
        await peer.send(
            *map(tagged, clients), frame("x"), tagged("a", b"\1\5\1z"), tagged("a", b"\1\5\1z"), tagged("a")
        )
        for _ in range(len(clients)):
            assert await peer.receive(10) == struct.pack(">iix", 6, 0) + b"x"
        assert await peer.responses(1) == ["x"]
        for _ in range(3):
            assert await peer.receive(10) == struct.pack(">iix", 6, 0) + b"x"
        assert client_ids == [*clients, "c", "a", "a", "a"]

    in_world(body)


@pytest.mark.parametrize("size", [100_000, 140_000, 300_000, 5_000_000])
def test_a_request_of_any_size_arrives_complete(size):
    async def body(world: World) -> None:
        world.api.handle = lambda ctx, request: request
        peer = world.connect()
        large = bytes(range(256)) * (size // 256)
        sending = peer.start_sending(frame("a"), frame(large), frame("b"))
        assert await peer.responses(1) == ["a"]
        assert (await peer.response())[1] == large
        assert await peer.responses(1) == ["b"]
        await sending

    in_world(body)


def test_responses_are_sent_before_an_invalid_frame_closes_the_connection():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("a"), frame("b"), struct.pack(">i", 3) + b"bad" + frame("never"))
        assert await peer.responses(2) == ["a", "b"]
        await peer.assert_closed()
        assert world.api.handled == ["a", "b"]

    in_world(body)


def test_pending_responses_are_sent_before_an_invalid_frame_closes_the_connection():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("b"), frame("x", key=999), frame("never"))
        await peer.assert_no_response()
        world.api.respond("a")
        assert await peer.responses(2) == ["a", "b"]
        await peer.assert_closed()
        assert world.api.handled == ["future:a", "b"]

    in_world(body)


@pytest.mark.parametrize(
    "data",
    [
        frame("x", key=999),
        frame("x", key=-1),
        frame("x", version=1),
        frame("x", version=-1),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 1001) + b"x",
        struct.pack(">i", 0x7FFFFFFF) + b"x",
        struct.pack(">ihhih", 10, 3, 0, 1, 500),
    ],
)
def test_an_unsupported_request_closes_the_connection(data):
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(data)
        await peer.assert_closed()
        assert not world.api.handled

    in_world(body, socket_request_max_bytes=1000)


def test_an_unsupported_api_versions_gets_a_response_of_version_0():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame(b"any body", 5, key=18, version=99), frame("a", 6))
        correlation, data = await peer.response()
        response, end = ApiVersionsResponse.decode(memoryview(data), 0, 0)
        assert (correlation, response.error_code, end) == (5, 35, len(data))
        assert 18 in [entry.api_key for entry in response.api_keys]
        assert await peer.response() == (6, b"a")

    in_world(body)


def test_a_request_over_the_decoding_limit_closes_the_connection_unless_it_is_produce(monkeypatch):
    monkeypatch.setattr(connections, "MAX_DECODED_BYTES", 1000)

    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("x" * 900), frame("x" * 1000))
        assert len((await peer.response())[1]) == 900
        await peer.assert_closed()

    in_world(body)


def test_a_request_without_a_response_leaves_no_gap():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("none:a", 1), frame("b", 2))
        assert await peer.response() == (2, b"b")

    in_world(body)


def test_a_failed_request_without_a_response_closes_after_earlier_responses():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("a"), frame("close:b"), frame("c"))
        assert await peer.responses(1) == ["a"]
        await peer.assert_closed()
        assert world.api.handled == ["a", "close:b"]

    in_world(body)


def test_a_coroutine_without_a_response_leaves_no_gap():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("later none:b"), frame("c"), frame("later none:d"), frame("e"))
        await world.until(lambda: len(world.api.handled) == 5)
        world.api.respond("a")
        assert await peer.responses(3) == ["a", "c", "e"]

    in_world(body)


def test_a_failed_coroutine_without_a_response_closes_after_earlier_responses():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("later close:b"), frame("c"))
        await peer.assert_no_response()
        world.api.respond("a")
        assert await peer.responses(1) == ["a"]
        await peer.assert_closed()
        assert world.api.handled == ["future:a", "later close:b"]

    in_world(body)


def test_later_requests_are_handled_when_a_coroutine_returns_a_future():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("task of future:a"), frame("b"))
        await world.until(lambda: len(world.api.handled) == 2)
        await peer.assert_no_response()
        world.api.respond("a")
        assert await peer.responses(2) == ["a", "b"]

    in_world(body)


def test_a_closed_connection_cancels_the_future_that_a_coroutine_returns():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("task of future:a"))
        await world.until(lambda: "a" in world.api.futures)
        peer.connection.close()
        await world.until(world.api.futures["a"].cancelled)

    in_world(body)


def test_errors_of_a_handler_become_responses_and_the_connection_stays_open():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("fail:a"), frame("crash:b"), frame("future:c"), frame("task:d"))
        assert await peer.responses(2) == ["error 42", "error -1"]
        world.api.futures["c"].set_exception(ZeroDivisionError())
        world.api.futures["d"].set_exception(ZeroDivisionError())
        assert await peer.responses(2) == ["error -1", "error -1"]
        await peer.send(frame("e"))
        assert await peer.responses(1) == ["e"]

    in_world(body)


@pytest.mark.parametrize("text", ["crash:in the error", "broken:a"])
def test_a_failure_without_a_response_closes_the_connection(text):
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame(text))
        await peer.assert_closed()
        other = world.connect()
        await other.send(frame("a"))
        assert await other.responses(1) == ["a"]

    in_world(body)


def test_a_cancelled_future_closes_the_connection():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("b"))
        await peer.assert_no_response()
        world.api.futures["a"].cancel()
        await peer.assert_closed()

    in_world(body)


def test_after_the_end_of_input_pending_responses_are_sent():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("b"))
        peer.sock.shutdown(1)
        await peer.assert_no_response()
        assert not peer.connection.closed
        world.api.respond("a")
        assert await peer.responses(2) == ["a", "b"]
        await peer.assert_closed()

    in_world(body)


def test_after_the_end_of_input_the_connection_closes_within_the_linger_time(monkeypatch):
    monkeypatch.setattr(connections, "MAX_LINGER_S", 0.05)

    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"))
        await peer.assert_no_response()
        peer.sock.close()
        await world.until(lambda: peer.connection.closed)
        assert world.api.futures["a"].cancelled()

    in_world(body)


def test_closing_cancels_futures_but_not_coroutines():
    async def body(world: World) -> None:
        peer = world.connect()
        await peer.send(frame("future:a"), frame("task:b"), frame("never"))
        await peer.assert_no_response()
        peer.connection.close()
        writes = world.writes
        await asyncio.sleep(0.01)
        assert world.api.futures["a"].cancelled()
        assert not world.api.futures["b"].done()
        world.api.respond("b")
        await world.until(lambda: not peer.connection.tasks())
        assert world.writes > writes
        assert world.api.handled == ["future:a", "task:b"]
        await peer.assert_closed()

    in_world(body)


def test_staged_appends_are_written_once_per_read_before_the_responses():
    async def body(world: World) -> None:
        peer = world.connect()
        api = world.api
        api.key = 0
        world.server.apis = {0: api}
        await peer.send(frame("a", key=0), frame("b", key=0), frame("c", key=0))
        await world.until(lambda: len(api.handled) == 3)
        assert world.writes == 1
        assert await peer.responses(3) == ["a", "b", "c"]

    in_world(body)


def test_a_connection_counts_its_requests_and_their_time(monkeypatch):
    async def body(world: World) -> None:
        monkeypatch.setattr(connections, "perf_counter", asyncio.get_running_loop().time)
        peer = world.connect()
        await peer.send(frame("a"), frame("future:b"), frame("none:c"))
        assert await peer.responses(1) == ["a"]
        await asyncio.sleep(0.05)
        world.api.respond("b")
        assert await peer.responses(1) == ["b"]
        latencies = world.server._latencies[world.api.name]
        assert latencies.count == 3
        assert latencies.sum == pytest.approx(0.05, abs=1e-3)

    in_world(body)


@pytest.mark.parametrize("seed", range(5))
def test_every_request_gets_one_response_in_order(seed):
    rng = random.Random(seed)

    async def body(world: World) -> None:
        peer = world.connect(send_buffer=8192)
        kinds = [rng.choice(("", "", "future:", "future:", "task:", "fail:", "none:")) for _ in range(400)]
        # Some responses exceed the socket buffer, some requests the carry limit.
        texts = [str(n) + "x" * rng.choice((0, 10, 30_000 if kind else 200_000)) for n, kind in enumerate(kinds)]
        data = b"".join(frame(kind + text, n) for n, (kind, text) in enumerate(zip(kinds, texts, strict=True)))

        async def send() -> None:
            position = 0
            while position < len(data):
                size = rng.choice((1, 50, 5000, 300_000))
                await peer.send(data[position : position + size])
                position += size
                await asyncio.sleep(0)

        async def respond() -> None:
            while True:
                pending = [name for name, future in world.api.futures.items() if not future.done()]
                if pending:
                    world.api.respond(rng.choice(pending))
                await asyncio.sleep(0)

        sending, responding = asyncio.ensure_future(send()), asyncio.ensure_future(respond())
        for n, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
            if kind != "none:":
                assert await peer.response() == (n, b"error 42" if kind == "fail:" else text.encode())
        await sending
        responding.cancel()
        assert len(world.api.handled) == len(kinds)

    in_world(body)
