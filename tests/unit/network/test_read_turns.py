"""Several producers are read in one turn: one write of their appends, then their responses."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kavka.network import read_turns
from kavka.protocol.messages.produce import ProduceResponse
from kavka.records.batch import batches
from tests.support.logs import build
from tests.unit.api.records_world import RecordsWorld, batch
from tests.unit.api.test_produce_lane import request_bytes
from tests.unit.network.harness import Peer, World, frame
from tests.unit.network.test_produce_lanes import VERSION, framed, with_connection

COUNT = read_turns.MIN_PRODUCERS + 2
STORAGE_ERROR = 56


class Producers:
    """Connections with lanes, which are read together."""

    def __init__(self, records: RecordsWorld, world: World, peers: list[Peer], partition: Any) -> None:
        self.records = records
        self.world = world
        self.peers = peers
        self.partition = partition
        self.request = request_bytes(partition, bytes(batch()), version=VERSION)

    def send(self, *frames: bytes) -> None:
        """Send the same frames on all connections before the event loop runs again."""
        for peer in self.peers:
            assert peer.sock.send(b"".join(frames)) == sum(map(len, frames))

    async def results(self, peer: Peer, count: int = 1) -> list[tuple[int, int]]:
        """(error code, base offset) of the next responses."""
        results = []
        for _ in range(count):
            _, data = await peer.response()
            [topic] = ProduceResponse.decode(memoryview(data), 0, VERSION)[0].responses
            [result] = topic.partition_responses
            results.append((result.error_code, result.base_offset))
        return results


def with_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: Callable[[Producers, list[int]], Awaitable[None]]
) -> None:
    """Run `body` with connections that have a lane, and the sizes of all writes from then on."""
    writes: list[int] = []
    write = os.pwritev

    def counted(fd: int, buffers: Any, *args: Any) -> int:
        writes.append(len(buffers))
        return write(fd, buffers, *args)

    async def scenario(records: RecordsWorld, world: World, peer: Peer) -> None:
        partition = await records.create("orders")
        world.server.reads._staged_appends = records.replicas.staged_appends
        producers = Producers(records, world, [peer, *(world.connect() for _ in range(COUNT - 1))], partition)
        for producer in producers.peers:
            await producer.send(framed(producers.request))
            assert (await producers.results(producer))[0][0] == 0
        monkeypatch.setattr(os, "pwritev", counted)
        await body(producers, writes)

    with_connection(tmp_path, scenario)


def test_ready_producers_share_a_write(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        producers.send(framed(producers.request), framed(producers.request))
        offsets = [offset for peer in producers.peers for _, offset in await producers.results(peer, 2)]
        assert sorted(offsets) == list(range(COUNT, 3 * COUNT))
        assert writes == [2 * COUNT]
        stored = [header.base_offset for _, header in producers.partition.log.active_segment.batches()]
        assert stored == list(range(3 * COUNT))

    with_producers(tmp_path, monkeypatch, body)


def test_a_failed_write_fails_the_requests_of_all_producers(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        def no_room(*args: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", no_room)
            producers.send(framed(producers.request))
            for peer in producers.peers:
                assert await producers.results(peer) == [(STORAGE_ERROR, -1)]
        log = producers.partition.log
        assert (log.end_offset, log.written_end, log.high_watermark) == (COUNT, COUNT, COUNT)
        producers.send(framed(producers.request))
        offsets = [offset for peer in producers.peers for _, offset in await producers.results(peer)]
        assert sorted(offsets) == list(range(COUNT, 2 * COUNT))

    with_producers(tmp_path, monkeypatch, body)


def test_a_request_that_reads_finds_the_appends_of_all_earlier_producers(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        log = producers.partition.log
        seen: list[tuple[int, int]] = []
        handle = producers.world.api.handle

        def observed(ctx: Any, request: Any) -> Any:
            seen.append((log.written_end, log.end_offset))
            return handle(ctx, request)

        monkeypatch.setattr(producers.world.api, "handle", observed)
        producers.send(framed(producers.request), frame("read"), framed(producers.request))
        for peer in producers.peers:
            [(_, first)] = await producers.results(peer)
            assert (await peer.response())[1] == b"read"
            [(_, second)] = await producers.results(peer)
            assert second == first + 1
        assert len(seen) == COUNT
        assert all(written == end for written, end in seen)
        assert log.written_end == 3 * COUNT

    with_producers(tmp_path, monkeypatch, body)


def test_an_invalid_request_closes_its_connection_only(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        first, second, *others = producers.peers
        producers.send(framed(producers.request))
        first.sock.send(framed(b"short"))
        second.sock.send(frame("crash:x"))
        for peer in producers.peers:
            assert (await producers.results(peer))[0][0] == 0
        await first.assert_closed()
        assert (await second.response())[1].startswith(b"error")
        for peer in others:
            assert not peer.connection.closed

    with_producers(tmp_path, monkeypatch, body)


def test_requests_that_fill_the_buffer_are_written_before_it_is_used_again(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        log = producers.partition.log
        size = 100_000
        values = [bytes([number]) * size for number in range(COUNT)]
        # A socket does not accept all bytes at once, so each request is received in several turns.
        await asyncio.gather(
            *(
                peer.send(framed(request_bytes(producers.partition, bytes(build([(None, value)])), version=VERSION)))
                for peer, value in zip(producers.peers, values, strict=True)
            )
        )
        offsets = [offset for peer in producers.peers for _, offset in await producers.results(peer)]
        segment = log.active_segment
        content = Path(segment.file.path).read_bytes()
        by_offset = {stored.base_offset: stored for stored in batches(content[: segment.file.size])}
        for offset, value in zip(offsets, values, strict=True):
            stored = by_offset[offset]
            stored.ensure_crc()
            assert value in content[stored.start : stored.end]
        assert len(writes) < COUNT

    with_producers(tmp_path, monkeypatch, body)


def test_producers_without_time_in_a_turn_are_read_in_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(read_turns, "MAX_TURN_S", -1.0)

    async def body(producers: Producers, writes: list[int]) -> None:
        for _ in range(3):
            producers.send(framed(producers.request))
            for peer in producers.peers:
                assert (await producers.results(peer))[0][0] == 0
        assert writes == [1] * 3 * COUNT

    with_producers(tmp_path, monkeypatch, body)


def test_producers_that_are_closed_in_a_turn_are_not_read(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        handle = producers.world.api.handle

        def close_all(ctx: Any, request: Any) -> Any:
            for peer in producers.peers:
                peer.connection.close()
            return handle(ctx, request)

        monkeypatch.setattr(producers.world.api, "handle", close_all)
        producers.send(frame("x"), framed(producers.request))
        for peer in producers.peers:
            await peer.assert_closed()
        assert producers.world.api.handled == ["x"]
        assert writes == []
        # New connections use the descriptors of the closed ones.
        producers.peers = [producers.world.connect() for _ in range(COUNT)]
        for _ in range(2):
            producers.send(framed(producers.request))
            for peer in producers.peers:
                assert (await producers.results(peer))[0][0] == 0

    with_producers(tmp_path, monkeypatch, body)


def test_a_producer_that_waits_for_a_response_is_not_read(tmp_path, monkeypatch):
    async def body(producers: Producers, writes: list[int]) -> None:
        for number, peer in enumerate(producers.peers):
            peer.sock.send(frame(f"task:{number}") + framed(producers.request))
        await producers.world.until(lambda: len(producers.world.api.handled) == COUNT)
        producers.send(framed(producers.request))
        await producers.peers[0].assert_no_response()
        assert writes == []
        for number, peer in enumerate(producers.peers):
            producers.world.api.respond(str(number))
            assert (await peer.response())[1] == str(number).encode()
            assert [code for code, _ in await producers.results(peer, 2)] == [0, 0]

    with_producers(tmp_path, monkeypatch, body)
