"""The requests of the consumer protocol through their codec, with the broker's metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kavka.common.errors import ErrorCode
from kavka.coordinator.group.consumer.topics import CachedTopics, metadata_hash
from kavka.metadata.features import GROUP_VERSION, SUPPORTED, Features, LevelRange
from kavka.metadata.paths import BrokerRegistration
from kavka.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.describe_groups import DescribeGroupsRequest
from kavka.protocol.messages.list_groups import ListGroupsRequest
from kavka.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kavka.replication.metadata_cache import (
    LEADER_DURING_DELETION,
    BrokerInfo,
    MetadataCache,
    PartitionInfo,
    TopicUpdate,
)
from tests.unit.coordinator.test_group_requests import TOPIC_ID, Services, commit, with_services


def heartbeat(epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    options: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    if epoch == 0:
        options |= {"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(member_epoch=epoch, **(options | fields))


def enable_protocol(services: Any, level: int = 1) -> None:
    services.features = SimpleNamespace(level=lambda name: level if name == GROUP_VERSION else 0)


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_and_is_described_in_every_version(version: int) -> None:
    async def main(services: Services) -> None:
        enable_protocol(services)
        response = await services.send(heartbeat(), version)
        assert (response.error_code, response.member_id, response.member_epoch) == (0, "m", 1)
        (topic,) = response.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (TOPIC_ID, [0, 1, 2])
        request = ConsumerGroupDescribeRequest(group_ids=["g", "other", ""], include_authorized_operations=True)
        described = (await services.send(request, version)).groups
        codes = [ErrorCode(group.error_code) for group in described]
        assert codes == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID]
        (member,) = described[0].members
        assert (member.client_id, member.client_host, member.member_epoch) == ("client", "/10.0.0.1", 1)
        assert member.assignment.topic_partitions[0].topic_name == "orders"
        assert member.member_type == (1 if version else -1)
        assert described[0].authorized_operations > 0
        again = await services.send(heartbeat(1), version)
        assert (again.error_code, again.assignment) == (0, None)

    with_services(main)()


@with_services
async def test_error_responses_have_a_message(services: Services) -> None:
    enable_protocol(services)
    response = await services.send(heartbeat(5), 1)
    assert ErrorCode(response.error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert "g not found" in response.error_message


@with_services
async def test_a_too_large_subscription_is_refused_and_changes_nothing(services: Services) -> None:
    enable_protocol(services)
    names = [f"{'x' * 200}-{number}" for number in range(6_000)]
    response = await services.send(heartbeat(subscribed_topic_names=names), 1)
    assert ErrorCode(response.error_code) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not (await services.send(ListGroupsRequest(), 5)).groups


@with_services
async def test_the_protocol_is_refused_until_all_brokers_support_it(services: Services) -> None:
    enable_protocol(services, 0)
    response = await services.send(heartbeat(), 1)
    assert ErrorCode(response.error_code) is ErrorCode.UNSUPPORTED_VERSION


@with_services
async def test_consumer_groups_are_listed_but_not_described_as_classic_groups(services: Services) -> None:
    enable_protocol(services)
    await services.send(heartbeat(), 1)
    (listed,) = (await services.send(ListGroupsRequest(types_filter=["Consumer"]), 5)).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "consumer")
    assert not (await services.send(ListGroupsRequest(types_filter=["classic"]), 5)).groups
    for version, code in ((6, ErrorCode.GROUP_ID_NOT_FOUND), (5, ErrorCode.NONE)):
        (described,) = (await services.send(DescribeGroupsRequest(groups=["g"]), version)).groups
        assert (ErrorCode(described.error_code), described.group_state) == (code, "Dead")


@with_services
async def test_commits_and_fetches_check_the_member_epoch(services: Services) -> None:
    enable_protocol(services)
    await services.send(heartbeat(), 1)
    for epoch, code in ((1, ErrorCode.NONE), (2, ErrorCode.STALE_MEMBER_EPOCH)):
        response = await services.send(commit(member_id="m", generation_id_or_member_epoch=epoch), 9)
        assert ErrorCode(response.topics[0].partitions[0].error_code) is code
        requested = OffsetFetchRequestGroup(
            group_id="g",
            member_id="m",
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])],
        )
        response = await services.send(OffsetFetchRequest(groups=[requested]), 9)
        assert ErrorCode(response.groups[0].error_code) is code
    old = await services.send(commit(member_id="m", generation_id_or_member_epoch=1), 8)
    assert ErrorCode(old.topics[0].partitions[0].error_code) is ErrorCode.UNSUPPORTED_VERSION


@with_services
async def test_added_partitions_are_assigned_with_the_next_heartbeat(services: Services) -> None:
    enable_protocol(services)
    await services.send(heartbeat(), 1)
    services.publish_metadata("orders", TOPIC_ID, 5)
    response = await services.send(heartbeat(1), 1)
    assert response.member_epoch == 2
    assert response.assignment.topic_partitions[0].partitions == [0, 1, 2, 3, 4]


# ---- the metadata of topics


def publish(
    cache: MetadataCache, name: str, partitions: int, *, leader: int = 1, replicas: tuple[int, ...] = (1,)
) -> int:
    states = [PartitionInfo(index, leader, replicas=list(replicas)) for index in range(partitions)]
    brokers = [BrokerInfo(1, "r1", {}), BrokerInfo(2, "r2", {})]
    cache.update(brokers, [TopicUpdate(name, UUID(int=len(name)), states)])
    return cache.topics_version


def test_the_topic_version_increases_only_with_relevant_changes() -> None:
    cache = MetadataCache()
    topics = CachedTopics(cache)
    versions = [topics.version, publish(cache, "a", 2), publish(cache, "a", 3), publish(cache, "a", 3, replicas=(1, 2))]
    assert versions == sorted(set(versions))
    assert publish(cache, "a", 3, leader=2, replicas=(1, 2)) == versions[-1]
    assert publish(cache, "a", 3, leader=LEADER_DURING_DELETION) > versions[-1]
    assert topics.get("a") is None


def test_a_topic_has_the_racks_of_its_replicas() -> None:
    cache = MetadataCache()
    publish(cache, "a", 2, replicas=(1, 2, 3))
    topic = CachedTopics(cache).get("a")
    assert topic is not None
    assert (topic.partitions, topic.racks) == (2, (frozenset(["r1", "r2"]),) * 2)


def test_the_metadata_hash_changes_with_the_topics_of_the_group() -> None:
    cache = MetadataCache()
    topics = CachedTopics(cache)
    assert metadata_hash(["a", "bb"], topics) == 0
    publish(cache, "a", 2)
    first = metadata_hash(["a", "bb"], topics)
    publish(cache, "ccc", 2)
    assert metadata_hash(["bb", "a"], topics) == first
    publish(cache, "bb", 1)
    second = metadata_hash(["a", "bb"], topics)
    publish(cache, "a", 3)
    assert len({0, first, second, metadata_hash(["a", "bb"], topics)}) == 4


def test_the_protocol_is_offered_when_all_brokers_support_it() -> None:
    features = Features(SUPPORTED)
    assert SUPPORTED[GROUP_VERSION] == LevelRange(0, 1)
    ours = BrokerRegistration(1, (), 0, None, features=features.registration())
    older = BrokerRegistration(2, (), 0, None)
    features.set_brokers([ours, ours], 5)
    assert features.level(GROUP_VERSION) == 1
    features.set_brokers([ours, older], 6)
    assert features.level(GROUP_VERSION) == 0
