"""[pure] What an operation does to a group, before it is in the log: its records, and the group as it will be.

The group itself stays as it is. The first record makes a copy, on which it and the later ones are applied; when the
operation is done the runtime writes the records, and applies them to the group itself.
"""

from __future__ import annotations

from typing import Any

from kavka.coordinator.group.consumer.assignors import Assignor, MemberSpec
from kavka.coordinator.group.consumer.records import (
    CurrentRecord,
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
from kavka.coordinator.group.consumer.state import STRAIGHT, ConsumerGroup, topic_ids
from kavka.coordinator.group.consumer.topics import Topic, Topics, metadata_hash


class Change:
    """`group` is the group as it will be."""

    __slots__ = ("_is_copy", "group", "records")

    def __init__(self, group: ConsumerGroup, before: list[Any] | None = None) -> None:
        """`before`: records that come first and are not of this group as it is."""
        self.group = group
        self.records: list[Any] = list(before or ())
        self._is_copy = False

    def add(self, record: Any) -> None:
        self.add_last(record)
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.group.apply(record, STRAIGHT)

    def add_last(self, record: Any) -> None:
        """Nobody looks at the group after it: so it need not be applied."""
        self.records.append(record)

    def remove_member(self, member_id: str) -> None:
        group = self.group.group_id
        self.add(CurrentRecord(group, member_id, None))
        self.add(TargetMemberRecord(group, member_id, None))
        self.add(MemberRecord(group, member_id, None))

    def forget_unused_patterns(self) -> None:
        used = self.group.used_patterns()
        for pattern in [pattern for pattern in self.group.patterns if pattern not in used]:
            self.add(PatternRecord(self.group.group_id, pattern, None))

    def raise_epoch(self, topics: Topics) -> None:
        group = self.group
        value = metadata_hash(group.subscribed_topics(), topics)
        self.add(GroupEpochRecord(group.group_id, GroupEpoch(group.epoch + 1, value)))
        if group.has_partition_metadata:
            # The hash has taken its place.
            self.add(PartitionMetadataRecord(group.group_id, None))

    def new_target(self, assignor: Assignor, topics: Topics, now_ms: int) -> None:
        """Make the target assignment for the group's epoch, and write down where it differs from the last."""
        group = self.group
        members: dict[str, MemberSpec] = {}
        ids_of: dict[frozenset[str], Any] = {}
        known: dict[Any, Topic] = {}
        for member_id, member in group.members.items():
            names = group.topics_of(member.subscription)
            ids = ids_of.get(names)
            if ids is None:
                for name in names:
                    topic = topics.get(name)
                    if topic is not None:
                        known[topic.topic_id] = topic
                ids = ids_of[names] = topic_ids(names, topics)
            subscription = member.subscription
            members[member_id] = MemberSpec(
                ids, group.target.get(member_id, {}), subscription.instance_id, subscription.rack_id
            )
        target: dict[str, Partitions] = assignor(members, known)
        for member_id in [member_id for member_id in group.target if member_id not in target]:
            self.add(TargetMemberRecord(group.group_id, member_id, None))
        for member_id, partitions in target.items():
            if group.target.get(member_id) != partitions:
                self.add(TargetMemberRecord(group.group_id, member_id, partitions))
        self.add(TargetEpochRecord(group.group_id, TargetEpoch(group.epoch, now_ms)))
