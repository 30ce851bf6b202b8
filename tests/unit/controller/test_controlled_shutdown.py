from __future__ import annotations

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.stop_replica import StopReplicaRequest
from tests.unit.controller.cluster import Cluster, in_cluster

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


def test_a_broker_that_stops_hands_over_and_leaves_every_isr() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1], [0, 2]])
        going = cluster.nodes[1]
        assert await cluster.controller.controlled_shutdown(1, going.epoch) == []
        # The new leaders are notified before the broker gets its response.
        assert cluster.nodes[2].broker.leads[T0].leader == 2
        await cluster.quiet()
        for tp in (T0, T1):
            state = await cluster.state(tp)
            assert (state.leader, state.isr) == (2, (2,))
        assert (await cluster.state(T2)).leader_epoch == 0
        stops = going.broker.requests_of_type(StopReplicaRequest)
        stopped = [
            (t.topic_name, p.partition_index, p.delete_partition)
            for stop in stops
            for t in stop.topic_states
            for p in t.partition_states
        ]
        assert stopped == [("t", 1, False)]
        # It still receives all requests, but is elected for nothing.
        assert 1 in cluster.nodes[0].broker.cache.brokers
        refused = await cluster.set_isr(T0, [2, 1])
        assert refused.error_code == ErrorCode.INELIGIBLE_REPLICA
        await going.kill()
        await going.start()
        await cluster.catch_up()
        assert set((await cluster.state(T0)).isr) == {1, 2}

    in_cluster(body)


def test_partitions_without_another_leader_are_listed_and_stay() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2], [2, 1]])
        await cluster.create("single", [[1]])
        await cluster.set_isr(T0, [1])
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == [T0]
        assert (await cluster.state(T0)).leader == 1
        assert (await cluster.state(TopicPartition("single", 0))).leader == 1
        # Two that go: the last one keeps what it leads.
        assert T1 in await cluster.controller.controlled_shutdown(2, cluster.nodes[2].epoch)

    in_cluster(body)


def test_the_last_in_sync_lets_others_into_the_isr_until_it_can_hand_over() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.create("t", [[1, 2, 0]])
        await cluster.set_isr(T0, [1])
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == [T0]
        joined = await cluster.set_isr(T0, [1, 2])
        assert (joined.error_code, joined.isr) == (ErrorCode.NONE, [1, 2])
        # One that is about to stop as well is not let in.
        assert await cluster.controller.controlled_shutdown(0, cluster.nodes[0].epoch) == []
        assert (await cluster.set_isr(T0, [1, 2, 0])).error_code == ErrorCode.INELIGIBLE_REPLICA
        assert await cluster.controller.controlled_shutdown(1, cluster.nodes[1].epoch) == []
        state = await cluster.state(T0)
        assert (state.leader, state.isr) == (2, (2,))

    in_cluster(body)


def test_an_earlier_life_or_an_unknown_broker_is_refused() -> None:
    async def body(cluster: Cluster) -> None:
        old = cluster.nodes[1].epoch
        await cluster.nodes[1].kill()
        await cluster.quiet()
        for epoch, code in ((old, ErrorCode.BROKER_NOT_AVAILABLE), (old, ErrorCode.STALE_BROKER_EPOCH)):
            with pytest.raises(KafkaError) as refused:
                await cluster.controller.controlled_shutdown(1, epoch)
            assert refused.value.code is code
            if not cluster.nodes[1].is_up:
                await cluster.nodes[1].start()
                await cluster.quiet()
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
