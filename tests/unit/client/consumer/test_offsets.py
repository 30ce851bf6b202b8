"""Offset lookups are retried at the new leader after newer metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kavka.client.consumer.offsets import EARLIEST, OffsetLookup
from kavka.client.consumer.positions import Positions
from kavka.client.consumer.subscription import Subscriptions
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import Disconnected
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kavka.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.unit.client.consumer.fakes import FakeCluster

A = TP("t", 0)
CONFIG = consumer_config({"bootstrap.servers": "h:1", "retry.backoff.ms": 1, "auto.offset.reset": "earliest"}, {})
ERRORS = [
    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"),
    KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "newer"),
    KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, "older"),
    Disconnected("connection lost"),
]


class MovedCluster(FakeCluster):
    """The metadata names broker 1 as leader, which responds with an error. A metadata update names
    broker 2 with epoch 8, which responds with offsets."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__()
        self.error = error

    def leader_of(self, topic: str, partition: int) -> int:
        return self.topics[topic].partitions[partition].leader

    def request_update(self) -> int:
        asyncio.get_running_loop().call_soon(self.move, 0, 2, 8)
        return super().request_update()

    async def connection(self, node: int, channel: str = "", *, timeout: float | None = None) -> Any:
        return _Leader(self, node)

    async def request(self, node: int, request: Any, *, timeout: float | None = None) -> Any:
        return await _Leader(self, node).send(request)


class _Leader:
    def __init__(self, cluster: MovedCluster, node: int) -> None:
        self._cluster = cluster
        self._node = node

    def supports(self, api_key: int, version: int) -> bool:
        return True

    async def send(self, request: Any, *, timeout: float | None = None) -> Any:
        await asyncio.sleep(0)
        code = 0
        if self._node == 1:
            if isinstance(self._cluster.error, Disconnected):
                raise self._cluster.error
            code = int(self._cluster.error.code)
        if isinstance(request, ListOffsetsRequest):
            partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=3, leader_epoch=8)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])
        end = EpochEndOffset(partition=0, error_code=code, leader_epoch=5, end_offset=100)
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[end])])


class _NoGroup:
    group_id = None


def _positions(cluster: MovedCluster) -> tuple[Positions, Subscriptions]:
    async def run_in_poll(work: Callable[[], Awaitable[None]]) -> None:
        await work()

    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    subscriptions = Subscriptions()
    positions = Positions(
        CONFIG,
        cluster,  # type: ignore[arg-type]
        subscriptions,
        _NoGroup(),  # type: ignore[arg-type]
        OffsetLookup(CONFIG, cluster),  # type: ignore[arg-type]
        run_in_poll,
        fail,
        lambda: None,
    )
    cluster.on_update(lambda _: positions.on_metadata())
    subscriptions.assign([A])
    return positions, subscriptions


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code.name)
def test_position_is_validated_at_the_new_leader(error: KafkaError) -> None:
    async def main() -> None:
        cluster = MovedCluster(error)
        positions, subscriptions = _positions(cluster)
        state = subscriptions.partitions[A]
        state.seek(10, 4)
        positions.on_metadata()
        assert state.validating
        await _until(lambda: not state.validating)
        assert (state.position, state.leader_epoch) == (10, 8)
        await positions.stop()

    asyncio.run(main())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code.name)
def test_reset_position_is_looked_up_at_the_new_leader(error: KafkaError) -> None:
    async def main() -> None:
        cluster = MovedCluster(error)
        positions, subscriptions = _positions(cluster)
        state = subscriptions.partitions[A]
        state.seek_to_time(EARLIEST)
        positions.start()
        await _until(lambda: state.position == 3)
        await positions.stop()

    asyncio.run(main())
