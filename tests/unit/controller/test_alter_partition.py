from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode
from tests.unit.controller.cluster import Cluster, in_cluster

T0 = TopicPartition("t", 0)


def test_an_isr_shrinks_and_expands_without_a_new_leader_epoch() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0]])
        shrunk = await cluster.set_isr(T0, [1, 0])
        assert (shrunk.error_code, shrunk.leader_id, shrunk.leader_epoch) == (0, 1, 0)
        assert (shrunk.isr, shrunk.partition_epoch) == ([1, 0], 1)
        assert await cluster.state(T0) == PartitionStateNode(1, 0, (1, 0), 1)
        await cluster.wait_until_idle()
        for node in cluster.nodes.values():
            assert node.broker.cache.topics["t"].partitions[0].isr == [1, 0]
        expanded = await cluster.set_isr(T0, [1, 0, 2])
        assert (expanded.isr, expanded.partition_epoch) == ([1, 0, 2], 2)

    in_cluster(body)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_invalid_isr_changes_are_refused_with_kafkas_codes(version: int) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await cluster.set_isr(T0, [1])

        async def code(isr: list[int], **other: Any) -> ErrorCode:
            return ErrorCode((await cluster.set_isr(T0, isr, version, **other)).error_code)

        assert await code([1, 2], leader_epoch=7) is ErrorCode.NOT_CONTROLLER
        assert await code([1, 2], partition_epoch=7) is ErrorCode.NOT_CONTROLLER
        assert await code([1, 2], leader_epoch=-1) is ErrorCode.FENCED_LEADER_EPOCH
        assert await code([1, 2], partition_epoch=0) is ErrorCode.INVALID_UPDATE_VERSION
        # The ISR is unchanged: the response is successful even with an old partition epoch.
        assert await code([1], partition_epoch=0) is ErrorCode.NONE
        assert await code([1, 2], broker_id=2) is ErrorCode.INVALID_REQUEST
        assert await code([2]) is ErrorCode.INVALID_REQUEST
        assert await code([]) is ErrorCode.INVALID_REQUEST
        assert await code([1, 0]) is ErrorCode.INVALID_REQUEST
        assert await code([1, 2, 2]) is ErrorCode.INVALID_REQUEST
        if version >= 1:
            assert await code([1, 2], leader_recovery_state=1) is ErrorCode.INVALID_REQUEST
            assert await code([1], leader_recovery_state=9) is ErrorCode.INVALID_REQUEST
        assert await cluster.state(T0) == PartitionStateNode(1, 0, (1,), 1)

        request = cluster.isr_request(TopicPartition("t", 0), [1, 2])
        request.topics[0].partitions[0].partition_index = 5
        response = await cluster.controller.alter_partition(request, version)
        assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = cluster.isr_request(T0, [1, 2])
        request.topics[0].topic_id, request.topics[0].topic_name = uuid4(), "no-such"
        unknown = (await cluster.controller.alter_partition(request, version)).topics[0].partitions[0].error_code
        assert unknown == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 2 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

        with pytest.raises(KafkaError) as stale:
            await code([1, 2], broker_epoch=99)
        assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
        assert (await cluster.set_isr(T0, [1, 2], version)).isr == [1, 2]

    in_cluster(body)


@pytest.mark.parametrize("version", [1, 3])
def test_a_dead_stopping_or_restarted_broker_cannot_join_the_isr(version: int) -> None:
    refused = ErrorCode.INELIGIBLE_REPLICA if version >= 2 else ErrorCode.OPERATION_NOT_ATTEMPTED

    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[0, 1, 2]])
        old_epoch = cluster.nodes[1].epoch
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        assert (await cluster.state(T0)).isr == (0, 2)
        assert (await cluster.set_isr(T0, [0, 1, 2], version)).error_code == refused
        await cluster.nodes[1].start()
        await cluster.wait_until_idle()
        if version >= 3:
            assert (await cluster.set_isr(T0, [0, 1, 2], version, epochs={1: old_epoch})).error_code == refused
        cluster.controller.context.shutting_down.add(1)
        assert (await cluster.set_isr(T0, [0, 1, 2], version)).error_code == refused
        cluster.controller.context.shutting_down.clear()
        assert (await cluster.set_isr(T0, [0, 1, 2], version)).error_code == 0

    in_cluster(body)


def test_an_unclean_leader_reports_its_recovery() -> None:
    tp = TopicPartition("unclean", 0)

    async def body(cluster: Cluster) -> None:
        await cluster.create("unclean", [[1, 2]])
        await cluster.set_isr(tp, [1])
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        assert await cluster.state(tp) == PartitionStateNode(2, 1, (2,), 1, 1)
        assert (await cluster.set_isr(tp, [2], leader_recovery_state=0)).leader_recovery_state == 0
        assert await cluster.state(tp) == PartitionStateNode(2, 1, (2,), 1, 0)

    in_cluster(body)


def test_isr_changes_that_old_brokers_write_to_the_tree_are_applied() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        await cluster.store.set(paths.partition_state(T0), PartitionStateNode(1, 0, (1,), 1).encode())
        prefix = f"{paths.ISR_CHANGES}/{paths.ISR_CHANGE_PREFIX}"
        await cluster.store.create(prefix, b"junk", sequential=True)
        await cluster.store.create(prefix, paths.encode_partitions([T0, TopicPartition("gone", 1)]), sequential=True)
        await cluster.wait_until_idle()
        assert await cluster.store.children(paths.ISR_CHANGES) == []
        assert cluster.controller.context.leaderships[T0].state.isr == (1,)
        assert cluster.nodes[2].broker.cache.topics["t"].partitions[0].isr == [1]
        assert (await cluster.set_isr(T0, [1, 2])).error_code == 0

    in_cluster(body)


def test_a_broker_that_is_not_the_controller_returns_not_controller() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2]])
        request = cluster.isr_request(T0, [1])
        other = next(n for n in cluster.nodes.values() if n.id != cluster.controller_id)
        with pytest.raises(KafkaError) as refused:
            await other.controller.alter_partition(request, 3)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    in_cluster(body)
