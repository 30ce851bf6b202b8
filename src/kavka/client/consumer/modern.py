"""A group member that uses the consumer protocol (KIP-848): the coordinator assigns partitions, and
members reconcile independently.

`member_states.py` has the states and their transitions. Two background tasks run on the loop, both
started by `poll`:

- `_heartbeats` wakes at each heartbeat interval, and when a field of the member has changed. A
  heartbeat carries the fields that changed since the last heartbeat (all fields when the member
  joins with epoch 0). The response carries the member's epoch and, if it changed, the target
  assignment.
- `_reconcile` runs while a target assignment is pending. It resolves topic ids and submits one poll
  task, `_apply`, which revokes the partitions that are not in the target and then adds the new
  ones. The next heartbeat reports the owned partitions.

Epoch 0 joins, -1 leaves, -2 leaves temporarily (a static member that will return).
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import NO_MEMBER, Identity
from kavka.client.consumer.errors import CommitFailed
from kavka.client.consumer.member import ASSIGNED, LOST, REVOKED, Host, Member, names
from kavka.client.consumer.member_states import CONSUMER_TRANSITIONS, MemberState
from kavka.client.consumer.subscription import Mode
from kavka.client.errors import Disconnected, KafkaTimeout, UnsupportedVersion, error_of
from kavka.client.metadata import topic_metadata
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

logger = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
# The first version of ConsumerGroupHeartbeat with regex subscriptions.
MIN_REGEX_VERSION = 1

_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_ACTIVE = frozenset({MemberState.JOINING, MemberState.RECONCILING, MemberState.STABLE})
_INACTIVE = frozenset({MemberState.FENCED, MemberState.FATAL, MemberState.LEAVING})

Target = dict[UUID, tuple[int, ...]]


class ModernMember(Member):
    """Owns the member's part of the consumer protocol: its epoch (`generation`), the fields that
    the coordinator has received, and the target assignment. `Member` documents who may call it."""

    TRANSITIONS = CONSUMER_TRANSITIONS

    def __init__(self, config: ClientConfig, host: Host) -> None:
        super().__init__(config, host)
        self.member_id = str(uuid4())
        self._assignor: str | None = config["group.remote.assignor"]
        self._interval = config.seconds("heartbeat.interval.ms")
        self._acknowledged_fields: dict[str, Any] = {}
        """The fields of this member that the coordinator has acknowledged, by name."""
        self._target: Target | None = None
        self._reconcile_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._topic_names: dict[UUID, str] = {}
        self._next_heartbeat = 0.0

    def identity(self) -> Identity:
        return Identity(self.generation, self.member_id, self.instance_id, is_consumer_protocol=self.generation > 0)

    def commit_identity(self) -> Identity:
        if not self.host.subscriptions.uses_group:
            return NO_MEMBER
        if self.generation <= 0:
            raise CommitFailed(
                "the offsets were not committed: this consumer is not a member of the group. It was probably "
                "removed because the time between two polls exceeded max.poll.interval.ms"
            )
        return self.identity()

    def on_request_failed(self, identity: Identity, code: ErrorCode) -> None:
        if identity.is_consumer_protocol and identity.generation == self.generation and code in _FENCED:
            self._fence(f"a request failed with {code.name}")

    @property
    def is_rebalancing(self) -> bool:
        return self._reconcile_task is not None and not self._reconcile_task.done()

    # --- for the consumer

    def poll(self) -> None:
        if self.state in (MemberState.FENCED, MemberState.FATAL) and not self.is_rebalancing:
            if self.host.subscriptions.partitions:
                self._reconcile_task = self._start(self._lose_partitions(), "lose-partitions")
            elif self.state is MemberState.FENCED:
                self._transition(MemberState.UNJOINED)
        if not self.host.subscriptions.uses_group or self.state in _INACTIVE:
            return
        if self.state is MemberState.UNJOINED and self._can_join():
            self._transition(MemberState.JOINING)
            self.generation = JOIN_EPOCH
            self._send_heartbeat_now()
        if self._heartbeat_task is None or self._heartbeat_task.done():
            self._heartbeat_task = self._start(self._heartbeats(), "heartbeat")
        if self._target is not None and not self.is_rebalancing:
            self._reconcile_task = self._start(self._reconcile(), "reconcile")

    def _can_join(self) -> bool:
        """Whether the member may join. A pattern that the client matches must first be matched
        against the metadata of all topics."""
        return self.host.subscriptions.mode is not Mode.PATTERN or self.host.subscriptions.matched

    def on_metadata(self) -> None:
        self.host.request_poll()

    def on_subscription_changed(self) -> None:
        if self.state is MemberState.FATAL:
            self._transition(MemberState.FENCED)
        self._send_heartbeat_now()
        self.host.request_poll()

    async def leave(self, deadline: float, *, leave_group: bool | None = None) -> None:
        await self._stop()
        self._heartbeat_task = self._reconcile_task = None
        owned = list(self.host.subscriptions.partitions) if self.host.subscriptions.uses_group else []
        await self._give_up(owned, REVOKED if self.generation > 0 else LOST)
        self._transition(MemberState.LEAVING)
        if self.generation > 0:
            is_permanent = self.instance_id is None if leave_group is None else leave_group
            epoch = LEAVE_EPOCH if is_permanent else STATIC_LEAVE_EPOCH
            if is_permanent or self.instance_id is not None:
                await self._send_leave(epoch, max(0.001, min(self.coordinator.timeout, deadline - time.monotonic())))
        self._reset()
        # A commit that was in flight may have fenced the member.
        self._transition(MemberState.LEAVING)
        self._transition(MemberState.UNJOINED)

    def _reset(self) -> None:
        self.generation = -1
        self._acknowledged_fields = {}
        self._target = None

    def _fence(self, reason: str) -> None:
        logger.info("Member %s is no longer in group %s: %s", self.member_id, self.group_id, reason)
        self._hold_partitions()
        self._reset()
        self._transition(MemberState.FENCED)
        self.host.request_poll()

    def _send_heartbeat_now(self) -> None:
        self._next_heartbeat = 0.0
        self._heartbeat_wakeup.set()

    # --- heartbeats

    async def _heartbeats(self) -> None:
        failures = 0
        while True:
            await self._sleep(min(max(0.0, self._next_heartbeat - time.monotonic()), self._interval))
            now = time.monotonic()
            if self.state not in _ACTIVE:
                self._next_heartbeat = now + self._interval
                continue
            if self._exceeds_poll_interval():
                await self._leave_on_poll_timeout()
                continue
            if now < self._next_heartbeat:
                continue
            self._next_heartbeat = now + self._interval
            try:
                failures = 0 if await self._heartbeat() else failures + 1
            except (Disconnected, KafkaTimeout) as error:
                failures += 1
                logger.debug("A heartbeat failed: %s", error)
            except UnsupportedVersion as error:
                self._fail(UnsupportedVersion(f"group.protocol=consumer cannot be used: {error}"))
            except KafkaError as error:
                if error.retriable:
                    failures += 1
                else:
                    self._fail(KafkaError(error.code, f"group {self.group_id}: {error}"))
            if failures:
                # The coordinator may or may not have received the fields.
                self._acknowledged_fields = {}
                self._next_heartbeat = time.monotonic() + self.coordinator.backoff.delay(failures)

    def _fail(self, error: KafkaError) -> None:
        if self.state not in _ACTIVE:
            # The member was fenced while the heartbeat was in flight.
            return
        self._reset()
        self._hold_partitions()
        self._transition(MemberState.FATAL)
        self.host.fail(error)

    def _fields(self) -> dict[str, Any]:
        """Return the current values of all fields that heartbeats send, by name."""
        subscriptions = self.host.subscriptions
        by_pattern = subscriptions.mode is Mode.SERVER_PATTERN
        return {
            "instance_id": self.instance_id,
            "rack_id": self.rack,
            "rebalance_timeout_ms": int(self._max_poll_interval * 1000),
            "subscribed_topic_names": [] if by_pattern else sorted(subscriptions.topics),
            "subscribed_topic_regex": subscriptions.pattern if by_pattern else "",
            "server_assignor": self._assignor,
            "topic_partitions": self._owned(),
        }

    def _owned(self) -> list[tuple[UUID, tuple[int, ...]]]:
        ids = {name: topic_id for topic_id, name in self._topic_names.items()}
        owned: dict[UUID, list[int]] = {}
        for tp in self.host.subscriptions.partitions:
            if tp.topic in ids:
                owned.setdefault(ids[tp.topic], []).append(tp.partition)
        return sorted((topic_id, tuple(sorted(indexes))) for topic_id, indexes in owned.items())

    async def _heartbeat(self) -> bool:
        """Send a heartbeat. Returns False if it must be retried after a backoff."""
        fields = self._fields()
        epoch = self.generation
        if epoch == JOIN_EPOCH:
            fields["topic_partitions"] = []
            self._acknowledged_fields = {}
        acknowledged = self._acknowledged_fields
        by_pattern = self.host.subscriptions.mode is Mode.SERVER_PATTERN
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        for name, value in fields.items():
            if name in acknowledged and acknowledged[name] == value:
                continue
            if name == "subscribed_topic_regex" and not by_pattern and not acknowledged.get(name):
                continue
            if name == "subscribed_topic_names" and by_pattern and not acknowledged.get(name) and epoch != JOIN_EPOCH:
                continue
            if name == "topic_partitions":
                value = [TopicPartitions(topic_id=topic_id, partitions=list(p)) for topic_id, p in value]
            setattr(request, name, value)
        api_version = await self.coordinator.version_of(ConsumerGroupHeartbeatRequest.API_KEY)
        if by_pattern and api_version < MIN_REGEX_VERSION:
            raise UnsupportedVersion(
                "the coordinator does not support regex subscriptions; subscribe with a compiled pattern (re.compile), "
                "which the client matches"
            )
        started = time.monotonic()
        response = await self.coordinator.send(request)
        self.host.metrics.record_heartbeat(time.monotonic() - started)
        if epoch != self.generation or self.state not in _ACTIVE:
            # The member was fenced, or left the group, while the heartbeat was in flight.
            return True
        return self._handle_response(response, fields)

    def _handle_response(self, response: ConsumerGroupHeartbeatResponse, fields: dict[str, Any]) -> bool:
        code = response.error_code
        if code:
            error = error_of(code, response.error_message)
            if self.coordinator.forget_if_moved(code) or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return False
            if code in _FENCED:
                self._fence(f"a heartbeat failed with {error.code.name}")
                return True
            raise error
        self._acknowledged_fields = fields
        self.generation = response.member_epoch
        if response.member_id:
            self.member_id = response.member_id
        self._interval = response.heartbeat_interval_ms / 1000
        self._next_heartbeat = time.monotonic() + self._interval
        if response.assignment is not None:
            self._target = {
                topic.topic_id: tuple(sorted(topic.partitions)) for topic in response.assignment.topic_partitions
            }
            self._transition(MemberState.RECONCILING)
            self.host.request_poll()
        elif self.state is MemberState.JOINING:
            self._transition(MemberState.STABLE)
        return True

    async def _leave_on_poll_timeout(self) -> None:
        self._log_poll_interval_exceeded()
        epoch = LEAVE_EPOCH if self.instance_id is None else STATIC_LEAVE_EPOCH
        await self._send_leave(epoch, self.coordinator.timeout)
        self._fence("max.poll.interval.ms has expired")

    async def _send_leave(self, epoch: int, timeout: float) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        try:
            await self.coordinator.send(request, timeout=timeout)
        except KafkaError as error:
            logger.debug("The leave request to group %s failed: %s", self.group_id, error)

    # --- reconciliation of owned partitions with the target assignment

    async def _reconcile(self) -> None:
        started = time.monotonic()
        failures = 0
        while self._target is not None:
            target = self._target
            try:
                partitions = await self._resolve(target)
            except KafkaError as error:
                if not error.retriable:
                    self.host.fail(error)
                    return
                logger.debug("Cannot resolve the topic ids of an assignment of group %s: %s", self.group_id, error)
                partitions = None
            if partitions is None:
                failures += 1
                await asyncio.sleep(self.coordinator.backoff.delay(failures))
                continue
            await self.host.run_in_poll(partial(self._apply, target, partitions, self.generation))
            self.host.metrics.rebalance_latency.add(time.monotonic() - started)
        if self.state is MemberState.FENCED:
            self.host.request_poll()

    async def _resolve(self, target: Target) -> list[TopicPartition] | None:
        """Return the partitions of the target assignment, with topic names. Returns None while the
        name of a topic is unknown."""
        cluster_names = self.host.cluster.topic_names
        unresolved = [
            topic_id for topic_id in target if topic_id not in cluster_names and topic_id not in self._topic_names
        ]
        if unresolved:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in unresolved],
                allow_auto_topic_creation=False,
            )
            response = await self.host.cluster.request(None, request)
            for topic in response.topics:
                if not topic.error_code and topic.name:
                    self._topic_names[topic.topic_id] = topic_metadata(topic).name
        for topic_id in target:
            if topic_id in cluster_names:
                self._topic_names[topic_id] = cluster_names[topic_id]
        if any(topic_id not in self._topic_names for topic_id in target):
            # The topic is deleted, or its metadata has not reached all brokers yet.
            return None
        return [TopicPartition(self._topic_names[topic_id], p) for topic_id, indexes in target.items() for p in indexes]

    async def _lose_partitions(self) -> None:
        """Make the next poll report all partitions as lost. A fenced member rejoins afterwards."""
        await self.host.run_in_poll(self._give_up_lost)
        self.host.request_poll()

    async def _give_up_lost(self) -> None:
        """Poll task: report all partitions as lost if the member was fenced or failed."""
        if self.state in (MemberState.FENCED, MemberState.FATAL):
            await self._give_up(list(self.host.subscriptions.partitions), LOST)

    async def _apply(self, target: Target, partitions: list[TopicPartition], epoch: int) -> None:
        """Poll task: replace the owned partitions with the target assignment."""
        subscriptions = self.host.subscriptions
        await self._give_up_lost()
        if self._target is not target or self.generation != epoch or self.state is not MemberState.RECONCILING:
            # A newer target has arrived, or the member was fenced or is leaving.
            return
        self._target = None
        owned = set(subscriptions.partitions)
        revoked = owned.difference(partitions)
        if revoked:
            await self._give_up(sorted(revoked), REVOKED)
            if self.state is not MemberState.RECONCILING:
                return
        added = [tp for tp in partitions if tp not in owned]
        if subscriptions.mode is Mode.SERVER_PATTERN:
            subscriptions.topics = frozenset(tp.topic for tp in partitions)
        subscriptions.set_partitions(partitions)
        self._topic_names = {topic_id: name for topic_id, name in self._topic_names.items() if topic_id in target}
        if revoked or added:
            logger.info("Member %s of group %s is assigned %s", self.member_id, self.group_id, names(partitions))
        self.host.on_assignment_changed()
        if self._target is None:
            self._transition(MemberState.STABLE)
            self._send_heartbeat_now()
        if revoked or added:
            await self._notify_listener(ASSIGNED, added)
