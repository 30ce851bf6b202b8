"""The requests of `access_cases`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kavka.protocol.messages import (
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    elect_leaders,
    fetch,
    incremental_alter_configs,
    join_group,
    leader_and_isr,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    txn_offset_commit,
    update_features,
    update_metadata,
    write_txn_markers,
)
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.security.acls import Operation
from tests.support import wire

Op = Operation
READABLE, HIDDEN, MISSING = "m-topic", "m-hidden", "m-missing"
GROUPS = ("m-group", "m-other")
IDS = ("m-tx", "m-tx-other")
NO_ID = UUID(int=0)
STALE = 0
UNKNOWN_BROKER = 99
# Attributes of a transactional batch.
TRANSACTIONAL = 0x10
TOPICS = (READABLE, HIDDEN, MISSING)


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


def _records(attributes: int = 0) -> memoryview:
    fields = {"attributes": attributes}
    if attributes:
        fields |= {"producer_id": 1000, "producer_epoch": 0, "base_sequence": 0}
    return memoryview(bytearray(wire.batch([b"x"], **fields)))


def produce_request(w: World, attributes: int = 0, transactional_id: str | None = None) -> Any:
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


def fetch_request(w: World, replica_id: int = -1) -> Any:
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


def list_offsets_request(w: World) -> Any:
    return list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            list_offsets.ListOffsetsTopic(
                name=name, partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
            for name in TOPICS
        ],
    )


def metadata_request(w: World, names: Iterable[str] | None = TOPICS, by_id: bool = False, creates: bool = False) -> Any:
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


def offset_commit_request(w: World) -> Any:
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


def offset_fetch_request(w: World, all_topics: bool = False) -> Any:
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


def find_coordinator_request(w: World, key_type: int, keys: tuple[str, ...]) -> Any:
    if w.version >= 4:
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    return FindCoordinatorRequest(key=keys[0], key_type=key_type)


def join_request(w: World) -> Any:
    return join_group.JoinGroupRequest(
        group_id=GROUPS[0],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="unknown",
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def leave_request(w: World) -> Any:
    member = leave_group.MemberIdentity(member_id="unknown")
    if w.version >= 3:
        return leave_group.LeaveGroupRequest(group_id=GROUPS[0], members=[member])
    return leave_group.LeaveGroupRequest(group_id=GROUPS[0], member_id="unknown")


def create_topics_request(w: World) -> Any:
    return create_topics.CreateTopicsRequest(
        timeout_ms=10_000,
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in (w.new_name, READABLE)
        ],
    )


def delete_topics_request(w: World, by_id: bool = False) -> Any:
    names = (w.new_name, MISSING)
    if w.version >= 6:
        topics = [
            delete_topics.DeleteTopicState(name=None if by_id else name, topic_id=w.id(name) if by_id else NO_ID)
            for name in names
        ]
        return delete_topics.DeleteTopicsRequest(timeout_ms=10_000, topics=topics)
    return delete_topics.DeleteTopicsRequest(timeout_ms=10_000, topic_names=list(names))


def create_partitions_request(w: World) -> Any:
    return create_partitions.CreatePartitionsRequest(
        timeout_ms=10_000,
        validate_only=True,
        topics=[create_partitions.CreatePartitionsTopic(name=name, count=3, assignments=None) for name in TOPICS],
    )


def delete_records_request(w: World) -> Any:
    return delete_records.DeleteRecordsRequest(
        timeout_ms=5000,
        topics=[
            delete_records.DeleteRecordsTopic(
                name=name, partitions=[delete_records.DeleteRecordsPartition(partition_index=0, offset=0)]
            )
            for name in TOPICS
        ],
    )


def epoch_offsets_request(w: World) -> Any:
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


def add_partitions_request(w: World) -> Any:
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


def txn_commit_request(w: World) -> Any:
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


def write_markers_request(w: World) -> Any:
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


def describe_configs_request(w: World) -> Any:
    return describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=["retention.ms", "log.retention.ms"]
            )
            for kind, name in CONFIGURED
        ]
    )


def alter_configs_request(w: World) -> Any:
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


def incremental_alter_configs_request(w: World) -> Any:
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


def group_config_request(make_class: Any, **fields: Any) -> Any:
    return [make_class(resource_type=32, resource_name=name, **fields) for name in GROUPS]


def reassign_request(w: World) -> Any:
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        timeout_ms=5000,
        topics=[
            alter_partition_reassignments.ReassignableTopic(
                name=READABLE,
                partitions=[alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)],
            )
        ],
    )


def acl_filter(filter_class: Any) -> Any:
    return filter_class(
        resource_type_filter=2, resource_name_filter="m-none", pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


def elect_request(w: World) -> Any:
    return elect_leaders.ElectLeadersRequest(
        timeout_ms=5000,
        topic_partitions=[elect_leaders.TopicPartitions(topic=name, partitions=[0]) for name in (READABLE, MISSING)],
    )


def leader_and_isr_request(w: World) -> Any:
    return leader_and_isr.LeaderAndIsrRequest(controller_id=1, controller_epoch=STALE, broker_epoch=STALE)


def stop_request(w: World) -> Any:
    return stop_replica.StopReplicaRequest(controller_id=1, controller_epoch=STALE, broker_epoch=STALE)


def update_metadata_request(w: World) -> Any:
    return update_metadata.UpdateMetadataRequest(controller_id=1, controller_epoch=STALE, broker_epoch=STALE)


def features_request(w: World) -> Any:
    update = update_features.FeatureUpdateKey(feature="m.unknown", max_version_level=1)
    return update_features.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=[update])
