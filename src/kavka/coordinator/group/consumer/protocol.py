"""[pure] ConsumerGroupHeartbeat: members of the new protocol join, live, are told what to do, and leave.

A heartbeat does up to three things, each on what the one before has made of the group:
1. The member comes, or says something new of itself. What may move partitions raises the group's epoch.
2. Where the target assignment is behind the group's epoch, a new one is made; at most one in an interval.
3. The member takes its next step towards the target.

An error that is raised has changed nothing. Answers are given when the records are in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol
from uuid import UUID, uuid4

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.regex import BadPattern
from kavka.coordinator.group.consumer import assignors
from kavka.coordinator.group.consumer.change import Change
from kavka.coordinator.group.consumer.config import ConsumerConfig
from kavka.coordinator.group.consumer.patterns import Patterns
from kavka.coordinator.group.consumer.reconciliation import Reported, partitions_of, reconcile, reports_only
from kavka.coordinator.group.consumer.records import (
    KINDS,
    Current,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    Owned,
    PatternRecord,
    ResolvedPattern,
    Subscription,
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
from kavka.coordinator.operations import NOTHING, Journal, OnAppend, Outcome, Timers
from kavka.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

log = logging.getLogger(__name__)

CLIENT_MAKES_MEMBER_ID_FROM = 1
# A member that waits (for the target, or for what others give up) is asked to come again sooner than others.
WAITING_HEARTBEAT_MS = 1_000
RETRY_FENCING_MS = 1_000


class Shard(Protocol):
    """What is needed of the shard that the groups are part of."""

    groups: dict[str, Any]
    journal: Journal

    def add_replay(self, kind: type, replay: Any) -> None: ...


class ConsumerProtocol:
    """The groups of the new protocol among those of one shard."""

    def __init__(self, shard: Shard, clock: Clock, timers: Timers, config: ConsumerConfig, topics: Topics) -> None:
        self._shard = shard
        self._clock = clock
        self._timers = timers
        self.config = config
        self.topics = topics
        self.patterns = Patterns()
        known = assignors.by_name()
        self._assignors = {name: known[name] for name in config.assignors if name in known} or known
        self.default_assignor = next(iter(self._assignors))
        # By group: the version of the topics for which the metadata hash, and the patterns, were last looked at.
        self._seen: dict[str, int] = {}
        for kind in KINDS:
            shard.add_replay(kind, self.replay)

    # ---- replay

    def replay(self, record: Any) -> None:
        groups, journal = self._shard.groups, self._shard.journal
        group = groups.get(record.group)
        if not isinstance(group, ConsumerGroup):
            if record.value is None:
                return
            # It comes new, or in the place of a classic group.
            group = ConsumerGroup(record.group)
            journal.put(groups, record.group, group)
        if type(record) is GroupEpochRecord and record.value is None:
            journal.drop(groups, record.group)
            return
        group.apply(record, journal)

    def on_loaded(self) -> None:
        for group in self.groups():
            for member in group.members.values():
                self.watch_session(group.group_id, member)
                if member.current.state == MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                    self._watch_rebalance(group.group_id, member)

    def groups(self) -> list[ConsumerGroup]:
        return [group for group in self._shard.groups.values() if isinstance(group, ConsumerGroup)]

    def group(self, group_id: str) -> ConsumerGroup:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    # ---- checks

    def check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        epoch = request.member_epoch
        if (version >= CLIENT_MAKES_MEMBER_ID_FROM or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH) and (
            not request.member_id.strip()
        ):
            _refuse("MemberId can't be empty.")
        if not request.group_id.strip():
            _refuse("GroupId can't be empty.")
        if request.instance_id is not None and not request.instance_id.strip():
            _refuse("InstanceId can't be empty.")
        if request.rack_id is not None and not request.rack_id.strip():
            _refuse("RackId can't be empty.")
        if epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms == -1:
                _refuse("RebalanceTimeoutMs must be provided in first request.")
            if request.topic_partitions is None or request.topic_partitions:
                _refuse("TopicPartitions must be empty when (re-)joining.")
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                _refuse("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
        elif epoch == STATIC_LEAVE_EPOCH:
            if request.instance_id is None:
                _refuse("InstanceId can't be null.")
        elif epoch < STATIC_LEAVE_EPOCH:
            _refuse("MemberEpoch is invalid.")
        if request.server_assignor is not None and request.server_assignor not in self._assignors:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. "
                f"Supported assignors: {', '.join(self._assignors)}.",
            )

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """`group.consumer.max.size`. Who is a member already, or takes the place of one, needs no room."""
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

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        before: list[Any],
    ) -> Outcome:
        """Of a member that joins or stays. `before`: what has to be written first where the group comes from a classic
        one, for which it then is an unwritten draft."""
        joins = request.member_epoch == JOIN_EPOCH
        self.check_room(group, request.member_id, request.instance_id)
        member_id = request.member_id or str(uuid4())
        reported = request.topic_partitions
        change = Change(group, before)
        member = self._find_member(change, member_id, request.instance_id, request.member_epoch, reported, joins)
        old = member.subscription
        subscription = Subscription(
            request.instance_id if request.instance_id is not None else old.instance_id,
            request.rack_id if request.rack_id is not None else old.rack_id,
            client_id,
            client_host,
            old.topics if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
            old.pattern if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
            old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
            old.assignor if request.server_assignor is None else request.server_assignor,
        )
        subscription_changed = self.update_member(change, member, subscription)
        self.update_target(change)
        current = self.update_current(change, member_id, reported, subscription_changed)
        self.watch_session(group.group_id, change.group.members[member_id])
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._interval_for(change.group, current),
        )
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and reported is not None
        )
        if joins or is_full or partitions_of(member.current.assigned) != partitions_of(current.assigned):
            response.assignment = _as_assignment(current.assigned)
        return Outcome(change.records, response, partial(self._forget_seen_on_error, group.group_id, None))

    def _interval_for(self, group: ConsumerGroup, current: Current) -> int:
        interval = self.config.timing(group.group_id).heartbeat_interval_ms
        waits = current.state == MemberState.UNRELEASED_PARTITIONS or group.epoch > group.assignment_epoch
        return min(interval, WAITING_HEARTBEAT_MS) if waits else interval

    def _find_member(
        self,
        change: Change,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        reported: Reported,
        joins: bool,
    ) -> Member:
        group = change.group
        if instance_id is None:
            if joins:
                member = group.members.get(member_id) or Member(member_id)
                log.info("Member %s joins group %s", member_id, group.group_id)
            else:
                member = group.member(member_id)
            check_epoch(member, epoch, reported)
            return member
        if not joins:
            member = group.check_static(instance_id, member_id)
            check_epoch(member, epoch, reported)
            return member
        known = group.static_member(instance_id)
        log.info("Static member %s joins group %s as %s", instance_id, group.group_id, member_id)
        if known is None:
            return group.members.get(member_id) or Member(member_id)
        if not known.is_classic and known.epoch != STATIC_LEAVE_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {known.member_id} member.",
            )
        return self.replace_member(change, known, member_id)

    def replace_member(self, change: Change, known: Member, member_id: str) -> Member:
        """A static member is back, under another member id: it goes on in the place that it had."""
        group_id = change.group.group_id
        target = change.group.target.get(known.member_id, {})
        member = known._replace(
            member_id=member_id, current=known.current._replace(epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        )
        change.remove_member(known.member_id)
        change.add(MemberRecord(group_id, member_id, member.subscription))
        change.add(TargetMemberRecord(group_id, member_id, target))
        change.add(CurrentRecord(group_id, member_id, member.current))
        return member

    # ---- the three things

    def update_member(self, change: Change, member: Member, subscription: Subscription) -> bool:
        """Whether the member now subscribes to something else."""
        group_id, member_id = change.group.group_id, member.member_id
        old = member.subscription
        votes = subscription.assignor != old.assignor
        assignor = change.group.preferred_assignor(self.default_assignor) if votes else ""
        if subscription != old or member_id not in change.group.members:
            change.add(MemberRecord(group_id, member_id, subscription))
        names_changed = subscription.topics != old.topics
        pattern_changed = subscription.pattern != old.pattern
        raises = (
            change.group.epoch == 0
            or names_changed
            or pattern_changed
            or (votes and assignor != change.group.preferred_assignor(self.default_assignor))
        )
        version = self.topics.version
        if pattern_changed or (self._seen.get(group_id) != version and change.group.used_patterns()):
            raises |= self._resolve_patterns(change, subscription.pattern if pattern_changed else "")
        if not raises and self._seen.get(group_id) != version:
            raises = metadata_hash(change.group.subscribed_topics(), self.topics) != change.group.metadata_hash
        self._seen[group_id] = version
        if raises:
            change.raise_epoch(self.topics)
            log.info("Group %s comes to epoch %d", group_id, change.group.epoch)
        return names_changed or pattern_changed

    def _resolve_patterns(self, change: Change, new: str) -> bool:
        """Find the topics that the group's patterns stand for; `new` must be a proper one. Whether they changed."""
        changed = False
        change.forget_unused_patterns()
        for pattern in sorted(change.group.used_patterns()):
            try:
                topics = self.patterns.resolve(pattern, self.topics.names())
            except BadPattern as error:
                if pattern == new:
                    raise KafkaError(
                        ErrorCode.INVALID_REGULAR_EXPRESSION,
                        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
                    ) from None
                log.warning("Group %s keeps what it knows of the pattern %s: %s", change.group.group_id, pattern, error)
                continue
            known = change.group.patterns.get(pattern)
            if known is None or known.topics != topics:
                changed = True
                resolved = ResolvedPattern(topics, self.topics.version, self._clock.now_ms())
                change.add(PatternRecord(change.group.group_id, pattern, resolved))
        return changed

    def update_target(self, change: Change) -> None:
        group = change.group
        if group.epoch <= group.assignment_epoch:
            return
        if not self.may_assign(group):
            return
        name = group.preferred_assignor(self.default_assignor)
        assignor = self._assignors.get(name) or self._assignors[self.default_assignor]
        change.new_target(assignor, self.topics, self._clock.now_ms())
        log.info("Group %s has a target assignment for epoch %d, made by %s", group.group_id, group.epoch, name)

    def may_assign(self, group: ConsumerGroup) -> bool:
        made = group.assignment_timestamp
        interval = self.config.timing(group.group_id).assignment_interval_ms
        return not made or not 0 <= self._clock.now_ms() - made < interval

    def update_current(self, change: Change, member_id: str, reported: Reported, subscription_changed: bool) -> Current:
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
            change.add_last(CurrentRecord(group.group_id, member_id, current))
            if not member.is_classic:
                if current.state == MemberState.UNREVOKED_PARTITIONS:
                    self._watch_rebalance(group.group_id, member._replace(current=current))
                else:
                    self._timers.cancel(_rebalance_key(group.group_id, member_id))
        return current

    def _subscribes(self, names: frozenset[str], topic_id: UUID) -> bool:
        name = self.topics.name_of(topic_id)
        return name is not None and name in names

    # ---- leaving, by one's own will or not

    def leave(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, Member, Outcome | None]:
        """The group, the member that leaves, and, where it only leaves for a while, what that does."""
        group = self.group(request.group_id)
        member = group.check_member(request.member_id, request.instance_id)
        if request.instance_id is None or request.member_epoch != STATIC_LEAVE_EPOCH:
            log.info("Member %s leaves group %s", member.member_id, group.group_id)
            return group, member, None
        log.info("Static member %s leaves group %s for a while", request.instance_id, group.group_id)
        current = member.current._replace(epoch=STATIC_LEAVE_EPOCH, revoking={})
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=STATIC_LEAVE_EPOCH)
        return group, member, Outcome((CurrentRecord(group.group_id, member.member_id, current),), response)

    def fence(self, group: ConsumerGroup, members: Iterable[Member], response: Any = None) -> Outcome:
        """Take members out. What they had is free; the others get it with the next target."""
        gone = [member.member_id for member in members]
        if not gone:
            return Outcome(response=response)
        change = Change(group)
        for member_id in gone:
            change.remove_member(member_id)
        change.forget_unused_patterns()
        change.raise_epoch(self.topics)
        log.info("Group %s comes to epoch %d without %s", group.group_id, change.group.epoch, ", ".join(gone))
        return Outcome(change.records, response, partial(self._forget_seen_on_error, group.group_id, gone))

    def _forget_seen_on_error(self, group_id: str, gone: list[str] | None, error: KafkaError | None) -> None:
        if error is not None:
            self._seen.pop(group_id, None)
            for member_id in gone or ():
                # It is still there, and perhaps no timer of its own is left.
                self._timers.schedule(
                    session_key(group_id, member_id),
                    RETRY_FENCING_MS,
                    partial(self._on_timer, group_id, member_id, "it could not be taken out before"),
                )
            return
        for member_id in gone or ():
            self.drop_timers(group_id, member_id)

    # ---- timers

    def settings_changed(self, group_id: str) -> None:
        """Members have the group's session timeout from now on; the rest is looked up with each heartbeat."""
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            for member in group.members.values():
                if not member.is_classic:
                    self.watch_session(group_id, member)

    def watch_session(self, group_id: str, member: Member) -> None:
        classic = member.subscription.classic
        timeout = (classic or self.config.timing(group_id)).session_timeout_ms
        self._timers.schedule(
            session_key(group_id, member.member_id),
            timeout,
            partial(self._on_timer, group_id, member.member_id, "its session is over"),
        )

    def _watch_rebalance(self, group_id: str, member: Member) -> None:
        self._timers.schedule(
            _rebalance_key(group_id, member.member_id),
            # Not known only where the log has lost what the member said.
            max(member.subscription.rebalance_timeout_ms, self.config.timing(group_id).heartbeat_interval_ms),
            partial(
                self._on_timer, group_id, member.member_id, "it did not give up its partitions in time", member.epoch
            ),
        )

    def _on_timer(self, group_id: str, member_id: str, why: str, unrevoked_at: int | None = None) -> Outcome:
        group = self._shard.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if member is None or group is None:
            return NOTHING
        if unrevoked_at is not None and (
            member.epoch != unrevoked_at or member.current.state != MemberState.UNREVOKED_PARTITIONS
        ):
            return NOTHING
        log.info("Member %s of group %s is out: %s", member_id, group_id, why)
        return self.fence(group, (member,))

    def drop_timers(self, group_id: str, member_id: str) -> None:
        self._timers.cancel(session_key(group_id, member_id))
        self._timers.cancel(_rebalance_key(group_id, member_id))


def check_epoch(member: Member, epoch: int, reported: Reported) -> None:
    """FENCED_MEMBER_EPOCH unless the epoch is the member's. The one before it will do where the member has only what it
    was given: then it has not got the answer that had the new one."""
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if (
        epoch < member.epoch
        and epoch == member.current.previous_epoch
        and reports_only(reported, member.current.assigned)
    ):
        return
    than = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def then(first: OnAppend | None, second: OnAppend) -> OnAppend:
    def both(error: KafkaError | None) -> None:
        if first is not None:
            first(error)
        second(error)

    return both


def _refuse(message: str) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _as_assignment(owned: Owned) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(owned[topic_id])) for topic_id in sorted(owned)
        ]
    )


def session_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer session", group_id, member_id)


def _rebalance_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return ("consumer rebalance", group_id, member_id)
