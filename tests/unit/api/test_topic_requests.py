"""CreateTopics, DeleteTopics and CreatePartitions with the error codes of Apache Kafka 3.9.1,
except for unknown brokers in an assignment, which only newer releases reject."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from kavka.common.errors import ErrorCode
from kavka.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kavka.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kavka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.unit.api.support import Client, with_client

NO_ID = UUID(int=0)
E = ErrorCode


def create_topics(*names: str, partitions: int = 1, factor: int = 1, **more: Any) -> CreateTopicsRequest:
    settings = {key: more.pop(key) for key in ("timeout_ms", "validate_only") if key in more}
    topics = [CreatableTopic(name=n, num_partitions=partitions, replication_factor=factor, **more) for n in names]
    return CreateTopicsRequest(topics=topics, **{"timeout_ms": 5000, **settings})


def assign(*replicas: tuple[int, list[int]]) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=p, broker_ids=ids) for p, ids in replicas]


def config(name: str, value: str | None) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name=name, value=value)]


@pytest.mark.parametrize("version", range(8))
def test_a_topic_is_created_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        response = await client.send(create_topics("t", partitions=3, configs=config("retention.ms", "9")), version)
        (topic,) = response.topics
        assert (topic.name, topic.error_code) == ("t", 0)
        assert len(client.broker.metadata_cache.topics["t"].partitions) == 3
        if version >= 1:
            assert topic.error_message is None
        if version >= 5:
            assert (topic.num_partitions, topic.replication_factor) == (3, 1)
            settings = {entry.name: (entry.value, entry.config_source) for entry in topic.configs}
            assert settings["retention.ms"] == ("9", 1) and settings["segment.bytes"] == ("1073741824", 5)
        assert topic.topic_id == (client.broker.metadata_cache.topics["t"].topic_id if version >= 7 else NO_ID)

    with_client(tmp_path, body)


@pytest.mark.parametrize("exists_before", [False, True])
def test_topic_is_created_if_its_config_znode_is_created_or_deleted_meanwhile(
    tmp_path: Path, exists_before: bool
) -> None:
    async def body(client: Client) -> None:
        store = client.broker.store
        path, write = "/config/topics/t", store.multi
        if exists_before:
            await store.create(path, b"{}")

        async def multi(ops: Any) -> Any:
            store.multi = write
            await (store.delete(path) if exists_before else store.create(path, b"{}"))
            return await write(ops)

        store.multi = multi
        response = await client.send(create_topics("t", configs=config("retention.ms", "9")), 7)
        assert response.topics[0].error_code == 0
        assert (await store.get(path))[0] == b'{"version":1,"config":{"retention.ms":"9"}}'

    with_client(tmp_path, body)


@pytest.mark.parametrize(
    ("invalid_request", "code"),
    [
        (create_topics("there"), E.TOPIC_ALREADY_EXISTS),
        (create_topics("a/b"), E.INVALID_TOPIC_EXCEPTION),
        (create_topics(""), E.INVALID_TOPIC_EXCEPTION),
        (create_topics("."), E.INVALID_TOPIC_EXCEPTION),
        (create_topics(".."), E.INVALID_TOPIC_EXCEPTION),
        (create_topics("x" * 250), E.INVALID_TOPIC_EXCEPTION),
        (create_topics("with_dot"), E.INVALID_TOPIC_EXCEPTION),
        (create_topics("__cluster_metadata"), E.INVALID_REQUEST),
        (create_topics("t", partitions=0), E.INVALID_PARTITIONS),
        (create_topics("t", partitions=-3), E.INVALID_PARTITIONS),
        (create_topics("t", factor=0), E.INVALID_REPLICATION_FACTOR),
        (create_topics("t", factor=2), E.INVALID_REPLICATION_FACTOR),
        (create_topics("t", partitions=-1, factor=-1, assignments=assign((1, [0]))), E.INVALID_REPLICA_ASSIGNMENT),
        (create_topics("t", partitions=-1, factor=-1, assignments=assign((0, [0, 0]))), E.INVALID_REPLICA_ASSIGNMENT),
        (create_topics("t", partitions=-1, factor=-1, assignments=assign((0, []))), E.INVALID_REPLICA_ASSIGNMENT),
        (create_topics("t", partitions=-1, factor=-1, assignments=assign((0, [5]))), E.INVALID_REPLICA_ASSIGNMENT),
        (create_topics("t", partitions=3, factor=-1, assignments=assign((0, [0]))), E.INVALID_REQUEST),
        (create_topics("t", configs=config("retention.ms", "soon")), E.INVALID_CONFIG),
        (create_topics("t", configs=config("no.such.thing", "1")), E.INVALID_CONFIG),
        (create_topics("t", configs=config("retention.ms", None)), E.INVALID_CONFIG),
        (create_topics("t", "t"), E.INVALID_REQUEST),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else value.topics[0].name[:12] or "empty",
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_an_invalid_topic_is_rejected(
    tmp_path: Path, invalid_request: CreateTopicsRequest, code: ErrorCode, validate_only: bool
) -> None:
    async def body(client: Client) -> None:
        await client.send(create_topics("there", "with.dot"), 7)
        invalid_request.validate_only = validate_only
        response = await client.send(invalid_request, 7)
        assert {ErrorCode(topic.error_code) for topic in response.topics} == {code}
        assert all(topic.error_message and topic.topic_id == NO_ID for topic in response.topics)
        assert sorted(await client.broker.store.children("/brokers/topics")) == ["there", "with.dot"]

    with_client(tmp_path, body)


def test_defaults_and_manual_assignment(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        response = await client.send(create_topics("default", partitions=-1, factor=-1), 7)
        assert (response.topics[0].num_partitions, response.topics[0].replication_factor) == (1, 1)
        request = create_topics("manual", partitions=-1, factor=-1, assignments=assign((1, [1, 0]), (0, [0, 1])))
        response = await client.send(request, 7)
        assert (response.topics[0].error_code, response.topics[0].num_partitions) == (0, 2)
        states = client.broker.metadata_cache.topics["manual"].partitions
        assert {p: (s.leader, s.replicas) for p, s in states.items()} == {0: (0, [0, 1]), 1: (1, [1, 0])}

    with_client(tmp_path, body, brokers=(0, 1))


def test_validate_only_creates_nothing_and_a_zero_timeout_expires(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        response = await client.send(create_topics("t", partitions=4, validate_only=True), 7)
        assert (response.topics[0].error_code, response.topics[0].num_partitions, response.topics[0].topic_id) == (
            0,
            4,
            NO_ID,
        )
        assert await client.broker.store.children("/brokers/topics") == []
        response = await client.send(create_topics("t", timeout_ms=0), 7)
        assert response.topics[0].error_code == E.REQUEST_TIMED_OUT and response.topics[0].topic_id != NO_ID
        assert await client.broker.controller.wait_until(lambda: "t" in client.broker.metadata_cache.topics, 5)

    with_client(tmp_path, body)


def test_a_broker_that_is_not_the_controller_returns_not_controller(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        client.broker.controller.active_id = 5
        assert (await client.send(create_topics("t"), 7)).topics[0].error_code == E.NOT_CONTROLLER
        response = await client.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=100), 6)
        assert response.responses[0].error_code == E.NOT_CONTROLLER
        response = await client.send(create_partitions("t", 3), 3)
        assert response.results[0].error_code == E.NOT_CONTROLLER

    with_client(tmp_path, body)


@pytest.mark.parametrize("version", range(7))
def test_topics_are_deleted_by_name_and_from_version_6_by_id(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await client.send(create_topics("a", "b", "c"), 7)
        ids = {name: topic.topic_id for name, topic in client.broker.metadata_cache.topics.items()}
        if version < 6:
            request = DeleteTopicsRequest(topic_names=["a", "b", "missing"], timeout_ms=5000)
        else:
            topics = [DeleteTopicState(name="a"), DeleteTopicState(topic_id=ids["b"]), DeleteTopicState(name="missing")]
            request = DeleteTopicsRequest(topics=topics, timeout_ms=5000)
        response = await client.send(request, version)
        assert [r.name for r in response.responses] == ["a", "b", "missing"]
        assert [r.error_code for r in response.responses] == [0, 0, E.UNKNOWN_TOPIC_OR_PARTITION]
        if version >= 6:
            assert [r.topic_id for r in response.responses] == [ids["a"], ids["b"], NO_ID]
        assert list(client.broker.metadata_cache.topics) == ["c"]
        assert await client.broker.store.children("/brokers/topics") == ["c"]

    with_client(tmp_path, body)


def test_invalid_deletions_are_rejected(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await client.send(create_topics("t"), 7)
        states = [DeleteTopicState(topic_id=uuid4()), DeleteTopicState(name="t", topic_id=uuid4()), DeleteTopicState()]
        response = await client.send(DeleteTopicsRequest(topics=states, timeout_ms=5000), 6)
        codes = [r.error_code for r in response.responses]
        assert codes == [E.UNKNOWN_TOPIC_ID, E.INVALID_REQUEST, E.INVALID_REQUEST]
        client.broker.settings["delete.topic.enable"] = False
        for version, code in ((2, E.INVALID_REQUEST), (3, E.TOPIC_DELETION_DISABLED)):
            response = await client.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), version)
            assert response.responses[0].error_code == code
        assert list(client.broker.metadata_cache.topics) == ["t"]

    with_client(tmp_path, body)


def create_partitions(
    name: str, count: int, assignments: list[list[int]] | None = None, **more: Any
) -> CreatePartitionsRequest:
    manual = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=manual)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=5000, **more)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await client.send(create_topics("t", partitions=2), 7)
        response = await client.send(create_partitions("t", 5, validate_only=True), version)
        assert response.results[0].error_code == 0
        assert len(client.broker.metadata_cache.topics["t"].partitions) == 2
        response = await client.send(create_partitions("t", 5), version)
        assert (response.results[0].error_code, response.results[0].error_message) == (0, None)
        assert sorted(client.broker.metadata_cache.topics["t"].partitions) == [0, 1, 2, 3, 4]
        response = await client.send(create_partitions("t", 6, [[0]]), version)
        assert response.results[0].error_code == 0

    with_client(tmp_path, body)


@pytest.mark.parametrize(
    ("invalid_request", "code"),
    [
        (create_partitions("t", 1), E.INVALID_PARTITIONS),
        (create_partitions("t", 2), E.INVALID_PARTITIONS),
        (create_partitions("t", -1), E.INVALID_PARTITIONS),
        (create_partitions("missing", 3), E.UNKNOWN_TOPIC_OR_PARTITION),
        (create_partitions("a/b", 3), E.UNKNOWN_TOPIC_OR_PARTITION),
        (create_partitions("", 3), E.UNKNOWN_TOPIC_OR_PARTITION),
        (create_partitions("t", 3, []), E.INVALID_REPLICA_ASSIGNMENT),
        (create_partitions("t", 5, [[0]]), E.INVALID_REPLICA_ASSIGNMENT),
        (create_partitions("t", 3, [[5]]), E.INVALID_REPLICA_ASSIGNMENT),
        (create_partitions("t", 3, [[0, 0]]), E.INVALID_REPLICA_ASSIGNMENT),
        (create_partitions("t", 3, [[]]), E.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_partition_counts_are_rejected(
    tmp_path: Path, invalid_request: CreatePartitionsRequest, code: ErrorCode
) -> None:
    async def body(client: Client) -> None:
        await client.send(create_topics("t", partitions=2), 7)
        response = await client.send(invalid_request, 3)
        assert ErrorCode(response.results[0].error_code) is code and response.results[0].error_message
        assert len(client.broker.metadata_cache.topics["t"].partitions) == 2

    with_client(tmp_path, body)
