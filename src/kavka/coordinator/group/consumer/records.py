"""[pure] The records of consumer groups in `__consumer_offsets`, in Kafka's layout.

    key 3    ConsumerGroupMetadata, by group                     epoch, metadata hash
    key 4    ConsumerGroupPartitionMetadata, by group            before Kafka 4.1: read, and
                                                                 written only as a tombstone
    key 5    ConsumerGroupMemberMetadata, by group and member    subscription of a member
    key 6    ConsumerGroupTargetAssignmentMetadata, by group     epoch and time of the target
    key 7    ConsumerGroupTargetAssignmentMember, as key 5       target of a member
    key 8    ConsumerGroupCurrentMemberAssignment, as key 5      assigned and revoking partitions
    key 16   ConsumerGroupRegularExpression, by group, pattern   topics that match a pattern

A record without a value is a tombstone.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kavka.coordinator.group import records as layout
from kavka.coordinator.group.records import Encoded, encode_message, register
from kavka.protocol.messages import offsets_topic as messages
from kavka.records.batch import Buffer

PARTITION_METADATA_KEY_VERSION = 4

# Partitions by topic. `OwnedPartitions` maps each partition to the epoch at which it was assigned
# to the member.
Partitions = dict[UUID, frozenset[int]]
OwnedPartitions = dict[UUID, dict[int, int]]


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


class MemberMetadata(NamedTuple):
    """The metadata of a member. `pattern` is empty if the member subscribes to no pattern."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None


class CurrentAssignment(NamedTuple):
    """A member's progress towards its target assignment."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: OwnedPartitions
    revoking: OwnedPartitions


class ResolvedPattern(NamedTuple):
    """The topics that match a pattern. `version` is `Topics.version` when the pattern was
    resolved."""

    topics: frozenset[str]
    version: int
    timestamp: int


class GroupEpochRecord(NamedTuple):
    group: str
    value: GroupEpoch | None


class PartitionMetadataRecord(NamedTuple):
    """`value` is True unless the record is a tombstone. The content of the record is not used."""

    group: str
    value: bool | None


class MemberRecord(NamedTuple):
    group: str
    member: str
    value: MemberMetadata | None


class TargetEpochRecord(NamedTuple):
    group: str
    value: TargetEpoch | None


class TargetMemberRecord(NamedTuple):
    group: str
    member: str
    value: Partitions | None


class CurrentAssignmentRecord(NamedTuple):
    group: str
    member: str
    value: CurrentAssignment | None


class PatternRecord(NamedTuple):
    group: str
    pattern: str
    value: ResolvedPattern | None


RECORD_TYPES = (
    GroupEpochRecord,
    PartitionMetadataRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetMemberRecord,
    CurrentAssignmentRecord,
    PatternRecord,
)


# ---- conversion between values and messages


def _group_epoch_message(value: GroupEpoch) -> messages.ConsumerGroupMetadataValue:
    return messages.ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)


def _group_epoch(message: messages.ConsumerGroupMetadataValue) -> GroupEpoch:
    return GroupEpoch(message.epoch, message.metadata_hash)


def _member_message(value: MemberMetadata) -> messages.ConsumerGroupMemberMetadataValue:
    classic = value.classic
    return messages.ConsumerGroupMemberMetadataValue(
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


def _member_metadata(message: messages.ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    classic = message.classic_member_metadata
    return MemberMetadata(
        message.instance_id,
        message.rack_id,
        message.client_id,
        message.client_host,
        frozenset(message.subscribed_topic_names),
        message.subscribed_topic_regex or "",
        message.rebalance_timeout_ms,
        message.server_assignor,
        None
        if classic is None
        else ClassicMetadata(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )


def _target_epoch_message(value: TargetEpoch) -> messages.ConsumerGroupTargetAssignmentMetadataValue:
    return messages.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=value.epoch, assignment_timestamp=value.timestamp
    )


def _target_epoch(message: messages.ConsumerGroupTargetAssignmentMetadataValue) -> TargetEpoch:
    return TargetEpoch(message.assignment_epoch, message.assignment_timestamp)


def _target_message(value: Partitions) -> messages.ConsumerGroupTargetAssignmentMemberValue:
    return messages.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            messages.TopicPartition(topic_id=topic_id, partitions=sorted(value[topic_id])) for topic_id in sorted(value)
        ]
    )


def _target(message: messages.ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in message.topic_partitions}


def _current_message(value: CurrentAssignment) -> messages.ConsumerGroupCurrentMemberAssignmentValue:
    return messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=value.epoch,
        previous_member_epoch=value.previous_epoch,
        state=value.state,
        assigned_partitions=_owned_message(value.assigned),
        partitions_pending_revocation=_owned_message(value.revoking),
    )


def _owned_message(owned: OwnedPartitions) -> list[messages.TopicPartitions]:
    return [
        messages.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(owned[topic_id]),
            assignment_epochs=[epoch for _, epoch in sorted(owned[topic_id].items())],
        )
        for topic_id in sorted(owned)
    ]


def _current(message: messages.ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    epoch = message.member_epoch
    assigned = _owned(message.assigned_partitions, epoch)
    revoking = _owned(message.partitions_pending_revocation, epoch)
    return CurrentAssignment(epoch, message.previous_member_epoch, message.state, assigned, revoking)


def _owned(topics: list[messages.TopicPartitions], member_epoch: int) -> OwnedPartitions:
    """Return the partitions with their epochs. Records written by Kafka before 4.3 have no
    epochs; `member_epoch` is used instead."""
    owned: OwnedPartitions = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def _pattern_message(value: ResolvedPattern) -> messages.ConsumerGroupRegularExpressionValue:
    return messages.ConsumerGroupRegularExpressionValue(
        topics=sorted(value.topics), version=value.version, timestamp=value.timestamp
    )


def _pattern(message: messages.ConsumerGroupRegularExpressionValue) -> ResolvedPattern:
    return ResolvedPattern(frozenset(message.topics), message.version, message.timestamp)


def _encode_partition_metadata(record: PartitionMetadataRecord) -> Encoded:
    if record.value is not None:
        raise ValueError("cannot write partition metadata: only its tombstone can be written")
    key = messages.ConsumerGroupPartitionMetadataKey(group_id=record.group)
    return encode_message(key, PARTITION_METADATA_KEY_VERSION), None


def _decode_partition_metadata(version: int, key: Buffer, value: Buffer | None) -> PartitionMetadataRecord:
    parsed_key, _ = messages.ConsumerGroupPartitionMetadataKey.decode(key, 2, version)
    return PartitionMetadataRecord(parsed_key.group_id, None if value is None else True)


layout.ENCODERS[PartitionMetadataRecord] = _encode_partition_metadata
layout.DECODERS[PARTITION_METADATA_KEY_VERSION] = _decode_partition_metadata
register(
    GroupEpochRecord,
    messages.ConsumerGroupMetadataKey,
    messages.ConsumerGroupMetadataValue,
    _group_epoch_message,
    _group_epoch,
)
register(
    MemberRecord,
    messages.ConsumerGroupMemberMetadataKey,
    messages.ConsumerGroupMemberMetadataValue,
    _member_message,
    _member_metadata,
)
register(
    TargetEpochRecord,
    messages.ConsumerGroupTargetAssignmentMetadataKey,
    messages.ConsumerGroupTargetAssignmentMetadataValue,
    _target_epoch_message,
    _target_epoch,
)
register(
    TargetMemberRecord,
    messages.ConsumerGroupTargetAssignmentMemberKey,
    messages.ConsumerGroupTargetAssignmentMemberValue,
    _target_message,
    _target,
)
register(
    CurrentAssignmentRecord,
    messages.ConsumerGroupCurrentMemberAssignmentKey,
    messages.ConsumerGroupCurrentMemberAssignmentValue,
    _current_message,
    _current,
)
register(
    PatternRecord,
    messages.ConsumerGroupRegularExpressionKey,
    messages.ConsumerGroupRegularExpressionValue,
    _pattern_message,
    _pattern,
)
