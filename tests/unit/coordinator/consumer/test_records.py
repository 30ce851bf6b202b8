"""The records of consumer groups in Kafka's layout."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kavka.coordinator.group import records as layout
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.consumer import records
from kavka.coordinator.group.consumer.state import ConsumerGroup
from kavka.coordinator.group.shard import GroupShard
from kavka.protocol.messages import offsets_topic as messages
from kavka.protocol.primitives import ProtocolError
from tests.unit.coordinator.fakes import NO_TOPICS, FakeClock, FakeTimers

TOPIC_A, TOPIC_B = UUID(int=1), UUID(int=2)

EXAMPLES: list[Any] = [
    records.GroupEpochRecord("g", records.GroupEpoch(7, -99)),
    records.MemberRecord("g", "m", records.MemberMetadata()),
    records.MemberRecord(
        "g",
        "m",
        records.MemberMetadata(
            "i",
            "rack",
            "client",
            "/host",
            frozenset(["a", "b"]),
            "x.*",
            60_000,
            "range",
            records.ClassicMetadata(10_000, (("range", b"\x00\x01"), ("roundrobin", b""))),
        ),
    ),
    records.TargetEpochRecord("g", records.TargetEpoch(7, 1234)),
    records.TargetMemberRecord("g", "m", {}),
    records.TargetMemberRecord("g", "m", {TOPIC_A: frozenset([0, 2]), TOPIC_B: frozenset([1])}),
    records.CurrentAssignmentRecord(
        "g", "m", records.CurrentAssignment(3, 2, 1, {TOPIC_A: {0: 1, 4: 3}}, {TOPIC_B: {5: 2}})
    ),
    records.PatternRecord("g", "x.*", records.ResolvedPattern(frozenset(["xa", "xb"]), 4, 5678)),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_records_survive_a_round_trip(record: Any) -> None:
    assert layout.decode(*layout.encode(record)) == record
    tombstone = record._replace(value=None)
    key, value = layout.encode(tombstone)
    assert value is None
    assert layout.decode(key, None) == tombstone
    assert key == layout.encode(record)[0]


def test_the_version_of_a_key_is_the_record_type() -> None:
    versions = [int.from_bytes(layout.encode(record)[0][:2], "big") for record in EXAMPLES]
    assert versions == [3, 5, 5, 6, 7, 7, 8, 16]


def test_assignments_without_epochs_get_the_epoch_of_the_member() -> None:
    value = messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=9,
        previous_member_epoch=8,
        state=0,
        assigned_partitions=[messages.TopicPartitions(topic_id=TOPIC_A, partitions=[1, 2], assignment_epochs=None)],
    )
    key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    decoded = layout.decode(layout.encode_message(key, 8), layout.encode_message(value, 0))
    assert decoded is not None and decoded.value.assigned == {TOPIC_A: {1: 9, 2: 9}}


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_truncated_bytes_are_protocol_errors(record: Any) -> None:
    key, value = layout.encode(record)
    assert value is not None
    with pytest.raises(ProtocolError):
        layout.decode(key[:-1], value)
    if record.value not in ({}, records.MemberMetadata()):
        with pytest.raises(ProtocolError):
            layout.decode(key, value[:-2])


def replayed(*records: Any) -> Any:
    clock = FakeClock()
    shard = GroupShard(clock, FakeTimers(clock, lambda outcome: None), GroupConfig(), NO_TOPICS)
    for record in records:
        shard.replay(record)
    return shard


def test_tombstones_of_missing_records_change_nothing() -> None:
    assert replayed(*(record._replace(value=None) for record in EXAMPLES)).groups == {}


def test_the_assignment_may_precede_the_member_in_a_compacted_log() -> None:
    current = records.CurrentAssignmentRecord("g", "m", records.CurrentAssignment(3, 3, 0, {TOPIC_A: {0: 3}}, {}))
    member = records.MemberRecord("g", "m", records.MemberMetadata(topics=frozenset(["t"])))
    group: ConsumerGroup = replayed(current, member).groups["g"]
    assert group.members["m"].epoch == 3
    assert group.members["m"].subscription.topics == {"t"}
    assert group.owner(TOPIC_A, 0) == "m"


def test_a_later_record_of_the_previous_owner_does_not_change_the_owner_of_a_partition() -> None:
    first = records.CurrentAssignmentRecord("g", "a", records.CurrentAssignment(1, 1, 0, {TOPIC_A: {0: 1}}, {}))
    second = records.CurrentAssignmentRecord("g", "b", records.CurrentAssignment(2, 2, 0, {TOPIC_A: {0: 2}}, {}))
    later = records.CurrentAssignmentRecord("g", "a", records.CurrentAssignment(3, 2, 0, {}, {}))
    group: ConsumerGroup = replayed(first, second, later).groups["g"]
    assert group.owner(TOPIC_A, 0) == "b"


def test_a_group_replaces_a_group_of_the_other_type() -> None:
    classic = layout.GroupRecord("g", messages.GroupMetadataValue(protocol_type="consumer", generation=4))
    epoch = records.GroupEpochRecord("g", records.GroupEpoch(5, 0))
    assert replayed(classic, epoch).groups["g"].type == "consumer"
    assert replayed(classic, epoch, classic._replace(value=None)).groups["g"].type == "consumer"
    assert replayed(epoch, classic).groups["g"].type == "classic"
    assert replayed(epoch, classic, epoch._replace(value=None)).groups["g"].type == "classic"


def test_partition_metadata_of_older_kafka_versions_is_removed_with_the_next_epoch() -> None:
    value = messages.ConsumerGroupPartitionMetadataValue(topics=[])
    key = messages.ConsumerGroupPartitionMetadataKey(group_id="g")
    decoded = layout.decode(layout.encode_message(key, 4), layout.encode_message(value, 0))
    shard = replayed(decoded, EXAMPLES[0], EXAMPLES[1])
    group = shard.groups["g"]
    assert group.has_partition_metadata
    outcome = shard.consumer.fence(group, [group.members["m"]])
    assert records.PartitionMetadataRecord("g", None) in outcome.records
