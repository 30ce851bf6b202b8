"""A group member that uses the classic protocol: the members agree on an assignor, and the leader
runs it.

`member_states.py` has the states and their transitions. Two background tasks run on the loop, both
started by `poll`:

- `_rebalance` runs while the member needs to join. It submits two poll tasks: `_prepare` gives up
  partitions before JoinGroup, `_complete` applies the assignment after SyncGroup.
- `_heartbeats` wakes at each heartbeat interval, and when JoinGroup has succeeded. A response that
  announces a rebalance makes the next poll start `_rebalance`.

With eager assignors, a member revokes all partitions before JoinGroup. With cooperative assignors,
it revokes only partitions of unsubscribed topics before JoinGroup. After SyncGroup it revokes the
partitions that are not in its assignment, and rejoins.

JoinGroup may take as long as the largest max.poll.interval.ms of the members, and a broker responds
to the requests of a connection in order. JoinGroup and SyncGroup therefore use a separate
connection, so that commits and heartbeats do not wait for their responses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

from kavka.client.config import ClientConfig
from kavka.client.consumer import assignors, embedded
from kavka.client.consumer.assignors import Assignment, Subscription
from kavka.client.consumer.classic_leader import GroupLeader
from kavka.client.consumer.coordinator import NO_MEMBER, Identity
from kavka.client.consumer.errors import CommitFailed, RebalanceInProgress
from kavka.client.consumer.member import ASSIGNED, LOST, REVOKED, Host, Member, Retry, describe, names
from kavka.client.consumer.member_states import CLASSIC_TRANSITIONS, MemberState
from kavka.client.consumer.subscription import Mode
from kavka.client.errors import Disconnected, KafkaTimeout, error_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kavka.protocol.primitives import ProtocolError, TopMessage

logger = logging.getLogger(__name__)

JOIN_CHANNEL = "join"
# The first version of LeaveGroup with a list of members.
MIN_MEMBER_LIST_VERSION = 3
# JoinGroup and SyncGroup time out this many seconds after the rebalance timeout.
JOIN_TIMEOUT_MARGIN_S = 5.0

_REMOVED_FROM_GROUP = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
# After these errors the member keeps its id. If a static member rejoined without its id, it would
# fence the member that has just fenced it. If a dynamic member did, the group would wait for the
# previous id until its session expires.
_KEEP_MEMBER_ID = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
_RETRY_AFTER_BACKOFF = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS})
_COMMIT_STATES = frozenset({MemberState.STABLE, MemberState.LEAVING})


class ClassicMember(Member):
    """Owns the member's part of the classic protocol: its generation, the chosen assignor
    (`protocol`), and the reason to rejoin. `Member` documents who may call it."""

    TRANSITIONS = CLASSIC_TRANSITIONS

    def __init__(self, config: ClientConfig, host: Host) -> None:
        super().__init__(config, host)
        self.assignors = assignors.load(config["partition.assignment.strategy"], config.originals)
        self.cooperative = all(getattr(assignor, "cooperative", False) for assignor in self.assignors)
        self.protocol = ""
        self._session_timeout = config.seconds("session.timeout.ms")
        self._heartbeat_interval = config.seconds("heartbeat.interval.ms")
        self._rejoin_reason = "the consumer starts"
        """Empty if the member does not need to join."""
        self._leader = GroupLeader(
            self.group_id, self.assignors, host.cluster, host.subscriptions, self._session_timeout / 2
        )
        self._is_leader = False
        self._joined_topics: frozenset[str] | None = None
        """The subscription at the time of the current assignment."""
        self._rebalance_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None

    # --- for requests to the coordinator

    def commit_identity(self) -> Identity:
        if not self.host.subscriptions.uses_group:
            return NO_MEMBER
        if self.state not in _COMMIT_STATES:
            if self.generation >= 0 or self.is_rebalancing:
                raise RebalanceInProgress(
                    "the offsets were not committed: the group is rebalancing; poll and commit again"
                )
            raise CommitFailed(
                "the offsets were not committed: this consumer is not a member of the group. It was probably "
                "removed because the time between two polls exceeded max.poll.interval.ms"
            )
        return self.identity()

    def on_request_failed(self, identity: Identity, code: ErrorCode) -> None:
        if identity.generation != self.generation or identity.member_id != self.member_id or self.generation < 0:
            return
        if code in _REMOVED_FROM_GROUP or code == ErrorCode.FENCED_INSTANCE_ID:
            self._fence(f"a commit failed with {code.name}", keep_id=code in _KEEP_MEMBER_ID)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin("a commit failed with REBALANCE_IN_PROGRESS")

    # --- for the consumer

    @property
    def is_rebalancing(self) -> bool:
        return self._rebalance_task is not None and not self._rebalance_task.done()

    def poll(self) -> None:
        if not self.host.subscriptions.uses_group or self.state is MemberState.LEAVING:
            return
        if self._heartbeat_task is None or self._heartbeat_task.done():
            self._heartbeat_task = self._start(self._heartbeats(), "heartbeat")
        if self._check_rejoin() and not self.is_rebalancing:
            self._rebalance_task = self._start(self._rebalance(), "rebalance")

    def on_metadata(self) -> None:
        if self.host.subscriptions.uses_group and self._check_rejoin():
            self.host.request_poll()

    def rejoin(self, reason: str) -> None:
        if not self._rejoin_reason:
            logger.info("Member %s rejoins group %s: %s", self.member_id, self.group_id, reason)
            self._rejoin_reason = reason
        self.host.request_poll()

    async def leave(self, deadline: float, *, leave_group: bool | None = None) -> None:
        await self._stop()
        self._rebalance_task = self._heartbeat_task = None
        owned = list(self.host.subscriptions.partitions) if self.host.subscriptions.uses_group else []
        await self._give_up(owned, REVOKED if self.generation >= 0 else LOST)
        self._transition(MemberState.LEAVING)
        should_leave = self.instance_id is None if leave_group is None else leave_group
        if should_leave:
            remaining = max(0.001, min(self.coordinator.timeout, deadline - time.monotonic()))
            await self._send_leave(remaining, "the consumer is closed or unsubscribed")
        self._reset("the consumer subscribed again")
        # A commit that was in flight may have fenced the member.
        self._transition(MemberState.LEAVING)
        self._transition(MemberState.UNJOINED)

    def _check_rejoin(self) -> bool:
        """Set the reason to rejoin if the subscription or a partition count has changed. Returns
        whether there is a reason."""
        if self._rejoin_reason:
            return True
        if self._joined_topics is not None and self._joined_topics != self.host.subscriptions.topics:
            self._rejoin_reason = "the subscription has changed"
        elif self._leader.is_assignment_outdated():
            self._rejoin_reason = "the number of partitions has changed"
        return bool(self._rejoin_reason)

    def _fence(self, reason: str, *, keep_id: bool = False) -> None:
        """Handle the removal from the group: other members may already own the partitions."""
        logger.info("Member %s is no longer in group %s: %s", self.member_id, self.group_id, reason)
        self._hold_partitions()
        member_id = self.member_id
        self._reset(reason)
        if keep_id:
            self.member_id = member_id
        self._transition(MemberState.FENCED)
        self.host.request_poll()

    def _reset(self, reason: str) -> None:
        self.generation = -1
        self.member_id = ""
        self._joined_topics = self._leader.partition_counts = None
        self._rejoin_reason = reason

    def _abort_join(self) -> None:
        """End a failed attempt to join. The next attempt starts with JoinGroup."""
        if self.state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE):
            self._transition(MemberState.UNJOINED)

    # --- rebalances

    async def _rebalance(self) -> None:
        failures = 0
        started = time.monotonic()
        try:
            await self._match_pattern(refresh=self._joined_topics is None)
            while self._check_rejoin():
                try:
                    await self._match_pattern()
                    await self.coordinator.find()
                    if self.state in (MemberState.STABLE, MemberState.FENCED):
                        await self.host.run_in_poll(self._prepare)
                    assignment, topics = await self._join_and_sync()
                    await self.host.run_in_poll(partial(self._complete, assignment, topics, self.generation))
                    failures = 0
                    self.host.metrics.rebalance_latency.add(time.monotonic() - started)
                    started = time.monotonic()
                except Retry as retry:
                    self.host.metrics.failed_rebalances += 1
                    logger.debug("Cannot join group %s yet: %s", self.group_id, retry)
                    if retry.backoff:
                        failures += 1
                        await asyncio.sleep(self.coordinator.backoff.delay(failures))
                except (Disconnected, KafkaTimeout) as error:
                    self.host.metrics.failed_rebalances += 1
                    logger.debug("Cannot join group %s: %s", self.group_id, error)
                    self._abort_join()
                    failures += 1
                    await asyncio.sleep(self.coordinator.backoff.delay(failures))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # An error that is not retriable, an exception of a custom assignor, or a bug.
            self._abort_join()
            if self.state is not MemberState.STABLE:
                self._rejoin_reason = self._rejoin_reason or "the last rebalance failed"
            if isinstance(error, KafkaError):
                error = KafkaError(error.code, f"group {self.group_id}: {error}")
            self.host.fail(error)
        self._rebalance_task = None

    async def _match_pattern(self, refresh: bool = False) -> None:
        """Match a pattern against the metadata of all topics before joining. Otherwise the first
        match after joining would make the whole group rebalance again."""
        cluster, subscriptions = self.host.cluster, self.host.subscriptions
        while subscriptions.mode is Mode.PATTERN and (refresh or not subscriptions.matched):
            await cluster.wait_for_update(cluster.request_update(), None)
            refresh = False

    async def _prepare(self) -> None:
        """Poll task: give up the partitions that other members may read during the rebalance."""
        subscriptions = self.host.subscriptions
        if self.state is not MemberState.FENCED:
            if self.cooperative:
                revoked = [tp for tp in subscriptions.partitions if tp.topic not in subscriptions.topics]
            else:
                revoked = list(subscriptions.partitions)
            if revoked:
                await self._give_up(revoked, REVOKED)
            elif self.host.auto_commit:
                await self.host.commit_positions(time.monotonic() + self.coordinator.timeout)
        # The response to the commit may have fenced the member.
        if self.state is MemberState.FENCED:
            await self._give_up(list(subscriptions.partitions), LOST)
        self._transition(MemberState.PREPARING_REBALANCE)

    async def _join_and_sync(self) -> tuple[bytes, frozenset[str]]:
        """Return the encoded assignment, and the topics that JoinGroup subscribed to."""
        topics = self.host.subscriptions.topics
        reason, self._rejoin_reason = self._rejoin_reason, ""
        self._transition(MemberState.PREPARING_REBALANCE)
        try:
            response = await self._join(topics, reason)
            self._transition(MemberState.COMPLETING_REBALANCE)
            self._heartbeat_wakeup.set()
            assignments: list[SyncGroupRequestAssignment] = []
            if self._is_leader:
                assignments = await self._leader.assign(response, self.protocol, cooperative=self.cooperative)
            return await self._sync(assignments), topics
        except BaseException:
            self._rejoin_reason = self._rejoin_reason or reason
            raise

    async def _join(self, topics: frozenset[str], reason: str) -> JoinGroupResponse:
        owned = tuple(self.host.subscriptions.partitions)
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=int(self._session_timeout * 1000),
            rebalance_timeout_ms=int(self._max_poll_interval * 1000),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=embedded.PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=assignor.name,
                    metadata=embedded.write_subscription(self._subscription(assignor, topics, owned)),
                )
                for assignor in self.assignors
            ],
            reason=reason[:255],
        )
        started = time.monotonic()
        response: JoinGroupResponse = await self._send(request)
        self.host.metrics.join_latency.add(time.monotonic() - started)
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            raise Retry("the coordinator has assigned a member id", backoff=False)
        self._check(code, "JoinGroup")
        self.member_id = response.member_id
        if self.state is not MemberState.PREPARING_REBALANCE:
            raise Retry("the member was fenced while it joined", backoff=False)
        self.generation = response.generation_id
        self.protocol = response.protocol_name or ""
        self._is_leader = response.leader == response.member_id
        self._leader.partition_counts = None
        logger.info(
            "Member %s is in generation %s of group %s%s",
            self.member_id, self.generation, self.group_id, " and leads it" if self._is_leader else "",
        )  # fmt: skip
        return response

    def _subscription(self, assignor: Any, topics: frozenset[str], owned: tuple[TopicPartition, ...]) -> Subscription:
        user_data = getattr(assignor, "user_data", None)
        encoded_user_data = user_data(topics) if callable(user_data) else None
        return Subscription(topics, encoded_user_data, owned, self.generation, self.instance_id, self.rack)

    async def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> bytes:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=embedded.PROTOCOL_TYPE,
            protocol_name=self.protocol,
            assignments=assignments,
        )
        started = time.monotonic()
        response = await self._send(request)
        self.host.metrics.sync_latency.add(time.monotonic() - started)
        self._check(response.error_code, "SyncGroup")
        return bytes(response.assignment)

    async def _send(self, request: TopMessage) -> Any:
        """Send JoinGroup or SyncGroup. The coordinator responds when all members have joined or the
        leader has sent the assignments, or when the rebalance timeout expires."""
        timeout = max(self.coordinator.timeout, self._max_poll_interval + JOIN_TIMEOUT_MARGIN_S)
        node = await self.coordinator.find()
        try:
            return await self.host.cluster.request(node, request, timeout=timeout, channel=JOIN_CHANNEL)
        except (Disconnected, KafkaTimeout):
            self.coordinator.forget()
            raise

    def _check(self, code: int, api: str) -> None:
        if not code:
            return
        error = error_of(code)
        if code in _REMOVED_FROM_GROUP:
            self._fence(f"{api} failed with {error.code.name}", keep_id=code in _KEEP_MEMBER_ID)
            raise Retry(describe(error), backoff=False)
        if self.coordinator.forget_if_moved(code) or code in _RETRY_AFTER_BACKOFF:
            self._abort_join()
            raise Retry(describe(error), backoff=True)
        raise error

    async def _complete(self, encoded_assignment: bytes, topics: frozenset[str], generation: int) -> None:
        """Poll task: apply the assignment that the leader sent."""
        if generation != self.generation or self.state is not MemberState.COMPLETING_REBALANCE:
            # The member was fenced before the application polled.
            return
        subscriptions = self.host.subscriptions
        try:
            assignment = embedded.read_assignment(encoded_assignment)
        except ProtocolError as error:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the assignment cannot be decoded: {error}"
            ) from None
        # The next rebalance gives up the partitions of topics that were unsubscribed meanwhile.
        assigned = [tp for tp in assignment.partitions if tp.topic in subscriptions.topics]
        owned = set(subscriptions.partitions)
        self._transition(MemberState.STABLE)
        self._joined_topics = topics
        if self.cooperative and (revoked := owned.difference(assigned)):
            await self._give_up(sorted(revoked), REVOKED)
            if generation != self.generation:
                return
            self.rejoin(f"the member has revoked {names(revoked)}")
        subscriptions.set_partitions(assigned)
        for assignor in self.assignors:
            if assignor.name == self.protocol and callable(getattr(assignor, "on_assignment", None)):
                assignor.on_assignment(Assignment(tuple(assigned), assignment.user_data), self.generation)
        self.host.on_assignment_changed()
        added = [tp for tp in assigned if tp not in owned] if self.cooperative else assigned
        logger.info("Member %s of group %s is assigned %s", self.member_id, self.group_id, names(assigned))
        await self._notify_listener(ASSIGNED, added)

    # --- heartbeats

    async def _heartbeats(self) -> None:
        last_response = time.monotonic()
        next_heartbeat = last_response + self._heartbeat_interval
        while True:
            await self._sleep(min(next_heartbeat - time.monotonic(), self._heartbeat_interval))
            now = time.monotonic()
            if self.generation < 0 or self.state is MemberState.PREPARING_REBALANCE:
                last_response, next_heartbeat = now, now + self._heartbeat_interval
                continue
            if self._exceeds_poll_interval():
                await self._leave_on_poll_timeout()
                continue
            if now < next_heartbeat:
                continue
            if now - last_response > self._session_timeout:
                # The session has expired, or the coordinator has failed.
                self.coordinator.forget()
                last_response = now
            next_heartbeat = now + self._heartbeat_interval
            if await self._heartbeat():
                last_response = time.monotonic()
            else:
                next_heartbeat = time.monotonic() + min(self.coordinator.backoff.delay(1), self._heartbeat_interval)

    async def _heartbeat(self) -> bool:
        """Send a heartbeat. Returns False if it must be retried after a backoff."""
        identity = self.identity()
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
        )
        started = time.monotonic()
        try:
            response = await self.coordinator.send(
                request, timeout=min(self.coordinator.timeout, self._session_timeout)
            )
        except KafkaError as failure:
            logger.debug("A heartbeat failed: %s", failure)
            return False
        self.host.metrics.record_heartbeat(time.monotonic() - started)
        code = response.error_code
        if not code or identity != self.identity():
            # Ignore an error for an earlier generation.
            return True
        if self.coordinator.forget_if_moved(code):
            return False
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.state is MemberState.STABLE and not self.is_rebalancing:
                self.rejoin("the group is rebalancing")
            return True
        error = error_of(code)
        if code in _REMOVED_FROM_GROUP:
            self._fence(f"a heartbeat failed with {error.code.name}", keep_id=code in _KEEP_MEMBER_ID)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._fence("another member uses its group.instance.id", keep_id=True)
            self.host.fail(KafkaError(error.code, f"group {self.group_id}: {error}"))
        elif not error.retriable:
            self.host.fail(KafkaError(error.code, f"group {self.group_id}: {error}"))
        return not error.retriable

    async def _leave_on_poll_timeout(self) -> None:
        self._log_poll_interval_exceeded()
        if self.is_rebalancing and self._rebalance_task is not None:
            self._rebalance_task.cancel()
            self._rebalance_task = None
        if self.instance_id is None:
            await self._send_leave(self.coordinator.timeout, "max.poll.interval.ms has expired")
        self._fence("max.poll.interval.ms has expired")

    async def _send_leave(self, timeout: float, reason: str) -> None:
        if not self.member_id:
            return
        try:
            api_version = await self.coordinator.version_of(LeaveGroupRequest.API_KEY, timeout=timeout)
            request = LeaveGroupRequest(group_id=self.group_id)
            if api_version >= MIN_MEMBER_LIST_VERSION:
                request.members = [
                    MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id, reason=reason)
                ]
            else:
                request.member_id = self.member_id
            await self.coordinator.send(request, timeout=timeout, max_version=api_version)
        except KafkaError as error:
            logger.debug("The leave request to group %s failed: %s", self.group_id, error)
