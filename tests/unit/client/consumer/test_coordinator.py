"""Finding the group's coordinator, by several calls at once."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from kavka.client.consumer.coordinator import Coordinator
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import Disconnected, KafkaTimeout
from kavka.client.metadata import Node


class SlowCluster:
    """Its coordinator is not found before `answer` is set."""

    def __init__(self) -> None:
        self.closed = False
        self.nodes: dict[int, Node] = {}
        self.answer = asyncio.Event()
        self.asked: list[float] = []

    async def find_coordinator(self, key: str, key_type: int, *, timeout: float) -> Node:
        self.asked.append(timeout)
        await self.answer.wait()
        self.nodes[1] = Node(1, "host", 9092)
        return self.nodes[1]

    def connect_error(self) -> None:
        return None

    async def connection(self, node: int, channel: str, *, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(version_of=lambda api_key, max_version: 3, left=timeout)


def make() -> tuple[Coordinator, SlowCluster]:
    config = consumer_config({"bootstrap.servers": "h:1", "group.id": "g", "request.timeout.ms": 60_000}, {})
    cluster = SlowCluster()
    return Coordinator(config, cluster, ConsumerMetrics()), cluster  # type: ignore[arg-type]


def test_a_call_with_little_time_does_not_wait_for_another_that_has_much_and_asks_already() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        patient = asyncio.create_task(coordinator.find())
        await asyncio.sleep(0)
        began = time.monotonic()
        with pytest.raises(KafkaTimeout, match=r"no coordinator for g within 0\.05 s"):
            await coordinator.find(0.05)
        assert time.monotonic() - began < 30
        assert cluster.asked == [pytest.approx(60, abs=1)]
        cluster.answer.set()
        assert await patient == 1
        assert await coordinator.find(0.05) == 1

    asyncio.run(run())


def test_those_who_ask_at_once_ask_the_cluster_once() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        asking = [asyncio.create_task(coordinator.find()) for _ in range(3)]
        await asyncio.sleep(0)
        cluster.answer.set()
        assert await asyncio.gather(*asking) == [1, 1, 1]
        assert len(cluster.asked) == 1

    asyncio.run(run())


def test_one_that_is_called_off_while_it_waits_leaves_the_way_free() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        first, second = (asyncio.create_task(coordinator.find()) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        cluster.answer.set()
        assert await asyncio.wait_for(coordinator.find(), 30) == 1

    asyncio.run(run())


def test_a_coordinator_that_cannot_be_reached_is_looked_for_again_also_by_who_only_asks_for_its_versions() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        cluster.answer.set()
        assert await coordinator.version_of(1) == 3

        async def fails(*where: object, **more: object) -> SimpleNamespace:
            raise Disconnected("it is gone")

        cluster.connection = fails  # type: ignore[method-assign]
        for asked in (2, 3):
            with pytest.raises(Disconnected):
                await coordinator.version_of(1)
            await coordinator.find()
            assert len(cluster.asked) == asked

    asyncio.run(run())
