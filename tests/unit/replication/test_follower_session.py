"""A leader looks, for a follower's fetch, only at where something has happened."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kavka.api import fetch as fetch_module
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.replication.replicas_world import QUICK, TOPIC, World, batch, in_world

MANY = 200


async def lead_many(world: World) -> None:
    """Broker 0 leads 200 partitions, broker 1 follows."""
    states = [
        LeaderAndIsrPartitionState(
            partition_index=n, leader=0, leader_epoch=0, isr=[0, 1], replicas=[0, 1], partition_epoch=1, is_new=True
        )
        for n in range(MANY)
    ]
    request = LeaderAndIsrRequest(
        controller_epoch=1,
        topic_states=[LeaderAndIsrTopicState(topic_name=TOPIC, topic_id=world.topic_id, partition_states=states)],
    )
    world.leader = 0
    for node in world.nodes.values():
        node.cache.names_by_id[world.topic_id] = TOPIC
        await node.replicas.become_leader_or_follower(request)


def produce(world: World, partition: int) -> Any:
    data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=partition, records=batch())])]
    return world.nodes[0].ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 12)


def log_of(world: World, broker_id: int, partition: int) -> Any:
    return world.nodes[broker_id].replicas.partitions[TopicPartition(TOPIC, partition)].log


def test_one_busy_partition_of_many_is_the_only_one_looked_at(tmp_path, monkeypatch):
    looked: list[int] = []
    real = fetch_module._Fetch._read_one

    def read_one(self, asked, *more):
        looked.append(asked.index)
        return real(self, asked, *more)

    monkeypatch.setattr(fetch_module._Fetch, "_read_one", read_one)

    async def body(world: World) -> None:
        await lead_many(world)
        await produce(world, 0)
        await world.until(lambda: log_of(world, 1, 0).high_watermark == 1)
        # What the first, full fetches had to look at is over.
        await asyncio.sleep(0.5)
        looked.clear()
        for n in range(20):
            answer = await produce(world, 7)
            assert answer.responses[0].partition_responses[0].base_offset == n
        assert set(looked) == {7}
        assert len(looked) < 200
        looked.clear()
        await asyncio.sleep(0.7)
        assert len(looked) < 20  # idle: the marks of the last one, and nothing in a hurry
        assert (await produce(world, 150)).responses[0].partition_responses[0].error_code == 0

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_partition_that_was_idle_for_long_does_not_make_its_follower_late(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        await asyncio.sleep(0.6)  # longer than the lag allowed
        partition = world.partition(0)
        world.produce(batch())
        partition.shrink_isr(partition._shared.monotonic())
        assert partition.pending_isr is None
        await world.until(lambda: world.log(0).high_watermark == 2)
        assert world.isr == [0, 1]

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, lag_time_max_s=0.4, fetch_wait_max_ms=100))


def test_a_follower_comes_into_the_isr_although_nothing_is_written(tmp_path):
    """It was level when another change was under way, and names the partition in no further fetch."""

    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        await world.until(lambda: sorted(world.isr) == [0, 1, 2])
        assert [isr for _, isr in world.isr_requests][-1] == [0, 1, 2]

    in_world(tmp_path, body)


def test_a_full_answer_names_every_partition_and_one_that_goes_on_only_what_is_new(tmp_path):
    async def body(world: World) -> None:
        await lead_many(world)
        await world.nodes[1].replicas.stop()

        def ask(session_id: int, epoch: int, named: list[int], offset: int = 0) -> Any:
            partitions = [
                FetchPartition(partition=n, current_leader_epoch=0, fetch_offset=offset, partition_max_bytes=100_000)
                for n in named
            ]
            topics = [FetchTopic(topic=TOPIC, topic_id=world.topic_id, partitions=partitions)] if named else []
            return world.nodes[0].ask(
                FetchRequest(
                    replica_state=ReplicaState(replica_id=1, replica_epoch=101),
                    max_bytes=10_000_000,
                    session_id=session_id,
                    session_epoch=epoch,
                    topics=topics,
                ),
                17,
            )

        def told(response: Any) -> list[int]:
            return [data.partition_index for topic in response.responses for data in topic.partitions]

        first = ask(0, 0, list(range(MANY)))
        assert told(first) == list(range(MANY))
        assert told(ask(first.session_id, 1, [])) == []
        produce(world, 3)
        produce(world, 5)
        assert told(ask(first.session_id, 2, [])) == [3, 5]
        # It has the one, and says nothing of the other: the records are not sent again by themselves.
        assert told(ask(first.session_id, 3, [3], offset=1)) == [3]  # which is committed now
        assert told(ask(first.session_id, 4, [])) == []
        # A session of another broker is nobody else's.
        stolen = world.nodes[0].ask(FetchRequest(session_id=first.session_id, session_epoch=5, topics=[]), 17)
        assert stolen.error_code == 70

    in_world(tmp_path, body, brokers=(0, 1))


def test_the_session_that_a_restarted_follower_left_behind_is_told_nothing(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        [old] = world.partition(0).follower_sessions
        await world.kill(1)
        world.start(1)
        await world.tell([1])
        await world.committed()
        [new] = world.partition(0).follower_sessions
        assert new is not old
        assert not old._tracked

    in_world(tmp_path, body, brokers=(0, 1))
