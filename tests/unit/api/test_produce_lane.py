"""The produce lane: its responses equal those of the handler, and it serves no other requests."""

from __future__ import annotations

import errno
import logging
import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.api.authorization import LOGGER_NAME
from kavka.api.context import RequestContext
from kavka.api.produce_lane import HEAD_BYTES, LaneResponse, ProduceLane, new_lane
from kavka.api.registry import served_apis
from kavka.protocol.headers import RequestHeader
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kavka.replication.partition import Partition
from kavka.security.acls import Acl, Operation, Permission, ResourcePattern, ResourceType
from kavka.security.authorizer import AclTable, Authorizer
from tests.unit.api.records_world import RecordsWorld, batch, in_records_world, produced

VERSIONS = range(5, 14)
API = served_apis(False)[0]
STORAGE_ERROR = 56
WRITE = Acl("User:ANONYMOUS", "*", Operation.WRITE, Permission.ALLOW)


def request_bytes(
    partition: Partition, records: bytes, *, version: int = 12, acks: int = 1, correlation_id: int = 7, **more: Any
) -> bytes:
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=partition.topic_partition.topic,
                topic_id=partition.topic_id,
                partition_data=[PartitionProduceData(index=0, records=records)],
            )
        ],
        **more,
    )
    pieces: list[Any] = [struct.pack(">hhi", 0, version, correlation_id), struct.pack(">h", 6) + b"client"]
    if version >= 9:
        pieces.append(b"\x00")
    request.encode(pieces, version)
    return b"".join(pieces)


def decode(data: memoryview, version: int) -> ProduceRequest:
    _, position = RequestHeader.decode(data, 0)
    return ProduceRequest.decode(data, position, version)[0]


def context(world: RecordsWorld, version: int, authorizer: Any = None) -> RequestContext:
    return RequestContext(
        world.broker, version, 0, "client", "PLAINTEXT", "127.0.0.1", "User:ANONYMOUS", None, authorizer, "Produce"
    )


def lane_for(world: RecordsWorld, data: bytes, version: int = 12, authorizer: Any = None) -> ProduceLane | None:
    view = memoryview(bytearray(data))
    return new_lane(context(world, version, authorizer), API, decode(view, version), view)


def send(world: RecordsWorld, lane: ProduceLane, data: bytes, correlation_id: int = 7) -> LaneResponse | None:
    response = lane.append(memoryview(bytearray(data)), correlation_id, 0.0)
    world.replicas.staged_appends.write()
    return response


def frame_of(response: ProduceResponse, version: int, correlation_id: int = 7) -> bytes:
    pieces: list[Any] = []
    response.encode(pieces, version)
    body = (b"\x00" if version >= 9 else b"") + b"".join(pieces)
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_lane_appends_and_responds_like_the_handler(tmp_path, version, acks):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        world.broker.metadata_cache.topic_name = {partition.topic_id: "orders"}.get
        for size in (10, 200, 20_000):
            data = request_bytes(partition, bytes(batch(3, size)), version=version, acks=acks)
            expected = world.send(decode(memoryview(bytearray(data)), version), version)
            lane = lane_for(world, data, version)
            assert lane is not None
            response = send(world, lane, data)
            assert response is not None
            [result] = produced(expected)
            assert result.error_code == 0
            result.base_offset += 3
            assert response.encode_frame() == frame_of(expected, version)
            expected.throttle_time_ms = response.throttle_time_ms = 40
            assert response.encode_frame() == frame_of(expected, version)
        assert partition.log.high_watermark == 18
        assert [header.count for _, header in partition.log.active_segment.batches()] == [3] * 6
        assert partition.metrics.messages_in.value == 18

    in_records_world(tmp_path, body)


def test_requests_of_other_shapes_have_no_lane(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        good = bytes(batch())
        assert lane_for(world, request_bytes(partition, good)) is not None
        assert lane_for(world, request_bytes(partition, good, version=4), 4) is None
        assert lane_for(world, request_bytes(partition, good, acks=0)) is None
        assert lane_for(world, request_bytes(partition, good, transactional_id="t")) is None
        several = memoryview(bytearray(request_bytes(partition, good)))
        request = decode(several, 12)
        request.topic_data[0].partition_data *= 2
        assert new_lane(context(world, 12), API, request, several) is None
        internal = await world.create("__consumer_offsets")
        assert lane_for(world, request_bytes(internal, good)) is None
        long_name = await world.create("x" * 249)
        assert lane_for(world, request_bytes(long_name, good)) is not None

    in_records_world(tmp_path, body)


def test_the_handler_serves_what_the_lane_cannot(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        good = request_bytes(partition, bytes(batch()))
        lane = lane_for(world, good)
        assert lane is not None
        corrupt = bytearray(good)
        corrupt[-10] ^= 1
        assert send(world, lane, bytes(corrupt)) is None
        role, partition.leader_role = partition.leader_role, None
        assert send(world, lane, good) is None
        partition.leader_role = role
        await world.create("orders", epoch=1, flush_messages=1)
        world.log_manager.update_config("orders", world.configs["orders"])
        assert send(world, lane, good) is None
        assert partition.log.end_offset == 0
        await world.delete("orders")
        assert send(world, lane, good) is None
        new_partition = await world.create("orders")
        assert new_partition is not partition
        assert send(world, lane, good) is None
        assert new_partition.log.end_offset == 0

    in_records_world(tmp_path, body)


def test_a_producer_that_waits_for_followers_has_no_lane(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        lane = lane_for(world, request_bytes(partition, bytes(batch()), acks=-1))
        assert lane is not None
        assert partition.leader_role is not None
        partition.leader_role.followers[1] = SimpleNamespace()  # type: ignore[assignment]
        assert lane.append(memoryview(request_bytes(partition, bytes(batch()), acks=-1)), 1, 0.0) is None
        partition.leader_role.followers.clear()

    in_records_world(tmp_path, body)


def test_a_client_that_loses_its_right_to_write_loses_its_lane(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        table = AclTable()
        topic = ResourcePattern(ResourceType.TOPIC, "orders")
        table.replace(topic, frozenset({WRITE}))
        data = request_bytes(partition, bytes(batch()))
        lane = lane_for(world, data, authorizer=Authorizer(table).client("User:ANONYMOUS", "127.0.0.1"))
        assert lane is not None and send(world, lane, data) is not None
        table.replace(topic, frozenset({WRITE, WRITE._replace(permission=Permission.DENY)}))
        assert send(world, lane, data) is None
        assert send(world, lane, data) is None
        table.replace(topic, frozenset({WRITE}))
        assert send(world, lane, data) is not None
        logging.getLogger(LOGGER_NAME).setLevel(logging.DEBUG)
        try:
            # The handler writes the permission to the authorizer log.
            assert send(world, lane, data) is None
        finally:
            logging.getLogger(LOGGER_NAME).setLevel(logging.NOTSET)
        assert partition.log.end_offset == 2

    in_records_world(tmp_path, body)


@pytest.mark.parametrize("version", [7, 12])
def test_a_failed_write_is_reported_like_by_the_handler(tmp_path, monkeypatch, version):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        data = request_bytes(partition, bytes(batch()), version=version)
        lane = lane_for(world, data, version)
        assert lane is not None

        def no_room(*args: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwritev", no_room)
        response = send(world, lane, data)
        assert response is not None
        expected = world.send(decode(memoryview(bytearray(data)), version), version)
        assert [result.error_code for result in produced(expected)] == [STORAGE_ERROR]
        assert response.encode_frame() == frame_of(expected, version)
        assert partition.log.end_offset == 0
        monkeypatch.undo()
        assert send(world, lane, data) is not None
        assert partition.log.end_offset == 1

    in_records_world(tmp_path, body)


@settings(max_examples=150, deadline=None)
@given(version=st.sampled_from([7, 12]), where=st.integers(0, 120), value=st.integers(0, 255), cut=st.integers(-4, 4))
def test_a_lane_never_accepts_a_request_that_the_handler_decodes_differently(
    tmp_path_factory, version, where, value, cut
):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("orders")
        good = request_bytes(partition, bytes(batch(1, 30)), version=version)
        lane = lane_for(world, good, version)
        assert lane is not None
        changed = bytearray(good)
        start = HEAD_BYTES + len(lane.prefix)
        position = start + where
        if position < len(changed):
            changed[position] = value
        changed = changed[:cut] if cut < 0 else changed + bytes(cut)
        if send(world, lane, bytes(changed)) is not None:
            request = decode(memoryview(changed), version)
            [data] = request.topic_data[0].partition_data
            assert partition.log.end_offset == 1
            stored = partition.log.active_segment.file.read(16, len(changed))  # after the leader epoch
            assert bytes(data.records or b"")[16:] == stored

    in_records_world(tmp_path_factory.mktemp("lane"), body)
