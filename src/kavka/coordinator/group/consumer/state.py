"""[pure] A group of the consumer protocol (KIP-848): its members, their target assignments and
their current assignments.

Rules:
- The group has an epoch. Every change that may move partitions increments the epoch: a member
  joins, leaves or changes its subscription, a topic is created, deleted or gets partitions, a
  pattern matches other topics, or the assignor changes.
- The coordinator computes a target assignment for an epoch. The assignment epoch may lag the
  group epoch.
- Each member moves from its current assignment to its target step by step, by the responses to its
  heartbeats. The member epoch is the epoch of the target that the member has reached. A member
  first revokes partitions and acknowledges the revocation. Then it advances to the new epoch and
  gets the partitions that no other member owns (`reconciliation.py`).
- A partition has one owner. It is free when the owner has acknowledged the revocation or was
  removed. A member also owns the partitions that it is revoking.
- All of this state is durable and changes only by records (`apply`), so that a new coordinator
  continues from it. Timers are not durable: a new coordinator starts them again.
- A static member (`group.instance.id`) may leave temporarily (epoch -2). It keeps its partitions
  until its session expires. A member that joins with the same instance id replaces it.

    state        meaning
    empty        the group has no members
    assigning    there is no target assignment yet for the group's epoch
    reconciling  some member has not reached its target
    stable       all members have reached their targets

    from \\ to    empty  assigning  reconciling  stable
    empty          .        x           x          x      a member joined
    assigning      x        .           x          x      target computed, or all members left
    reconciling    x        x           .          x      targets reached, or the group changed
    stable         x        x           x          .      the group changed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.records import (
    CurrentAssignment,
    CurrentAssignmentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    PartitionMetadataRecord,
    Partitions,
    PatternRecord,
    ResolvedPattern,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from kavka.coordinator.group.group import OffsetCommit, OffsetExpiry
from kavka.coordinator.operations import Tables, inner_table, put_or_drop

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

# The first version of OffsetCommit that has the member epoch.
MIN_MEMBER_EPOCH_VERSION = 9


class MemberState(IntEnum):
    """The state of a member's reconciliation. The records contain these numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


JOINING = CurrentAssignment(JOIN_EPOCH, LEAVE_EPOCH, MemberState.STABLE, {}, {})
LEFT = CurrentAssignment(LEAVE_EPOCH, LEAVE_EPOCH, MemberState.STABLE, {}, {})
NO_EPOCH = GroupEpoch(0, 0)
NO_TARGET = TargetEpoch(0, 0)


class Member(NamedTuple):
    member_id: str
    subscription: MemberMetadata = MemberMetadata()
    current: CurrentAssignment = JOINING

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        return self.subscription.classic is not None

    def is_at(self, target_epoch: int) -> bool:
        return self.current.state == MemberState.STABLE and self.current.epoch == target_epoch


@dataclass(slots=True, eq=False, repr=False)
class ConsumerGroup:
    """Owns the tables of one group. Only `apply` changes the tables. It replaces values and never
    mutates them."""

    type = "consumer"
    protocol_type = "consumer"

    group_id: str
    # "epoch": GroupEpoch, "target": TargetEpoch, "partition metadata": True if the log has a record
    # with the partition metadata, which older versions of Kafka write.
    head: dict[str, Any] = field(init=False, default_factory=dict)
    members: dict[str, Member] = field(init=False, default_factory=dict)
    # Member id by group.instance.id.
    static_members: dict[str, str] = field(init=False, default_factory=dict)
    # Target assignment by member id.
    target: dict[str, Partitions] = field(init=False, default_factory=dict)
    # Member id by topic and partition.
    owners: dict[UUID, dict[int, str]] = field(init=False, default_factory=dict)
    patterns: dict[str, ResolvedPattern] = field(init=False, default_factory=dict)

    def copy(self) -> ConsumerGroup:
        duplicate = ConsumerGroup(self.group_id)
        duplicate.head = dict(self.head)
        duplicate.members = dict(self.members)
        duplicate.static_members = dict(self.static_members)
        duplicate.target = dict(self.target)
        duplicate.owners = {topic_id: dict(owners) for topic_id, owners in self.owners.items()}
        duplicate.patterns = dict(self.patterns)
        return duplicate

    # ---- epochs and state

    @property
    def epoch(self) -> int:
        epoch: int = self.head.get("epoch", NO_EPOCH).epoch
        return epoch

    @property
    def metadata_hash(self) -> int:
        metadata_hash: int = self.head.get("epoch", NO_EPOCH).metadata_hash
        return metadata_hash

    @property
    def assignment_epoch(self) -> int:
        epoch: int = self.head.get("target", NO_TARGET).epoch
        return epoch

    @property
    def assignment_timestamp(self) -> int:
        timestamp: int = self.head.get("target", NO_TARGET).timestamp
        return timestamp

    @property
    def has_partition_metadata(self) -> bool:
        return "partition metadata" in self.head

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        target_epoch = self.assignment_epoch
        if self.epoch > target_epoch:
            return GroupState.ASSIGNING
        if all(member.is_at(target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    is_removable = is_empty
    is_simple = False

    # ---- members

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = self.static_members.get(instance_id) if instance_id is not None else None
        return self.members.get(member_id) if member_id is not None else None

    def check_static(self, instance_id: str, member_id: str) -> Member:
        """Return the static member with these ids. Raises UNKNOWN_MEMBER_ID or
        FENCED_INSTANCE_ID."""
        member = self.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
            )
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        return self.member(member_id) if instance_id is None else self.check_static(instance_id, member_id)

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        owners = self.owners.get(topic_id)
        return owners.get(partition) if owners is not None else None

    # ---- subscriptions

    def topics_of(self, subscription: MemberMetadata) -> frozenset[str]:
        """Return the names of the subscribed topics. A pattern that is not resolved yet matches no
        topic."""
        resolved = self.patterns.get(subscription.pattern) if subscription.pattern else None
        return subscription.topics if resolved is None else subscription.topics | resolved.topics

    def subscribed_topics(self) -> set[str]:
        names: set[str] = set()
        for subscription in {member.subscription for member in self.members.values()}:
            names |= self.topics_of(subscription)
        return names

    def subscribes_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member.subscription) for member in self.members.values())

    def used_patterns(self) -> set[str]:
        return {m.subscription.pattern for m in self.members.values() if m.subscription.pattern}

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members request, or `default` if no member requests one. On
        a tie, the first by name wins."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.subscription.assignor
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    # ---- checks of operations on offsets and on the group

    def check_commit(self, commit: OffsetCommit) -> Member | None:
        """Return the committing member, or None for a commit from outside the group. With an older
        epoch, a member may commit only partitions that it has owned since that epoch.

        Raises UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, and STALE_MEMBER_EPOCH (ILLEGAL_GENERATION
        for a classic member).
        """
        generation = commit.generation
        if generation < 0 and not self.members:
            return None
        if commit.is_transactional and generation == -1 and not commit.member_id and commit.instance_id is None:
            return None
        member = self.member(commit.member_id)
        if generation > member.epoch:
            raise KafkaError(
                _wrong_epoch(member), f"The epoch {generation} is newer than the member epoch {member.epoch}."
            )
        if not commit.is_transactional and not member.is_classic and commit.version < MIN_MEMBER_EPOCH_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if generation != member.epoch:
            current = member.current
            for topic, topic_id, item, _ in commit.items:
                partition = item.partition_index
                assigned_epoch = current.assigned.get(topic_id, {}).get(partition)
                if assigned_epoch is None:
                    assigned_epoch = current.revoking.get(topic_id, {}).get(partition)
                if assigned_epoch is None or generation < assigned_epoch:
                    raise KafkaError(
                        _wrong_epoch(member),
                        f"The member has not owned partition {topic}-{partition} since epoch {generation}.",
                    )
        return member

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.members.get(member_id or "")
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_epoch != member.epoch:
            raise KafkaError(_wrong_epoch(member))

    def check_offset_delete(self) -> None:
        """Allow the request. The shard rejects the topics that a member subscribes to."""

    def check_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def offset_expiry(self) -> OffsetExpiry:
        return OffsetExpiry(is_in_use=self.subscribes_to)

    # ---- records

    def apply(self, record: Any, tables: Tables) -> None:
        APPLY[type(record)](self, record, tables)

    def tombstones(self) -> list[Any]:
        """Return tombstones of all records of the group."""
        group = self.group_id
        tombstones: list[Any] = [CurrentAssignmentRecord(group, member_id, None) for member_id in self.members]
        tombstones += [TargetMemberRecord(group, member_id, None) for member_id in self.target]
        tombstones.append(TargetEpochRecord(group, None))
        tombstones += [MemberRecord(group, member_id, None) for member_id in self.members]
        tombstones += [PatternRecord(group, pattern, None) for pattern in self.patterns]
        if self.has_partition_metadata:
            tombstones.append(PartitionMetadataRecord(group, None))
        tombstones.append(GroupEpochRecord(group, None))
        return tombstones

    def _apply_epoch(self, record: GroupEpochRecord, tables: Tables) -> None:
        if record.value is not None:
            tables.put(self.head, "epoch", record.value)

    def _apply_partition_metadata(self, record: PartitionMetadataRecord, tables: Tables) -> None:
        put_or_drop(tables, self.head, "partition metadata", record.value)

    def _apply_target_epoch(self, record: TargetEpochRecord, tables: Tables) -> None:
        put_or_drop(tables, self.head, "target", record.value)

    def _apply_target_member(self, record: TargetMemberRecord, tables: Tables) -> None:
        put_or_drop(tables, self.target, record.member, record.value)

    def _apply_pattern(self, record: PatternRecord, tables: Tables) -> None:
        put_or_drop(tables, self.patterns, record.pattern, record.value)

    def _apply_member(self, record: MemberRecord, tables: Tables) -> None:
        member_id, subscription = record.member, record.value
        previous = self.members.get(member_id)
        if subscription is None:
            if previous is None:
                return
            self._release(previous, tables)
            tables.drop(self.members, member_id)
            tables.drop(self.target, member_id)
        else:
            current = previous.current if previous is not None else JOINING
            tables.put(self.members, member_id, Member(member_id, subscription, current))
        old_instance = previous.subscription.instance_id if previous is not None else None
        new_instance = subscription.instance_id if subscription is not None else None
        # Another member may already have this instance id.
        if old_instance not in (None, new_instance) and self.static_members.get(old_instance or "") == member_id:
            tables.drop(self.static_members, old_instance)
        if new_instance is not None:
            tables.put(self.static_members, new_instance, member_id)

    def _apply_current(self, record: CurrentAssignmentRecord, tables: Tables) -> None:
        member_id = record.member
        member = self.members.get(member_id)
        if member is None:
            if record.value is None:
                return
            # In a compacted log, the record with the member's subscription may follow.
            member = Member(member_id)
        self._release(member, tables)
        current = record.value if record.value is not None else LEFT
        tables.put(self.members, member_id, member._replace(current=current))
        for owned in (current.assigned, current.revoking):
            for topic_id, partitions in owned.items():
                owners = inner_table(tables, self.owners, topic_id)
                for partition in partitions:
                    tables.put(owners, partition, member_id)

    def _release(self, member: Member, tables: Tables) -> None:
        """Remove the member as owner of its partitions, unless another member already owns
        them."""
        member_id = member.member_id
        for owned in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        tables.drop(owners, partition)
                if not owners:
                    tables.drop(self.owners, topic_id)


APPLY: dict[type, Any] = {
    GroupEpochRecord: ConsumerGroup._apply_epoch,
    PartitionMetadataRecord: ConsumerGroup._apply_partition_metadata,
    MemberRecord: ConsumerGroup._apply_member,
    TargetEpochRecord: ConsumerGroup._apply_target_epoch,
    TargetMemberRecord: ConsumerGroup._apply_target_member,
    CurrentAssignmentRecord: ConsumerGroup._apply_current,
    PatternRecord: ConsumerGroup._apply_pattern,
}


def _wrong_epoch(member: Member) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
