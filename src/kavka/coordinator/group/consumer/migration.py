"""[pure] A group goes from one protocol to the other while its members go on, and both kinds are in it meanwhile.

The rules
- An empty group becomes what the first to join asks for; its offsets stay.
- A classic group with members becomes one of the new protocol when the first member of that joins (`upgrade`), if all
  its members are consumers with assignments that can be understood. They keep what they have.
- In a group of the new protocol, members of the classic one are served by the same state machine: JoinGroup is a
  heartbeat that reports what the member has, its generation is the member's epoch, SyncGroup gives what the member may
  have now, Heartbeat tells it to join again when there is something new for it. None of them is the leader: the server
  assigns.
- When the last member of the new protocol is gone and classic ones remain, the group becomes classic (`downgrade`), and
  they rebalance.
- `group.consumer.migration.policy` says which of the two ways is open. Where an upgrade is not, who speaks the new
  protocol is told that there is no such group; where a downgrade is not, the group stays what it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.classic import MEMBER_ID_REQUIRED_FROM, ClassicProtocol, leave_response
from kavka.coordinator.group.consumer.change import Change
from kavka.coordinator.group.consumer.config import ConsumerConfig
from kavka.coordinator.group.consumer.embedded import (
    read_assignment,
    read_subscription,
    reported_partitions,
    write_assignment,
)
from kavka.coordinator.group.consumer.protocol import ConsumerProtocol, then
from kavka.coordinator.group.consumer.records import (
    ClassicMetadata,
    Current,
    CurrentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberRecord,
    Subscription,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from kavka.coordinator.group.consumer.state import (
    JOIN_EPOCH,
    STRAIGHT,
    ConsumerGroup,
    Member,
    MemberState,
    without_epochs,
)
from kavka.coordinator.group.consumer.topics import Topics, metadata_hash
from kavka.coordinator.group.records import GroupRecord
from kavka.coordinator.group.state import CONSUMER, AnswerJoin, AnswerSync, ClassicGroup, join_error, new_member_id
from kavka.coordinator.group.state import STABLE as CLASSIC_STABLE
from kavka.coordinator.group.state import Member as ClassicMember
from kavka.coordinator.operations import NOTHING, Journal, Outcome, Timers
from kavka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kavka.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kavka.protocol.primitives import ProtocolError

log = logging.getLogger(__name__)


class Shard(Protocol):
    groups: dict[str, Any]
    journal: Journal
    classic: ClassicProtocol

    def add_replay(self, kind: type, replay: Any) -> None: ...


class ConsumerGroups(ConsumerProtocol):
    """The groups of the new protocol in one shard, with members of both."""

    def __init__(self, shard: Shard, clock: Clock, timers: Timers, config: ConsumerConfig, topics: Topics) -> None:
        super().__init__(shard, clock, timers, config, topics)
        self._shard: Shard = shard
        self._told_to_join: set[tuple[str, str]] = set()

    # ---- ConsumerGroupHeartbeat

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, version: int, client_id: str, client_host: str
    ) -> Outcome:
        if not self.config.enabled:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        self.check(request, version)
        if request.member_epoch < JOIN_EPOCH:
            group, member, outcome = self.leave(request)
            response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
            return outcome if outcome is not None else self.fence(group, (member,), response)
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self.heartbeat(known, request, client_id, client_host, [])
        if request.member_epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        if known is None:
            return self.heartbeat(ConsumerGroup(request.group_id), request, client_id, client_host, [])
        before = self._as_consumer_group(known)
        draft = ConsumerGroup(request.group_id)
        for record in before[1:]:
            draft.apply(record, STRAIGHT)
        outcome = self.heartbeat(draft, request, client_id, client_host, before)
        self._retire(known)
        for member in draft.members.values():
            self.watch_session(draft.group_id, member)
        log.info("The classic group %s becomes one of the new protocol", known.group_id)
        return outcome._replace(on_append=then(outcome.on_append, partial(self._on_upgraded, known)))

    def _as_consumer_group(self, classic: ClassicGroup) -> list[Any]:
        """The tombstone of the classic group, and the records of the same as one of the new protocol."""
        group_id = classic.group_id
        tombstone = GroupRecord(group_id, None)
        if not classic.members:
            return [tombstone]
        if not self.config.upgrade:
            self._refuse_upgrade(group_id, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER:
            self._refuse_upgrade(group_id, "the group does not use the consumer embedded protocol")
        if len(classic.members) > self.config.max_size:
            self._refuse_upgrade(group_id, "the group size exceeds the consumer group maximum size")
        epoch = classic.generation
        members: list[Any] = []
        targets: list[Any] = []
        currents: list[Any] = []
        names: set[str] = set()
        for member in classic.members.values():
            protocol = classic.protocol if classic.protocol is not None else member.protocols[0][0]
            try:
                said = read_subscription(member.metadata(protocol))
                owned = read_assignment(member.assignment, protocol, epoch, self.topics)
            except ProtocolError as error:
                self._refuse_upgrade(group_id, f"the embedded consumer protocol is malformed: {error}")
                raise
            names.update(said.topics)
            subscription = Subscription(
                member.instance_id,
                said.rack_id or None,
                member.client_id,
                member.client_host,
                frozenset(said.topics),
                "",
                member.rebalance_timeout_ms,
                None,
                ClassicMetadata(member.session_timeout_ms, member.protocols),
            )
            current = Current(epoch, epoch, MemberState.STABLE, owned, {})
            members.append(MemberRecord(group_id, member.member_id, subscription))
            targets.append(TargetMemberRecord(group_id, member.member_id, without_epochs(owned)))
            currents.append(CurrentRecord(group_id, member.member_id, current))
        head = GroupEpochRecord(group_id, GroupEpoch(epoch, metadata_hash(names, self.topics)))
        target = TargetEpochRecord(group_id, TargetEpoch(epoch, 0))
        return [tombstone, *members, head, *targets, target, *currents]

    def _refuse_upgrade(self, group_id: str, why: str) -> None:
        message = f"Cannot upgrade classic group {group_id} to consumer group because {why}."
        log.info("%s", message)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    def _retire(self, classic: ClassicGroup) -> None:
        """Nothing happens to the classic group any more; who waits for its rebalance joins again."""
        code = ErrorCode.REBALANCE_IN_PROGRESS
        for member in list(classic.members.values()):
            classic.answer_join(member, join_error(member.member_id, code))
            classic.answer_sync(member, SyncGroupResponse(error_code=int(code)))
        self._shard.classic.drop_timers(classic)

    def _on_upgraded(self, classic: ClassicGroup, error: KafkaError | None) -> None:
        if error is not None:
            # It still is what it was.
            for member_id in classic.members:
                self.drop_timers(classic.group_id, member_id)
            self._shard.classic.on_loaded(classic)

    # ---- JoinGroup

    def join_classic(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        answer: AnswerJoin,
    ) -> Outcome:
        replaced = group.static_member(request.group_instance_id) if not request.member_id else None
        leaving = () if replaced is None else (replaced,)
        if group.is_empty or (leaving and self._may_downgrade(group, leaving, joining=1)):
            records, classic = self._as_classic_group(group, leaving)
            if classic.members:
                self._shard.classic.adopt(classic, f"static member {request.group_instance_id} was replaced")
            try:
                joined = self._shard.classic.join(classic, request, version, client_id, client_host, answer)
            except KafkaError:
                # The group stays what it is: nothing may become of this draft of another.
                self._shard.classic.drop_timers(classic)
                raise
            return self._become_classic(group, classic, records, joined)
        member_id = request.member_id or new_member_id(request.group_instance_id or client_id)
        self.check_room(group, member_id, request.group_instance_id)
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        said = self._check_protocols(group, member_id, request.protocol_type, protocols)
        if not request.member_id and request.group_instance_id is None and version >= MEMBER_ID_REQUIRED_FROM:
            answer(join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return NOTHING
        change = Change(group)
        if request.group_instance_id is None:
            member = group.members.get(member_id) or Member(member_id)
        elif request.member_id:
            member = group.check_static(request.group_instance_id, member_id)
        elif replaced is not None:
            member = self.replace_member(change, replaced, member_id)
        else:
            member = Member(member_id)
        old = member.subscription
        rebalance_timeout_ms = request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms
        subscription = Subscription(
            request.group_instance_id if request.group_instance_id is not None else old.instance_id,
            said.rack_id or old.rack_id,
            client_id,
            client_host,
            frozenset(said.topics),
            "",
            rebalance_timeout_ms,
            old.assignor,
            ClassicMetadata(request.session_timeout_ms, protocols),
        )
        changed = self.update_member(change, member, subscription)
        self.update_target(change)
        current = self.update_current(change, member_id, reported_partitions(said, self.topics), changed)
        member = change.group.members[member_id]
        response = JoinGroupResponse(
            generation_id=current.epoch,
            protocol_type=CONSUMER,
            protocol_name=protocols[0][0],
            member_id=member_id,
        )
        on_append = partial(self._on_joined, group.group_id, member, response, answer)
        return Outcome(change.records, on_append=on_append)

    def _check_protocols(
        self, group: ConsumerGroup, member_id: str, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
    ) -> ConsumerProtocolSubscription:
        """It must be a consumer, and one assignor must be left that all members of the classic protocol support: the
        group may have to go back to it."""
        common = {name for name, _ in protocols}
        for member in group.members.values():
            classic = member.subscription.classic
            if classic is not None and member.member_id != member_id:
                common &= {name for name, _ in classic.protocols}
        if protocol_type == CONSUMER and common:
            try:
                return read_subscription(protocols[0][1])
            except ProtocolError:
                pass
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")

    def _on_joined(
        self, group_id: str, member: Member, response: JoinGroupResponse, answer: AnswerJoin, error: KafkaError | None
    ) -> None:
        if error is not None:
            self._seen.pop(group_id, None)
            answer(join_error(member.member_id, error.code))
            return
        self._stop_waiting_for_join(group_id, member.member_id)
        self.watch_session(group_id, member)
        self._timers.schedule(
            _sync_key(group_id, member.member_id),
            member.subscription.rebalance_timeout_ms,
            partial(self._on_timer, group_id, member.member_id, "it did not sync in time"),
        )
        answer(response)

    # ---- SyncGroup and Heartbeat

    def sync_classic(self, group: ConsumerGroup, request: SyncGroupRequest, answer: AnswerSync) -> Outcome:
        member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
        self._check_generation(member, request.generation_id)
        name, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self._is_behind(group, member) and member.current.state != MemberState.UNREVOKED_PARTITIONS:
            self._wait_for_join(group.group_id, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel(_sync_key(group.group_id, member.member_id))
        self.watch_session(group.group_id, member)
        answer(
            SyncGroupResponse(
                protocol_type=CONSUMER,
                protocol_name=name,
                assignment=write_assignment(member.current.assigned, metadata, self.topics),
            )
        )
        return NOTHING

    def heartbeat_classic(self, group: ConsumerGroup, request: HeartbeatRequest) -> None:
        member, _ = self._classic_member(group, request.member_id, request.group_instance_id)
        self._check_generation(member, request.generation_id)
        self.watch_session(group.group_id, member)
        state = member.current.state
        if (
            self._is_behind(group, member)
            or state == MemberState.UNREVOKED_PARTITIONS
            or (state == MemberState.UNRELEASED_PARTITIONS and self._has_something_free(group, member))
        ):
            self._wait_for_join(group.group_id, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[Member, ClassicMetadata]:
        member = group.check_member(member_id, instance_id)
        classic = member.subscription.classic
        if classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        return member, classic

    def _check_generation(self, member: Member, generation: int) -> None:
        if member.epoch != generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"The request generation id {generation} is not equal to the member epoch {member.epoch} of member "
                f"{member.member_id}.",
            )

    def _is_behind(self, group: ConsumerGroup, member: Member) -> bool:
        """There is a newer target for it, or there will be when it joins again."""
        if member.epoch < group.assignment_epoch:
            return True
        return group.epoch > group.assignment_epoch and self.may_assign(group)

    def _has_something_free(self, group: ConsumerGroup, member: Member) -> bool:
        assigned = member.current.assigned
        return not any(
            index not in assigned.get(topic_id, {}) and group.owner(topic_id, index) not in (None, member.member_id)
            for topic_id, partitions in group.target.get(member.member_id, {}).items()
            for index in partitions
        )

    def _wait_for_join(self, group_id: str, member: Member) -> None:
        """It is out if it has not joined again when its rebalance timeout is over since it was first told to."""
        key = (group_id, member.member_id)
        if key not in self._told_to_join:
            self._told_to_join.add(key)
            self._timers.schedule(
                _join_key(*key),
                member.subscription.rebalance_timeout_ms,
                partial(self._on_timer, group_id, member.member_id, "it did not join again in time"),
            )

    def _stop_waiting_for_join(self, group_id: str, member_id: str) -> None:
        self._told_to_join.discard((group_id, member_id))
        self._timers.cancel(_join_key(group_id, member_id))

    # ---- LeaveGroup

    def leave_classic(self, group: ConsumerGroup, request: LeaveGroupRequest, version: int) -> Outcome:
        leaving = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
        answers = []
        gone: dict[str, Member] = {}
        for identity in leaving:
            answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
            answers.append(answer)
            try:
                member = self._leaving_member(group, identity)
                gone[member.member_id] = member
            except KafkaError as error:
                answer.error_code = int(error.code)
        return self.fence(group, gone.values(), leave_response(answers, version))

    def _leaving_member(self, group: ConsumerGroup, identity: MemberIdentity) -> Member:
        instance_id = identity.group_instance_id
        if instance_id is not None and not identity.member_id:
            # An administrator removes a static member by its name alone.
            known = group.static_member(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return known
        return group.check_member(identity.member_id, instance_id)

    # ---- back to the classic protocol

    def fence(self, group: ConsumerGroup, members: Iterable[Member], response: Any = None) -> Outcome:
        leaving = tuple(members)
        if not leaving or not self._may_downgrade(group, leaving):
            return super().fence(group, leaving, response)
        records, classic = self._as_classic_group(group, leaving)
        rebalanced = self._shard.classic.adopt(classic, "the last member of the new protocol is gone")
        return self._become_classic(group, classic, records, rebalanced)._replace(response=response)

    def _may_downgrade(self, group: ConsumerGroup, leaving: Iterable[Member], joining: int = 0) -> bool:
        gone = {member.member_id for member in leaving}
        left = [member for member in group.members.values() if member.member_id not in gone]
        if not self.config.downgrade or not all(member.is_classic for member in left):
            return False
        return 0 < len(left) + joining <= self._shard.classic.config.max_size

    def _as_classic_group(self, group: ConsumerGroup, leaving: Iterable[Member]) -> tuple[list[Any], ClassicGroup]:
        """The same as a classic group, with the members that stay, and the records that make it one."""
        gone = {member.member_id for member in leaving}
        records = group.tombstones()
        classic = ClassicGroup(group.group_id, self._clock.now_ms())
        for member in group.members.values():
            said = member.subscription
            if said.classic is None or member.member_id in gone:
                continue
            assignment = write_assignment(member.current.assigned, said.classic.protocols[0][1], self.topics)
            classic.add(
                ClassicMember(
                    member.member_id,
                    said.instance_id,
                    said.client_id,
                    said.client_host,
                    said.rebalance_timeout_ms,
                    said.classic.session_timeout_ms,
                    said.classic.protocols,
                    assignment,
                ),
                CONSUMER,
            )
        if classic.members:
            classic.generation = group.epoch
            classic.protocol = classic.select_protocol()
            classic.state = CLASSIC_STABLE
            classic.subscribed_topics = classic.find_subscribed_topics()
            records.append(GroupRecord(group.group_id, classic.to_value()))
        return records, classic

    def _become_classic(
        self, group: ConsumerGroup, classic: ClassicGroup, records: list[Any], outcome: Outcome
    ) -> Outcome:
        """What the classic group has done already counts at once; the records only say so."""
        log.info("Group %s of the new protocol becomes a classic group", group.group_id)
        self._shard.journal.put(self._shard.groups, group.group_id, classic)

        def on_append(error: KafkaError | None) -> None:
            if outcome.on_append is not None:
                outcome.on_append(error)
            if error is not None:
                # The group is what it was: who waits for the classic one is told, and joins again.
                self._shard.classic.on_unloaded(classic, error.code)
                return
            for member_id in group.members:
                self.drop_timers(group.group_id, member_id)

        return Outcome([*records, *outcome.records], outcome.response, on_append, replay=False)

    # ---- timers

    def drop_timers(self, group_id: str, member_id: str) -> None:
        super().drop_timers(group_id, member_id)
        self._stop_waiting_for_join(group_id, member_id)
        self._timers.cancel(_sync_key(group_id, member_id))


def _join_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer join", group_id, member_id)


def _sync_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer sync", group_id, member_id)
