from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode
from kavka.metadata.store import StoreUnavailable
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tests.unit.controller.cluster import Cluster, in_cluster

T0 = TopicPartition("t", 0)


def test_when_the_controller_dies_another_takes_over_and_finds_leaders_for_what_it_led() -> None:
    async def body(cluster: Cluster) -> None:
        first = cluster.controller_id
        assert first == 0
        await cluster.create("t", [[0, 1, 2], [1, 2, 0]])
        await cluster.nodes[0].kill()
        await cluster.until(lambda: cluster.controller_id in (1, 2))
        await cluster.quiet()
        assert await cluster.state(T0) == PartitionStateNode(1, 1, (1, 2), 2)
        assert await cluster.state(TopicPartition("t", 1)) == PartitionStateNode(1, 1, (1, 2), 2)
        assert all(node.controller.active_id == cluster.controller_id for node in cluster.nodes.values() if node.is_up)
        await cluster.nodes[0].start()
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}
        assert cluster.nodes[0].controller.active_id == cluster.controller_id != 0

    in_cluster(body)


def test_a_broker_that_was_away_for_a_moment_loses_its_leaderships_first() -> None:
    """Same id, another epoch, and the controller sees only that: gone and back between two looks."""

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1]])
        node, before = cluster.nodes[1], cluster.nodes[1].epoch
        node.is_up = False
        node.store.renew()
        await node.sign_in()
        assert node.epoch > before
        node.broker.told.clear()
        await cluster.quiet()
        assert await cluster.state(T0) == PartitionStateNode(2, 1, (2,), 1)
        assert await cluster.state(TopicPartition("t", 1)) == PartitionStateNode(2, 1, (2,), 1)
        orders = node.broker.told_of(LeaderAndIsrRequest)
        assert orders and all(order.broker_epoch == node.epoch for order in orders)
        told = {s.partition_index: s.leader for t in orders[-1].topic_states for s in t.partition_states}
        assert told == {0: 2, 1: 2}

    in_cluster(body)


def test_a_controller_that_lost_its_session_resigns_at_once_and_stands_again() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1, 2]])
        old = cluster.nodes[0]
        old.store.renew()
        old.controller.session_lost()
        assert not old.controller.is_active
        with pytest.raises(KafkaError) as refused:
            await old.controller._call("x", lambda term: asyncio.sleep(0))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await old.sign_in()
        await cluster.until(lambda: cluster.controller_id is not None)
        await cluster.quiet()
        data, _ = await cluster.store.get(paths.CONTROLLER_EPOCH)
        assert paths.decode_epoch(data) == 2
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {0, 1, 2}

    in_cluster(body)


def test_what_a_replaced_controller_still_writes_fails_and_it_knows_its_place() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        old = cluster.nodes[0]
        request = cluster.ask_isr(T0, [1])
        # Another takes over while the old one is not looking.
        old.store._watches.clear()
        await cluster.store.delete(paths.CONTROLLER)
        await cluster.until(lambda: any(cluster.nodes[b].controller.is_active for b in (1, 2)))
        assert old.controller.is_active
        with pytest.raises(KafkaError) as moved:
            await old.controller.alter_partition(request, 3)
        assert moved.value.code is ErrorCode.NOT_CONTROLLER
        await cluster.until(lambda: cluster.controller_id in (1, 2))
        await cluster.until(lambda: old.controller.active_id == cluster.controller_id)
        assert not old.controller.is_active
        assert (await cluster.state(T0)).isr == (1, 2)

    in_cluster(body)


def test_a_store_that_fails_in_the_middle_costs_nothing_but_time(monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.controller.RETRY_AFTER_S", 0.02)

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0], [1, 0, 2]])
        store = cluster.nodes[0].store
        failures = 3

        def fail(ops: Any) -> None:
            nonlocal failures
            if failures and any(op.path.endswith("/state") for op in ops):
                failures -= 1
                raise StoreUnavailable("/", "for a moment")

        store.before_multi = fail
        await cluster.nodes[1].kill()
        await cluster.until(lambda: failures == 0 and cluster.controller_id == 0)
        await cluster.quiet()
        assert (await cluster.state(T0)).leader == 2
        assert (await cluster.state(TopicPartition("t", 1))).leader == 0

    in_cluster(body)


def test_nodes_that_are_no_brokers_are_left_alone() -> None:
    async def body(cluster: Cluster) -> None:
        for name, data in (("junk", b"{}"), ("007", b"{}"), ("9", b"not json"), ("10", b'{"version":"x"}')):
            await cluster.store.create(f"{paths.BROKER_IDS}/{name}", data)
        await cluster.quiet()
        assert sorted(cluster.controller.context.brokers) == [0, 1, 2]
        await cluster.store.delete(f"{paths.BROKER_IDS}/junk")
        await cluster.create("t", [[1, 2]])

    in_cluster(body)


def test_changed_listeners_are_told_to_all() -> None:
    async def body(cluster: Cluster) -> None:
        path = paths.broker(2)
        data, _ = await cluster.store.get(path)
        assert data is not None
        await cluster.store.set(path, data.replace(b"9094", b"19094"))
        await cluster.quiet()
        for node in cluster.nodes.values():
            assert node.broker.cache.brokers[2].endpoints["PLAINTEXT"].port == 19094

    in_cluster(body)
