"""[pure] A group of the new protocol: its members, what each shall have, and what each has.

The rules
- The group has an epoch. It goes up with every change that may move partitions: a member that comes, goes or subscribes
  to something else; topics that come, go or grow; patterns that stand for other topics; another assignor.
- For an epoch the coordinator makes a target assignment: who shall have what. It may be behind the group's epoch.
- Each member goes from what it has towards its target at its own pace, told step by step in the answers to its
  heartbeats. Its own epoch says which target it has reached. First it gives up what is no longer meant for it, and says
  that it has; only then does it come to the new epoch and is given what nobody else has any more (`reconciliation.py`).
- A partition has one owner: it is free when its owner has said that it gave it up, or was thrown out. What a member has
  and what it is asked to give up both count as its own.
- Everything here is durable, and changes only by records (`apply`): a coordinator that takes over goes on where the
  last one was. Which timers run is not; a member that does not show up in time after that is out.
- Static members (`group.instance.id`) may leave for a while (epoch -2): they keep what they have until their session is
  over, and whoever comes with the same instance id takes their place.

    state        of the group
    empty        it has no members
    assigning    there is no target assignment yet for the group's epoch
    reconciling  some member is not there yet
    stable       all have what they shall have
    dead         deleted, or moved to another coordinator

    from \\ to    empty  assigning  reconciling  stable  dead
    empty          .        x           x          x      x     a member came; its assignment may be made at once
    assigning      x        .           x          x      x     the target was made; or all have left
    reconciling    x        x           .          x      x     the last member got there; or there is another change
    stable         x        x           x          .      x     something changed
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.records import (
    Current,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberRecord,
    Owned,
    PartitionMetadataRecord,
    Partitions,
    PatternRecord,
    ResolvedPattern,
    Subscription,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from kavka.coordinator.group.consumer.topics import Topics

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

# Commits of members of the new protocol carry their epoch from this version of OffsetCommit on.
EPOCH_IN_COMMIT_FROM = 9


class MemberState(IntEnum):
    """The numbers are those in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


NEW = Current(JOIN_EPOCH, LEAVE_EPOCH, MemberState.STABLE, {}, {})
GONE = Current(LEAVE_EPOCH, LEAVE_EPOCH, MemberState.STABLE, {}, {})
NO_EPOCH = GroupEpoch(0, 0)
NO_TARGET = TargetEpoch(0, 0)


class Member(NamedTuple):
    member_id: str
    subscription: Subscription = Subscription()
    current: Current = NEW

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        return self.subscription.classic is not None

    def is_at(self, target_epoch: int) -> bool:
        return self.current.state == MemberState.STABLE and self.current.epoch == target_epoch


class Tables(Protocol):
    """How a table is changed: so that it can be undone (`operations.Journal`), or for good (`Straight`)."""

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None: ...

    def drop(self, table: dict[Any, Any], key: Any) -> None: ...


class Straight:
    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        table.pop(key, None)


STRAIGHT = Straight()


class ConsumerGroup:
    """All tables are changed by `apply` alone; their values are replaced, never changed in place."""

    type = "consumer"
    protocol_type = "consumer"

    __slots__ = ("group_id", "head", "members", "owners", "patterns", "static_members", "target")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        # "epoch": GroupEpoch, "target": TargetEpoch, "partition metadata": there is such a record from an older Kafka
        self.head: dict[str, Any] = {}
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # group.instance.id -> member id
        self.target: dict[str, Partitions] = {}  # by member id
        self.owners: dict[UUID, dict[int, str]] = {}  # by topic and partition: the member that has it or gives it up
        self.patterns: dict[str, ResolvedPattern] = {}

    def copy(self) -> ConsumerGroup:
        twin = ConsumerGroup(self.group_id)
        twin.head = dict(self.head)
        twin.members = dict(self.members)
        twin.static_members = dict(self.static_members)
        twin.target = dict(self.target)
        twin.owners = {topic_id: dict(owners) for topic_id, owners in self.owners.items()}
        twin.patterns = dict(self.patterns)
        return twin

    # ---- epochs and state

    @property
    def epoch(self) -> int:
        epoch: int = self.head.get("epoch", NO_EPOCH).epoch
        return epoch

    @property
    def metadata_hash(self) -> int:
        value: int = self.head.get("epoch", NO_EPOCH).metadata_hash
        return value

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
        """The static member where the ids are one's own, else UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
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

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        """By name. A pattern that is not resolved yet stands for nothing."""
        resolved = self.patterns.get(subscription.pattern) if subscription.pattern else None
        return subscription.topics if resolved is None else subscription.topics | resolved.topics

    def subscribed_topics(self, leaving: Iterable[str] = ()) -> set[str]:
        """Of all members but those that are leaving."""
        gone = frozenset(leaving)
        names: set[str] = set()
        for subscription in {m.subscription for m in self.members.values() if m.member_id not in gone}:
            names |= self.topics_of(subscription)
        return names

    def subscribes_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member.subscription) for member in self.members.values())

    def used_patterns(self) -> set[str]:
        return {m.subscription.pattern for m in self.members.values() if m.subscription.pattern}

    def preferred_assignor(self, default: str) -> str:
        """The one that most members name; of equals, the first by name."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.subscription.assignor
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    # ---- may offsets be committed, fetched, deleted, forgotten?

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool = False
    ) -> Member | None:
        """The member that commits, None for whoever is not one (and may commit). Of an epoch that the member has left
        behind only what it has had since then may be committed (`check_commits`)."""
        if generation < 0 and not self.members:
            return None
        if transactional and generation == -1 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        if generation > member.epoch:
            raise KafkaError(
                _wrong_epoch(member), f"The epoch {generation} is newer than the member's, which is {member.epoch}."
            )
        return member

    def check_commits(
        self,
        member: Member | None,
        epoch: int,
        version: int,
        transactional: bool,
        items: Iterable[tuple[str, Any, Any, Any]],
    ) -> None:
        """After `check_commit`, for what is committed: topic, topic id, an object with `partition_index`, something."""
        if member is None:
            return
        if not transactional and not member.is_classic and version < EPOCH_IN_COMMIT_FROM:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if epoch == member.epoch:
            return
        current = member.current
        for topic, topic_id, asked, _ in items:
            partition = asked.partition_index
            since = current.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = current.revoking.get(topic_id, {}).get(partition)
            if since is None or epoch < since:
                raise KafkaError(
                    _wrong_epoch(member),
                    f"At epoch {epoch} partition {topic}-{partition} is not the member's any more.",
                )

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.members.get(member_id or "")
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_epoch != member.epoch:
            raise KafkaError(_wrong_epoch(member))

    def check_offset_delete(self) -> None:
        """Offsets of topics that nobody subscribes to may always go."""

    def check_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    # ---- records

    def apply(self, record: Any, tables: Tables) -> None:
        APPLY[type(record)](self, record, tables)

    def tombstones(self, without: frozenset[str] = frozenset()) -> list[Any]:
        """What takes the whole group back, but for members whose records are taken back elsewhere."""
        group = self.group_id
        members = [member_id for member_id in self.members if member_id not in without]
        gone: list[Any] = [CurrentRecord(group, member_id, None) for member_id in members]
        gone += [TargetMemberRecord(group, member_id, None) for member_id in self.target if member_id not in without]
        gone.append(TargetEpochRecord(group, None))
        gone += [MemberRecord(group, member_id, None) for member_id in members]
        gone += [PatternRecord(group, pattern, None) for pattern in self.patterns]
        if self.has_partition_metadata:
            gone.append(PartitionMetadataRecord(group, None))
        gone.append(GroupEpochRecord(group, None))
        return gone

    def _apply_epoch(self, record: GroupEpochRecord, tables: Tables) -> None:
        if record.value is not None:
            tables.put(self.head, "epoch", record.value)

    def _apply_partition_metadata(self, record: PartitionMetadataRecord, tables: Tables) -> None:
        if record.value:
            tables.put(self.head, "partition metadata", True)
        else:
            tables.drop(self.head, "partition metadata")

    def _apply_target_epoch(self, record: TargetEpochRecord, tables: Tables) -> None:
        if record.value is not None:
            tables.put(self.head, "target", record.value)
        else:
            tables.drop(self.head, "target")

    def _apply_target_member(self, record: TargetMemberRecord, tables: Tables) -> None:
        if record.value is not None:
            tables.put(self.target, record.member, record.value)
        else:
            tables.drop(self.target, record.member)

    def _apply_pattern(self, record: PatternRecord, tables: Tables) -> None:
        if record.value is not None:
            tables.put(self.patterns, record.pattern, record.value)
        else:
            tables.drop(self.patterns, record.pattern)

    def _apply_member(self, record: MemberRecord, tables: Tables) -> None:
        member_id, subscription = record.member, record.value
        known = self.members.get(member_id)
        if subscription is None:
            if known is None:
                return
            self._release(known, tables)
            tables.drop(self.members, member_id)
            tables.drop(self.target, member_id)
        else:
            member = Member(member_id, subscription, known.current if known is not None else NEW)
            tables.put(self.members, member_id, member)
        old_instance = known.subscription.instance_id if known is not None else None
        new_instance = subscription.instance_id if subscription is not None else None
        # Its place may have been taken already.
        if old_instance not in (None, new_instance) and self.static_members.get(old_instance or "") == member_id:
            tables.drop(self.static_members, old_instance)
        if new_instance is not None:
            tables.put(self.static_members, new_instance, member_id)

    def _apply_current(self, record: CurrentRecord, tables: Tables) -> None:
        member_id = record.member
        known = self.members.get(member_id)
        if known is None:
            if record.value is None:
                return
            # The log is compacted: what the member said of itself may come later.
            known = Member(member_id)
        self._release(known, tables)
        current = record.value if record.value is not None else GONE
        tables.put(self.members, member_id, known._replace(current=current))
        for owned in (current.assigned, current.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    owners = {}
                    tables.put(self.owners, topic_id, owners)
                for partition in partitions:
                    tables.put(owners, partition, member_id)

    def _release(self, member: Member, tables: Tables) -> None:
        """Nobody has what the member had; where somebody else has taken it, it stays so."""
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
    CurrentRecord: ConsumerGroup._apply_current,
    PatternRecord: ConsumerGroup._apply_pattern,
}


def _wrong_epoch(member: Member) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH


def topic_ids(names: Iterable[str], topics: Topics) -> frozenset[UUID]:
    """Of those that are there."""
    return frozenset(topic.topic_id for name in names if (topic := topics.get(name)) is not None)


def without_epochs(owned: Owned) -> Partitions:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}
