"""Concurrent lookups of the group's coordinator."""

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
    """Responds to FindCoordinator when `response` is set."""

    def __init__(self) -> None:
        self.closed = False
        self.nodes: dict[int, Node] = {}
        self.response = asyncio.Event()
        self.timeouts: list[float] = []

    async def find_coordinator(self, key: str, key_type: int, *, timeout: float) -> Node:
        self.timeouts.append(timeout)
        await self.response.wait()
        self.nodes[1] = Node(1, "host", 9092)
        return self.nodes[1]

    def connect_error(self) -> None:
        return None

    async def connection(self, node: int, channel: str, *, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(version_of=lambda api_key, max_version: 3)


def make() -> tuple[Coordinator, SlowCluster]:
    config = consumer_config({"bootstrap.servers": "h:1", "group.id": "g", "request.timeout.ms": 60_000}, {})
    cluster = SlowCluster()
    return Coordinator(config, cluster, ConsumerMetrics()), cluster  # type: ignore[arg-type]


def test_short_timeout_applies_while_another_lookup_is_in_flight() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        slow = asyncio.create_task(coordinator.find())
        await asyncio.sleep(0)
        began = time.monotonic()
        with pytest.raises(KafkaTimeout, match=r"no coordinator for g within 0\.05 s"):
            await coordinator.find(0.05)
        assert time.monotonic() - began < 30
        assert cluster.timeouts == [pytest.approx(60, abs=1)]
        cluster.response.set()
        assert await slow == 1
        assert await coordinator.find(0.05) == 1

    asyncio.run(run())


def test_concurrent_lookups_send_one_request() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        lookups = [asyncio.create_task(coordinator.find()) for _ in range(3)]
        await asyncio.sleep(0)
        cluster.response.set()
        assert await asyncio.gather(*lookups) == [1, 1, 1]
        assert len(cluster.timeouts) == 1

    asyncio.run(run())


def test_cancelled_lookup_does_not_block_others() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        first, second = (asyncio.create_task(coordinator.find()) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        cluster.response.set()
        assert await asyncio.wait_for(coordinator.find(), 30) == 1

    asyncio.run(run())


def test_unreachable_coordinator_is_looked_up_again() -> None:
    async def run() -> None:
        coordinator, cluster = make()
        cluster.response.set()
        assert await coordinator.version_of(1) == 3

        async def fails(*args: object, **keywords: object) -> SimpleNamespace:
            raise Disconnected("connection lost")

        cluster.connection = fails  # type: ignore[method-assign]
        for count in (2, 3):
            with pytest.raises(Disconnected):
                await coordinator.version_of(1)
            await coordinator.find()
            assert len(cluster.timeouts) == count

    asyncio.run(run())
