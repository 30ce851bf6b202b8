from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from kavka.common.errors import ErrorCode
from kavka.controller.topics import NewTopic
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.api.support import Client, with_client

NO_ID = UUID(int=0)


def metadata_request(*names: str | None, topic_id: UUID = NO_ID, **more: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=topic_id) for name in names], **more)


async def create(client: Client, *names: str) -> None:
    outcomes = await client.broker.topics.create_topics([NewTopic(name, 2, 1) for name in names], timeout_ms=5000)
    assert all(outcome.error is None for outcome in outcomes)


@pytest.mark.parametrize("version", range(14))
def test_every_version_has_brokers_topics_and_leaders(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await create(client, "t")
        response = await client.send(metadata_request("t"), version)
        assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(0, "localhost", 9092)]
        (topic,) = response.topics
        assert (topic.error_code, topic.name, topic.is_internal) == (0, "t", False)
        assert [(p.partition_index, p.leader_id, p.isr_nodes) for p in topic.partitions] == [(0, 0, [0]), (1, 0, [0])]
        assert topic.topic_id == (client.broker.metadata_cache.topics["t"].topic_id if version >= 10 else NO_ID)
        assert topic.partitions[0].leader_epoch == (0 if version >= 7 else -1)
        assert response.controller_id == (0 if version >= 1 else -1)
        assert response.cluster_id == (client.broker.cluster_id if version >= 2 else None)

    with_client(tmp_path, body)


def test_null_means_all_topics_and_in_version_0_an_empty_list(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await create(client, "a", "b")
        assert [t.name for t in (await client.send(MetadataRequest(topics=[]), 0)).topics] == ["a", "b"]
        assert [t.name for t in (await client.send(MetadataRequest(topics=None), 12)).topics] == ["a", "b"]
        assert (await client.send(MetadataRequest(topics=[]), 1)).topics == []

    with_client(tmp_path, body)


def test_a_topic_is_found_by_its_id(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await create(client, "t")
        topic_id = client.broker.metadata_cache.topics["t"].topic_id
        assert (await client.send(metadata_request(None, topic_id=topic_id), 12)).topics[0].name == "t"
        unknown = uuid4()
        (topic,) = (await client.send(metadata_request(None, topic_id=unknown), 12)).topics
        assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)
        (topic,) = (await client.send(metadata_request("t", topic_id=unknown), 11)).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST

    with_client(tmp_path, body)


def test_a_missing_topic_is_created_only_if_request_and_broker_allow_it(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        refused = await client.send(metadata_request("t", allow_auto_topic_creation=False), 9)
        assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        client.broker.settings["auto.create.topics.enable"] = False
        refused = await client.send(metadata_request("t"), 9)
        assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        client.broker.settings["auto.create.topics.enable"] = True
        created = await client.send(metadata_request("t", "t"), 9)
        assert len(created.topics) == 1
        assert created.topics[0].error_code == 0 and created.topics[0].partitions[0].leader_id == 0
        old = await client.send(metadata_request("old"), 1)
        assert old.topics[0].error_code == 0

    with_client(tmp_path, body)


def test_an_invalid_topic_name_is_refused(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        response = await client.send(metadata_request("a/b", "", "fine"), 9)
        codes = {topic.name: topic.error_code for topic in response.topics}
        invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
        assert codes == {"a/b": invalid, "": invalid, "fine": 0}
        assert list(client.broker.metadata_cache.topics) == ["fine"]

    with_client(tmp_path, body)


def test_internal_topics_are_not_auto_created(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        (topic,) = (await client.send(metadata_request("__consumer_offsets"), 9)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.is_internal

    with_client(tmp_path, body)


def test_authorized_operations_are_returned_on_request(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await create(client, "t")
        request = metadata_request(
            "t", include_topic_authorized_operations=True, include_cluster_authorized_operations=True
        )
        response = await client.send(request, 9)
        # The values of Apache Kafka 3.9.1 without an authorizer.
        assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (8096, 3576)
        without_operations = await client.send(metadata_request("t"), 9)
        assert (
            without_operations.cluster_authorized_operations
            == without_operations.topics[0].topic_authorized_operations
            == -(2**31)
        )

    with_client(tmp_path, body)


def test_an_unreachable_leader_is_not_returned(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await create(client, "t")
        client.listener = "OTHER"
        response = await client.send(metadata_request("t"), 9)
        assert response.brokers == []
        partition = response.topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, -1)
        assert (await client.send(metadata_request("t"), 5)).topics[0].partitions[
            0
        ].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        client.listener = "PLAINTEXT"
        partitions = client.broker.metadata_cache.topics["t"].partitions
        partitions[0] = replace(partitions[0], leader=-1)
        partition = (await client.send(metadata_request("t"), 9)).topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

    with_client(tmp_path, body)


def test_version_0_has_only_live_replicas(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await create(client, "t")
        partitions = client.broker.metadata_cache.topics["t"].partitions
        partitions[0] = replace(partitions[0], replicas=[0, 7])
        partition = (await client.send(metadata_request("t"), 0)).topics[0].partitions[0]
        assert (partition.error_code, partition.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [0])
        partition = (await client.send(metadata_request("t"), 1)).topics[0].partitions[0]
        assert (partition.error_code, partition.replica_nodes) == (0, [0, 7])

    with_client(tmp_path, body)
