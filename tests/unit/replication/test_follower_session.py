"""For a follower's fetch, a leader reads only the partitions that have changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kavka.api.fetch_reads import FollowerReader
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kavka.replication.partition_state import CommittedIsr, LeaderAndIsr, PartitionOrder
from tests.unit.replication.replicas_world import QUICK, TOPIC, World, batch, in_world

MANY = 200


async def lead_many(world: World) -> None:
    """Broker 0 leads 200 partitions, broker 1 follows."""
    state = LeaderAndIsr(0, leader_epoch=0, isr=frozenset((0, 1)), replicas=(0, 1), partition_epoch=1, is_new=True)
    orders = [PartitionOrder(TopicPartition(TOPIC, index), world.topic_id, state) for index in range(MANY)]
    world.leader = 0
    for node in world.nodes.values():
        node.cache.names_by_id[world.topic_id] = TOPIC
        await node.replicas.become_leader_or_follower(1, orders)


def produce(world: World, partition: int) -> Any:
    data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=partition, records=batch())])]
    return world.nodes[0].handle(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 12)


def log_of(world: World, broker_id: int, partition: int) -> Any:
    return world.nodes[broker_id].replicas.partitions[TopicPartition(TOPIC, partition)].log


def test_only_the_busy_partition_of_many_is_read(tmp_path, monkeypatch):
    reads: list[int] = []
    real = FollowerReader.read

    def read(self, entry, *limits):
        reads.append(entry.index)
        return real(self, entry, *limits)

    monkeypatch.setattr(FollowerReader, "read", read)

    async def body(world: World) -> None:
        await lead_many(world)
        await produce(world, 0)
        await world.until(lambda: log_of(world, 1, 0).high_watermark == 1)
        # The first, full fetches have completed.
        await asyncio.sleep(0.5)
        reads.clear()
        for n in range(20):
            response = await produce(world, 7)
            assert response.responses[0].partition_responses[0].base_offset == n
        assert set(reads) == {7}
        assert len(reads) < 200
        reads.clear()
        await asyncio.sleep(0.7)
        assert len(reads) < 20  # the last high watermark, and no unneeded responses
        assert (await produce(world, 150)).responses[0].partition_responses[0].error_code == 0

    in_world(tmp_path, body, brokers=(0, 1))


def test_an_idle_partition_does_not_make_its_follower_lag(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        await asyncio.sleep(0.6)  # longer than the maximum lag
        partition = world.partition(0)
        world.produce(batch())
        partition.leader_role.shrink_isr(world.now())
        assert isinstance(partition.isr_state, CommittedIsr)
        await world.until(lambda: world.log(0).high_watermark == 2)
        assert world.isr == [0, 1]

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, lag_time_max_s=0.4, fetch_wait_max_ms=100))


def test_a_follower_joins_the_isr_without_an_append(tmp_path):
    """The follower caught up while another ISR change was in flight, so its later fetches do not
    include the partition."""

    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        await world.until(lambda: sorted(world.isr) == [0, 1, 2])
        assert [isr for _, isr in world.isr_requests][-1] == [0, 1, 2]

    in_world(tmp_path, body)


def test_a_full_response_has_every_partition_and_an_incremental_one_only_changes(tmp_path):
    async def body(world: World) -> None:
        await lead_many(world)
        await world.nodes[1].replicas.stop()

        def fetch(session_id: int, epoch: int, indexes: list[int], offset: int = 0) -> Any:
            partitions = [
                FetchPartition(partition=n, current_leader_epoch=0, fetch_offset=offset, partition_max_bytes=100_000)
                for n in indexes
            ]
            topics = [FetchTopic(topic=TOPIC, topic_id=world.topic_id, partitions=partitions)] if indexes else []
            return world.nodes[0].handle(
                FetchRequest(
                    replica_state=ReplicaState(replica_id=1, replica_epoch=101),
                    max_bytes=10_000_000,
                    session_id=session_id,
                    session_epoch=epoch,
                    topics=topics,
                ),
                17,
            )

        def partitions_of(response: Any) -> list[int]:
            return [data.partition_index for topic in response.responses for data in topic.partitions]

        first = fetch(0, 0, list(range(MANY)))
        assert partitions_of(first) == list(range(MANY))
        assert partitions_of(fetch(first.session_id, 1, [])) == []
        produce(world, 3)
        produce(world, 5)
        assert partitions_of(fetch(first.session_id, 2, [])) == [3, 5]
        # The follower acknowledges the record of partition 3, which is committed now. The record of
        # partition 5 is not sent again.
        assert partitions_of(fetch(first.session_id, 3, [3], offset=1)) == [3]
        assert partitions_of(fetch(first.session_id, 4, [])) == []
        # A consumer cannot use the session of a follower.
        refused = world.nodes[0].handle(FetchRequest(session_id=first.session_id, session_epoch=5, topics=[]), 17)
        assert refused.error_code == 70

    in_world(tmp_path, body, brokers=(0, 1))


def test_the_previous_session_of_a_restarted_follower_is_not_notified(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        [first_session] = world.partition(0).follower_sessions
        await world.kill(1)
        world.start(1)
        await world.send_order([1])
        await world.produce_and_wait()
        [second_session] = world.partition(0).follower_sessions
        assert second_session is not first_session
        assert not first_session._tracked

    in_world(tmp_path, body, brokers=(0, 1))
