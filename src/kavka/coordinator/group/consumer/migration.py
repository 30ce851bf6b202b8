"""[pure] Online migration of groups between the classic and the consumer protocol.

Rules:
- The first member that joins an empty group determines the type of the group. The offsets stay.
- A classic group with members becomes a consumer group when a member of the consumer protocol joins
  (upgrade), if all its members are consumers with assignments that can be parsed. The members
  keep their partitions.
- A consumer group serves its classic members with the same state machine. JoinGroup is a heartbeat
  that reports the owned partitions, and its generation is the member epoch. SyncGroup returns the
  partitions that the member may own now. The response to Heartbeat requires a rejoin when there is
  a change for the member. There is no leader, because the coordinator computes the assignment.
- When the last member of the consumer protocol leaves and classic members remain, the group becomes
  classic (downgrade) and rebalances.
- `group.consumer.migration.policy` enables the two directions. Without upgrade, a member of the
  consumer protocol gets GROUP_ID_NOT_FOUND. Without downgrade, the group stays a consumer group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.classic import MIN_MEMBER_ID_REQUIRED_VERSION, ClassicProtocol
from kavka.coordinator.group.consumer.change import Change
from kavka.coordinator.group.consumer.config import ConsumerConfig
from kavka.coordinator.group.consumer.embedded import (
    read_assignment,
    read_subscription,
    reported_partitions,
    write_assignment,
)
from kavka.coordinator.group.consumer.patterns import TopicFilter
from kavka.coordinator.group.consumer.protocol import ConsumerProtocol
from kavka.coordinator.group.consumer.records import (
    ClassicMetadata,
    CurrentAssignment,
    CurrentAssignmentRecord,
    GroupEpoch,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    TargetEpoch,
    TargetEpochRecord,
    TargetMemberRecord,
)
from kavka.coordinator.group.consumer.state import JOIN_EPOCH, ConsumerGroup, Member, MemberState
from kavka.coordinator.group.consumer.topics import Topics, metadata_hash
from kavka.coordinator.group.group import Groups, JoinCallback, SyncCallback
from kavka.coordinator.group.records import GroupRecord
from kavka.coordinator.group.state import CONSUMER, ClassicGroup, join_error, new_member_id
from kavka.coordinator.group.state import STABLE as CLASSIC_STABLE
from kavka.coordinator.group.state import Member as ClassicMember
from kavka.coordinator.operations import DIRECT, NOTHING, Outcome, Timers, call_all
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.protocol.messages.leave_group import MemberIdentity, MemberResponse
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kavka.protocol.primitives import ProtocolError

logger = logging.getLogger(__name__)


class ConsumerGroups(ConsumerProtocol):
    """The operations on the consumer groups of a shard, whose members may use either protocol."""

    def __init__(
        self,
        shard: Groups,
        classic: ClassicProtocol,
        clock: Clock,
        timers: Timers,
        config: ConsumerConfig,
        topics: Topics,
    ) -> None:
        super().__init__(shard, clock, timers, config, topics)
        self._classic = classic
        # (group id, member id) of classic members that must rejoin.
        self._must_rejoin: set[tuple[str, str]] = set()

    # ---- ConsumerGroupHeartbeat

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        client_host: str,
        visible: TopicFilter | None = None,
    ) -> Outcome:
        if not self.config.enabled:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        self.check(request, version)
        if request.member_epoch < JOIN_EPOCH:
            return self.leave_by_heartbeat(request)
        consumer_group = self.find(request.group_id)
        if consumer_group is not None:
            return self.join_or_reconcile(consumer_group, request, client_id, client_host, visible=visible)
        if request.member_epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        group = ConsumerGroup(request.group_id)
        classic = self._shard.groups.get(request.group_id)
        if classic is None:
            return self.join_or_reconcile(group, request, client_id, client_host, visible=visible)
        records = self._as_consumer_group(classic)
        for record in records[1:]:
            group.apply(record, DIRECT)
        outcome = self.join_or_reconcile(group, request, client_id, client_host, records, visible)
        # Members with a pending JoinGroup or SyncGroup must rejoin.
        self._classic.stop(classic, ErrorCode.REBALANCE_IN_PROGRESS)
        for member in group.members.values():
            self.watch_session(group.group_id, member)
        logger.info("Upgrading classic group %s to a consumer group", group.group_id)
        callbacks = (outcome.on_append, partial(self._on_upgraded, classic))
        return outcome._replace(on_append=partial(call_all, callbacks))

    def _as_consumer_group(self, classic: ClassicGroup) -> list[Any]:
        """Return the tombstone of the classic group and the records of the equivalent consumer
        group. Raises GROUP_ID_NOT_FOUND if the group cannot be upgraded."""
        group_id = classic.group_id
        tombstone = GroupRecord(group_id, None)
        if not classic.members:
            return [tombstone]
        if not self.config.allows_upgrade:
            self._reject_upgrade(group_id, "online upgrade is disabled")
        if classic.protocol_type != CONSUMER:
            self._reject_upgrade(group_id, "the group does not use the consumer embedded protocol")
        if len(classic.members) > self.config.max_size:
            self._reject_upgrade(group_id, "the group size exceeds the consumer group maximum size")
        epoch = classic.generation
        members: list[Any] = []
        targets: list[Any] = []
        currents: list[Any] = []
        names: set[str] = set()
        for member in classic.members.values():
            protocol = classic.protocol if classic.protocol is not None else member.protocols[0][0]
            try:
                parsed = read_subscription(member.metadata(protocol))
                owned = read_assignment(member.assignment, protocol, epoch, self.topics)
            except ProtocolError as error:
                self._reject_upgrade(group_id, f"the embedded consumer protocol is malformed: {error}")
                raise
            names.update(parsed.topics)
            subscription = MemberMetadata(
                member.instance_id,
                parsed.rack_id or None,
                member.client_id,
                member.client_host,
                frozenset(parsed.topics),
                "",
                member.rebalance_timeout_ms,
                None,
                ClassicMetadata(member.session_timeout_ms, member.protocols),
            )
            current = CurrentAssignment(epoch, epoch, MemberState.STABLE, owned, {})
            members.append(MemberRecord(group_id, member.member_id, subscription))
            target = {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}
            targets.append(TargetMemberRecord(group_id, member.member_id, target))
            currents.append(CurrentAssignmentRecord(group_id, member.member_id, current))
        group_epoch = GroupEpochRecord(group_id, GroupEpoch(epoch, metadata_hash(names, self.topics)))
        target_epoch = TargetEpochRecord(group_id, TargetEpoch(epoch, 0))
        return [tombstone, *members, group_epoch, *targets, target_epoch, *currents]

    def _reject_upgrade(self, group_id: str, reason: str) -> None:
        message = f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
        logger.info("%s", message)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    def _on_upgraded(self, classic: ClassicGroup, error: KafkaError | None) -> None:
        if error is not None:
            # The group is still classic.
            for member_id in classic.members:
                self.cancel_timers(classic.group_id, member_id)
            self._classic.on_loaded(classic)

    # ---- JoinGroup

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        respond: JoinCallback,
    ) -> Outcome:
        replaced = group.static_member(request.group_instance_id) if not request.member_id else None
        leaving = () if replaced is None else (replaced,)
        if group.is_empty or (leaving and self._may_downgrade(group, leaving, joining=1)):
            records, classic = self._as_classic_group(group, leaving)
            if classic.members:
                self._classic.adopt(classic, f"static member {request.group_instance_id} was replaced")
            try:
                joined = self._classic.join(classic, request, version, client_id, client_host, respond)
            except KafkaError:
                # The group stays a consumer group: discard the classic group.
                self._classic.cancel_timers(classic)
                raise
            return self._become_classic(group, classic, records, joined)
        member_id = request.member_id or new_member_id(request.group_instance_id or client_id)
        self.check_size(group, member_id, request.group_instance_id)
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        parsed = self._check_protocols(group, member_id, request.protocol_type, protocols)
        if not request.member_id and request.group_instance_id is None and version >= MIN_MEMBER_ID_REQUIRED_VERSION:
            respond(join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
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
        previous = member.subscription
        rebalance_timeout_ms = request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms
        subscription = MemberMetadata(
            request.group_instance_id if request.group_instance_id is not None else previous.instance_id,
            parsed.rack_id or previous.rack_id,
            client_id,
            client_host,
            frozenset(parsed.topics),
            "",
            rebalance_timeout_ms,
            previous.assignor,
            ClassicMetadata(request.session_timeout_ms, protocols),
        )
        # A classic member has no pattern. The next heartbeat of a member with a pattern resolves
        # it, with the rights of that member.
        changed = self.update_member(change, member, subscription, resolves_patterns=False)
        self.update_target(change)
        current = self.update_current(change, member_id, reported_partitions(parsed, self.topics), changed)
        member = change.group.members[member_id]
        response = JoinGroupResponse(
            generation_id=current.epoch,
            protocol_type=CONSUMER,
            protocol_name=protocols[0][0],
            member_id=member_id,
        )
        on_append = partial(self._on_joined, group.group_id, member, response, respond)
        return Outcome(change.records, on_append=on_append)

    def _check_protocols(
        self, group: ConsumerGroup, member_id: str, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
    ) -> ConsumerProtocolSubscription:
        """Return the member's subscription. Raises INCONSISTENT_GROUP_PROTOCOL unless the member is
        a consumer and all classic members share an assignor: the group may be downgraded later."""
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
        self,
        group_id: str,
        member: Member,
        response: JoinGroupResponse,
        respond: JoinCallback,
        error: KafkaError | None,
    ) -> None:
        if error is not None:
            self._checked_topics_version.pop(group_id, None)
            respond(join_error(member.member_id, error.code))
            return
        self._cancel_rejoin(group_id, member.member_id)
        self.watch_session(group_id, member)
        self._timers.schedule(
            _sync_key(group_id, member.member_id),
            member.subscription.rebalance_timeout_ms,
            partial(self._on_timer, group_id, member.member_id, "it did not sync in time"),
        )
        respond(response)

    # ---- SyncGroup and Heartbeat

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, version: int, respond: SyncCallback) -> Outcome:
        member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
        self._check_generation(member, request.generation_id)
        name, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self._has_newer_target(group, member) and member.current.state != MemberState.UNREVOKED_PARTITIONS:
            self._require_rejoin(group.group_id, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel(_sync_key(group.group_id, member.member_id))
        self.watch_session(group.group_id, member)
        respond(
            SyncGroupResponse(
                protocol_type=CONSUMER,
                protocol_name=name,
                assignment=write_assignment(member.current.assigned, metadata, self.topics),
            )
        )
        return NOTHING

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> None:
        member, _ = self._classic_member(group, request.member_id, request.group_instance_id)
        self._check_generation(member, request.generation_id)
        self.watch_session(group.group_id, member)
        state = member.current.state
        if (
            self._has_newer_target(group, member)
            or state == MemberState.UNREVOKED_PARTITIONS
            or (state == MemberState.UNRELEASED_PARTITIONS and self._is_target_free(group, member))
        ):
            self._require_rejoin(group.group_id, member)
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

    def _has_newer_target(self, group: ConsumerGroup, member: Member) -> bool:
        """Return whether the group has a newer target than the member, or a rejoin would compute a
        newer target."""
        if member.epoch < group.assignment_epoch:
            return True
        return group.epoch > group.assignment_epoch and self.may_assign(group)

    def _is_target_free(self, group: ConsumerGroup, member: Member) -> bool:
        assigned = member.current.assigned
        return not any(
            index not in assigned.get(topic_id, {}) and group.owner(topic_id, index) not in (None, member.member_id)
            for topic_id, partitions in group.target.get(member.member_id, {}).items()
            for index in partitions
        )

    def _require_rejoin(self, group_id: str, member: Member) -> None:
        """Start a timer that removes the member unless it rejoins within its rebalance timeout."""
        key = (group_id, member.member_id)
        if key not in self._must_rejoin:
            self._must_rejoin.add(key)
            self._timers.schedule(
                _join_key(*key),
                member.subscription.rebalance_timeout_ms,
                partial(self._on_timer, group_id, member.member_id, "it did not rejoin in time"),
            )

    def _cancel_rejoin(self, group_id: str, member_id: str) -> None:
        self._must_rejoin.discard((group_id, member_id))
        self._timers.cancel(_join_key(group_id, member_id))

    # ---- LeaveGroup

    def leave(self, group: ConsumerGroup, leaving_members: Sequence[MemberIdentity]) -> Outcome:
        responses = []
        members: dict[str, Member] = {}
        for identity in leaving_members:
            response = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
            responses.append(response)
            try:
                member = self._leaving_member(group, identity)
                members[member.member_id] = member
            except KafkaError as error:
                response.error_code = int(error.code)
        return self.fence(group, members.values(), responses)

    def _leaving_member(self, group: ConsumerGroup, identity: MemberIdentity) -> Member:
        instance_id = identity.group_instance_id
        if instance_id is not None and not identity.member_id:
            # An administrator removes a static member by its instance id alone.
            member = group.static_member(instance_id)
            if member is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return member
        return group.check_member(identity.member_id, instance_id)

    # ---- downgrade to the classic protocol

    def fence(self, group: ConsumerGroup, members: Iterable[Member], response: Any = None) -> Outcome:
        leaving = tuple(members)
        if not leaving or not self._may_downgrade(group, leaving):
            return super().fence(group, leaving, response)
        records, classic = self._as_classic_group(group, leaving)
        rebalanced = self._classic.adopt(classic, "the last member of the consumer protocol left")
        return self._become_classic(group, classic, records, rebalanced)._replace(response=response)

    def _may_downgrade(self, group: ConsumerGroup, leaving: Iterable[Member], joining: int = 0) -> bool:
        leaving_ids = {member.member_id for member in leaving}
        remaining = [member for member in group.members.values() if member.member_id not in leaving_ids]
        if not self.config.allows_downgrade or not all(member.is_classic for member in remaining):
            return False
        return 0 < len(remaining) + joining <= self._classic.config.max_size

    def _as_classic_group(self, group: ConsumerGroup, leaving: Iterable[Member]) -> tuple[list[Any], ClassicGroup]:
        """Return the records of the downgrade, and the classic group with the remaining members."""
        leaving_ids = {member.member_id for member in leaving}
        records = group.tombstones()
        classic = ClassicGroup(group.group_id, self._clock.now_ms())
        for member in group.members.values():
            subscription = member.subscription
            if subscription.classic is None or member.member_id in leaving_ids:
                continue
            metadata = subscription.classic.protocols[0][1]
            assignment = write_assignment(member.current.assigned, metadata, self.topics)
            classic.add(
                ClassicMember(
                    member.member_id,
                    subscription.instance_id,
                    subscription.client_id,
                    subscription.client_host,
                    subscription.rebalance_timeout_ms,
                    subscription.classic.session_timeout_ms,
                    subscription.classic.protocols,
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
        """Replace the consumer group with the classic group at once. The records are replayed only
        when the shard is loaded."""
        logger.info("Downgrading consumer group %s to a classic group", group.group_id)
        self._shard.journal.put(self._shard.groups, group.group_id, classic)

        def on_append(error: KafkaError | None) -> None:
            if outcome.on_append is not None:
                outcome.on_append(error)
            if error is not None:
                # The group is a consumer group again: fail the requests that the classic group has
                # accepted.
                self._classic.on_unloaded(classic, error.code)
                return
            for member_id in group.members:
                self.cancel_timers(group.group_id, member_id)

        return Outcome([*records, *outcome.records], outcome.response, on_append, replay=False)

    # ---- timers

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        super().cancel_timers(group_id, member_id)
        self._cancel_rejoin(group_id, member_id)
        self._timers.cancel(_sync_key(group_id, member_id))


def _join_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer join", group_id, member_id)


def _sync_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer sync", group_id, member_id)
