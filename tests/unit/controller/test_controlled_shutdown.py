from __future__ import annotations

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.stop_replica import StopReplicaRequest
from tests.unit.controller.cluster import Cluster, in_cluster

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


def test_a_stopping_broker_loses_its_leaderships_and_leaves_every_isr() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1], [0, 2]])
        stopping = cluster.nodes[1]
        assert await cluster.controller.controlled_shutdown(1, stopping.epoch) == []
        # The new leaders are notified before the broker gets its response.
        assert cluster.nodes[2].broker.leads[T0].leader == 2
        await cluster.wait_until_idle()
        for tp in (T0, T1):
            state = await cluster.state(tp)
            assert (state.leader, state.isr) == (2, (2,))
        assert (await cluster.state(T2)).leader_epoch == 0
        stops = stopping.broker.requests_of_type(StopReplicaRequest)
        stopped = [
            (t.topic_name, p.partition_index, p.delete_partition)
            for stop in stops
            for t in stop.topic_states
            for p in t.partition_states
        ]
        assert stopped == [("t", 1, False)]
        # The broker still receives all requests, but is not elected.
        assert 1 in cluster.nodes[0].broker.cache.brokers
        refused = await cluster.set_isr(T0, [2, 1])
        assert refused.error_code == ErrorCode.INELIGIBLE_REPLICA
        await stopping.kill()
        await stopping.start()
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {1, 2}

    in_cluster(body)


def test_partitions_that_no_other_replica_can_lead_are_returned() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1]])
        await cluster.create("single", [[1]])
        await cluster.set_isr(T0, [1])
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == [T0]
        assert (await cluster.state(T0)).leader == 1
        assert (await cluster.state(TopicPartition("single", 0))).leader == 1
        # If both replicas stop, the last broker keeps its leadership.
        assert T1 in await cluster.controller.controlled_shutdown(2, cluster.nodes[2].epoch)

    in_cluster(body)


def test_a_stopping_leader_can_add_replicas_to_the_isr() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0]])
        await cluster.set_isr(T0, [1])
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == [T0]
        joined = await cluster.set_isr(T0, [1, 2])
        assert (joined.error_code, joined.isr) == (ErrorCode.NONE, [1, 2])
        # A broker that is stopping as well cannot join the ISR.
        assert await cluster.controller.controlled_shutdown(0, cluster.nodes[0].epoch) == []
        assert (await cluster.set_isr(T0, [1, 2, 0])).error_code == ErrorCode.INELIGIBLE_REPLICA
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == []
        state = await cluster.state(T0)
        assert (state.leader, state.isr) == (2, (2,))

    in_cluster(body)


def test_a_stale_epoch_or_an_unknown_broker_is_refused() -> None:
    async def body(cluster: Cluster) -> None:
        old_epoch = cluster.nodes[1].epoch
        await cluster.nodes[1].kill()
        await cluster.wait_until_idle()
        for epoch, code in ((old_epoch, ErrorCode.BROKER_NOT_AVAILABLE), (old_epoch, ErrorCode.STALE_BROKER_EPOCH)):
            with pytest.raises(KafkaError) as refused:
                await cluster.controller.controlled_shutdown(1, epoch)
            assert refused.value.code is code
            if not cluster.nodes[1].is_up:
                await cluster.nodes[1].start()
                await cluster.wait_until_idle()
        assert await cluster.controller.controlled_shutdown(1, -1) == []

    in_cluster(body)


def test_producer_id_blocks_are_unique() -> None:
    async def body(cluster: Cluster) -> None:
        blocks = [await cluster.controller.allocate_producer_ids(b, cluster.nodes[b].epoch) for b in (0, 1, 2, 1)]
        assert [(block.first, block.last) for block in blocks] == [(n * 1000, n * 1000 + 999) for n in range(4)]
        refusals = ((1, 77, ErrorCode.STALE_BROKER_EPOCH), (9, 1, ErrorCode.BROKER_ID_NOT_REGISTERED))
        for broker_id, epoch, code in refusals:
            with pytest.raises(KafkaError) as refused:
                await cluster.controller.allocate_producer_ids(broker_id, epoch)
            assert refused.value.code is code

    in_cluster(body)
