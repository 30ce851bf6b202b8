"""[pure] The records of an operation on a group, and the resulting group.

The first record copies the group, and all records are applied to the copy. Later the runtime
replays the records into the original group and writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kavka.coordinator.group.consumer.assignors import Assignor, MemberSpec
from kavka.coordinator.group.consumer.records import (
    CurrentAssignmentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    Partitions,
    PatternRecord,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from kavka.coordinator.group.consumer.state import ConsumerGroup
from kavka.coordinator.group.consumer.topics import Topic, Topics, metadata_hash
from kavka.coordinator.operations import DIRECT


class Change:
    """Collects the records of one operation. `group` is the group after the records that were added
    so far."""

    __slots__ = ("_is_copy", "group", "records")

    def __init__(self, group: ConsumerGroup, first_records: Sequence[Any] = ()) -> None:
        """`first_records`, for example of a migration, are written first. They are not applied."""
        self.group = group
        self.records: list[Any] = list(first_records)
        self._is_copy = False

    def add(self, record: Any) -> None:
        self.add_last(record)
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.group.apply(record, DIRECT)

    def add_last(self, record: Any) -> None:
        """Add the last record of the operation. It is not applied to the copy."""
        self.records.append(record)

    def remove_member(self, member_id: str) -> None:
        group = self.group.group_id
        self.add(CurrentAssignmentRecord(group, member_id, None))
        self.add(TargetMemberRecord(group, member_id, None))
        self.add(MemberRecord(group, member_id, None))

    def drop_unused_patterns(self) -> None:
        used = self.group.used_patterns()
        for pattern in [pattern for pattern in self.group.patterns if pattern not in used]:
            self.add(PatternRecord(self.group.group_id, pattern, None))

    def raise_epoch(self, topics: Topics) -> None:
        group = self.group
        new_hash = metadata_hash(group.subscribed_topics(), topics)
        self.add(GroupEpochRecord(group.group_id, GroupEpoch(group.epoch + 1, new_hash)))
        if group.has_partition_metadata:
            # The metadata hash replaces the partition metadata.
            self.add(PartitionMetadataRecord(group.group_id, None))

    def update_target(self, assignor: Assignor, topics: Topics, now_ms: int) -> None:
        """Compute the target assignment for the group epoch, and add records for the changes."""
        group = self.group
        members: dict[str, MemberSpec] = {}
        # Many members share the same subscription.
        ids_by_names: dict[frozenset[str], frozenset[UUID]] = {}
        topics_by_id: dict[UUID, Topic] = {}
        for member_id, member in group.members.items():
            subscription = member.subscription
            names = group.topics_of(subscription)
            ids = ids_by_names.get(names)
            if ids is None:
                subscribed = {topic.topic_id: topic for name in names if (topic := topics.get(name)) is not None}
                topics_by_id |= subscribed
                ids = ids_by_names[names] = frozenset(subscribed)
            members[member_id] = MemberSpec(
                ids, group.target.get(member_id, {}), subscription.instance_id, subscription.rack_id
            )
        target: dict[str, Partitions] = assignor(members, topics_by_id)
        for member_id in [member_id for member_id in group.target if member_id not in target]:
            self.add(TargetMemberRecord(group.group_id, member_id, None))
        for member_id, partitions in target.items():
            if group.target.get(member_id) != partitions:
                self.add(TargetMemberRecord(group.group_id, member_id, partitions))
        self.add(TargetEpochRecord(group.group_id, TargetEpoch(group.epoch, now_ms)))
