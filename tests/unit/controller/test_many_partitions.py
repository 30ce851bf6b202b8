"""Brokers with thousands of partitions, or none, fail and return."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.turns import MAX_TURN_S, TurnMeter
from tests.unit.controller.cluster import Cluster, in_cluster

TOPICS, PARTITIONS = 5, 1000


@pytest.fixture
def no_collections() -> Iterator[None]:
    """A broker collects garbage at other times (`broker/garbage.py`)."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_failed_broker_with_many_partitions_does_not_hold_the_loop(no_collections: None) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(TOPICS):
            await cluster.create(f"t{number}", [[p % 3, (p + 1) % 3, (p + 2) % 3] for p in range(PARTITIONS)])
        leaderships = cluster.controller.context.leaderships
        failed = cluster.nodes[1]
        async with TurnMeter() as meter:
            failed.is_connected = False
            await cluster.until(lambda: 1 in cluster.controller.context.unreachable)
            await cluster.wait_until_idle()
        assert {leadership.state.leader for leadership in leaderships.values()} == {0, 2}
        assert meter.longest_s <= MAX_TURN_S
        await failed.kill()
        await cluster.wait_until_idle()
        async with TurnMeter() as meter:
            await failed.start()
            await cluster.until(lambda: 1 in cluster.controller.context.brokers)
            await cluster.wait_until_idle()
        assert len(failed.broker.leads) == len(leaderships) == TOPICS * PARTITIONS
        assert meter.longest_s <= MAX_TURN_S
        async with TurnMeter() as meter:
            await cluster.nodes[2].kill()
            await cluster.until(lambda: 2 not in cluster.controller.context.brokers)
            await cluster.wait_until_idle()
        assert {leadership.state.leader for leadership in leaderships.values()} == {0}
        assert meter.longest_s <= MAX_TURN_S

    in_cluster(body)


def test_a_broker_that_starts_gets_the_metadata_of_a_cluster_without_partitions() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.nodes[2].kill()
        await cluster.wait_until_idle()
        await cluster.nodes[2].start()
        await cluster.until(lambda: 2 in cluster.controller.context.brokers)
        await cluster.wait_until_idle()
        assert set(cluster.nodes[2].broker.cache.brokers) == {0, 1, 2}

    in_cluster(body)
