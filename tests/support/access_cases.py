"""A request of every API, with the rights that it needs by Kafka's rules.

A case runs with no right, with all rights, without each of them, and with each of them denied.
`topics` has one topic that the rights name, one that they do not, and one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages import (
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_topics,
    describe_configs,
    describe_producers,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    incremental_alter_configs,
    join_group,
    leader_and_isr,
    leave_group,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    txn_offset_commit,
    update_features,
    update_metadata,
    write_txn_markers,
)
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kavka.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kavka.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kavka.protocol.messages.delete_groups import DeleteGroupsRequest
from kavka.protocol.messages.describe_acls import DescribeAclsRequest
from kavka.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from kavka.protocol.messages.describe_cluster import DescribeClusterRequest
from kavka.protocol.messages.describe_groups import DescribeGroupsRequest
from kavka.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kavka.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kavka.protocol.messages.end_txn import EndTxnRequest
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.list_config_resources import ListConfigResourcesRequest
from kavka.protocol.messages.list_groups import ListGroupsRequest
from kavka.protocol.messages.list_transactions import ListTransactionsRequest
from kavka.protocol.messages.sync_group import SyncGroupRequest
from kavka.security.acls import CLUSTER_NAME, WILDCARD, Operation, PatternType, ResourceType
from tests.support import wire
from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST

Op = Operation
TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
Right = tuple[Operation, ResourceType, str, PatternType]
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

READABLE, HIDDEN, MISSING = "m-topic", "m-hidden", "m-missing"
GROUPS = ("m-group", "m-other")
IDS = ("m-tx", "m-tx-other")
NO_ID = UUID(int=0)
STALE = 0
UNKNOWN_BROKER = 99
# Attributes of a transactional batch.
TRANSACTIONAL = 0x10


def on_topic(operation: Operation, name: str = READABLE) -> Right:
    return operation, TOPIC, name, LITERAL


def on_group(operation: Operation) -> Right:
    return operation, GROUP, GROUPS[0], LITERAL


def on_id(operation: Operation) -> Right:
    return operation, TXN, IDS[0], LITERAL


def on_cluster(operation: Operation) -> Right:
    return operation, CLUSTER, CLUSTER_NAME, LITERAL


ON_ALL_TOPICS: Right = Op.ALL, TOPIC, WILDCARD, LITERAL


@dataclass
class World:
    """The state that a request refers to, equal on both brokers except for the ids."""

    version: int
    # Different in every run.
    run: int
    topic_ids: dict[str, UUID]

    @property
    def new_name(self) -> str:
        return f"m-new-{self.run}"

    def id(self, name: str) -> UUID:
        return self.topic_ids.get(name, UUID(int=7))


Make = Callable[[World], Any]


@dataclass(frozen=True)
class Case:
    """`rights` are needed together. Each of `alternatives` is sufficient, or differs in an
    interesting way. `since` is the first version that the case can use."""

    name: str
    key: ApiKey
    make: Make
    rights: tuple[Right, ...] = ()
    alternatives: tuple[tuple[Right, ...], ...] = ()
    versions: tuple[int, int] = (0, 99)
    # Names of fields that differ between the brokers for other reasons than rights.
    ignored: frozenset[str] = field(default=frozenset())
    # Create a topic with the new name before each run.
    creates_topic: bool = False
    # Codes of Apache that mean the same as codes of Kavka.
    same_codes: Mapping[int, int] = field(default_factory=dict)
    # The version of Apache Kafka that serves the API, if only one does.
    only_on: str = ""


TOPICS = (READABLE, HIDDEN, MISSING)


def _records(attributes: int = 0) -> memoryview:
    fields = {"attributes": attributes}
    if attributes:
        fields |= {"producer_id": 1000, "producer_epoch": 0, "base_sequence": 0}
    return memoryview(bytearray(wire.batch([b"x"], **fields)))


def _produce(w: World, attributes: int = 0, transactional_id: str | None = None) -> Any:
    return produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=5000,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                topic_id=w.id(name),
                partition_data=[produce.PartitionProduceData(index=0, records=_records(attributes))],
            )
            for name in TOPICS
        ],
    )


def _fetch(w: World, replica_id: int = -1) -> Any:
    request = fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            fetch.FetchTopic(
                topic=name,
                topic_id=w.id(name),
                partitions=[
                    fetch.FetchPartition(partition=0, current_leader_epoch=0, fetch_offset=0, partition_max_bytes=1000)
                ],
            )
            for name in TOPICS
        ],
    )
    if w.version >= 15:
        request.replica_state = fetch.ReplicaState(replica_id=replica_id, replica_epoch=-1)
    else:
        request.replica_id = replica_id
    return request


def _list_offsets(w: World) -> Any:
    return list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            list_offsets.ListOffsetsTopic(
                name=name, partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
            for name in TOPICS
        ],
    )


def _metadata(w: World, names: Iterable[str] | None = TOPICS, by_id: bool = False, creates: bool = False) -> Any:
    topics = None
    if names is not None:
        topics = [
            metadata.MetadataRequestTopic(name=None if by_id else name, topic_id=w.id(name) if by_id else NO_ID)
            for name in names
        ]
    return metadata.MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=creates or w.version < 4,
        include_cluster_authorized_operations=8 <= w.version <= 10,
        include_topic_authorized_operations=w.version >= 8,
    )


def _offset_commit(w: World) -> Any:
    return offset_commit.OffsetCommitRequest(
        group_id=GROUPS[0],
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=name,
                topic_id=w.id(name),
                partitions=[offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
            for name in TOPICS
        ],
    )


def _offset_fetch(w: World, all_topics: bool = False) -> Any:
    if w.version >= 8:
        topics = [
            offset_fetch.OffsetFetchRequestTopics(name=name, topic_id=w.id(name), partition_indexes=[0])
            for name in TOPICS
        ]
        return offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None if all_topics else topics)
                for group in GROUPS
            ]
        )
    old = [offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in TOPICS]
    return offset_fetch.OffsetFetchRequest(group_id=GROUPS[0], topics=None if all_topics else old)


def _find_coordinator(w: World, key_type: int, keys: tuple[str, ...]) -> Any:
    if w.version >= 4:
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    return FindCoordinatorRequest(key=keys[0], key_type=key_type)


def _join(w: World) -> Any:
    return join_group.JoinGroupRequest(
        group_id=GROUPS[0],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="unknown",
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def _leave(w: World) -> Any:
    member = leave_group.MemberIdentity(member_id="unknown")
    if w.version >= 3:
        return leave_group.LeaveGroupRequest(group_id=GROUPS[0], members=[member])
    return leave_group.LeaveGroupRequest(group_id=GROUPS[0], member_id="unknown")


def _create_topics(w: World) -> Any:
    return create_topics.CreateTopicsRequest(
        timeout_ms=10_000,
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in (w.new_name, READABLE)
        ],
    )


def _delete_topics(w: World, by_id: bool = False) -> Any:
    names = (w.new_name, MISSING)
    if w.version >= 6:
        topics = [
            delete_topics.DeleteTopicState(name=None if by_id else name, topic_id=w.id(name) if by_id else NO_ID)
            for name in names
        ]
        return delete_topics.DeleteTopicsRequest(timeout_ms=10_000, topics=topics)
    return delete_topics.DeleteTopicsRequest(timeout_ms=10_000, topic_names=list(names))


def _create_partitions(w: World) -> Any:
    return create_partitions.CreatePartitionsRequest(
        timeout_ms=10_000,
        validate_only=True,
        topics=[create_partitions.CreatePartitionsTopic(name=name, count=3, assignments=None) for name in TOPICS],
    )


def _delete_records(w: World) -> Any:
    return delete_records.DeleteRecordsRequest(
        timeout_ms=5000,
        topics=[
            delete_records.DeleteRecordsTopic(
                name=name, partitions=[delete_records.DeleteRecordsPartition(partition_index=0, offset=0)]
            )
            for name in TOPICS
        ],
    )


def _epoch_offsets(w: World) -> Any:
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopic(
                topic=name,
                partitions=[offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)],
            )
            for name in TOPICS
        ],
    )


def _add_partitions(w: World) -> Any:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (READABLE, HIDDEN)]
    if w.version >= 4:
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    transactional_id=IDS[0], producer_id=77, producer_epoch=0, verify_only=True, topics=topics
                )
            ]
        )
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=IDS[0],
        v3_and_below_producer_id=77,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )


def _txn_commit(w: World) -> Any:
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=IDS[0],
        group_id=GROUPS[0],
        producer_id=77,
        producer_epoch=0,
        topics=[
            txn_offset_commit.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
            for name in (READABLE, HIDDEN)
        ],
    )


def _markers(w: World) -> Any:
    return write_txn_markers.WriteTxnMarkersRequest(
        markers=[
            write_txn_markers.WritableTxnMarker(
                producer_id=77,
                producer_epoch=0,
                transaction_result=False,
                coordinator_epoch=0,
                topics=[write_txn_markers.WritableTxnMarkerTopic(name=MISSING, partition_indexes=[0])],
            )
        ]
    )


# A setting of each type of resource.
ALTERED = {2: "min.insync.replicas", 4: "log.cleaner.threads", 8: "root"}
CONFIGURED = ((2, READABLE), (2, HIDDEN), (4, "1"), (8, "1"))


def _describe_configs(w: World) -> Any:
    return describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=["retention.ms", "log.retention.ms"]
            )
            for kind, name in CONFIGURED
        ]
    )


def _alter_configs(w: World) -> Any:
    return alter_configs.AlterConfigsRequest(
        validate_only=True,
        resources=[
            alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[alter_configs.AlterableConfig(name=ALTERED[kind], value="INFO" if kind == 8 else "1")],
            )
            for kind, name in CONFIGURED[:3]
        ],
    )


def _incremental(w: World) -> Any:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        validate_only=True,
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    incremental_alter_configs.AlterableConfig(
                        name=ALTERED[kind], config_operation=0, value="INFO" if kind == 8 else "1"
                    )
                ],
            )
            for kind, name in CONFIGURED
        ],
    )


def _group_configs(make_class: Any, **fields: Any) -> Any:
    return [make_class(resource_type=32, resource_name=name, **fields) for name in GROUPS]


def _reassign(w: World) -> Any:
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        timeout_ms=5000,
        topics=[
            alter_partition_reassignments.ReassignableTopic(
                name=READABLE,
                partitions=[alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)],
            )
        ],
    )


def _acl_filter(filter_class: Any) -> Any:
    return filter_class(
        resource_type_filter=2, resource_name_filter="m-none", pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


def _elect(w: World) -> Any:
    return elect_leaders.ElectLeadersRequest(
        timeout_ms=5000,
        topic_partitions=[elect_leaders.TopicPartitions(topic=name, partitions=[0]) for name in (READABLE, MISSING)],
    )


def _leader_and_isr(w: World) -> Any:
    return leader_and_isr.LeaderAndIsrRequest(controller_id=1, controller_epoch=STALE, broker_epoch=STALE)


def _stop(w: World) -> Any:
    return stop_replica.StopReplicaRequest(controller_id=1, controller_epoch=STALE, broker_epoch=STALE)


def _update_metadata(w: World) -> Any:
    return update_metadata.UpdateMetadataRequest(controller_id=1, controller_epoch=STALE, broker_epoch=STALE)


def _features(w: World) -> Any:
    update = update_features.FeatureUpdateKey(feature="m.unknown", max_version_level=1)
    return update_features.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=[update])


CASES: tuple[Case, ...] = (
    Case("produce", ApiKey.PRODUCE, _produce, (on_topic(Op.WRITE),), versions=(3, 99)),
    Case(
        "produce in a transaction",
        ApiKey.PRODUCE,
        lambda w: _produce(w, TRANSACTIONAL, IDS[0]),
        (on_id(Op.WRITE), on_topic(Op.WRITE)),
        versions=(3, 11),
    ),
    Case(
        "fetch", ApiKey.FETCH, _fetch, (on_topic(Op.READ),), ((on_topic(Op.ALL),), ((Op.READ, TOPIC, "m-", PREFIXED),))
    ),
    Case(
        "fetch as a follower",
        ApiKey.FETCH,
        lambda w: _fetch(w, UNKNOWN_BROKER),
        (on_cluster(Op.CLUSTER_ACTION),),
        ((on_topic(Op.READ),),),
        versions=(9, 99),
    ),
    Case("list offsets", ApiKey.LIST_OFFSETS, _list_offsets, (on_topic(Op.DESCRIBE),), ((on_topic(Op.READ),),)),
    Case(
        "metadata",
        ApiKey.METADATA,
        _metadata,
        (on_topic(Op.DESCRIBE),),
        (
            (on_topic(Op.ALTER_CONFIGS),),
            (on_topic(Op.DELETE), on_cluster(Op.ALTER)),
            ((Op.ALL, TOPIC, WILDCARD, LITERAL),),
        ),
        versions=(4, 99),
    ),
    Case(
        "metadata of all topics", ApiKey.METADATA, lambda w: _metadata(w, None), (on_topic(Op.READ),), versions=(1, 99)
    ),
    Case(
        "metadata by id",
        ApiKey.METADATA,
        lambda w: _metadata(w, by_id=True),
        (on_topic(Op.DESCRIBE),),
        versions=(12, 99),
    ),
    Case(
        "metadata that creates a topic",
        ApiKey.METADATA,
        lambda w: _metadata(w, [w.new_name], creates=True),
        ((Op.DESCRIBE, TOPIC, "m-new", PREFIXED), (Op.CREATE, TOPIC, "m-new", PREFIXED)),
        (((Op.DESCRIBE, TOPIC, "m-new", PREFIXED), on_cluster(Op.CREATE)),),
        versions=(4, 99),
        # Kavka waits for the new topic.
        ignored=frozenset({"topic_id", "partitions"}),
        same_codes={5: 0, 3: 0},
    ),
    Case(
        "leader and isr",
        ApiKey.LEADER_AND_ISR,
        _leader_and_isr,
        (on_cluster(Op.CLUSTER_ACTION),),
        versions=(2, 99),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "stop replica",
        ApiKey.STOP_REPLICA,
        _stop,
        (on_cluster(Op.CLUSTER_ACTION),),
        versions=(1, 99),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "update metadata",
        ApiKey.UPDATE_METADATA,
        _update_metadata,
        (on_cluster(Op.CLUSTER_ACTION),),
        versions=(5, 99),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "controlled shutdown",
        ApiKey.CONTROLLED_SHUTDOWN,
        lambda w: ControlledShutdownRequest(broker_id=UNKNOWN_BROKER, broker_epoch=STALE),
        (on_cluster(Op.CLUSTER_ACTION),),
        only_on=LAST_WITH_ZOOKEEPER,
        versions=(2, 99),
        same_codes={-1: 8},
    ),
    Case(
        "alter partition",
        ApiKey.ALTER_PARTITION,
        lambda w: alter_partition.AlterPartitionRequest(broker_id=1, broker_epoch=STALE),
        (on_cluster(Op.CLUSTER_ACTION),),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "allocate producer ids",
        ApiKey.ALLOCATE_PRODUCER_IDS,
        lambda w: AllocateProducerIdsRequest(broker_id=1, broker_epoch=STALE),
        (on_cluster(Op.CLUSTER_ACTION),),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case("offset commit", ApiKey.OFFSET_COMMIT, _offset_commit, (on_group(Op.READ), on_topic(Op.READ))),
    Case(
        "offset fetch",
        ApiKey.OFFSET_FETCH,
        _offset_fetch,
        (on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
        # In version 1 Apache omits the partitions that have an error.
        versions=(2, 99),
    ),
    Case(
        "offset fetch of all topics",
        ApiKey.OFFSET_FETCH,
        lambda w: _offset_fetch(w, all_topics=True),
        (on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
        versions=(2, 99),
    ),
    Case(
        "find the coordinator of groups",
        ApiKey.FIND_COORDINATOR,
        lambda w: _find_coordinator(w, 0, GROUPS),
        (on_group(Op.DESCRIBE),),
    ),
    Case(
        "find the coordinator of transactions",
        ApiKey.FIND_COORDINATOR,
        lambda w: _find_coordinator(w, 1, IDS),
        (on_id(Op.DESCRIBE),),
        versions=(1, 99),
    ),
    Case("join group", ApiKey.JOIN_GROUP, _join, (on_group(Op.READ),)),
    Case(
        "heartbeat",
        ApiKey.HEARTBEAT,
        lambda w: HeartbeatRequest(group_id=GROUPS[0], generation_id=1, member_id="unknown"),
        (on_group(Op.READ),),
    ),
    Case("leave group", ApiKey.LEAVE_GROUP, _leave, (on_group(Op.READ),)),
    Case(
        "sync group",
        ApiKey.SYNC_GROUP,
        lambda w: SyncGroupRequest(
            group_id=GROUPS[0], generation_id=1, member_id="unknown", protocol_type="consumer", protocol_name="range"
        ),
        (on_group(Op.READ),),
    ),
    Case(
        "describe groups",
        ApiKey.DESCRIBE_GROUPS,
        lambda w: DescribeGroupsRequest(groups=list(GROUPS), include_authorized_operations=w.version >= 3),
        (on_group(Op.DESCRIBE),),
        ((on_group(Op.ALL),), (on_group(Op.DELETE),)),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "list groups",
        ApiKey.LIST_GROUPS,
        lambda w: ListGroupsRequest(),
        (on_group(Op.DESCRIBE),),
        ((on_cluster(Op.DESCRIBE),),),
    ),
    Case(
        "delete groups",
        ApiKey.DELETE_GROUPS,
        lambda w: DeleteGroupsRequest(groups_names=["m-no-group", GROUPS[1]]),
        ((Op.DELETE, GROUP, "m-no", PREFIXED),),
    ),
    Case(
        "offset delete",
        ApiKey.OFFSET_DELETE,
        lambda w: offset_delete.OffsetDeleteRequest(
            group_id=GROUPS[0],
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=1)]
                )
                for name in TOPICS
            ],
        ),
        (on_group(Op.DELETE), on_topic(Op.READ)),
    ),
    Case(
        "create topics",
        ApiKey.CREATE_TOPICS,
        _create_topics,
        ((Op.CREATE, TOPIC, "m-new", PREFIXED), (Op.DESCRIBE_CONFIGS, TOPIC, "m-new", PREFIXED)),
        ((on_cluster(Op.CREATE),), (on_cluster(Op.ALL),)),
        ignored=frozenset({"configs"}),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "delete topics",
        ApiKey.DELETE_TOPICS,
        _delete_topics,
        ((Op.DELETE, TOPIC, "m-", PREFIXED),),
        creates_topic=True,
        ignored=frozenset({"topic_id"}),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "delete topics by id",
        ApiKey.DELETE_TOPICS,
        lambda w: _delete_topics(w, by_id=True),
        ((Op.DELETE, TOPIC, "m-", PREFIXED),),
        (((Op.DESCRIBE, TOPIC, "m-", PREFIXED),),),
        versions=(6, 99),
        creates_topic=True,
    ),
    Case("create partitions", ApiKey.CREATE_PARTITIONS, _create_partitions, (on_topic(Op.ALTER),)),
    Case("delete records", ApiKey.DELETE_RECORDS, _delete_records, (on_topic(Op.DELETE),)),
    Case(
        "init an idempotent producer",
        ApiKey.INIT_PRODUCER_ID,
        lambda w: InitProducerIdRequest(transactional_id=None),
        (on_cluster(Op.IDEMPOTENT_WRITE),),
        (
            (on_topic(Op.WRITE),),
            ((Op.WRITE, TOPIC, "m-", PREFIXED),),
            ((Op.ALL, TOPIC, WILDCARD, LITERAL),),
            (on_topic(Op.READ),),
        ),
    ),
    Case(
        "init a transactional producer",
        ApiKey.INIT_PRODUCER_ID,
        lambda w: InitProducerIdRequest(transactional_id=IDS[0], transaction_timeout_ms=60_000),
        (on_id(Op.WRITE),),
        ((on_id(Op.DESCRIBE),),),
    ),
    Case(
        "offsets of leader epochs",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        _epoch_offsets,
        (on_topic(Op.DESCRIBE),),
        ((on_cluster(Op.CLUSTER_ACTION),),),
        versions=(2, 99),
    ),
    Case(
        "add partitions to a transaction",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        (on_id(Op.WRITE), on_topic(Op.WRITE), on_topic(Op.WRITE, HIDDEN)),
        versions=(0, 3),
    ),
    Case(
        "add partitions, between brokers",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        (on_cluster(Op.CLUSTER_ACTION),),
        ((on_id(Op.WRITE), on_topic(Op.WRITE), on_topic(Op.WRITE, HIDDEN)),),
        versions=(4, 99),
    ),
    Case(
        "add offsets to a transaction",
        ApiKey.ADD_OFFSETS_TO_TXN,
        lambda w: AddOffsetsToTxnRequest(transactional_id=IDS[0], producer_id=77, producer_epoch=0, group_id=GROUPS[0]),
        (on_id(Op.WRITE), on_group(Op.READ)),
    ),
    Case(
        "end a transaction",
        ApiKey.END_TXN,
        lambda w: EndTxnRequest(transactional_id=IDS[0], producer_id=77, producer_epoch=0, committed=True),
        (on_id(Op.WRITE),),
    ),
    Case(
        "write markers",
        ApiKey.WRITE_TXN_MARKERS,
        _markers,
        (on_cluster(Op.CLUSTER_ACTION),),
        ((on_cluster(Op.ALTER),),),
    ),
    Case(
        "offset commit in a transaction",
        ApiKey.TXN_OFFSET_COMMIT,
        _txn_commit,
        (on_id(Op.WRITE), on_group(Op.READ), on_topic(Op.READ)),
    ),
    Case(
        "describe acls",
        ApiKey.DESCRIBE_ACLS,
        lambda w: _acl_filter(DescribeAclsRequest),
        (on_cluster(Op.DESCRIBE),),
        ((on_cluster(Op.ALTER),),),
    ),
    Case(
        "create acls",
        ApiKey.CREATE_ACLS,
        lambda w: create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=2,
                    resource_name="m-acl",
                    principal="User:m",
                    host="127.0.0.1",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        (on_cluster(Op.ALTER),),
    ),
    Case(
        "delete acls",
        ApiKey.DELETE_ACLS,
        lambda w: delete_acls.DeleteAclsRequest(filters=[_acl_filter(delete_acls.DeleteAclsFilter)] * 2),
        (on_cluster(Op.ALTER),),
    ),
    Case(
        "describe configs",
        ApiKey.DESCRIBE_CONFIGS,
        _describe_configs,
        (on_topic(Op.DESCRIBE_CONFIGS), on_cluster(Op.DESCRIBE_CONFIGS)),
        ((on_topic(Op.ALTER_CONFIGS),), (on_cluster(Op.ALTER),)),
        ignored=frozenset({"configs"}),
    ),
    Case(
        "alter configs",
        ApiKey.ALTER_CONFIGS,
        _alter_configs,
        (on_topic(Op.ALTER_CONFIGS), on_cluster(Op.ALTER_CONFIGS)),
    ),
    Case(
        "alter configs incrementally",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        _incremental,
        (on_topic(Op.ALTER_CONFIGS), on_cluster(Op.ALTER_CONFIGS)),
    ),
    Case(
        "describe configs of groups",
        ApiKey.DESCRIBE_CONFIGS,
        lambda w: describe_configs.DescribeConfigsRequest(
            resources=_group_configs(describe_configs.DescribeConfigsResource, configuration_keys=[])
        ),
        (on_group(Op.DESCRIBE_CONFIGS),),
        ignored=frozenset({"configs"}),
        only_on=NEWEST,
    ),
    Case(
        "alter configs of groups",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda w: incremental_alter_configs.IncrementalAlterConfigsRequest(
            validate_only=True, resources=_group_configs(incremental_alter_configs.AlterConfigsResource)
        ),
        (on_group(Op.ALTER_CONFIGS),),
        only_on=NEWEST,
    ),
    Case(
        "describe quotas",
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        lambda w: DescribeClientQuotasRequest(),
        (on_cluster(Op.DESCRIBE_CONFIGS),),
    ),
    Case(
        "alter quotas",
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda w: alter_client_quotas.AlterClientQuotasRequest(
            validate_only=True,
            entries=[
                alter_client_quotas.AlterClientQuotasRequestEntryData(
                    entity=[alter_client_quotas.EntityData(entity_type="client-id", entity_name="m")],
                    ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1000.0)],
                )
            ],
        ),
        (on_cluster(Op.ALTER_CONFIGS),),
    ),
    Case(
        "describe SCRAM credentials",
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        lambda w: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            users=[describe_user_scram_credentials.UserName(name="m-user")]
        ),
        (on_cluster(Op.DESCRIBE),),
    ),
    Case(
        "alter SCRAM credentials",
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda w: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name="m-user", mechanism=1)]
        ),
        (on_cluster(Op.ALTER),),
    ),
    Case(
        "list config resources",
        ApiKey.LIST_CONFIG_RESOURCES,
        lambda w: ListConfigResourcesRequest(),
        (on_cluster(Op.DESCRIBE_CONFIGS),),
        ignored=frozenset({"config_resources"}),
        only_on=NEWEST,
    ),
    Case(
        "move replicas between directories",
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        lambda w: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=[
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path="/no/such/folder",
                    topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name=READABLE, partitions=[0])],
                )
            ]
        ),
        (on_cluster(Op.ALTER),),
    ),
    Case(
        "describe log directories",
        ApiKey.DESCRIBE_LOG_DIRS,
        lambda w: DescribeLogDirsRequest(topics=[]),
        (on_cluster(Op.DESCRIBE),),
    ),
    Case("elect leaders", ApiKey.ELECT_LEADERS, _elect, (on_cluster(Op.ALTER),)),
    Case("reassign partitions", ApiKey.ALTER_PARTITION_REASSIGNMENTS, _reassign, (on_cluster(Op.ALTER),)),
    Case(
        "list reassignments",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        lambda w: list_partition_reassignments.ListPartitionReassignmentsRequest(timeout_ms=5000, topics=None),
        (on_cluster(Op.DESCRIBE),),
    ),
    Case(
        "update features",
        ApiKey.UPDATE_FEATURES,
        _features,
        (on_cluster(Op.ALTER),),
        versions=(0, 1),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "update features, all or none",
        ApiKey.UPDATE_FEATURES,
        _features,
        (on_cluster(Op.ALTER),),
        versions=(2, 99),
        same_codes={95: 42},
        only_on=NEWEST,
    ),
    Case(
        "describe the cluster",
        ApiKey.DESCRIBE_CLUSTER,
        lambda w: DescribeClusterRequest(include_cluster_authorized_operations=True),
        (on_cluster(Op.DESCRIBE),),
        ((on_cluster(Op.ALTER), on_cluster(Op.CREATE)), (on_cluster(Op.ALL),), (on_cluster(Op.CREATE),)),
    ),
    Case(
        "describe producers",
        ApiKey.DESCRIBE_PRODUCERS,
        lambda w: describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name=name, partition_indexes=[0]) for name in TOPICS]
        ),
        (on_topic(Op.READ),),
        ignored=frozenset({"active_producers"}),
    ),
    Case(
        "describe transactions",
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda w: DescribeTransactionsRequest(transactional_ids=list(IDS)),
        (on_id(Op.DESCRIBE),),
        ((on_id(Op.DESCRIBE), on_topic(Op.DESCRIBE)),),
    ),
    Case(
        "list transactions",
        ApiKey.LIST_TRANSACTIONS,
        lambda w: ListTransactionsRequest(),
        (on_id(Op.DESCRIBE),),
    ),
    Case(
        "consumer group heartbeat",
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        lambda w: ConsumerGroupHeartbeatRequest(
            group_id=GROUPS[0],
            member_id="unknown-member-id-0000",
            member_epoch=5,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=[READABLE],
        ),
        (on_group(Op.READ), on_topic(Op.DESCRIBE)),
        only_on=NEWEST,
    ),
    Case(
        "describe consumer groups",
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda w: ConsumerGroupDescribeRequest(
            group_ids=["m-consumers", GROUPS[1]], include_authorized_operations=True
        ),
        ((Op.DESCRIBE, GROUP, "m-consumers", LITERAL), on_topic(Op.DESCRIBE)),
        (((Op.ALL, GROUP, "m-consumers", LITERAL), on_topic(Op.READ)),),
        only_on=NEWEST,
    ),
    Case(
        "describe partitions of topics",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        lambda w: describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(name=name) for name in TOPICS], response_partition_limit=10
        ),
        (on_topic(Op.DESCRIBE),),
        ((on_topic(Op.ALL),),),
        only_on=NEWEST,
    ),
)

# The cases that `make test` runs.
SAMPLE = frozenset(
    {
        "produce",
        "produce in a transaction",
        "fetch",
        "fetch as a follower",
        "metadata",
        "metadata that creates a topic",
        "leader and isr",
        "alter partition",
        "offset commit",
        "offset fetch",
        "describe groups",
        "list groups",
        "create topics",
        "delete topics by id",
        "init an idempotent producer",
        "add partitions to a transaction",
        "describe acls",
        "describe configs",
        "describe the cluster",
    }
)
