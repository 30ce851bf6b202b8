"""Connections with produce lanes: the order of responses, and when a lane is used."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kavka.protocol.messages.produce import ProduceResponse
from kavka.security.principal import Principal
from kavka.security.quotas import PRODUCER_BYTE_RATE, ClientQuotas, QuotaEntity
from kavka.security.rates import Window
from tests.unit.api.records_world import RecordsWorld, batch, in_records_world
from tests.unit.api.test_produce_lane import request_bytes
from tests.unit.network.harness import Peer, World, frame

VERSION = 7


def with_connection(tmp_path: Path, body: Callable[[RecordsWorld, World, Peer], Awaitable[None]]) -> None:
    async def scenario(records: RecordsWorld) -> None:
        world = World()
        services: Any = world.server.services
        services.replica_manager = records.replicas
        services.metadata_cache = records.broker.metadata_cache
        services.clock = records.broker.clock
        world.server.write_staged = records.replicas.staged_appends.write
        try:
            await body(records, world, world.connect())
        finally:
            await world.close()

    in_records_world(tmp_path, scenario)


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


async def base_offset(peer: Peer, correlation_id: int) -> int:
    received, data = await peer.response()
    assert received == correlation_id
    [topic] = ProduceResponse.decode(memoryview(data), 0, VERSION)[0].responses
    [result] = topic.partition_responses
    assert result.error_code == 0
    return result.base_offset


def test_responses_of_lanes_keep_the_order_of_the_requests(tmp_path):
    async def body(records: RecordsWorld, world: World, peer: Peer) -> None:
        orders, payments = await records.create("orders"), await records.create("payments")
        data = bytes(batch(2))

        def produce(partition: Any, correlation_id: int) -> bytes:
            return framed(request_bytes(partition, data, version=VERSION, correlation_id=correlation_id))

        await peer.send(produce(orders, 1), produce(payments, 2))
        assert [await base_offset(peer, 1), await base_offset(peer, 2)] == [0, 0]
        assert len(peer.connection._lanes) == 2
        await peer.send(produce(orders, 3), frame("future:x", 4), produce(payments, 5), produce(orders, 6))
        assert await base_offset(peer, 3) == 2
        await world.until(lambda: orders.log.written_end == 6)
        await peer.assert_no_response()
        world.api.respond("x")
        assert (await peer.response())[0] == 4
        assert [await base_offset(peer, 5), await base_offset(peer, 6)] == [2, 4]

    with_connection(tmp_path, body)


def test_another_principal_gets_new_lanes(tmp_path):
    async def body(records: RecordsWorld, world: World, peer: Peer) -> None:
        orders = await records.create("orders")
        request = framed(request_bytes(orders, bytes(batch()), version=VERSION))
        await peer.send(request)
        await base_offset(peer, 7)
        assert peer.connection._lanes
        peer.connection.on_authenticated(Principal("User", "bob"), False)
        assert not peer.connection._lanes
        await peer.send(request)
        assert await base_offset(peer, 7) == 1

    with_connection(tmp_path, body)


def test_a_recreated_topic_gets_a_new_lane(tmp_path):
    async def body(records: RecordsWorld, world: World, peer: Peer) -> None:
        orders = await records.create("orders")
        request = framed(request_bytes(orders, bytes(batch()), version=VERSION))
        await peer.send(request, request)
        assert [await base_offset(peer, 7), await base_offset(peer, 7)] == [0, 1]
        [lane] = peer.connection._lanes.values()
        await records.delete("orders")
        assert (await records.create("orders")).log.end_offset == 0
        await peer.send(request, request)
        assert [await base_offset(peer, 7), await base_offset(peer, 7)] == [0, 1]
        [new_lane] = peer.connection._lanes.values()
        assert new_lane is not lane

    with_connection(tmp_path, body)


def test_requests_of_a_lane_are_charged_like_those_of_the_handler(tmp_path):
    """The request that exceeds the bound gets the throttle time; later requests are not handled."""

    async def body(records: RecordsWorld, world: World, peer: Peer) -> None:
        orders = await records.create("orders")
        request = framed(request_bytes(orders, bytes(batch()), version=VERSION))
        size = len(request) - 4
        quotas = ClientQuotas(Window(2, 1000))
        # Three requests are within the bound: the shortest window is one second.
        quotas.set(QuotaEntity(None, ""), {PRODUCER_BYTE_RATE: 3.5 * size})
        world.server.quotas = quotas
        services: Any = world.server.services
        services.now_ms = lambda: 1000
        await peer.send(*[request] * 6)
        times = []
        for _ in range(4):
            _, data = await peer.response()
            times.append(ProduceResponse.decode(memoryview(data), 0, VERSION)[0].throttle_time_ms)
        assert times == [0, 0, 0, round(1000 * 0.5 / 3.5)]
        assert orders.log.end_offset == 4
        [(_, meter)] = quotas.meters()
        assert meter.throttled_ms == times[-1]
        # Without a bound the remaining requests are not throttled.
        quotas.set(QuotaEntity(None, ""), {})
        for _ in range(2):
            _, data = await peer.response()
            assert ProduceResponse.decode(memoryview(data), 0, VERSION)[0].throttle_time_ms == 0

    with_connection(tmp_path, body)


def test_a_connection_has_a_bounded_number_of_lanes(tmp_path, monkeypatch):
    monkeypatch.setattr("kavka.network.connection.MAX_LANES", 3)
    monkeypatch.setattr("kavka.network.connection.MAX_LANE_LENGTHS", 2)

    async def body(records: RecordsWorld, world: World, peer: Peer) -> None:
        for name in ("a", "b", "cc", "ddd", "e", "f"):
            partition = await records.create(name)
            request = framed(request_bytes(partition, bytes(batch()), version=VERSION))
            await peer.send(request, request)
            assert [await base_offset(peer, 7), await base_offset(peer, 7)] == [0, 1]
        assert len(peer.connection._lanes) == 3
        assert len(peer.connection._lane_ends) == 2

    with_connection(tmp_path, body)
