"""[pure] All groups of one partition of `__consumer_offsets`, with their offsets.

Offsets and consumer groups change only by the replay of records. Operations change classic groups
and their members directly; the records of classic groups are replayed only when the shard is
loaded.

`groups` has the groups of all types by id (see `group.py`). A group type adds its records with
`records.register` and their replay with `add_replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group import records
from kavka.coordinator.group.classic import ClassicProtocol
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.consumer.describe import describe_group
from kavka.coordinator.group.consumer.migration import ConsumerGroups
from kavka.coordinator.group.consumer.patterns import TopicFilter
from kavka.coordinator.group.consumer.state import ConsumerGroup
from kavka.coordinator.group.consumer.topics import Topics
from kavka.coordinator.group.describe import describe_classic_group
from kavka.coordinator.group.group import Group, GroupProtocol, JoinCallback, OffsetCommit, SyncCallback
from kavka.coordinator.group.offsets import OffsetStore
from kavka.coordinator.group.records import CommittedOffset, OffsetRecord
from kavka.coordinator.group.state import ClassicGroup
from kavka.coordinator.operations import Journal, Outcome, Timers, call_all
from kavka.protocol.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.describe_groups import DescribedGroup
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest
from kavka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from kavka.protocol.messages.list_groups import ListedGroup
from kavka.protocol.messages.sync_group import SyncGroupRequest
from kavka.protocol.primitives import ZERO_UUID


class GroupShard:
    """Owns the groups and offsets of one partition. A worker thread loads the shard; afterwards
    only the event loop may call it. `ShardHost` appends the records of each `Outcome`."""

    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    def __init__(self, clock: Clock, timers: Timers, config: GroupConfig, topics: Topics) -> None:
        self._clock = clock
        self._config = config
        self.journal = Journal()
        self.groups: dict[str, Any] = {}
        self.offsets = OffsetStore(self.journal)
        self._replays: dict[type, Callable[[Any], None]] = {}
        self.classic = ClassicProtocol(self, clock, timers, config)
        self.consumer = ConsumerGroups(self, self.classic, clock, timers, config.consumer, topics)
        self._protocols: dict[str, GroupProtocol] = {ClassicGroup.type: self.classic, ConsumerGroup.type: self.consumer}

    # ---- replay

    def add_replay(self, record_type: type, replay: Callable[[Any], None]) -> None:
        self._replays[record_type] = replay

    def replay(self, record: Any, producer_id: int = -1) -> None:
        if type(record) is OffsetRecord:
            if record.group not in self.groups and record.value is not None:
                self.groups[record.group] = ClassicGroup(record.group, self._clock.now_ms())
            self.offsets.replay(record, producer_id)
        else:
            self._replays[type(record)](record)

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        self.offsets.replay_end_of_transaction(producer_id, commit)

    def on_loaded(self) -> Iterator[Outcome]:
        for group in list(self.groups.values()):
            if group.is_simple and not self.partitions_with_offsets(group.group_id):
                del self.groups[group.group_id]
            else:
                yield self._protocols[group.type].on_loaded(group)

    def on_unloaded(self, code: ErrorCode) -> Iterator[None]:
        groups, self.groups = self.groups, {}
        offsets, self.offsets = self.offsets, OffsetStore(self.journal)
        while groups:
            group_id, group = groups.popitem()
            self._protocols[group.type].on_unloaded(group, code)
            offsets.discard(group_id)
            yield

    # ---- members that use the classic protocol

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, respond: JoinCallback
    ) -> Outcome:
        self.classic.check_join(request)
        group_id = request.group_id
        group = self.groups.get(group_id)
        if group is not None:
            return self._protocols[group.type].join(group, request, version, client_id, client_host, respond)
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = ClassicGroup(group_id, self._clock.now_ms())
        outcome = self.classic.join(group, request, version, client_id, client_host, respond)
        self.groups[group_id] = group
        return outcome

    def sync(self, request: SyncGroupRequest, version: int, respond: SyncCallback) -> Outcome:
        group = self._group_of_member(request.group_id)
        return self._protocols[group.type].sync(group, request, version, respond)

    def heartbeat(self, request: HeartbeatRequest) -> None:
        group = self._group_of_member(request.group_id)
        self._protocols[group.type].heartbeat(group, request)

    def leave(self, request: LeaveGroupRequest, version: int) -> Outcome:
        identities = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
        group = self.groups.get(request.group_id)
        if group is not None:
            outcome = self._protocols[group.type].leave(group, identities)
        else:
            code = int(ErrorCode.UNKNOWN_MEMBER_ID)
            outcome = Outcome(
                response=[
                    MemberResponse(
                        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                    )
                    for identity in identities
                ]
            )
        members: Sequence[MemberResponse] = outcome.response
        if version >= 3:
            return outcome._replace(response=LeaveGroupResponse(members=list(members)))
        return outcome._replace(response=LeaveGroupResponse(error_code=members[0].error_code))

    def _group_of_member(self, group_id: str) -> Group:
        group: Group | None = self.groups.get(group_id)
        if group is None:
            check_group_id(group_id)
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # ---- members that use the consumer protocol

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        client_host: str,
        visible: TopicFilter | None = None,
    ) -> Outcome:
        return self.consumer.consumer_heartbeat(request, version, client_id, client_host, visible)

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        return describe_group(self.consumer.group(group_id), self.consumer.topics, self.consumer.default_assignor)

    # ---- offsets

    def commit_offsets(self, commit: OffsetCommit) -> list[OffsetRecord]:
        """Return the records of a commit. A rejected partition gets its error code in the
        response."""
        group_id, version = commit.group_id, commit.version
        group = self.groups.get(group_id)
        if group is not None:
            member = group.check_commit(commit)
            if member is not None and not commit.is_transactional:
                self._protocols[group.type].on_commit(group, member)
        elif commit.generation >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION)
        now = self._clock.now_ms()
        expires_at = -1 if commit.retention_ms == -1 else now + commit.retention_ms
        max_metadata = self._config.offset_metadata_max_bytes
        offset_records = []
        for topic, topic_id, partition, response in commit.items:
            metadata = partition.committed_metadata or ""
            if len(metadata) > max_metadata:
                response.error_code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            committed_at = partition.commit_timestamp if version == 1 and partition.commit_timestamp != -1 else now
            offset_records.append(
                OffsetRecord(
                    group_id,
                    topic,
                    partition.partition_index,
                    CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        committed_at,
                        expires_at,
                        topic_id,
                    ),
                )
            )
        return offset_records

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise KafkaError if this member may not fetch the offsets of the group."""
        group = self.groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)

    def fetch_offset(
        self, group_id: str, topic: str, partition: int, require_stable: bool, topic_id: Any = ZERO_UUID
    ) -> CommittedOffset | None:
        """Return the committed offset, or None if there is none. Raises UNSTABLE_OFFSET_COMMIT if
        `require_stable` is set and an open transaction may change the offset."""
        if require_stable and self.offsets.is_unstable(group_id, topic, partition):
            raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        offset = self.offsets.get(group_id, topic, partition)
        if offset is None or ZERO_UUID in (offset.topic_id, topic_id) or offset.topic_id == topic_id:
            return offset
        # The offset belongs to a deleted topic with the same name.
        return None

    def partitions_with_offsets(self, group_id: str) -> list[tuple[str, int]]:
        """Return the partitions with an offset, or with a pending offset of an open transaction."""
        return list(dict.fromkeys([*self.offsets.of_group(group_id), *self.offsets.pending_of(group_id)]))

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> tuple[list[OffsetRecord], set[str]]:
        """Return the tombstones, and the topics of `partitions` that the group subscribes to. The
        offsets of these topics are not deleted."""
        group = self._existing_group(group_id)
        group.check_offset_delete()
        subscribed = {topic for topic, _ in partitions if not group.is_empty and group.subscribes_to(topic)}
        tombstones = [
            OffsetRecord(group_id, topic, partition, None)
            for topic, partition in partitions
            if topic not in subscribed
            and (self.offsets.get(group_id, topic, partition) or self.offsets.is_unstable(group_id, topic, partition))
        ]
        return tombstones, subscribed

    def delete_offsets_of_topics(self, topics: frozenset[str]) -> Outcome:
        return Outcome(self.offsets.tombstones_of_topics(topics), atomic=False)

    def expire(self) -> Outcome:
        """Return the outcome that removes expired offsets, and empty groups without offsets."""
        now = self._clock.now_ms()
        tombstones: list[Any] = []
        removable: list[Group] = []
        for group in list(self.groups.values()):
            expiry = group.offset_expiry()
            expired: list[OffsetRecord] = []
            if expiry is not None:
                retention_ms = self._config.offsets_retention_ms
                expired = self.offsets.expired_tombstones(group.group_id, now, retention_ms, expiry)
            tombstones += expired
            has_remaining = len(self.offsets.of_group(group.group_id)) > len(expired)
            if group.is_removable and not has_remaining and not self.offsets.has_pending(group.group_id):
                removable.append(group)
        return self._remove_groups(removable, tombstones)

    # ---- groups

    def delete_group(self, group_id: str) -> Outcome:
        group = self._existing_group(group_id)
        group.check_delete()
        tombstones = [OffsetRecord(group_id, *key, None) for key in self.partitions_with_offsets(group_id)]
        return self._remove_groups([group], tombstones)

    def _remove_groups(self, groups: Sequence[Group], offset_tombstones: Sequence[Any]) -> Outcome:
        removals = [self._protocols[group.type].remove(group) for group in groups]
        tombstones = [*offset_tombstones, *(tombstone for removal in removals for tombstone in removal.records)]
        callbacks = [removal.on_append for removal in removals]
        return Outcome(tombstones, on_append=partial(call_all, callbacks), atomic=False)

    def _existing_group(self, group_id: str) -> Group:
        group: Group | None = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group

    def describe(self, group_id: str) -> DescribedGroup:
        return describe_classic_group(self.classic.group(group_id))

    def list(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Return the groups that match both filters. The filters are in lower case. An empty filter
        matches all groups."""
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state_name,
                group_type=group.type,
            )
            for group in self.groups.values()
            if (not states or group.state_name.lower() in states) and (not types or group.type in types)
        ]


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
