"""[pure] ConsumerGroupHeartbeat: members of the consumer protocol join, reconcile and leave.

A heartbeat has up to three steps. Each step uses the result of the previous step:
1. The member joins or updates its subscription. A change that may move partitions increments the
   group epoch.
2. If the target assignment lags the group epoch, a new target is computed, at most once per
   `group.consumer.assignment.interval.ms`.
3. The member takes the next step of its reconciliation (`reconciliation.py`).

An operation that raises an error has changed nothing. Responses are sent when the records are
committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.regex import PatternError
from kavka.coordinator.group.consumer.assignors import Assignor
from kavka.coordinator.group.consumer.change import Change
from kavka.coordinator.group.consumer.config import ConsumerConfig
from kavka.coordinator.group.consumer.patterns import Patterns, TopicFilter
from kavka.coordinator.group.consumer.range import assign_ranges
from kavka.coordinator.group.consumer.reconciliation import ReportedPartitions, partitions_of, reconcile, reports_only
from kavka.coordinator.group.consumer.records import (
    RECORD_TYPES,
    CurrentAssignment,
    CurrentAssignmentRecord,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    OwnedPartitions,
    PatternRecord,
    ResolvedPattern,
    TargetMemberRecord,
)
from kavka.coordinator.group.consumer.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    Member,
    MemberState,
)
from kavka.coordinator.group.consumer.topics import Topics, metadata_hash
from kavka.coordinator.group.consumer.uniform import assign_uniformly
from kavka.coordinator.group.group import Groups
from kavka.coordinator.operations import NOTHING, Outcome, Timers
from kavka.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

logger = logging.getLogger(__name__)

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
# The first version of ConsumerGroupHeartbeat in which the client generates its member id.
MIN_CLIENT_MEMBER_ID_VERSION = 1
# The maximum heartbeat interval of a member that waits for its target or for partitions of other
# members.
MAX_WAITING_HEARTBEAT_INTERVAL_MS = 1_000
FENCING_RETRY_DELAY_MS = 1_000


class ConsumerProtocol:
    """The operations of the consumer protocol on the groups of one shard."""

    def __init__(self, shard: Groups, clock: Clock, timers: Timers, config: ConsumerConfig, topics: Topics) -> None:
        self._shard = shard
        self._clock = clock
        self._timers = timers
        self.config = config
        self.topics = topics
        self.patterns = Patterns()
        self._assignors = {name: ASSIGNORS[name] for name in config.assignors if name in ASSIGNORS} or ASSIGNORS
        self.default_assignor = next(iter(self._assignors))
        # By group id: `Topics.version` when the group's metadata hash and patterns were last
        # checked.
        self._checked_topics_version: dict[str, int] = {}
        for record_type in RECORD_TYPES:
            shard.add_replay(record_type, self.replay)

    # ---- replay

    def replay(self, record: Any) -> None:
        groups, journal = self._shard.groups, self._shard.journal
        group = self.find(record.group)
        if group is None:
            if record.value is None:
                return
            # The group is created, or replaces a classic group.
            group = ConsumerGroup(record.group)
            journal.put(groups, record.group, group)
        if type(record) is GroupEpochRecord and record.value is None:
            journal.drop(groups, record.group)
            return
        group.apply(record, journal)

    def on_loaded(self, group: ConsumerGroup) -> Outcome:
        for member in group.members.values():
            self.watch_session(group.group_id, member)
            if member.current.state == MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                self._watch_rebalance(group.group_id, member)
        return NOTHING

    def on_unloaded(self, group: ConsumerGroup, code: ErrorCode) -> None:
        """Do nothing: heartbeats never wait, so there is no pending request to fail."""

    def on_commit(self, group: ConsumerGroup, member: Member) -> None:
        """Do nothing: a commit does not extend the session."""

    def remove(self, group: ConsumerGroup) -> Outcome:
        return Outcome(group.tombstones())

    def find(self, group_id: str) -> ConsumerGroup | None:
        group = self._shard.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def group(self, group_id: str) -> ConsumerGroup:
        group = self.find(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    # ---- checks

    def check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        epoch = request.member_epoch
        needs_member_id = version >= MIN_CLIENT_MEMBER_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
        if needs_member_id and not request.member_id.strip():
            _reject("MemberId can't be empty.")
        if not request.group_id.strip():
            _reject("GroupId can't be empty.")
        if request.instance_id is not None and not request.instance_id.strip():
            _reject("InstanceId can't be empty.")
        if request.rack_id is not None and not request.rack_id.strip():
            _reject("RackId can't be empty.")
        if epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms == -1:
                _reject("RebalanceTimeoutMs must be provided in first request.")
            if request.topic_partitions is None or request.topic_partitions:
                _reject("TopicPartitions must be empty when (re-)joining.")
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                _reject("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
        elif epoch == STATIC_LEAVE_EPOCH:
            if request.instance_id is None:
                _reject("InstanceId can't be null.")
        elif epoch < STATIC_LEAVE_EPOCH:
            _reject("MemberEpoch is invalid.")
        if request.server_assignor is not None and request.server_assignor not in self._assignors:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. "
                f"Supported assignors: {', '.join(self._assignors)}.",
            )

    def check_size(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Enforce `group.consumer.max.size`. Existing members, and members that replace a static
        member, may always join."""
        if (
            len(group.members) >= self.config.max_size
            and member_id not in group.members
            and group.static_member(instance_id) is None
        ):
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self.config.max_size} members.",
            )

    # ---- ConsumerGroupHeartbeat

    def join_or_reconcile(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        migration_records: Sequence[Any] = (),
        visible: TopicFilter | None = None,
    ) -> Outcome:
        """Handle a heartbeat of a member that does not leave. If a classic group is
        upgraded, `group` is the new consumer group, and `migration_records` are the records that
        create it. Patterns match only the topics that `visible` returns."""
        joins = request.member_epoch == JOIN_EPOCH
        self.check_size(group, request.member_id, request.instance_id)
        member_id = request.member_id or str(uuid4())
        reported = request.topic_partitions
        change = Change(group, migration_records)
        member = self._find_member(change, member_id, request)
        previous = member.subscription
        names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
        subscription = MemberMetadata(
            previous.instance_id if request.instance_id is None else request.instance_id,
            previous.rack_id if request.rack_id is None else request.rack_id,
            client_id,
            client_host,
            previous.topics if names is None else frozenset(names),
            previous.pattern if pattern is None else pattern,
            previous.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
            previous.assignor if request.server_assignor is None else request.server_assignor,
        )
        subscription_changed = self.update_member(change, member, subscription, visible)
        self.update_target(change)
        current = self.update_current(change, member_id, reported, subscription_changed)
        self.watch_session(group.group_id, change.group.members[member_id])
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(change.group, current),
        )
        has_subscription = names is not None or pattern is not None
        is_full_request = request.rebalance_timeout_ms != -1 and has_subscription and reported is not None
        if joins or is_full_request or partitions_of(member.current.assigned) != partitions_of(current.assigned):
            response.assignment = _as_assignment(current.assigned)
        return Outcome(change.records, response, partial(self._on_written, group.group_id, ()))

    def _heartbeat_interval_ms(self, group: ConsumerGroup, current: CurrentAssignment) -> int:
        interval = self.config.timing(group.group_id).heartbeat_interval_ms
        is_waiting = current.state == MemberState.UNRELEASED_PARTITIONS or group.epoch > group.assignment_epoch
        return min(interval, MAX_WAITING_HEARTBEAT_INTERVAL_MS) if is_waiting else interval

    def _find_member(self, change: Change, member_id: str, request: ConsumerGroupHeartbeatRequest) -> Member:
        group, instance_id = change.group, request.instance_id
        if request.member_epoch != JOIN_EPOCH:
            member = group.check_member(member_id, instance_id)
            check_epoch(member, request.member_epoch, request.topic_partitions)
            return member
        if instance_id is None:
            logger.info("Member %s joins group %s", member_id, group.group_id)
            return group.members.get(member_id) or Member(member_id)
        previous = group.static_member(instance_id)
        logger.info("Static member %s joins group %s as %s", instance_id, group.group_id, member_id)
        if previous is None:
            return group.members.get(member_id) or Member(member_id)
        if not previous.is_classic and previous.epoch != STATIC_LEAVE_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {previous.member_id} member.",
            )
        return self.replace_member(change, previous, member_id)

    def replace_member(self, change: Change, previous: Member, member_id: str) -> Member:
        """Replace a static member that rejoins with another member id. The assignment stays the
        same."""
        group_id = change.group.group_id
        target = change.group.target.get(previous.member_id, {})
        member = previous._replace(
            member_id=member_id, current=previous.current._replace(epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        )
        change.remove_member(previous.member_id)
        change.add(MemberRecord(group_id, member_id, member.subscription))
        change.add(TargetMemberRecord(group_id, member_id, target))
        change.add(CurrentAssignmentRecord(group_id, member_id, member.current))
        return member

    # ---- the steps of a heartbeat

    def update_member(
        self,
        change: Change,
        member: Member,
        subscription: MemberMetadata,
        visible: TopicFilter | None = None,
        *,
        resolves_patterns: bool = True,
    ) -> bool:
        """Add the records of a changed subscription, and raise the group epoch if partitions may
        move. Return whether the member's subscription changed."""
        group_id, member_id = change.group.group_id, member.member_id
        previous = member.subscription
        assignor_changed = subscription.assignor != previous.assignor
        assignor = change.group.preferred_assignor(self.default_assignor) if assignor_changed else ""
        if subscription != previous or member_id not in change.group.members:
            change.add(MemberRecord(group_id, member_id, subscription))
        names_changed = subscription.topics != previous.topics
        pattern_changed = subscription.pattern != previous.pattern
        needs_epoch = (
            change.group.epoch == 0
            or names_changed
            or pattern_changed
            or (assignor_changed and assignor != change.group.preferred_assignor(self.default_assignor))
        )
        version = self.topics.version
        topics_changed = self._checked_topics_version.get(group_id) != version
        if resolves_patterns and (pattern_changed or (topics_changed and change.group.used_patterns())):
            needs_epoch |= self._resolve_patterns(change, subscription.pattern if pattern_changed else "", visible)
        if not needs_epoch and topics_changed:
            needs_epoch = metadata_hash(change.group.subscribed_topics(), self.topics) != change.group.metadata_hash
        if resolves_patterns or not change.group.used_patterns():
            self._checked_topics_version[group_id] = version
        if needs_epoch:
            change.raise_epoch(self.topics)
            logger.info("Group %s moves to epoch %d", group_id, change.group.epoch)
        return names_changed or pattern_changed

    def _resolve_patterns(self, change: Change, new_pattern: str, visible: TopicFilter | None) -> bool:
        """Resolve the group's patterns. As in Kafka, the rights of the member that sends the
        heartbeat determine the topics. Return whether the matching topics changed. Raises
        INVALID_REGULAR_EXPRESSION if `new_pattern` is invalid."""
        has_changed = False
        change.drop_unused_patterns()
        for pattern in sorted(change.group.used_patterns()):
            try:
                topics = self.patterns.resolve(pattern, self.topics.names())
                if visible is not None:
                    topics = visible(topics)
            except PatternError as error:
                if pattern == new_pattern:
                    raise KafkaError(
                        ErrorCode.INVALID_REGULAR_EXPRESSION,
                        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
                    ) from None
                logger.warning(
                    "Cannot resolve the pattern %s of group %s, keeping its previous topics: %s",
                    pattern,
                    change.group.group_id,
                    error,
                )
                continue
            resolved = change.group.patterns.get(pattern)
            if resolved is None or resolved.topics != topics:
                has_changed = True
                resolved = ResolvedPattern(topics, self.topics.version, self._clock.now_ms())
                change.add(PatternRecord(change.group.group_id, pattern, resolved))
        return has_changed

    def update_target(self, change: Change) -> None:
        group = change.group
        if group.epoch <= group.assignment_epoch or not self.may_assign(group):
            return
        name = group.preferred_assignor(self.default_assignor)
        assignor = self._assignors.get(name) or self._assignors[self.default_assignor]
        change.update_target(assignor, self.topics, self._clock.now_ms())
        logger.info(
            "Computed the target assignment of group %s, epoch %d, assignor %s", group.group_id, group.epoch, name
        )

    def may_assign(self, group: ConsumerGroup) -> bool:
        assigned_at_ms = group.assignment_timestamp
        interval = self.config.timing(group.group_id).assignment_interval_ms
        return not assigned_at_ms or not 0 <= self._clock.now_ms() - assigned_at_ms < interval

    def update_current(
        self, change: Change, member_id: str, reported: ReportedPartitions, subscription_changed: bool
    ) -> CurrentAssignment:
        group = change.group
        member = group.members[member_id]
        if not subscription_changed and member.is_at(group.assignment_epoch):
            return member.current
        names = group.topics_of(member.subscription)
        current = reconcile(
            member,
            group.assignment_epoch,
            group.target.get(member_id, {}),
            subscribes=lambda topic_id: self._subscribes(names, topic_id),
            owner=group.owner,
            reported=reported,
            subscription_changed=subscription_changed,
        )
        if current != member.current:
            change.add_last(CurrentAssignmentRecord(group.group_id, member_id, current))
            if not member.is_classic:
                if current.state == MemberState.UNREVOKED_PARTITIONS:
                    self._watch_rebalance(group.group_id, member._replace(current=current))
                else:
                    self._timers.cancel(_rebalance_key(group.group_id, member_id))
        return current

    def _subscribes(self, names: frozenset[str], topic_id: UUID) -> bool:
        name = self.topics.name_of(topic_id)
        return name is not None and name in names

    # ---- leaving and fencing

    def leave_by_heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> Outcome:
        """Remove a member. A static member may leave temporarily and keep its partitions."""
        group = self.group(request.group_id)
        member = group.check_member(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
        if request.instance_id is None or request.member_epoch != STATIC_LEAVE_EPOCH:
            logger.info("Member %s leaves group %s", member.member_id, group.group_id)
            return self.fence(group, (member,), response)
        logger.info("Static member %s leaves group %s temporarily", request.instance_id, group.group_id)
        current = member.current._replace(epoch=STATIC_LEAVE_EPOCH, revoking={})
        return Outcome((CurrentAssignmentRecord(group.group_id, member.member_id, current),), response)

    def fence(self, group: ConsumerGroup, members: Iterable[Member], response: Any = None) -> Outcome:
        """Remove members. The next target assigns their partitions to other members."""
        member_ids = [member.member_id for member in members]
        if not member_ids:
            return Outcome(response=response)
        change = Change(group)
        for member_id in member_ids:
            change.remove_member(member_id)
        change.drop_unused_patterns()
        change.raise_epoch(self.topics)
        logger.info("Group %s moves to epoch %d without %s", group.group_id, change.group.epoch, ", ".join(member_ids))
        return Outcome(change.records, response, partial(self._on_written, group.group_id, member_ids))

    def _on_written(self, group_id: str, removed: Sequence[str], error: KafkaError | None) -> None:
        if error is not None:
            self._checked_topics_version.pop(group_id, None)
            for member_id in removed:
                # The member was not removed, and its session timer may have fired.
                self._timers.schedule(
                    session_key(group_id, member_id),
                    FENCING_RETRY_DELAY_MS,
                    partial(self._on_timer, group_id, member_id, "an earlier removal could not be written"),
                )
            return
        for member_id in removed:
            self.cancel_timers(group_id, member_id)

    # ---- timers

    def on_settings(self, group_id: str) -> None:
        """Apply the group's new session timeout. The other settings apply from the next heartbeat
        on."""
        group = self.find(group_id)
        if group is not None:
            for member in group.members.values():
                if not member.is_classic:
                    self.watch_session(group_id, member)

    def watch_session(self, group_id: str, member: Member) -> None:
        classic = member.subscription.classic
        timeout = (classic or self.config.timing(group_id)).session_timeout_ms
        self._timers.schedule(
            session_key(group_id, member.member_id),
            timeout,
            partial(self._on_timer, group_id, member.member_id, "its session expired"),
        )

    def _watch_rebalance(self, group_id: str, member: Member) -> None:
        self._timers.schedule(
            _rebalance_key(group_id, member.member_id),
            # The rebalance timeout is -1 if the log has lost the member's record.
            max(member.subscription.rebalance_timeout_ms, self.config.timing(group_id).heartbeat_interval_ms),
            partial(
                self._on_timer, group_id, member.member_id, "it did not revoke its partitions in time", member.epoch
            ),
        )

    def _on_timer(self, group_id: str, member_id: str, reason: str, unrevoked_epoch: int | None = None) -> Outcome:
        group = self.find(group_id)
        member = group.members.get(member_id) if group is not None else None
        if member is None or group is None:
            return NOTHING
        if unrevoked_epoch is not None and (
            member.epoch != unrevoked_epoch or member.current.state != MemberState.UNREVOKED_PARTITIONS
        ):
            return NOTHING
        logger.info("Removing member %s of group %s: %s", member_id, group_id, reason)
        return self.fence(group, (member,))

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        self._timers.cancel(session_key(group_id, member_id))
        self._timers.cancel(_rebalance_key(group_id, member_id))


def check_epoch(member: Member, epoch: int, reported: ReportedPartitions) -> None:
    """Raise FENCED_MEMBER_EPOCH unless `epoch` is the member epoch. The previous epoch is also
    valid if the member reports only assigned partitions: it did not receive the last response."""
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if (
        epoch < member.epoch
        and epoch == member.current.previous_epoch
        and reports_only(reported, member.current.assigned)
    ):
        return
    comparison = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {comparison} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _reject(message: str) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _as_assignment(owned: OwnedPartitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(owned[topic_id])) for topic_id in sorted(owned)
        ]
    )


def session_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer session", group_id, member_id)


def _rebalance_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer rebalance", group_id, member_id)
