from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller.elections import PREFERRED, UNCLEAN
from kavka.metadata import paths
from tests.unit.controller.cluster import Cluster, in_cluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def leader(cluster: Cluster, tp: TopicPartition) -> int:
    return (await cluster.state(tp)).leader


async def restart(cluster: Cluster, broker_id: int) -> None:
    await cluster.nodes[broker_id].kill()
    await cluster.wait_until_idle()
    await cluster.nodes[broker_id].start()
    await cluster.catch_up()


def test_preferred_leaders_are_elected_on_request() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1]])
        await restart(cluster, 1)
        assert await leader(cluster, T0) == 2
        results = await cluster.controller.elect_leaders(PREFERRED, [T0, T1, TopicPartition("t", 9)])
        assert results[T0] == 1
        assert isinstance(results[T1], KafkaError) and results[T1].code is ErrorCode.ELECTION_NOT_NEEDED
        unknown = results[TopicPartition("t", 9)]
        assert isinstance(unknown, KafkaError) and unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        state = await cluster.state(T0)
        assert state.leader == 1 and set(state.isr) == {1, 2}
        await cluster.wait_until_idle()
        assert cluster.nodes[1].broker.leads[T0].leader == 1

    in_cluster(body)


def test_a_preferred_leader_that_is_dead_or_not_in_sync_is_not_elected() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        for _ in range(2):
            result = (await cluster.controller.elect_leaders(PREFERRED, [T0]))[T0]
            assert isinstance(result, KafkaError) and result.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if not cluster.nodes[1].is_up:
                await cluster.nodes[1].start()
                await cluster.wait_until_idle()
        with pytest.raises(KafkaError) as refused:
            await cluster.controller.elect_leaders(7, [T0])
        assert refused.value.code is ErrorCode.INVALID_REQUEST

    in_cluster(body)


def test_an_unclean_election_is_held_only_without_a_leader() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [0, 2]])
        await cluster.set_isr(T0, [1])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        assert await leader(cluster, T0) == -1
        results = await cluster.controller.elect_leaders(UNCLEAN, None)
        assert results[T0] == 2
        other = results[T1]
        assert isinstance(other, KafkaError) and other.code is ErrorCode.ELECTION_NOT_NEEDED
        state = await cluster.state(T0)
        assert (state.leader, state.isr, state.leader_recovery_state) == (2, (2,), 1)
        await cluster.nodes[2].kill()
        await cluster.wait_until_idle()
        result = (await cluster.controller.elect_leaders(UNCLEAN, [T0]))[T0]
        assert isinstance(result, KafkaError) and result.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE

    in_cluster(body)


def test_enabling_unclean_election_elects_a_leader() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await cluster.set_isr(T0, [1])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        cluster.controller.on_unclean_election_enabled("t")
        await cluster.wait_until_idle()
        assert await leader(cluster, T0) == -1
        cluster.unclean.add("t")
        cluster.controller.on_unclean_election_enabled("t")
        await cluster.wait_until_idle()
        assert await leader(cluster, T0) == 2

    in_cluster(body)


def test_elections_in_the_node_of_old_tools_are_executed() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [1, 0]])
        await restart(cluster, 1)
        partitions = [T0, TopicPartition("none", 3)]
        for data in (b"junk", paths.encode_partitions(partitions)):
            await cluster.store.create(paths.PREFERRED_REPLICA_ELECTION, data)
            await cluster.wait_until_idle()
            assert await cluster.store.exists(paths.PREFERRED_REPLICA_ELECTION) is None
        assert await leader(cluster, T0) == 1
        assert await leader(cluster, T1) == 0
        await cluster.store.create(paths.PREFERRED_REPLICA_ELECTION, paths.encode_partitions([T1]))
        await cluster.wait_until_idle()
        assert await leader(cluster, T1) == 1

    in_cluster(body)


def test_leaders_are_rebalanced_automatically_above_the_allowed_imbalance(monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.term.FIRST_CHECK_DELAY_S", 0.02)
    layout = [[1, 2]] * 4 + [[2, 1]] * 4
    is_enabled: list[bool] = []

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", layout)
        tps = [TopicPartition("t", p) for p in range(8)]
        await restart(cluster, 1)
        assert [await leader(cluster, tp) for tp in tps] == [2] * 8
        is_enabled.append(True)
        await cluster.until(lambda: all(cluster.controller.context.leaderships[tp].state.leader == 1 for tp in tps[:4]))
        assert [await leader(cluster, tp) for tp in tps] == [1] * 4 + [2] * 4

    in_cluster(body, imbalance_check_s=lambda: 0.03, auto_rebalance=lambda: bool(is_enabled))


def test_leaders_are_not_rebalanced_if_disabled_or_below_the_allowed_imbalance(monkeypatch: Any) -> None:
    monkeypatch.setattr("kavka.controller.term.FIRST_CHECK_DELAY_S", 0.02)

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await restart(cluster, 1)
        await asyncio.sleep(0.15)
        assert await leader(cluster, T0) == 2

    in_cluster(body, imbalance_check_s=lambda: 0.03, auto_rebalance=lambda: False)
    in_cluster(body, imbalance_check_s=lambda: 0.03, imbalance_percent=lambda: 100.0)
