"""[pure] JoinGroup, SyncGroup, Heartbeat and LeaveGroup on classic groups, and their timeouts.

`state.py` defines the group and its states, this module the operations. An operation that raises an
error has changed nothing. A JoinGroup or SyncGroup that waits for the rebalance completes later,
through its `respond` callback.

Each member has one session timer, which checks the member's deadline when it fires. A heartbeat
only moves the deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from functools import partial

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.group import Groups, JoinCallback, SyncCallback
from kavka.coordinator.group.records import GroupRecord
from kavka.coordinator.group.state import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    Member,
    join_error,
    new_member_id,
)
from kavka.coordinator.operations import NOTHING, Outcome, Timers
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest
from kavka.protocol.messages.leave_group import MemberIdentity, MemberResponse
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

# A new member sends no heartbeats until its JoinGroup completes, and the coordinator does not
# notice a disconnect. The coordinator removes the member if its JoinGroup is pending for this long.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

# The first versions of JoinGroup that require a member id, and that have `skip_assignment`.
MIN_MEMBER_ID_REQUIRED_VERSION = 4
MIN_SKIP_ASSIGNMENT_VERSION = 9


class ClassicProtocol:
    """The operations on the classic groups of a shard."""

    def __init__(self, shard: Groups, clock: Clock, timers: Timers, config: GroupConfig) -> None:
        self._shard = shard
        self._clock = clock
        self._timers = timers
        self.config = config
        shard.add_replay(GroupRecord, self.replay)

    def group(self, group_id: str) -> ClassicGroup:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no classic group {group_id}.")
        return group

    def replay(self, record: GroupRecord) -> None:
        groups = self._shard.groups
        if record.value is not None:
            groups[record.group] = ClassicGroup.from_value(record.group, record.value)
            return
        group = groups.get(record.group)
        # A group that `remove` has made DEAD is dropped when its tombstone is committed.
        if isinstance(group, ClassicGroup) and group.state is not DEAD:
            self._shard.journal.drop(groups, record.group)

    # ---- JoinGroup

    def check_join(self, request: JoinGroupRequest) -> None:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        low, high = self.config.min_session_timeout_ms, self.config.max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT, f"The session timeout must be from {low} to {high} milliseconds."
            )

    def join(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        respond: JoinCallback,
    ) -> Outcome:
        """Add or update a member. `respond` is called now, or when the rebalance completes."""
        member_id = request.member_id
        if group.state is DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        if not self._accepts(group, member_id):
            self._remove_member(group, member_id)
            respond(join_error("", ErrorCode.GROUP_MAX_SIZE_REACHED))
            return self._complete_if_all_joined(group)
        if not group.supports(request.protocol_type, protocols):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        # Version 0 has only the session timeout.
        rebalance_timeout_ms = request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms
        joining_member = Member(
            member_id,
            request.group_instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms,
            request.session_timeout_ms,
            protocols,
        )
        if member_id:
            return self._rejoin(group, joining_member, request, respond)
        return self._join_new(group, joining_member, request, version, respond)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Return whether the member may join without exceeding `group.max.size`. In a group that
        already exceeds it, the members that rejoin first stay."""
        if group.state is EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is PREPARING:
            is_waiting = member is not None and member.awaiting_join is not None
            return is_waiting or group.awaiting_join_count < self.config.max_size
        return member is not None or len(group.members) < self.config.max_size

    def _join_new(
        self,
        group: ClassicGroup,
        joining_member: Member,
        request: JoinGroupRequest,
        version: int,
        respond: JoinCallback,
    ) -> Outcome:
        instance_id = joining_member.instance_id
        joining_member.member_id = member_id = new_member_id(
            joining_member.client_id if instance_id is None else instance_id
        )
        if instance_id is not None:
            if instance_id in group.static_members:
                return self._take_over(group, joining_member, version, respond)
        elif version >= MIN_MEMBER_ID_REQUIRED_VERSION:
            # The client becomes a member with its second request, which has this id. So a client
            # that times out and retries leaves no unused member in the group.
            group.pending_join.add(member_id)
            self._timers.schedule(
                _pending_key(group, member_id),
                joining_member.session_timeout_ms,
                partial(self._on_pending_expired, group, member_id),
            )
            respond(join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return NOTHING
        return self._add(group, joining_member, request, respond)

    def _rejoin(
        self, group: ClassicGroup, joining_member: Member, request: JoinGroupRequest, respond: JoinCallback
    ) -> Outcome:
        member_id = joining_member.member_id
        if member_id in group.pending_join:
            if joining_member.instance_id is not None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return self._add(group, joining_member, request, respond)
        member = group.check_member(member_id, joining_member.instance_id)
        if group.state is PREPARING:
            return self._update(group, member, joining_member, request.reason, respond)
        if group.state not in (COMPLETING, STABLE):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        # A leader that rejoins requests a rebalance, for example because its topics changed.
        is_leader_rejoining = group.state is STABLE and group.leader_id == member_id
        if is_leader_rejoining or member.protocols != joining_member.protocols:
            return self._update(group, member, joining_member, request.reason, respond)
        # The request is a retry: the first response may have been lost.
        respond(group.join_response(member))
        return NOTHING

    def _add(self, group: ClassicGroup, member: Member, request: JoinGroupRequest, respond: JoinCallback) -> Outcome:
        self._timers.cancel(_pending_key(group, member.member_id))
        member.is_new = True
        if group.state is PREPARING and group.generation == 0:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        group.await_join(member, respond)
        self._extend_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = request.reason or "not given"
        return self._rebalance_or_complete(group, f"member {member.member_id} joined (reason: {reason})")

    def _update(
        self, group: ClassicGroup, member: Member, joining_member: Member, reason: str | None, respond: JoinCallback
    ) -> Outcome:
        self._update_settings(group, member, joining_member)
        group.await_join(member, respond)
        return self._rebalance_or_complete(
            group, f"member {member.member_id} rejoined (reason: {reason or 'not given'})"
        )

    def _update_settings(self, group: ClassicGroup, member: Member, joining_member: Member) -> None:
        group.set_protocols(member, joining_member.protocols)
        member.rebalance_timeout_ms = joining_member.rebalance_timeout_ms
        member.session_timeout_ms = joining_member.session_timeout_ms

    def _take_over(self, group: ClassicGroup, joining_member: Member, version: int, respond: JoinCallback) -> Outcome:
        """Replace a static member that restarted and joins without a member id."""
        instance_id = joining_member.instance_id
        assert instance_id is not None
        old_id, new_id = group.static_members[instance_id], joining_member.member_id
        old_leader = group.leader_id
        member = group.replace_static(instance_id, old_id, new_id)
        previous_member = copy(member)
        self._timers.cancel(_session_key(group, old_id))
        member.timer_at = None
        self._update_settings(group, member, joining_member)
        member.client_id, member.client_host = joining_member.client_id, joining_member.client_host
        self._extend_session(group, member, member.session_timeout_ms)
        group.await_join(member, respond)
        logger.info("Static member %s of group %s rejoined as %s", instance_id, group.group_id, new_id)
        if group.state is not STABLE or group.select_protocol() != group.protocol:
            # During a rebalance the leader may already have the old member id: rebalance again.
            return self._rebalance_or_complete(group, f"static member {instance_id} was replaced")

        def on_append(error: KafkaError | None) -> None:
            if member.member_id != new_id or group.static_members.get(instance_id) != new_id:
                return
            if error is not None:
                if not group.respond_to_join(member, join_error("", group_error(error))):
                    return
                group.replace_static(instance_id, new_id, old_id)
                self._update_settings(group, member, previous_member)
                member.client_id, member.client_host = previous_member.client_id, previous_member.client_host
                self._timers.cancel(_session_key(group, new_id))
                member.timer_at = None
                self._extend_session(group, member, member.session_timeout_ms)
                return
            response = group.join_response(member)
            if version >= MIN_SKIP_ASSIGNMENT_VERSION:
                response.skip_assignment = group.leader_id == new_id
            else:
                # The member would compute an assignment if the response named it as the leader.
                response.leader = old_leader or ""
                response.members = []
            group.respond_to_join(member, response)

        return Outcome((GroupRecord(group.group_id, group.to_value()),), on_append=on_append, replay=False)

    # ---- the rebalance

    def _rebalance_or_complete(self, group: ClassicGroup, reason: str) -> Outcome:
        if group.can_rebalance:
            return self._prepare_rebalance(group, reason)
        return self._complete_if_all_joined(group)

    def _prepare_rebalance(self, group: ClassicGroup, reason: str) -> Outcome:
        if group.state is COMPLETING:
            self._reset_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel(_sync_key(group))
        was_empty = group.state is EMPTY
        group.transition(PREPARING, self._clock.now_ms())
        logger.info("Rebalancing group %s, generation %d: %.1000s", group.group_id, group.generation, reason)
        if was_empty:
            delay = self.config.initial_rebalance_delay_ms
            group.new_member_added = False
            self._delay_rebalance(group, delay, max(group.rebalance_timeout_ms - delay, 0))
            return NOTHING
        if group.has_all_joined:
            return self._complete_join(group)
        self._wait_for_joins(group)
        return NOTHING

    def _wait_for_joins(self, group: ClassicGroup) -> None:
        self._timers.schedule(_join_key(group), group.rebalance_timeout_ms, partial(self._complete_join, group))

    def _delay_rebalance(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        group.remaining_delay_ms = remaining_ms
        self._timers.schedule(_join_key(group), delay_ms, partial(self._on_initial_delay, group))

    def _on_initial_delay(self, group: ClassicGroup) -> Outcome:
        """Delay the first rebalance again if members joined meanwhile, else complete the join. The
        total delay is at most the rebalance timeout."""
        remaining = group.remaining_delay_ms or 0
        if group.new_member_added and remaining > 0:
            group.new_member_added = False
            delay = min(self.config.initial_rebalance_delay_ms, remaining)
            self._delay_rebalance(group, delay, remaining - delay)
            return NOTHING
        return self._complete_join(group)

    def _complete_if_all_joined(self, group: ClassicGroup) -> Outcome:
        if group.state is PREPARING and group.remaining_delay_ms is None and group.has_all_joined:
            return self._complete_join(group)
        return NOTHING

    def _complete_join(self, group: ClassicGroup) -> Outcome:
        if group.state is not PREPARING:
            return NOTHING
        self._timers.cancel(_join_key(group))
        group.remaining_delay_ms = None
        for member in [m for m in group.members.values() if m.awaiting_join is None and not m.is_static]:
            logger.info("Removing member %s of group %s: it did not rejoin in time", member.member_id, group.group_id)
            self._remove_member(group, member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members remain, and none of them has rejoined. There is no leader until a
            # member rejoins or all sessions expire.
            self._wait_for_joins(group)
            return NOTHING
        group.next_generation(self._clock.now_ms())
        if group.state is EMPTY:
            logger.info("Group %s is empty after generation %d", group.group_id, group.generation)
            return Outcome(
                (GroupRecord(group.group_id, group.to_value()),), on_append=partial(_warn_on_error, group), replay=False
            )
        logger.info(
            "Group %s starts generation %d with %d members, leader %s, assignor %s",
            group.group_id,
            group.generation,
            len(group.members),
            group.leader_id,
            group.protocol,
        )
        for member in list(group.members.values()):
            group.respond_to_join(member, group.join_response(member))
            member.is_new = False
            group.pending_sync.add(member.member_id)
            self._extend_session(group, member, member.session_timeout_ms)
        self._timers.schedule(
            _sync_key(group), group.rebalance_timeout_ms, partial(self._on_sync_expired, group, group.generation)
        )
        return NOTHING

    def _on_sync_expired(self, group: ClassicGroup, generation: int) -> Outcome:
        if group.generation != generation or group.state not in (COMPLETING, STABLE) or not group.pending_sync:
            return NOTHING
        for member_id in list(group.pending_sync):
            logger.info("Removing member %s of group %s: it did not sync in time", member_id, group.group_id)
            self._remove_member(group, member_id)
        return self._prepare_rebalance(group, "members did not sync in time")

    # ---- SyncGroup

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, version: int, respond: SyncCallback) -> Outcome:
        if group.state is DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        requested = (request.protocol_type, request.protocol_name)
        if version >= 5 and requested != (group.protocol_type, group.protocol) and group.state in (COMPLETING, STABLE):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state is EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group.pending_sync.discard(member.member_id)
        if group.state is STABLE:
            self._extend_session(group, member, member.session_timeout_ms)
            respond(group.sync_response(member))
            return NOTHING
        # The request is a retry after the connection was closed: fail the earlier request.
        group.respond_to_sync(member, SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.awaiting_sync = respond
        if group.leader_id != member.member_id:
            return NOTHING
        # Members that the leader omits get an empty assignment.
        requested_assignments = {a.member_id: a.assignment for a in request.assignments}
        assignments = {member_id: requested_assignments.get(member_id, b"") for member_id in group.members}
        return Outcome(
            (GroupRecord(group.group_id, group.to_value(assignments)),),
            on_append=partial(self._on_assigned, group, group.generation, assignments),
            replay=False,
        )

    def _on_assigned(
        self, group: ClassicGroup, generation: int, assignments: dict[str, bytes], error: KafkaError | None
    ) -> None:
        if group.state is not COMPLETING or group.generation != generation:
            return
        if error is not None:
            self._reset_assignments(group, group_error(error))
            self._prepare_rebalance(group, f"the assignment could not be written ({error.message})")
            return
        group.transition(STABLE, self._clock.now_ms())
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        for member in list(group.members.values()):
            if group.respond_to_sync(member, group.sync_response(member)):
                self._extend_session(group, member, member.session_timeout_ms)

    def _reset_assignments(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in list(group.members.values()):
            member.assignment = b""
            if group.respond_to_sync(member, SyncGroupResponse(error_code=int(code))):
                self._extend_session(group, member, member.session_timeout_ms)

    # ---- Heartbeat

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest) -> None:
        state = group.state
        if state is DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if state is EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._extend_session(group, member, member.session_timeout_ms)
        if state is PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def on_commit(self, group: ClassicGroup, member: Member) -> None:
        self._extend_session(group, member, member.session_timeout_ms)

    # ---- LeaveGroup

    def leave(self, group: ClassicGroup, leaving_members: Sequence[MemberIdentity]) -> Outcome:
        if group.state is DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        responses = [self._remove_leaving(group, identity) for identity in leaving_members]
        if all(response.error_code for response in responses):
            return Outcome(response=responses)
        reasons = ", ".join(sorted({identity.reason for identity in leaving_members if identity.reason})) or "not given"
        member_ids = ", ".join(response.member_id for response in responses)
        outcome = self._rebalance_after_removal(group, f"members left: {member_ids} (reasons: {reasons})")
        return outcome._replace(response=responses)

    def _remove_leaving(self, group: ClassicGroup, identity: MemberIdentity) -> MemberResponse:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        response = MemberResponse(member_id=member_id, group_instance_id=instance_id)
        if member_id in group.pending_join:
            group.pending_join.discard(member_id)
            self._timers.cancel(_pending_key(group, member_id))
            return response
        if not member_id and instance_id is not None:
            # An administrator removes a static member by its instance id alone.
            member_id = group.static_members.get(instance_id, "")
        try:
            member = group.check_member(member_id, instance_id)
        except KafkaError as error:
            response.error_code = int(error.code)
            return response
        self._remove_member(group, member.member_id)
        return response

    # ---- sessions

    def _extend_session(self, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        deadline = self._clock.monotonic() * 1000 + timeout_ms
        member.deadline = deadline
        if member.timer_at is None or deadline < member.timer_at:
            self._watch_session(group, member, timeout_ms)

    def _watch_session(self, group: ClassicGroup, member: Member, delay_ms: float) -> None:
        member.timer_at = self._clock.monotonic() * 1000 + delay_ms
        self._timers.schedule(
            _session_key(group, member.member_id),
            delay_ms,
            partial(self._on_session_timer, group, member.member_id),
        )

    def _on_session_timer(self, group: ClassicGroup, member_id: str) -> Outcome:
        member = group.members.get(member_id)
        if member is None or group.state is DEAD:
            return NOTHING
        remaining = member.deadline - self._clock.monotonic() * 1000
        if remaining > 0:
            self._watch_session(group, member, remaining)
            return NOTHING
        has_pending_request = member.awaiting_join is not None or member.awaiting_sync is not None
        if has_pending_request and not member.is_new:
            # A member sends no heartbeats while its request is pending.
            self._watch_session(group, member, member.session_timeout_ms)
            return NOTHING
        logger.info("Removing member %s of group %s: its session expired", member_id, group.group_id)
        self._remove_member(group, member_id)
        return self._rebalance_after_removal(group, f"the session of {member_id} expired")

    def _rebalance_after_removal(self, group: ClassicGroup, reason: str) -> Outcome:
        if group.state in (STABLE, COMPLETING):
            return self._prepare_rebalance(group, reason)
        return self._complete_if_all_joined(group)

    def _on_pending_expired(self, group: ClassicGroup, member_id: str) -> Outcome:
        group.pending_join.discard(member_id)
        return self._complete_if_all_joined(group)

    def _remove_member(self, group: ClassicGroup, member_id: str) -> None:
        """Remove the member. Its pending requests fail with UNKNOWN_MEMBER_ID."""
        member = group.members.get(member_id)
        if member is None:
            return
        group.respond_to_join(member, join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
        group.respond_to_sync(member, SyncGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID)))
        group.remove(member_id)
        self._timers.cancel(_session_key(group, member_id))

    # ---- groups

    def remove(self, group: ClassicGroup) -> Outcome:
        """Make the group DEAD. The group is dropped when its tombstone is committed. Members that
        join meanwhile must retry."""
        timestamp = group.state_timestamp
        self.on_unloaded(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                group.state, group.state_timestamp = EMPTY, timestamp
            elif self._shard.groups.get(group.group_id) is group:
                del self._shard.groups[group.group_id]

        # A group that was never written needs no tombstone.
        tombstones = (GroupRecord(group.group_id, None),) if group.generation > 0 else ()
        return Outcome(tombstones, on_append=on_append)

    def on_loaded(self, group: ClassicGroup) -> Outcome:
        for member in group.members.values():
            self._extend_session(group, member, member.session_timeout_ms)
        if len(group.members) > self.config.max_size:
            return self._prepare_rebalance(group, f"it has more than {self.config.max_size} members")
        return NOTHING

    def adopt(self, group: ClassicGroup, reason: str) -> Outcome:
        """Rebalance a group that was converted from a consumer group."""
        for member in group.members.values():
            self._extend_session(group, member, member.session_timeout_ms)
        return self._prepare_rebalance(group, reason)

    def on_unloaded(self, group: ClassicGroup, code: ErrorCode) -> None:
        self.stop(group, code)
        group.transition(DEAD, self._clock.now_ms())

    def stop(self, group: ClassicGroup, code: ErrorCode) -> None:
        """Fail the pending requests of the group with `code`, and stop its timers."""
        for member in list(group.members.values()):
            group.respond_to_join(member, join_error(member.member_id, code))
            group.respond_to_sync(member, SyncGroupResponse(error_code=int(code)))
        self.cancel_timers(group)

    def cancel_timers(self, group: ClassicGroup) -> None:
        for member_id, member in group.members.items():
            self._timers.cancel(_session_key(group, member_id))
            member.timer_at = None
        for member_id in group.pending_join:
            self._timers.cancel(_pending_key(group, member_id))
        group.pending_join.clear()
        self._timers.cancel(_join_key(group))
        self._timers.cancel(_sync_key(group))


def group_error(error: KafkaError) -> ErrorCode:
    """Return the error code for members when the record of a group could not be written."""
    too_large = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    return ErrorCode.UNKNOWN_SERVER_ERROR if error.code in too_large else error.code


def _warn_on_error(group: ClassicGroup, error: KafkaError | None) -> None:
    if error is not None:
        # After a failover, the coordinator loads the previous generation, and the sessions of its
        # members expire.
        logger.warning("Cannot write the empty state of group %s: %s", group.group_id, error.message)


def _session_key(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    return ("session", group.group_id, member_id)


def _pending_key(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    return ("pending", group.group_id, member_id)


def _join_key(group: ClassicGroup) -> tuple[str, str]:
    return ("join", group.group_id)


def _sync_key(group: ClassicGroup) -> tuple[str, str]:
    return ("sync", group.group_id)
