"""A request of every API, with the rights that it needs by Kafka's rules.

A case runs with no right, with all rights, without each of them, and with each of them denied.
`topics` has one topic that the rights name, one that they do not, and one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages import (
    alter_client_quotas,
    alter_partition,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_configs,
    describe_producers,
    describe_topic_partitions,
    describe_user_scram_credentials,
    incremental_alter_configs,
    list_partition_reassignments,
    offset_delete,
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
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.list_config_resources import ListConfigResourcesRequest
from kavka.protocol.messages.list_groups import ListGroupsRequest
from kavka.protocol.messages.list_transactions import ListTransactionsRequest
from kavka.protocol.messages.sync_group import SyncGroupRequest
from kavka.security.acls import CLUSTER_NAME, WILDCARD, Operation, PatternType, ResourceType
from tests.support.access_requests import (
    GROUPS,
    HIDDEN,
    IDS,
    READABLE,
    STALE,
    TOPICS,
    TRANSACTIONAL,
    UNKNOWN_BROKER,
    World,
    acl_filter,
    add_partitions_request,
    alter_configs_request,
    create_partitions_request,
    create_topics_request,
    delete_records_request,
    delete_topics_request,
    describe_configs_request,
    elect_request,
    epoch_offsets_request,
    features_request,
    fetch_request,
    find_coordinator_request,
    group_config_request,
    incremental_alter_configs_request,
    join_request,
    leader_and_isr_request,
    leave_request,
    list_offsets_request,
    metadata_request,
    offset_commit_request,
    offset_fetch_request,
    produce_request,
    reassign_request,
    stop_request,
    txn_commit_request,
    update_metadata_request,
    write_markers_request,
)
from tests.support.apache import LAST_WITH_ZOOKEEPER, NEWEST

Op = Operation
TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
Right = tuple[Operation, ResourceType, str, PatternType]
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def on_topic(operation: Operation, name: str = READABLE) -> Right:
    return operation, TOPIC, name, LITERAL


def on_group(operation: Operation) -> Right:
    return operation, GROUP, GROUPS[0], LITERAL


def on_id(operation: Operation) -> Right:
    return operation, TXN, IDS[0], LITERAL


def on_cluster(operation: Operation) -> Right:
    return operation, CLUSTER, CLUSTER_NAME, LITERAL


ON_ALL_TOPICS: Right = Op.ALL, TOPIC, WILDCARD, LITERAL
Make = Callable[[World], Any]


@dataclass(frozen=True)
class Case:
    """`rights` are needed together. Each of `alternatives` is sufficient, or differs in an
    interesting way. `versions` are the first and the last version that the case can use."""

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


CASES: tuple[Case, ...] = (
    Case("produce", ApiKey.PRODUCE, produce_request, (on_topic(Op.WRITE),), versions=(3, 99)),
    Case(
        "produce in a transaction",
        ApiKey.PRODUCE,
        lambda w: produce_request(w, TRANSACTIONAL, IDS[0]),
        (on_id(Op.WRITE), on_topic(Op.WRITE)),
        versions=(3, 11),
    ),
    Case(
        "fetch",
        ApiKey.FETCH,
        fetch_request,
        (on_topic(Op.READ),),
        ((on_topic(Op.ALL),), ((Op.READ, TOPIC, "m-", PREFIXED),)),
    ),
    Case(
        "fetch as a follower",
        ApiKey.FETCH,
        lambda w: fetch_request(w, UNKNOWN_BROKER),
        (on_cluster(Op.CLUSTER_ACTION),),
        ((on_topic(Op.READ),),),
        versions=(9, 99),
    ),
    Case("list offsets", ApiKey.LIST_OFFSETS, list_offsets_request, (on_topic(Op.DESCRIBE),), ((on_topic(Op.READ),),)),
    Case(
        "metadata",
        ApiKey.METADATA,
        metadata_request,
        (on_topic(Op.DESCRIBE),),
        (
            (on_topic(Op.ALTER_CONFIGS),),
            (on_topic(Op.DELETE), on_cluster(Op.ALTER)),
            ((Op.ALL, TOPIC, WILDCARD, LITERAL),),
        ),
        versions=(4, 99),
    ),
    Case(
        "metadata of all topics",
        ApiKey.METADATA,
        lambda w: metadata_request(w, None),
        (on_topic(Op.READ),),
        versions=(1, 99),
    ),
    Case(
        "metadata by id",
        ApiKey.METADATA,
        lambda w: metadata_request(w, by_id=True),
        (on_topic(Op.DESCRIBE),),
        versions=(12, 99),
    ),
    Case(
        "metadata that creates a topic",
        ApiKey.METADATA,
        lambda w: metadata_request(w, [w.new_name], creates=True),
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
        leader_and_isr_request,
        (on_cluster(Op.CLUSTER_ACTION),),
        versions=(2, 99),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "stop replica",
        ApiKey.STOP_REPLICA,
        stop_request,
        (on_cluster(Op.CLUSTER_ACTION),),
        versions=(1, 99),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "update metadata",
        ApiKey.UPDATE_METADATA,
        update_metadata_request,
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
    Case("offset commit", ApiKey.OFFSET_COMMIT, offset_commit_request, (on_group(Op.READ), on_topic(Op.READ))),
    Case(
        "offset fetch",
        ApiKey.OFFSET_FETCH,
        offset_fetch_request,
        (on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
        # In version 1 Apache omits the partitions that have an error.
        versions=(2, 99),
    ),
    Case(
        "offset fetch of all topics",
        ApiKey.OFFSET_FETCH,
        lambda w: offset_fetch_request(w, all_topics=True),
        (on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),
        versions=(2, 99),
    ),
    Case(
        "find the coordinator of groups",
        ApiKey.FIND_COORDINATOR,
        lambda w: find_coordinator_request(w, 0, GROUPS),
        (on_group(Op.DESCRIBE),),
    ),
    Case(
        "find the coordinator of transactions",
        ApiKey.FIND_COORDINATOR,
        lambda w: find_coordinator_request(w, 1, IDS),
        (on_id(Op.DESCRIBE),),
        versions=(1, 99),
    ),
    Case("join group", ApiKey.JOIN_GROUP, join_request, (on_group(Op.READ),)),
    Case(
        "heartbeat",
        ApiKey.HEARTBEAT,
        lambda w: HeartbeatRequest(group_id=GROUPS[0], generation_id=1, member_id="unknown"),
        (on_group(Op.READ),),
    ),
    Case("leave group", ApiKey.LEAVE_GROUP, leave_request, (on_group(Op.READ),)),
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
        create_topics_request,
        ((Op.CREATE, TOPIC, "m-new", PREFIXED), (Op.DESCRIBE_CONFIGS, TOPIC, "m-new", PREFIXED)),
        ((on_cluster(Op.CREATE),), (on_cluster(Op.ALL),)),
        ignored=frozenset({"configs"}),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "delete topics",
        ApiKey.DELETE_TOPICS,
        delete_topics_request,
        ((Op.DELETE, TOPIC, "m-", PREFIXED),),
        creates_topic=True,
        ignored=frozenset({"topic_id"}),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "delete topics by id",
        ApiKey.DELETE_TOPICS,
        lambda w: delete_topics_request(w, by_id=True),
        ((Op.DELETE, TOPIC, "m-", PREFIXED),),
        (((Op.DESCRIBE, TOPIC, "m-", PREFIXED),),),
        versions=(6, 99),
        creates_topic=True,
    ),
    Case("create partitions", ApiKey.CREATE_PARTITIONS, create_partitions_request, (on_topic(Op.ALTER),)),
    Case("delete records", ApiKey.DELETE_RECORDS, delete_records_request, (on_topic(Op.DELETE),)),
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
        epoch_offsets_request,
        (on_topic(Op.DESCRIBE),),
        ((on_cluster(Op.CLUSTER_ACTION),),),
        versions=(2, 99),
    ),
    Case(
        "add partitions to a transaction",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        add_partitions_request,
        (on_id(Op.WRITE), on_topic(Op.WRITE), on_topic(Op.WRITE, HIDDEN)),
        versions=(0, 3),
    ),
    Case(
        "add partitions, between brokers",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        add_partitions_request,
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
        write_markers_request,
        (on_cluster(Op.CLUSTER_ACTION),),
        ((on_cluster(Op.ALTER),),),
    ),
    Case(
        "offset commit in a transaction",
        ApiKey.TXN_OFFSET_COMMIT,
        txn_commit_request,
        (on_id(Op.WRITE), on_group(Op.READ), on_topic(Op.READ)),
    ),
    Case(
        "describe acls",
        ApiKey.DESCRIBE_ACLS,
        lambda w: acl_filter(DescribeAclsRequest),
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
        lambda w: delete_acls.DeleteAclsRequest(filters=[acl_filter(delete_acls.DeleteAclsFilter)] * 2),
        (on_cluster(Op.ALTER),),
    ),
    Case(
        "describe configs",
        ApiKey.DESCRIBE_CONFIGS,
        describe_configs_request,
        (on_topic(Op.DESCRIBE_CONFIGS), on_cluster(Op.DESCRIBE_CONFIGS)),
        ((on_topic(Op.ALTER_CONFIGS),), (on_cluster(Op.ALTER),)),
        ignored=frozenset({"configs"}),
    ),
    Case(
        "alter configs",
        ApiKey.ALTER_CONFIGS,
        alter_configs_request,
        (on_topic(Op.ALTER_CONFIGS), on_cluster(Op.ALTER_CONFIGS)),
    ),
    Case(
        "alter configs incrementally",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        incremental_alter_configs_request,
        (on_topic(Op.ALTER_CONFIGS), on_cluster(Op.ALTER_CONFIGS)),
    ),
    Case(
        "describe configs of groups",
        ApiKey.DESCRIBE_CONFIGS,
        lambda w: describe_configs.DescribeConfigsRequest(
            resources=group_config_request(describe_configs.DescribeConfigsResource, configuration_keys=[])
        ),
        (on_group(Op.DESCRIBE_CONFIGS),),
        ignored=frozenset({"configs"}),
        only_on=NEWEST,
    ),
    Case(
        "alter configs of groups",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda w: incremental_alter_configs.IncrementalAlterConfigsRequest(
            validate_only=True, resources=group_config_request(incremental_alter_configs.AlterConfigsResource)
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
    Case("elect leaders", ApiKey.ELECT_LEADERS, elect_request, (on_cluster(Op.ALTER),)),
    Case("reassign partitions", ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassign_request, (on_cluster(Op.ALTER),)),
    Case(
        "list reassignments",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        lambda w: list_partition_reassignments.ListPartitionReassignmentsRequest(timeout_ms=5000, topics=None),
        (on_cluster(Op.DESCRIBE),),
    ),
    Case(
        "update features",
        ApiKey.UPDATE_FEATURES,
        features_request,
        (on_cluster(Op.ALTER),),
        versions=(0, 1),
        only_on=LAST_WITH_ZOOKEEPER,
    ),
    Case(
        "update features, all or none",
        ApiKey.UPDATE_FEATURES,
        features_request,
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
