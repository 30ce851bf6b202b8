"""[pure] The records of consumer groups in `__consumer_offsets`, in Kafka's layout.

    key 3    ConsumerGroupMetadata, by group                     epoch, metadata hash
    key 4    ConsumerGroupPartitionMetadata, by group            before Kafka 4.1; only read
    key 5    ConsumerGroupMemberMetadata, by group and member    subscription of a member
    key 6    ConsumerGroupTargetAssignmentMetadata, by group     epoch and time of the target
    key 7    ConsumerGroupTargetAssignmentMember, by both        target of a member
    key 8    ConsumerGroupCurrentMemberAssignment, by both       assigned and revoking partitions
    key 16   ConsumerGroupRegularExpression, by group, pattern   topics that match a pattern

A record without a value is a tombstone.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from kavka.coordinator.group import records as layout
from kavka.coordinator.group.records import Encoded, encode_message
from kavka.protocol.messages import offsets_topic as messages
from kavka.records.batch import Buffer

GROUP_KEY = 3
PARTITION_METADATA_KEY = 4
MEMBER_KEY = 5
TARGET_KEY = 6
TARGET_MEMBER_KEY = 7
CURRENT_KEY = 8
PATTERN_KEY = 16

_VERSION = Struct(">h")

# Partitions by topic. `Owned` has the epoch at which the member got each partition.
Partitions = dict[UUID, frozenset[int]]
Owned = dict[UUID, dict[int, int]]


class GroupEpoch(NamedTuple):
    epoch: int
    metadata_hash: int


class TargetEpoch(NamedTuple):
    epoch: int
    timestamp: int


class ClassicMetadata(NamedTuple):
    """The metadata of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Subscription(NamedTuple):
    """The metadata of a member. `pattern` is empty if there is none."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None


class Current(NamedTuple):
    """A member's progress towards its target assignment."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Owned
    revoking: Owned


class ResolvedPattern(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp: int


class GroupEpochRecord(NamedTuple):
    group: str
    value: GroupEpoch | None


class PartitionMetadataRecord(NamedTuple):
    group: str
    value: bool | None


class MemberRecord(NamedTuple):
    group: str
    member: str
    value: Subscription | None


class TargetEpochRecord(NamedTuple):
    group: str
    value: TargetEpoch | None


class TargetMemberRecord(NamedTuple):
    group: str
    member: str
    value: Partitions | None


class CurrentRecord(NamedTuple):
    group: str
    member: str
    value: Current | None


class PatternRecord(NamedTuple):
    group: str
    pattern: str
    value: ResolvedPattern | None


KINDS = (
    GroupEpochRecord,
    PartitionMetadataRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetMemberRecord,
    CurrentRecord,
    PatternRecord,
)


# ---- writing


def _encoded(key: Any, key_version: int, value: Any) -> Encoded:
    return encode_message(key, key_version), None if value is None else encode_message(value, 0)


def encode_group_epoch(record: GroupEpochRecord) -> Encoded:
    group, value = record
    return _encoded(
        messages.ConsumerGroupMetadataKey(group_id=group),
        GROUP_KEY,
        value and messages.ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash),
    )


def encode_partition_metadata(record: PartitionMetadataRecord) -> Encoded:
    if record.value is not None:
        raise ValueError("only a tombstone can be written")
    key = messages.ConsumerGroupPartitionMetadataKey(group_id=record.group)
    return _encoded(key, PARTITION_METADATA_KEY, None)


def encode_member(record: MemberRecord) -> Encoded:
    group, member, value = record
    message = None
    if value is not None:
        classic = value.classic
        message = messages.ConsumerGroupMemberMetadataValue(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=sorted(value.topics),
            subscribed_topic_regex=value.pattern,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.assignor,
            classic_member_metadata=classic
            and messages.ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    messages.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
                ],
            ),
        )
    return _encoded(messages.ConsumerGroupMemberMetadataKey(group_id=group, member_id=member), MEMBER_KEY, message)


def encode_target_epoch(record: TargetEpochRecord) -> Encoded:
    group, value = record
    return _encoded(
        messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group),
        TARGET_KEY,
        value
        and messages.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp
        ),
    )


def encode_target_member(record: TargetMemberRecord) -> Encoded:
    group, member, value = record
    message = None
    if value is not None:
        message = messages.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                messages.TopicPartition(topic_id=topic_id, partitions=sorted(value[topic_id]))
                for topic_id in sorted(value)
            ]
        )
    key = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id=member)
    return _encoded(key, TARGET_MEMBER_KEY, message)


def encode_current(record: CurrentRecord) -> Encoded:
    group, member, value = record
    message = None
    if value is not None:
        message = messages.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=value.epoch,
            previous_member_epoch=value.previous_epoch,
            state=value.state,
            assigned_partitions=_write_owned(value.assigned),
            partitions_pending_revocation=_write_owned(value.revoking),
        )
    key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group, member_id=member)
    return _encoded(key, CURRENT_KEY, message)


def encode_pattern(record: PatternRecord) -> Encoded:
    group, pattern, value = record
    message = None
    if value is not None:
        message = messages.ConsumerGroupRegularExpressionValue(
            topics=sorted(value.topics), version=value.version, timestamp=value.timestamp
        )
    key = messages.ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=pattern)
    return _encoded(key, PATTERN_KEY, message)


def _write_owned(owned: Owned) -> list[messages.TopicPartitions]:
    written = []
    for topic_id in sorted(owned):
        epochs = owned[topic_id]
        partitions = sorted(epochs)
        written.append(
            messages.TopicPartitions(
                topic_id=topic_id, partitions=partitions, assignment_epochs=[epochs[index] for index in partitions]
            )
        )
    return written


# ---- reading


def _value(kind: Any, value: Buffer) -> Any:
    (version,) = _VERSION.unpack_from(value, 0)
    message, _ = kind.decode(value, 2, version)
    return message


def decode_group_epoch(version: int, key: Buffer, value: Buffer | None) -> GroupEpochRecord:
    parsed_key, _ = messages.ConsumerGroupMetadataKey.decode(key, 2, version)
    if value is None:
        return GroupEpochRecord(parsed_key.group_id, None)
    decoded = _value(messages.ConsumerGroupMetadataValue, value)
    return GroupEpochRecord(parsed_key.group_id, GroupEpoch(decoded.epoch, decoded.metadata_hash))


def decode_partition_metadata(version: int, key: Buffer, value: Buffer | None) -> PartitionMetadataRecord:
    parsed_key, _ = messages.ConsumerGroupPartitionMetadataKey.decode(key, 2, version)
    return PartitionMetadataRecord(parsed_key.group_id, None if value is None else True)


def decode_member(version: int, key: Buffer, value: Buffer | None) -> MemberRecord:
    parsed_key, _ = messages.ConsumerGroupMemberMetadataKey.decode(key, 2, version)
    if value is None:
        return MemberRecord(parsed_key.group_id, parsed_key.member_id, None)
    decoded = _value(messages.ConsumerGroupMemberMetadataValue, value)
    classic = decoded.classic_member_metadata
    subscription = Subscription(
        decoded.instance_id,
        decoded.rack_id,
        decoded.client_id,
        decoded.client_host,
        frozenset(decoded.subscribed_topic_names),
        decoded.subscribed_topic_regex or "",
        decoded.rebalance_timeout_ms,
        decoded.server_assignor,
        classic
        and ClassicMetadata(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )
    return MemberRecord(parsed_key.group_id, parsed_key.member_id, subscription)


def decode_target_epoch(version: int, key: Buffer, value: Buffer | None) -> TargetEpochRecord:
    parsed_key, _ = messages.ConsumerGroupTargetAssignmentMetadataKey.decode(key, 2, version)
    if value is None:
        return TargetEpochRecord(parsed_key.group_id, None)
    decoded = _value(messages.ConsumerGroupTargetAssignmentMetadataValue, value)
    return TargetEpochRecord(parsed_key.group_id, TargetEpoch(decoded.assignment_epoch, decoded.assignment_timestamp))


def decode_target_member(version: int, key: Buffer, value: Buffer | None) -> TargetMemberRecord:
    parsed_key, _ = messages.ConsumerGroupTargetAssignmentMemberKey.decode(key, 2, version)
    if value is None:
        return TargetMemberRecord(parsed_key.group_id, parsed_key.member_id, None)
    decoded = _value(messages.ConsumerGroupTargetAssignmentMemberValue, value)
    partitions = {topic.topic_id: frozenset(topic.partitions) for topic in decoded.topic_partitions}
    return TargetMemberRecord(parsed_key.group_id, parsed_key.member_id, partitions)


def decode_current(version: int, key: Buffer, value: Buffer | None) -> CurrentRecord:
    parsed_key, _ = messages.ConsumerGroupCurrentMemberAssignmentKey.decode(key, 2, version)
    if value is None:
        return CurrentRecord(parsed_key.group_id, parsed_key.member_id, None)
    decoded = _value(messages.ConsumerGroupCurrentMemberAssignmentValue, value)
    current = Current(
        decoded.member_epoch,
        decoded.previous_member_epoch,
        decoded.state,
        _read_owned(decoded.assigned_partitions, decoded.member_epoch),
        _read_owned(decoded.partitions_pending_revocation, decoded.member_epoch),
    )
    return CurrentRecord(parsed_key.group_id, parsed_key.member_id, current)


def decode_pattern(version: int, key: Buffer, value: Buffer | None) -> PatternRecord:
    parsed_key, _ = messages.ConsumerGroupRegularExpressionKey.decode(key, 2, version)
    if value is None:
        return PatternRecord(parsed_key.group_id, parsed_key.regular_expression, None)
    decoded = _value(messages.ConsumerGroupRegularExpressionValue, value)
    resolved = ResolvedPattern(frozenset(decoded.topics), decoded.version, decoded.timestamp)
    return PatternRecord(parsed_key.group_id, parsed_key.regular_expression, resolved)


def _read_owned(topics: list[messages.TopicPartitions], member_epoch: int) -> Owned:
    """Records before Kafka 4.3 have no epochs: use the member's epoch."""
    owned: Owned = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


layout.ENCODERS.update(
    {
        GroupEpochRecord: encode_group_epoch,
        PartitionMetadataRecord: encode_partition_metadata,
        MemberRecord: encode_member,
        TargetEpochRecord: encode_target_epoch,
        TargetMemberRecord: encode_target_member,
        CurrentRecord: encode_current,
        PatternRecord: encode_pattern,
    }
)
layout.DECODERS.update(
    {
        GROUP_KEY: decode_group_epoch,
        PARTITION_METADATA_KEY: decode_partition_metadata,
        MEMBER_KEY: decode_member,
        TARGET_KEY: decode_target_epoch,
        TARGET_MEMBER_KEY: decode_target_member,
        CURRENT_KEY: decode_current,
        PATTERN_KEY: decode_pattern,
    }
)
