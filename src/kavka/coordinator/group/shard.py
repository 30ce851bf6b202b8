"""[pure] All groups of one partition of `__consumer_offsets`: which there are, and their offsets.

A shard is changed in two ways: by its operations, called one at a time, and by replaying records. Offsets
follow the records, also right after an operation; which classic groups there are, and their members, follow the
operations, and are replayed only when the shard is loaded (between rebalances the records say the same).

Kinds of groups: `groups` holds them all under their ids, whatever their `type`. A kind brings its records
(`records.ENCODERS`, `records.DECODERS`) and its replay (`add_replay`); what is asked of any group is in `Group`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group import records
from kavka.coordinator.group.classic import ClassicProtocol, leave_response
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.consumer.describe import describe_group
from kavka.coordinator.group.consumer.migration import ConsumerGroups
from kavka.coordinator.group.consumer.state import ConsumerGroup
from kavka.coordinator.group.consumer.topics import NoTopics, Topics
from kavka.coordinator.group.offsets import OffsetStore
from kavka.coordinator.group.records import CommittedOffset, GroupRecord, OffsetRecord
from kavka.coordinator.group.state import CONSUMER, DEAD, EMPTY, STABLE, AnswerJoin, AnswerSync, ClassicGroup
from kavka.coordinator.operations import Journal, Outcome, Timers
from kavka.protocol.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse
from kavka.protocol.messages.list_groups import ListedGroup
from kavka.protocol.messages.sync_group import SyncGroupRequest
from kavka.protocol.primitives import ZERO_UUID

# Of one commit: topic, topic id, the partition's part of the request, and that of the response.
CommitItem = tuple[str, Any, Any, Any]


class Group(Protocol):
    """What a group of any kind can be asked."""

    type: str
    group_id: str
    protocol_type: str | None

    @property
    def state_name(self) -> str: ...

    @property
    def is_empty(self) -> bool: ...

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool = False
    ) -> Any: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribes_to(self, topic: str) -> bool: ...


class GroupShard:
    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    def __init__(self, clock: Clock, timers: Timers, config: GroupConfig, topics: Topics | None = None) -> None:
        self._clock = clock
        self._config = config
        self.journal = Journal()
        self.groups: dict[str, Any] = {}
        self.offsets = OffsetStore(self.journal)
        self.classic = ClassicProtocol(clock, timers, config)
        self._replays: dict[type, Callable[[Any], None]] = {GroupRecord: self._replay_group}
        self.consumer = ConsumerGroups(self, clock, timers, config.consumer, topics or NoTopics())

    # ---- replay

    def add_replay(self, kind: type, replay: Callable[[Any], None]) -> None:
        self._replays[kind] = replay

    def replay(self, record: Any, producer_id: int = -1) -> None:
        if type(record) is OffsetRecord:
            if record.group not in self.groups and record.value is not None:
                self.groups[record.group] = ClassicGroup(record.group, self._clock.now_ms())
            self.offsets.replay(record, producer_id)
        else:
            self._replays[type(record)](record)

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        self.offsets.replay_end_of_transaction(producer_id, commit)

    def _replay_group(self, record: GroupRecord) -> None:
        if record.value is not None:
            self.groups[record.group] = ClassicGroup.from_value(record.group, record.value)
            return
        group = self.groups.get(record.group)
        # One that an operation removes is DEAD already, and goes when its tombstone is committed.
        if isinstance(group, ClassicGroup) and group.state is not DEAD:
            self.journal.drop(self.groups, record.group)

    def on_loaded(self) -> list[Outcome]:
        outcomes = []
        for group in list(self.groups.values()):
            if not isinstance(group, ClassicGroup):
                continue
            if group.is_simple and group.generation == 0 and not self._has_any_offset(group.group_id):
                del self.groups[group.group_id]
            else:
                outcomes.append(self.classic.on_loaded(group))
        self.consumer.on_loaded()
        return outcomes

    def on_unloaded(self, code: ErrorCode) -> None:
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self.classic.on_unloaded(group, code)
        self.groups = {}

    # ---- finding a group

    def classic_group(self, group_id: str, missing: ErrorCode) -> ClassicGroup:
        """The classic group; `missing` where there is none, INCONSISTENT_GROUP_PROTOCOL where it is of another kind."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(missing)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Group {group_id} is not a classic group.")
        return group

    # ---- members of classic groups

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, answer: AnswerJoin
    ) -> Outcome:
        self.classic.check_join(request)
        group_id = request.group_id
        known = self.groups.get(group_id)
        if type(known) is ConsumerGroup:
            return self.consumer.join_classic(known, request, version, client_id, client_host, answer)
        if known is not None:
            group = self.classic_group(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
            return self.classic.join(group, request, version, client_id, client_host, answer)
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = ClassicGroup(group_id, self._clock.now_ms())
        outcome = self.classic.join(group, request, version, client_id, client_host, answer)
        self.groups[group_id] = group
        return outcome

    def sync(self, request: SyncGroupRequest, version: int, answer: AnswerSync) -> Outcome:
        check_group_id(request.group_id)
        known = self.groups.get(request.group_id)
        if type(known) is ConsumerGroup:
            return self.consumer.sync_classic(known, request, answer)
        group = self.classic_group(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self.classic.sync(group, request, version, answer)

    def heartbeat(self, request: HeartbeatRequest) -> None:
        group = self.groups.get(request.group_id)
        if type(group) is ClassicGroup:
            self.classic.heartbeat(group, request)
            return
        if type(group) is ConsumerGroup:
            self.consumer.heartbeat_classic(group, request)
            return
        check_group_id(request.group_id)
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def leave(self, request: LeaveGroupRequest, version: int) -> Outcome:
        check_group_id(request.group_id)
        if request.group_id not in self.groups:
            leaving = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
            unknown = int(ErrorCode.UNKNOWN_MEMBER_ID)
            answers = [
                MemberResponse(member_id=m.member_id, group_instance_id=m.group_instance_id, error_code=unknown)
                for m in leaving
            ]
            return Outcome(response=leave_response(answers, version))
        known = self.groups.get(request.group_id)
        if type(known) is ConsumerGroup:
            return self.consumer.leave_classic(known, request, version)
        group = self.classic_group(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self.classic.leave(group, request, version)

    # ---- members of groups of the new protocol

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, version: int, client_id: str, client_host: str
    ) -> Outcome:
        return self.consumer.consumer_heartbeat(request, version, client_id, client_host)

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        return describe_group(self.consumer.group(group_id), self.consumer.topics, self.consumer.default_assignor)

    # ---- offsets

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        retention_ms: int,
        items: Sequence[CommitItem],
        transactional: bool = False,
    ) -> list[OffsetRecord]:
        """The records of a commit. A partition that is refused gets its code in its part of the response."""
        group = self.groups.get(group_id)
        if group is not None:
            member = group.check_commit(member_id, instance_id, generation, transactional)
            if type(group) is ConsumerGroup:
                group.check_commits(member, generation, version, transactional, items)
            elif member is not None and not transactional:
                self.classic.note_alive(group, member)
        elif generation >= 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION)
        now = self._clock.now_ms()
        expires = -1 if retention_ms == -1 else now + retention_ms
        longest = self._config.offset_metadata_max_bytes
        result = []
        for topic, topic_id, asked, answer in items:
            metadata = asked.committed_metadata or ""
            if len(metadata) > longest:
                answer.error_code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            committed_at = asked.commit_timestamp if version == 1 and asked.commit_timestamp != -1 else now
            result.append(
                OffsetRecord(
                    group_id,
                    topic,
                    asked.partition_index,
                    CommittedOffset(
                        asked.committed_offset, asked.committed_leader_epoch, metadata, committed_at, expires, topic_id
                    ),
                )
            )
        return result

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Whether this member may see the offsets of the group: of a classic one anybody may."""
        group = self.groups.get(group_id)
        if type(group) is ConsumerGroup:
            group.check_fetch(member_id, member_epoch)

    def fetch_offset(
        self, group_id: str, topic: str, partition: int, require_stable: bool, topic_id: Any = ZERO_UUID
    ) -> CommittedOffset | None:
        """UNSTABLE_OFFSET_COMMIT where the caller asks for what no open transaction may change, and one may."""
        if require_stable and self.offsets.is_unstable(group_id, topic, partition):
            raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        found = self.offsets.get(group_id, topic, partition)
        if found is None or ZERO_UUID in (found.topic_id, topic_id) or found.topic_id == topic_id:
            return found
        # It was committed for another topic of the same name, which is no more.
        return None

    def partitions_with_offsets(self, group_id: str) -> list[tuple[str, int]]:
        """Also those in which a transaction that is not over may leave the first one."""
        known = dict.fromkeys(self.offsets.of_group(group_id))
        known.update(dict.fromkeys(self.offsets.pending_of(group_id)))
        return list(known)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> tuple[list[OffsetRecord], set[str]]:
        """Tombstones, and the topics that the group subscribes to, whose offsets stay."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        subscribed = {topic for topic, _ in partitions if not group.is_empty and group.subscribes_to(topic)}
        gone = [
            OffsetRecord(group_id, topic, partition, None)
            for topic, partition in partitions
            if topic not in subscribed
            and (self.offsets.get(group_id, topic, partition) or self.offsets.is_unstable(group_id, topic, partition))
        ]
        return gone, subscribed

    def forget_topics(self, topics: frozenset[str]) -> Outcome:
        return Outcome(self.offsets.of_topics(topics), atomic=False)

    def expire(self) -> Outcome:
        """Forget offsets whose time is over, and empty groups that have none."""
        now = self._clock.now_ms()
        gone: list[Any] = []
        dead: list[ClassicGroup] = []
        for group in list(self.groups.values()):
            expired = self._expired_offsets(group, now)
            gone += expired
            left = len(self.offsets.of_group(group.group_id)) - len(expired)
            if not group.is_empty or left or self.offsets.has_pending(group.group_id):
                continue
            if isinstance(group, ConsumerGroup):
                gone += group.tombstones()
            elif not group.pending_join:
                dead.append(group)
        return self._drop_groups(dead, gone)

    def _expired_offsets(self, group: Any, now: int) -> list[OffsetRecord]:
        retention = self._config.offsets_retention_ms
        if isinstance(group, ConsumerGroup):
            return self.offsets.expired(group.group_id, _committed_at, now, retention, group.subscribes_to)
        if group.protocol_type is None:
            return self.offsets.expired(group.group_id, _committed_at, now, retention)
        if group.is_empty:
            since = group.state_timestamp
            base = _committed_at if since is None else lambda _: since
            return self.offsets.expired(group.group_id, base, now, retention)
        if group.protocol_type == CONSUMER and group.state is STABLE and group.subscribed_topics is not None:
            return self.offsets.expired(group.group_id, _committed_at, now, retention, group.subscribes_to)
        return []

    # ---- whole groups

    def delete_group(self, group_id: str) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_delete()
        gone: list[Any] = list(self.offsets.tombstones(group_id, self.partitions_with_offsets(group_id)))
        if isinstance(group, ConsumerGroup):
            return Outcome(gone + group.tombstones(), atomic=False)
        return self._drop_groups([group], gone)

    def _drop_groups(self, dead: list[ClassicGroup], gone: list[Any]) -> Outcome:
        """Remove empty groups with the records in `gone`. Until that is committed they are DEAD: who joins has to try
        again."""
        # A group that was never written has nothing in the log to take back.
        gone += [GroupRecord(group.group_id, None) for group in dead if group.generation > 0]
        since = [group.state_timestamp for group in dead]
        for group in dead:
            self.classic.on_unloaded(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        def on_append(error: KafkaError | None) -> None:
            for group, timestamp in zip(dead, since, strict=True):
                if error is None:
                    if self.groups.get(group.group_id) is group:
                        del self.groups[group.group_id]
                else:
                    group.state, group.state_timestamp = EMPTY, timestamp

        return Outcome(gone, on_append=on_append, atomic=False)

    def _has_any_offset(self, group_id: str) -> bool:
        return self.offsets.has_offsets(group_id) or self.offsets.has_pending(group_id)

    def describe(self, group_id: str) -> DescribedGroup:
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no classic group {group_id}.")
        is_stable = group.state is STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state_name,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol or "") if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in group.members.values()
            ],
        )

    def list(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Both filters are lower-case; an empty one lets everything pass."""
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


def _committed_at(offset: CommittedOffset) -> int:
    return offset.commit_timestamp
