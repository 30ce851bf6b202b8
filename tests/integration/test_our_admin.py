"""The admin client against a real broker: Kavka by default, Apache Kafka with --target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

import kavka.aio
from kavka import (
    Admin,
    AlterConfigOp,
    ConfigResource,
    ErrorCode,
    KafkaError,
    KafkaTimeout,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    Producer,
    TopicPartition,
)
from kavka.client.admin import AdminError
from kavka.client.admin.types import (
    AbortTransactionSpec,
    ConfigSource,
    ElectionType,
    MemberToRemove,
    OpType,
    ReplicaLogDirInfo,
    ResourceType,
    TopicPartitionReplica,
)
from kavka.client.errors import ClientClosed, UnsupportedVersion
from kavka.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.elect_leaders import ElectLeadersRequest
from tests.support import wire
from tests.support.messages import Messages
from tests.support.reading import read_values
from tests.support.targets import Target


@pytest.fixture(scope="module")
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def eventually(check: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Repeats the check until it returns a true value or the timeout expires. Returns the last
    result. The cluster completes some changes after its response."""
    deadline = time.monotonic() + timeout
    while not (result := check()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return result


def fill(target: Target, topic: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for i in range(count):
            producer.send(topic, b"%d" % i, partition=partition, timestamp=1000 + i)


# --- topics


def test_topics_are_created_listed_described_and_deleted(admin: Admin, topic: str) -> None:
    other = f"{topic}-other"
    created = admin.create_topics([NewTopic(topic, 3, 1, configs={"retention.ms": 5000}), other])
    assert created[topic].num_partitions == 3
    assert created[topic].configs["retention.ms"] == "5000"
    assert eventually(lambda: {topic, other} <= set(admin.list_topics()))
    listing = admin.list_topics()[topic]
    assert (listing.topic_id, listing.is_internal) == (created[topic].topic_id, False)

    description = admin.describe_topics(topic)[topic]
    assert [p.partition for p in description.partitions] == [0, 1, 2]
    leader = description.partitions[0].leader
    assert leader is not None
    assert description.partitions[0].replicas == description.partitions[0].isr == (leader,)
    assert admin.describe_topics([created[topic].topic_id])[created[topic].topic_id].name == topic

    admin.delete_topics([topic])
    admin.delete_topics(created[other].topic_id)
    assert eventually(lambda: not {topic, other} & set(admin.list_topics()))


def test_failed_and_successful_items_are_reported_separately(admin: Admin, topic: str) -> None:
    admin.create_topics([topic])
    with pytest.raises(AdminError) as raised:
        admin.create_topics([topic, f"{topic}-new", "not/a/name"])
    assert raised.value.errors[topic].code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert raised.value.errors["not/a/name"].code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert list(raised.value.results) == [f"{topic}-new"]
    assert topic in str(raised.value)


def test_validate_only_creates_nothing(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)], validate_only=True)
    assert topic not in admin.list_topics()
    with pytest.raises(AdminError) as raised:
        admin.create_topics([NewTopic(topic, 2, 1, configs={"retention.ms": "soon"})], validate_only=True)
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_replica_assignments_place_the_replicas(admin: Admin, topic: str) -> None:
    broker = admin.describe_cluster().nodes[0].id
    admin.create_topics([NewTopic(topic, replica_assignments={0: [broker], 1: [broker]})])
    assert eventually(lambda: topic in admin.list_topics())
    assert len(admin.describe_topics(topic)[topic].partitions) == 2
    with pytest.raises(AdminError) as raised:
        admin.create_topics([NewTopic(f"{topic}-2", 1, 77)])
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_missing_topic_is_reported_immediately(admin: Admin, topic: str) -> None:
    start_time = time.monotonic()
    for call in (admin.describe_topics, admin.delete_topics):
        with pytest.raises(AdminError) as raised:
            call([topic])
        assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(AdminError) as raised:
        admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert time.monotonic() - start_time < 5
    assert topic not in admin.list_topics()


def test_partitions_can_be_added_but_not_removed(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    admin.create_partitions({topic: 4})
    assert eventually(lambda: len(admin.describe_topics(topic)[topic].partitions) == 4)
    admin.create_partitions({topic: NewPartitions(5, [[admin.describe_cluster().nodes[0].id]])})
    for invalid in (3, 5):
        with pytest.raises(AdminError) as raised:
            admin.create_partitions({topic: invalid})
        assert raised.value.code == ErrorCode.INVALID_PARTITIONS


# --- settings


def test_settings_are_described_and_changed_individually(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, configs={"retention.ms": "7777"})])
    resource = ConfigResource.topic(topic)
    configs = eventually(lambda: admin.describe_configs(resource)[resource])
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == (
        "7777",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )
    assert configs["cleanup.policy"].is_default

    admin.incremental_alter_configs(
        {
            resource: [
                AlterConfigOp("segment.bytes", "1048576"),
                AlterConfigOp("cleanup.policy", "compact", OpType.APPEND),
                AlterConfigOp.delete("retention.ms"),
            ]
        }
    )
    assert eventually(lambda: admin.describe_configs(resource)[resource]["segment.bytes"].value == "1048576")
    configs = admin.describe_configs(resource, include_synonyms=True, include_documentation=True)[resource]
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].value == "604800000"
    assert configs["segment.bytes"].synonyms[0].value == "1048576"
    assert configs["segment.bytes"].documentation

    admin.incremental_alter_configs({resource: {"segment.bytes": None, "retention.ms": "1"}})
    assert eventually(lambda: admin.describe_configs(resource)[resource]["retention.ms"].value == "1")
    admin.alter_configs({resource: {"max.message.bytes": "2000"}})
    assert eventually(lambda: admin.describe_configs(resource)[resource]["retention.ms"].value == "604800000")


def test_an_invalid_setting_is_rejected_with_the_brokers_message(admin: Admin, topic: str) -> None:
    admin.create_topics([topic])
    with pytest.raises(AdminError) as raised:
        admin.incremental_alter_configs({ConfigResource.topic(topic): {"segment.bytes": "many"}})
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    assert "segment.bytes" in str(raised.value)


def test_a_brokers_settings_can_be_read(admin: Admin) -> None:
    resource = ConfigResource.broker(admin.describe_cluster().nodes[0].id)
    configs = admin.describe_configs(resource)[resource]
    assert configs["log.dirs"].is_read_only
    assert len(configs) > 100


def test_group_settings_are_changed_and_sent_to_the_members(admin: Admin, target: Target, topic: str) -> None:
    resource, heartbeat = ConfigResource.group(topic), "consumer.heartbeat.interval.ms"
    if not admin.describe_features().supported.get("group.version"):
        with pytest.raises(AdminError):
            admin.incremental_alter_configs({resource: {heartbeat: "7000"}})
        return
    configs = admin.describe_configs(resource)[resource]
    assert (configs[heartbeat].value, configs[heartbeat].is_default) == ("5000", True)
    admin.create_topics([NewTopic(topic, 1, 1)])
    # FindCoordinator creates the offsets topic.
    assert admin.list_consumer_group_offsets(topic) == {}
    with Messages(target.address) as connection:

        def send_heartbeat(member_id: str, epoch: int, **fields: Any) -> Any:
            request = ConsumerGroupHeartbeatRequest(group_id=topic, member_id=member_id, member_epoch=epoch, **fields)
            return connection.call(request, 1)

        joining = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic], "topic_partitions": []}
        member = eventually(lambda: (response := send_heartbeat("member", 0, **joining)).error_code == 0 and response)
        admin.incremental_alter_configs({resource: [AlterConfigOp(heartbeat, "7000")]})
        assert eventually(lambda: send_heartbeat("member", member.member_epoch).heartbeat_interval_ms == 7000)
        send_heartbeat("member", -1)
    configs = admin.describe_configs(resource, include_synonyms=True)[resource]
    assert (configs[heartbeat].value, configs[heartbeat].source) == ("7000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [synonym.name for synonym in configs[heartbeat].synonyms] == [heartbeat, f"group.{heartbeat}"]
    assert resource in admin.list_config_resources([ResourceType.GROUP])
    for invalid in ({heartbeat: "4999"}, {heartbeat: "soon"}, {"nonsense": "1"}):
        with pytest.raises(AdminError) as raised:
            admin.incremental_alter_configs({resource: invalid})
        assert raised.value.code == ErrorCode.INVALID_CONFIG
    admin.incremental_alter_configs({resource: {heartbeat: None}})
    assert eventually(lambda: admin.describe_configs(resource)[resource][heartbeat].is_default)
    assert eventually(lambda: resource not in admin.list_config_resources([ResourceType.GROUP]))


# --- records and offsets


def test_offsets_are_found_by_position_and_by_time(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    fill(target, topic, 10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def offset(spec: OffsetSpec) -> int:
        return admin.list_offsets({first: spec})[first].offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.for_timestamp(1004)) == 4
    assert offset(OffsetSpec.for_timestamp(5000)) == -1
    assert admin.list_offsets({first: OffsetSpec.max_timestamp()})[first][:2] == (9, 1009)
    both = admin.list_offsets(
        {first: OffsetSpec.latest(), second: OffsetSpec.latest()}, isolation_level="read_committed"
    )
    assert [both[tp].offset for tp in (first, second)] == [10, 0]


def test_records_before_an_offset_are_deleted(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    fill(target, topic, 10)
    tp = TopicPartition(topic, 0)
    assert admin.delete_records({tp: 4}) == {tp: 4}
    assert admin.list_offsets({tp: OffsetSpec.earliest()})[tp].offset == 4
    with pytest.raises(AdminError) as raised:
        admin.delete_records({tp: 99})
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert admin.delete_records({tp: -1}) == {tp: 10}


# --- the cluster


def test_the_cluster_and_its_features_are_described(admin: Admin, target: Target) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller in cluster.nodes
    assert f"{cluster.nodes[0].host}:{cluster.nodes[0].port}" == target.bootstrap_servers
    assert isinstance(admin.describe_features().finalized, dict)


def test_log_directories_are_described(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    fill(target, topic, 10)
    broker = admin.describe_cluster().nodes[0].id
    directories = admin.describe_log_dirs()[broker]
    (path,) = directories
    (replica,) = directories[path].replicas[TopicPartition(topic, 0)]
    assert replica.size > 0
    assert (replica.offset_lag, replica.is_future) == (0, False)
    only = admin.describe_log_dirs([broker], [TopicPartition(topic, 0)])[broker][path].replicas
    assert list(only) == [TopicPartition(topic, 0)]
    admin.alter_replica_log_dirs({TopicPartitionReplica(topic, 0, broker): path})
    here, nowhere = TopicPartitionReplica(topic, 0, broker), TopicPartitionReplica(topic, 7, broker)
    assert admin.describe_replica_log_dirs([here, nowhere]) == {
        here: ReplicaLogDirInfo(path, 0),
        nowhere: ReplicaLogDirInfo(),
    }
    assert admin.describe_replica_log_dirs([]) == {}
    with pytest.raises(AdminError) as raised:
        admin.alter_replica_log_dirs({TopicPartitionReplica(topic, 0, broker): "/no/such/dir"})
    assert raised.value.code == ErrorCode.LOG_DIR_NOT_FOUND


# --- groups


def test_groups_are_listed_described_and_deleted(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    group = f"g-{topic}"
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "group.id": group,
            "client.id": "tester",
            "session.timeout.ms": 10000,
        }
    )
    consumer.subscribe([topic])
    try:
        assert eventually(lambda: consumer.poll(0.1) or consumer.assignment())
        description = admin.describe_consumer_groups(group)[group]
        assert (description.state, description.type, description.protocol_type) == ("Stable", "classic", "consumer")
        (member,) = description.members
        assert member.client_id == "tester"
        assert member.assignment == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        assert member.subscribed_topics == (topic,)
        assert admin.describe_classic_groups([group]) == {group: description}
        assert group in [listed.group_id for listed in admin.list_consumer_groups(states=["Stable"])]
        assert group not in [listed.group_id for listed in admin.list_consumer_groups(states=["Empty"])]
        with pytest.raises(AdminError) as raised:
            admin.delete_consumer_groups([group])
        assert raised.value.code == ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(AdminError) as failed:
            admin.remove_members_from_consumer_group(group, [MemberToRemove(member_id="nobody")])
        assert failed.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    finally:
        consumer.close()
    assert eventually(lambda: admin.describe_consumer_groups(group)[group].state == "Empty")
    admin.delete_consumer_groups(group)
    assert group not in [listed.group_id for listed in admin.list_consumer_groups()]


def test_all_members_can_be_removed(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    group = f"g-{topic}"
    consumer = Consumer({"bootstrap.servers": target.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    try:
        assert eventually(lambda: consumer.poll(0.1) or consumer.assignment())
        admin.remove_members_from_consumer_group(group)
        assert eventually(lambda: not admin.describe_consumer_groups(group)[group].members)
    finally:
        consumer.close()


def test_the_offsets_of_a_group_are_set_listed_and_deleted(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    group = f"g-{topic}"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_consumer_group_offsets(group, {first: 5, second: OffsetAndMetadata(6, "a note", 0)})
    assert admin.list_consumer_group_offsets(group) == {
        first: OffsetAndMetadata(5),
        second: OffsetAndMetadata(6, "a note", 0),
    }
    assert admin.list_consumer_group_offsets(group, [first]) == {first: OffsetAndMetadata(5)}
    admin.delete_consumer_group_offsets(group, [first])
    assert admin.list_consumer_group_offsets(group, [first, second])[first] is None
    assert list(admin.list_consumer_group_offsets(group)) == [second]
    none = TopicPartition(topic, 9)
    with pytest.raises(AdminError) as raised:
        admin.delete_consumer_group_offsets(group, [none])
    assert list(raised.value.errors) == [none]
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError):
        admin.alter_consumer_group_offsets(group, {TopicPartition(f"{topic}-none", 0): 1})


def test_a_missing_group_is_reported(admin: Admin, topic: str) -> None:
    with pytest.raises(AdminError) as raised:
        admin.delete_consumer_groups([topic])
    assert raised.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    assert admin.list_consumer_group_offsets(topic) == {}


# --- producers and transactions


def test_producers_and_transactions_are_described(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    tp, name = TopicPartition(topic, 0), f"tx-{topic}"
    with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.send(topic, b"x").get(30)
        (state,) = admin.describe_producers([tp])[tp]
        assert (state.last_sequence, state.current_transaction_start_offset) == (0, 0)
        description = admin.describe_transactions(name)[name]
        assert (description.state, description.producer_id) == ("Ongoing", state.producer_id)
        assert description.partitions == {tp}
        assert (name, state.producer_id, "Ongoing") in [listed[:3] for listed in admin.list_transactions()]
        assert name in [t.transactional_id for t in admin.list_transactions(states=["Ongoing"])]
        assert name not in [t.transactional_id for t in admin.list_transactions(states=["Empty"])]
        producer.commit_transaction(60)
    with pytest.raises(AdminError) as raised:
        admin.describe_transactions(f"{name}-none")
    assert raised.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_a_producer_can_be_fenced(admin: Admin, target: Target, topic: str) -> None:
    name = f"tx-{topic}"
    with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.send(topic, b"x").get(30)
        admin.fence_producers(name)
        with pytest.raises(KafkaError):
            producer.commit_transaction(60)
    with Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.send(topic, b"y").get(30)
        admin.force_terminate_transaction(name)
        assert admin.describe_transactions(name)[name].state in ("CompleteAbort", "Empty")
        with pytest.raises(KafkaError):
            producer.commit_transaction(60)
    assert read_values(target.bootstrap_servers, topic, read_committed=True) == []


def test_a_hanging_transaction_can_be_aborted(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    tp = TopicPartition(topic, 0)
    settings = {"bootstrap_servers": target.bootstrap_servers, "transactional_id": f"tx-{topic}"}
    producer = Producer(**settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.send(topic, b"x").get(30)
    (state,) = admin.describe_producers([tp])[tp]
    admin.abort_transaction(AbortTransactionSpec(tp, state.producer_id, state.producer_epoch))
    assert admin.list_offsets({tp: OffsetSpec.latest()}, isolation_level="read_committed")[tp].offset == 2
    producer.close(5)


# --- replicas


def test_leaders_are_elected_and_partitions_reassigned(admin: Admin, target: Target, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    tp, other, missing = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic, 7)
    broker = admin.describe_cluster().nodes[0].id
    served = wire.served(target.address)
    if ElectLeadersRequest.API_KEY not in served:
        with pytest.raises(UnsupportedVersion, match="ElectLeaders"):
            admin.elect_leaders(ElectionType.PREFERRED, [tp])
    else:
        outcome = admin.elect_leaders(ElectionType.PREFERRED, [tp, other, missing])
        assert {name: error and error.code for name, error in outcome.items()} == {
            tp: ErrorCode.ELECTION_NOT_NEEDED,
            other: ErrorCode.ELECTION_NOT_NEEDED,
            missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        unclean = admin.elect_leaders(ElectionType.UNCLEAN, [tp])[tp]
        assert unclean is not None
        assert unclean.code == ErrorCode.ELECTION_NOT_NEEDED
        assert admin.elect_leaders() == {}
    if AlterPartitionReassignmentsRequest.API_KEY not in served:
        with pytest.raises(AdminError, match="AlterPartitionReassignments"):
            admin.alter_partition_reassignments({tp: [broker]})
        with pytest.raises(UnsupportedVersion, match="ListPartitionReassignments"):
            admin.list_partition_reassignments()
        return
    admin.alter_partition_reassignments({tp: [broker], other: [broker]})
    assert eventually(lambda: admin.list_partition_reassignments([tp, other]) == {})
    assert admin.list_partition_reassignments() == {}
    with pytest.raises(AdminError) as raised:
        admin.alter_partition_reassignments({tp: [broker, 99], other: None})
    assert {name: error.code for name, error in raised.value.errors.items()} == {
        tp: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        other: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }


# --- the client


def test_calls_time_out_without_a_broker() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=400) as admin:
        start_time = time.monotonic()
        with pytest.raises(KafkaTimeout):
            admin.list_topics()
        with pytest.raises(KafkaTimeout):
            admin.describe_cluster(timeout=0.2)
        assert time.monotonic() - start_time < 5


def test_a_closed_client_raises_an_error(target: Target) -> None:
    admin = Admin(bootstrap_servers=target.bootstrap_servers)
    admin.list_topics()
    admin.close()
    admin.close()
    with pytest.raises(ClientClosed):
        admin.list_topics()


def test_the_asyncio_admin_client_behaves_like_the_blocking_one(target: Target, topic: str) -> None:
    async def work() -> None:
        async with kavka.aio.Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            created = await admin.create_topics([NewTopic(topic, 2, 1)])
            assert created[topic].num_partitions == 2
            cluster, topics = await asyncio.gather(admin.describe_cluster(), admin.list_topics(list_internal=True))
            assert cluster.nodes
            assert topics
            await admin.delete_topics(topic)

    asyncio.run(work())
