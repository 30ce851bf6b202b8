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
        response = await client.send(isr_request(client, version, [0]), version)
        partition = response.topics[0].partitions[0]
        assert (response.error_code, partition.error_code, partition.isr) == (0, 0, [0])
        assert (partition.leader_id, partition.leader_epoch, partition.partition_epoch) == (0, 0, 1)
        stale = isr_request(client, version, [0, 1])
        stale.broker_epoch += 100
        assert (await client.send(stale, version)).error_code == E.STALE_BROKER_EPOCH

    with_client(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("version", range(4))
def test_controlled_shutdown_moves_leaderships_to_other_brokers(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 1, 0)
        request = ControlledShutdownRequest(broker_id=1)
        if version >= 2:
            request.broker_epoch = epoch(client, 1)
        response = await client.send(request, version)
        assert (response.error_code, response.remaining_partitions) == (0, [])
        request.broker_id = 0
        if version >= 2:
            request.broker_epoch = epoch(client, 0)
        response = await client.send(request, version)
        assert [(p.topic_name, p.partition_index) for p in response.remaining_partitions] == [("t", 0)]
        request.broker_id = 7
        assert (await client.send(request, version)).error_code == E.BROKER_NOT_AVAILABLE

    with_client(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("version", range(3))
def test_leaders_are_elected_and_the_response_waits_for_the_metadata(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 1, 0)
        controller = client.broker.controller
        await controller.controlled_shutdown(1, epoch(client, 1))
        controller.context.shutting_down.clear()
        request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0, 4])], timeout_ms=5000)
        response = await client.send(request, version)
        results = {p.partition_id: p for p in response.replica_election_results[0].partition_result}
        assert results[0].error_code == E.PREFERRED_LEADER_NOT_AVAILABLE and results[0].error_message
        assert results[4].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        published = controller.context.leaderships[T0]
        partition = AlterPartitionRequestPartitionData(
            leader_epoch=published.state.leader_epoch, partition_epoch=published.partition_epoch, new_isr=[0, 1]
        )
        topic = AlterPartitionRequestTopicData(topic_name="t", partitions=[partition])
        joined = AlterPartitionRequest(broker_id=0, broker_epoch=epoch(client, 0), topics=[topic])
        assert (await client.send(joined, 1)).topics[0].partitions[0].error_code == 0
        request.topic_partitions = None
        response = await client.send(request, version)
        assert [(r.topic, [(p.partition_id, p.error_code) for p in r.partition_result])
                for r in response.replica_election_results] == [("t", [(0, 0)])]  # fmt: skip
        assert client.broker.metadata_cache.topics["t"].partitions[0].leader == 1
        # A repeated request for all partitions needs no election.
        assert (await client.send(request, version)).replica_election_results == []
        if version >= 1:
            request.election_type = 9
            assert (await client.send(request, version)).error_code == E.INVALID_REQUEST

    with_client(tmp_path, body, brokers=(0, 1))


def reassignment_request(replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])


@pytest.mark.parametrize("version", range(2))
def test_a_reassignment_is_started_listed_and_cancelled(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, 0)
        response = await client.send(reassignment_request([1, 0]), version)
        assert (response.error_code, response.error_message) == (0, None)
        assert [(t.name, [(p.partition_index, p.error_code, p.error_message) for p in t.partitions])
                for t in response.responses] == [("t", [(0, 0, None)])]  # fmt: skip
        for topics in (None, [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1])]):
            listed = await client.send(ListPartitionReassignmentsRequest(topics=topics), 0)
            reassignment = listed.topics[0].partitions[0]
            assert (listed.topics[0].name, reassignment.partition_index) == ("t", 0)
            replicas = (reassignment.replicas, reassignment.adding_replicas, reassignment.removing_replicas)
            assert replicas == ([1, 0], [1], [])
        other_topic = ListPartitionReassignmentsTopics(name="u", partition_indexes=[0])
        assert (await client.send(ListPartitionReassignmentsRequest(topics=[other_topic]), 0)).topics == []
        assert (await client.send(reassignment_request(None), version)).responses[0].partitions[0].error_code == 0
        cancelled_twice = (await client.send(reassignment_request(None), version)).responses[0].partitions[0]
        assert cancelled_twice.error_code == E.NO_REASSIGNMENT_IN_PROGRESS and cancelled_twice.error_message
        if version >= 1:
            growing = reassignment_request([0, 1])
            growing.allow_replication_factor_change = False
            refused = await client.send(growing, version)
            assert refused.responses[0].partitions[0].error_code == E.INVALID_REPLICATION_FACTOR

    with_client(tmp_path, body, brokers=(0, 1))


def test_producer_ids_are_allocated(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        for first in (0, 1000):
            response = await client.send(AllocateProducerIdsRequest(broker_id=0, broker_epoch=epoch(client, 0)), 0)
            assert (response.error_code, response.producer_id_start, response.producer_id_len) == (0, first, 1000)

    with_client(tmp_path, body)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (AlterPartitionRequest(), 0),
        (AlterPartitionRequest(), 3),
        (ControlledShutdownRequest(), 3),
        (ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])]), 0),
        (ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])]), 2),
        (reassignment_request([0]), 1),
        (ListPartitionReassignmentsRequest(), 0),
        (AllocateProducerIdsRequest(), 0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_a_broker_that_is_not_the_controller_returns_not_controller(
    tmp_path: Path, request_: Any, version: int
) -> None:
    async def body(client: Client) -> None:
        await client.broker.controller.stop()
        response = await client.send(request_, version)
        if isinstance(request_, ElectLeadersRequest):
            assert response.replica_election_results[0].partition_result[0].error_code == E.NOT_CONTROLLER
        if not (isinstance(request_, ElectLeadersRequest) and version == 0):
            assert response.error_code == E.NOT_CONTROLLER

    with_client(tmp_path, body)
