"""[pure] Arguments and results of the admin client."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from kavka.client.metadata import Node
from kavka.common.config import ConfigType
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

NO_OPERATIONS = -(2**31)


# --- topics


@dataclass(slots=True)
class NewTopic:
    """A topic to create. Without a number of partitions or a replication factor, the broker's
    defaults apply. With `replica_assignments` (broker ids by partition) both must be None."""

    name: str
    num_partitions: int | None = None
    replication_factor: int | None = None
    replica_assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created. A broker older than 2.4 returns only the name; the numbers are then
    -1."""

    name: str
    topic_id: UUID
    num_partitions: int
    replication_factor: int
    configs: dict[str, str | None]


class TopicListing(NamedTuple):
    name: str
    topic_id: UUID
    is_internal: bool


@dataclass(frozen=True, slots=True)
class TopicPartitionInfo:
    """A partition of a topic. `leader` is None if there is no leader. `eligible_leaders` and
    `last_known_eligible` are None in a cluster without eligible leader replicas."""

    partition: int
    leader: Node | None
    leader_epoch: int
    replicas: tuple[Node, ...]
    isr: tuple[Node, ...]
    offline_replicas: tuple[Node, ...] = ()
    eligible_leaders: tuple[Node, ...] | None = None
    last_known_eligible: tuple[Node, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[TopicPartitionInfo, ...]
    authorized_operations: frozenset[int] | None = None


@dataclass(slots=True)
class NewPartitions:
    """`total` includes the existing partitions. `assignments` has the broker ids of each new
    partition."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


# --- configurations


class ResourceType(IntEnum):
    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """The owner of settings: a topic, a group, or a broker by its id ("" for the default of all
    brokers)."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | str = "") -> ConfigResource:
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def group(cls, name: str) -> ConfigResource:
        return cls(ResourceType.GROUP, name)


class ConfigSource(IntEnum):
    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: ConfigType | None = None
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class OpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """A change of a setting: SET it, reset it to its default (DELETE), or APPEND to or SUBTRACT
    from a list."""

    name: str
    value: str | None = None
    op: OpType = OpType.SET

    @classmethod
    def delete(cls, name: str) -> AlterConfigOp:
        return cls(name, None, OpType.DELETE)


# --- log directories


class TopicPartitionReplica(NamedTuple):
    topic: str
    partition: int
    broker_id: int


class ReplicaInfo(NamedTuple):
    size: int
    offset_lag: int
    is_future: bool


class ReplicaLogDirInfo(NamedTuple):
    """The log directory of a replica, and the directory that it is being moved to; None if there is
    none. The current lag is relative to the high watermark, the future lag to the current log."""

    current_log_dir: str | None = None
    current_offset_lag: int | None = None
    future_log_dir: str | None = None
    future_offset_lag: int | None = None


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    error: KafkaError | None
    replicas: dict[TopicPartition, list[ReplicaInfo]]
    total_bytes: int | None = None
    usable_bytes: int | None = None


# --- the cluster


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]
    authorized_operations: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """The version ranges of features that are finalized in the cluster, and that the responding
    broker supports."""

    finalized: dict[str, tuple[int, int]]
    supported: dict[str, tuple[int, int]]
    finalized_epoch: int | None


class ApiVersionRange(NamedTuple):
    """The versions of an API that a broker supports."""

    min: int
    max: int


# --- groups


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group. `type` is consumer or classic, or None if the broker is older."""

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None

    @property
    def is_simple(self) -> bool:
        """Whether the group has only committed offsets and never had a member."""
        return self.protocol_type == ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    target_assignment: frozenset[TopicPartition] | None = None
    member_epoch: int | None = None
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    subscribed_pattern: str | None = None
    user_data: bytes | None = None
    upgraded: bool | None = None
    """Whether the member of a consumer-protocol group uses the consumer protocol itself. None if
    the broker is older."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A group. `assignor` is the selected protocol of a classic group, or the broker's assignor."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: tuple[MemberDescription, ...]
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None
    authorized_operations: frozenset[int] | None = None


class MemberToRemove(NamedTuple):
    """A member, identified by its group instance id or by its member id."""

    group_instance_id: str | None = None
    member_id: str = ""


# --- offsets


class OffsetSpec(NamedTuple):
    """Selects an offset of a partition. Use the class methods to create it."""

    timestamp: int

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The offset after the last record."""
        return cls(-1)

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The offset of the first record in the log."""
        return cls(-2)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """The offset of the record with the highest timestamp."""
        return cls(-3)

    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec:
        """The offset of the first record with this timestamp (milliseconds) or a later one."""
        return cls(timestamp)


class ListedOffset(NamedTuple):
    """The offset that an `OffsetSpec` selects. `offset` is -1 if no record matches."""

    offset: int
    timestamp: int
    leader_epoch: int | None


class MovedOffset(NamedTuple):
    """A requested offset that is out of range, and the nearest `offset` in range."""

    partition: TopicPartition
    requested: int
    offset: int

    def __str__(self) -> str:
        than = "lower than earliest" if self.requested < self.offset else "higher than latest"
        return (
            f"New offset ({self.requested}) is {than} offset for topic partition {self.partition}. "
            f"Value will be set to {self.offset}"
        )


@dataclass(slots=True)
class OffsetReset:
    """The plan of a reset. `later` has the partitions without a record at or after the requested
    time."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    moved: list[MovedOffset] = field(default_factory=list)
    later: list[TopicPartition] = field(default_factory=list)


# --- producers and transactions


class ProducerState(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    current_transaction_start_offset: int | None


class OpenTransaction(NamedTuple):
    """An open transaction in a partition. If `hangs` is set, no coordinator will end it."""

    partition: TopicPartition
    producer: ProducerState
    hangs: bool = False


class TransactionListing(NamedTuple):
    """A transaction. `coordinator` is the broker id of its coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: frozenset[TopicPartition]


class AbortTransactionSpec(NamedTuple):
    """A hanging transaction in a partition; `describe_producers` returns the values."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1


# --- users


@dataclass(frozen=True, slots=True)
class ScramPassword:
    """The password of a SCRAM credential."""

    password: str = field(repr=False)
    iterations: int = 4096


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token. A client authenticates with SCRAM, with `token_id` as the user name and
    `password` as the password."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_at_ms: int

    @property
    def password(self) -> str:
        """The base64 text of the HMAC."""
        return b64encode(self.hmac).decode()


# --- replicas


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


def operations(bits: int) -> frozenset[int] | None:
    """Return the operation codes in a bit field, or None if they were not requested."""
    if bits == NO_OPERATIONS:
        return None
    return frozenset(n for n in range(32) if bits >> n & 1)
