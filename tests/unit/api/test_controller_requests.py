"""Requests that only the controller serves, through the codec in every version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kavka.common.errors import ErrorCode as E
from kavka.common.types import TopicPartition
from kavka.controller.topics import NewTopic
from kavka.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kavka.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from kavka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kavka.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kavka.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kavka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.unit.api.support import Client, with_client

T0 = TopicPartition("t", 0)


async def create(client: Client, *replicas: int) -> None:
    outcomes = await client.broker.topics.create_topics([NewTopic("t", assignments={0: replicas})], timeout_ms=5000)
    assert outcomes[0].error is None


def epoch(client: Client, broker_id: int) -> int:
    return client.broker.controller.context.broker_epochs[broker_id]


def isr_request(client: Client, version: int, isr: list[int]) -> AlterPartitionRequest:
    published = client.broker.controller.context.leaderships[T0]
    partition = AlterPartitionRequestPartitionData(leader_epoch=0, partition_epoch=published.partition_epoch)
    if version >= 3:
        partition.new_isr_with_epochs = [BrokerState(broker_id=b, broker_epoch=epoch(client, b)) for b in isr]
    else:
        partition.new_isr = isr
    topic = AlterPartitionRequestTopicData(partitions=[partition])
    if version >= 2:
        topic.topic_id = client.broker.controller.context.topics["t"].topic_id
    else:
        topic.topic_name = "t"
    return AlterPartitionRequest(broker_id=0, broker_epoch=epoch(client, 0), topics=[topic])


@pytest.mark.parametrize("version", range(4))
def test_an_isr_is_changed(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 0, 1)
        answer = await client.ask(isr_request(client, version, [0]), version)
        partition = answer.topics[0].partitions[0]
        assert (answer.error_code, partition.error_code, partition.isr) == (0, 0, [0])
        assert (partition.leader_id, partition.leader_epoch, partition.partition_epoch) == (0, 0, 1)
        stale = isr_request(client, version, [0, 1])
        stale.broker_epoch += 100
        assert (await client.ask(stale, version)).error_code == E.STALE_BROKER_EPOCH

    with_client(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("version", range(4))
def test_a_broker_hands_over_its_leaderships_before_it_stops(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 1, 0)
        request = ControlledShutdownRequest(broker_id=1)
        if version >= 2:
            request.broker_epoch = epoch(client, 1)
        answer = await client.ask(request, version)
        assert (answer.error_code, answer.remaining_partitions) == (0, [])
        request.broker_id = 0
        if version >= 2:
            request.broker_epoch = epoch(client, 0)
        answer = await client.ask(request, version)
        assert [(p.topic_name, p.partition_index) for p in answer.remaining_partitions] == [("t", 0)]
        request.broker_id = 7
        assert (await client.ask(request, version)).error_code == E.BROKER_NOT_AVAILABLE

    with_client(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("version", range(3))
def test_leaders_are_elected_and_the_response_waits_for_the_metadata(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 1, 0)
        controller = client.broker.controller
        await controller.controlled_shutdown(1, epoch(client, 1))
        controller.context.shutting_down.clear()
        request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0, 4])], timeout_ms=5000)
        answer = await client.ask(request, version)
        results = {p.partition_id: p for p in answer.replica_election_results[0].partition_result}
        assert results[0].error_code == E.PREFERRED_LEADER_NOT_AVAILABLE and results[0].error_message
        assert results[4].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        published = controller.context.leaderships[T0]
        partition = AlterPartitionRequestPartitionData(
            leader_epoch=published.state.leader_epoch, partition_epoch=published.partition_epoch, new_isr=[0, 1]
        )
        topic = AlterPartitionRequestTopicData(topic_name="t", partitions=[partition])
        joined = AlterPartitionRequest(broker_id=0, broker_epoch=epoch(client, 0), topics=[topic])
        assert (await client.ask(joined, 1)).topics[0].partitions[0].error_code == 0
        request.topic_partitions = None
        answer = await client.ask(request, version)
        assert [(r.topic, [(p.partition_id, p.error_code) for p in r.partition_result])
                for r in answer.replica_election_results] == [("t", [(0, 0)])]  # fmt: skip
        assert client.broker.metadata_cache.topics["t"].partitions[0].leader == 1
        # Repeated for all partitions, no election is needed.
        assert (await client.ask(request, version)).replica_election_results == []
        if version >= 1:
            request.election_type = 9
            assert (await client.ask(request, version)).error_code == E.INVALID_REQUEST

    with_client(tmp_path, body, brokers=(0, 1))


def moving(replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])


@pytest.mark.parametrize("version", range(2))
def test_a_reassignment_is_started_listed_and_cancelled(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 0)
        answer = await client.ask(moving([1, 0]), version)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert [(t.name, [(p.partition_index, p.error_code, p.error_message) for p in t.partitions])
                for t in answer.responses] == [("t", [(0, 0, None)])]  # fmt: skip
        for topics in (None, [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1])]):
            listed = await client.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
            under_way = listed.topics[0].partitions[0]
            assert (listed.topics[0].name, under_way.partition_index) == ("t", 0)
            assert (under_way.replicas, under_way.adding_replicas, under_way.removing_replicas) == ([1, 0], [1], [])
        elsewhere = ListPartitionReassignmentsTopics(name="u", partition_indexes=[0])
        assert (await client.ask(ListPartitionReassignmentsRequest(topics=[elsewhere]), 0)).topics == []
        assert (await client.ask(moving(None), version)).responses[0].partitions[0].error_code == 0
        again = (await client.ask(moving(None), version)).responses[0].partitions[0]
        assert again.error_code == E.NO_REASSIGNMENT_IN_PROGRESS and again.error_message
        if version >= 1:
            same = moving([0, 1])
            same.allow_replication_factor_change = False
            refused = await client.ask(same, version)
            assert refused.responses[0].partitions[0].error_code == E.INVALID_REPLICATION_FACTOR

    with_client(tmp_path, body, brokers=(0, 1))


def test_producer_ids_are_allocated(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        for first in (0, 1000):
            answer = await client.ask(AllocateProducerIdsRequest(broker_id=0, broker_epoch=epoch(client, 0)), 0)
            assert (answer.error_code, answer.producer_id_start, answer.producer_id_len) == (0, first, 1000)

    with_client(tmp_path, body)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (AlterPartitionRequest(), 0),
        (AlterPartitionRequest(), 3),
        (ControlledShutdownRequest(), 3),
        (ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])]), 0),
        (ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])]), 2),
        (moving([0]), 1),
        (ListPartitionReassignmentsRequest(), 0),
        (AllocateProducerIdsRequest(), 0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_a_broker_that_is_not_the_controller_says_so(tmp_path: Path, request_: Any, version: int) -> None:
    async def body(client: Client) -> None:
        await client.broker.controller.stop()
        answer = await client.ask(request_, version)
        if isinstance(request_, ElectLeadersRequest):
            assert answer.replica_election_results[0].partition_result[0].error_code == E.NOT_CONTROLLER
        if not (isinstance(request_, ElectLeadersRequest) and version == 0):
            assert answer.error_code == E.NOT_CONTROLLER

    with_client(tmp_path, body)
