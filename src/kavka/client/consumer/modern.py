"""A member of a group of the new protocol: the coordinator assigns, and every member follows at its own pace.

All there is is a heartbeat. It carries what is new of the member (everything, when it joins with epoch 0), its answer
what is new for it: its epoch, and the partitions it shall have. Those it has and shall not have are revoked, then the
new ones added, in the next poll; then the next heartbeat says what it has now. Nobody else is held up by that.

    epoch 0 joins, -1 leaves, -2 leaves for a while (a static member, which will be back)
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import Identity
from kavka.client.consumer.errors import CommitFailed
from kavka.client.consumer.member import ASSIGNED, LOST, REVOKED, Host, Member, names
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

log = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
PATTERNS_FROM = 1
TOPICS_BY_ID_FROM = 12

_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})

Target = dict[UUID, tuple[int, ...]]


class ModernMember(Member):
    def __init__(self, config: ClientConfig, host: Host) -> None:
        super().__init__(config, host)
        self.member_id = str(uuid4())
        self._assignor: str | None = config["group.remote.assignor"]
        self._interval = config.seconds("heartbeat.interval.ms")
        self._joined = False
        self._failed = False
        self._said: dict[str, Any] = {}
        """What the coordinator knows of us, by field."""
        self._target: Target | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._heart: asyncio.Task[None] | None = None
        self._names: dict[UUID, str] = {}
        self._due = 0.0

    def identity(self) -> Identity:
        return Identity(self.generation, self.member_id, self.instance_id, modern=self.generation > 0)

    def committer(self) -> Identity:
        if not self.host.subscriptions.by_group:
            return Identity()
        if self.generation <= 0:
            raise CommitFailed(
                "the offsets were not committed: this consumer is not a member of the group (any more); if it was, it "
                "took longer than max.poll.interval.ms between two polls"
            )
        return self.identity()

    def refused(self, identity: Identity, code: ErrorCode) -> None:
        if identity.generation == self.generation and code in _FENCED:
            self._fenced(f"a request was answered with {code.name}")

    @property
    def rebalancing(self) -> bool:
        return self._reconciling is not None and not self._reconciling.done()

    # --- for the consumer

    def poll(self) -> None:
        if self._lost:
            if not self.rebalancing:
                self._reconciling = self._start(self._lose(), "lose")
            return
        if not self.host.subscriptions.by_group or self._failed:
            return
        if not self._joined and self._ready():
            self._joined = True
            self.generation = JOIN_EPOCH
            self._hurry()
        if self._heart is None or self._heart.done():
            self._heart = self._start(self._beat(), "heartbeat")
        if self._target is not None and not self.rebalancing:
            self._reconciling = self._start(self._reconcile(), "reconcile")

    def _ready(self) -> bool:
        """What a pattern of our own stands for must be known before we can join with it."""
        return self.host.subscriptions.mode is not Mode.PATTERN or self.host.subscriptions.matched

    def on_metadata(self) -> None:
        self.host.want_poll()

    def subscription_changed(self) -> None:
        self._failed = False
        self._hurry()
        self.host.want_poll()

    def rejoin(self, reason: str) -> None:
        """With the new protocol the coordinator knows when to rebalance."""

    async def leave(self, deadline: float, *, tell_group: bool | None = None) -> None:
        await self._stop()
        self._heart = self._reconciling = None
        owned = list(self.host.subscriptions.partitions) if self.host.subscriptions.by_group else []
        await self._give_up(owned, REVOKED if self.generation > 0 and not self._lost else LOST)
        if self._joined and self.generation > 0:
            for_good = self.instance_id is None if tell_group is None else tell_group
            epoch = LEAVE_EPOCH if for_good else STATIC_LEAVE_EPOCH
            if for_good or self.instance_id is not None:
                await self._send_leave(epoch, max(0.001, min(self.coordinator.timeout, deadline - time.monotonic())))
        self._reset()
        self._lost = False

    def _reset(self) -> None:
        self.generation = -1
        self._joined = False
        self._said = {}
        self._target = None

    def _fenced(self, why: str) -> None:
        log.info("Member %s is not in group %s any more: %s", self.member_id, self.group_id, why)
        self._lose_all()
        self._reset()
        self.host.want_poll()

    def _hurry(self) -> None:
        """Say something now, not when the next heartbeat is due."""
        self._due = 0.0
        self._awake.set()

    # --- heartbeats

    async def _beat(self) -> None:
        failures = 0
        while True:
            await self._sleep(min(max(0.0, self._due - time.monotonic()), self._interval))
            now = time.monotonic()
            if not self._joined:
                self._due = now + self._interval
                continue
            if self._polls_too_rarely():
                await self._leave_as_too_slow()
                continue
            if now < self._due:
                continue
            self._due = now + self._interval
            try:
                failures = 0 if await self._heartbeat() else failures + 1
            except (Disconnected, KafkaTimeout) as error:
                failures += 1
                log.debug("No answer to a heartbeat: %s", error)
            except UnsupportedVersion as error:
                self._give_up_for_good(UnsupportedVersion(f"group.protocol=consumer cannot be used: {error}"))
            except KafkaError as error:
                if error.retriable:
                    failures += 1
                else:
                    self._give_up_for_good(KafkaError(error.code, f"group {self.group_id}: {error}"))
            if failures:
                # What was said may or may not have been heard.
                self._said = {}
                self._due = time.monotonic() + self.coordinator.backoff.delay(failures)

    def _give_up_for_good(self, error: KafkaError) -> None:
        self._failed = True
        self._reset()
        self._lose_all()
        self.host.fail(error)

    def _fields(self) -> dict[str, Any]:
        """All there is to say of this member now."""
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
        ids = {name: topic_id for topic_id, name in self._names.items()}
        owned: dict[UUID, list[int]] = {}
        for tp in self.host.subscriptions.partitions:
            if tp.topic in ids:
                owned.setdefault(ids[tp.topic], []).append(tp.partition)
        return sorted((topic_id, tuple(sorted(indexes))) for topic_id, indexes in owned.items())

    async def _heartbeat(self) -> bool:
        fields = self._fields()
        epoch = self.generation
        if epoch == JOIN_EPOCH:
            fields["topic_partitions"] = []
            self._said = {}
        by_pattern = self.host.subscriptions.mode is Mode.SERVER_PATTERN
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        for name, value in fields.items():
            if name in self._said and self._said[name] == value:
                continue
            if name == "subscribed_topic_regex" and not by_pattern and not self._said.get(name):
                continue
            if name == "subscribed_topic_names" and by_pattern and not self._said.get(name) and epoch != JOIN_EPOCH:
                continue
            if name == "topic_partitions":
                value = [TopicPartitions(topic_id=topic_id, partitions=list(p)) for topic_id, p in value]
            setattr(request, name, value)
        version = await self.coordinator.version_of(ConsumerGroupHeartbeatRequest.API_KEY)
        if by_pattern and version < PATTERNS_FROM:
            raise UnsupportedVersion("the coordinator does not match patterns; give a compiled one (re.compile)")
        started = time.monotonic()
        answer = await self.coordinator.send(request)
        self.host.metrics.heard(time.monotonic() - started)
        if epoch != self.generation:
            # We were fenced, or left, in the meantime.
            return True
        return self._answered(answer, fields)

    def _answered(self, answer: ConsumerGroupHeartbeatResponse, fields: dict[str, Any]) -> bool:
        code = answer.error_code
        if code:
            error = error_of(code, answer.error_message)
            if self.coordinator.lost(code) or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return False
            if code in _FENCED:
                self._fenced(f"a heartbeat was answered with {error.code.name}")
                return True
            raise error
        self._said = fields
        self.generation = answer.member_epoch
        if answer.member_id:
            self.member_id = answer.member_id
        self._interval = answer.heartbeat_interval_ms / 1000
        self._due = time.monotonic() + self._interval
        if answer.assignment is not None:
            self._target = {one.topic_id: tuple(sorted(one.partitions)) for one in answer.assignment.topic_partitions}
            self.host.want_poll()
        return True

    async def _leave_as_too_slow(self) -> None:
        why = (
            f"the program has not polled for longer than max.poll.interval.ms ({self._max_poll_interval:g} s); poll "
            "more often, or take fewer records at a time (max.poll.records)"
        )
        log.warning("Member %s leaves group %s: %s", self.member_id, self.group_id, why)
        await self._send_leave(
            LEAVE_EPOCH if self.instance_id is None else STATIC_LEAVE_EPOCH, self.coordinator.timeout
        )
        self._fenced("it polls too rarely")

    async def _send_leave(self, epoch: int, timeout: float) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        try:
            await self.coordinator.send(request, timeout=timeout)
        except KafkaError as error:
            log.debug("Leaving group %s: %s", self.group_id, error)

    # --- from what it has to what it shall have

    async def _reconcile(self) -> None:
        started = time.monotonic()
        failures = 0
        while self._target is not None:
            target = self._target
            try:
                wanted = await self._resolve(target)
            except KafkaError as error:
                if not error.retriable:
                    self.host.fail(error)
                    return
                log.debug("The topics of an assignment are not known: %s", error)
                wanted = None
            if wanted is None:
                failures += 1
                await asyncio.sleep(self.coordinator.backoff.delay(failures))
                continue
            await self.host.errand(partial(self._apply, target, wanted, self.generation))
            self.host.metrics.rebalance_latency.add(time.monotonic() - started)

    async def _resolve(self, target: Target) -> list[TopicPartition] | None:
        """The target by names; None while the metadata does not have them all."""
        known = self.host.cluster.topic_names
        unknown = [topic_id for topic_id in target if topic_id not in known and topic_id not in self._names]
        if unknown:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in unknown],
                allow_auto_topic_creation=False,
            )
            response = await self.host.cluster.request(None, request)
            for topic in response.topics:
                if not topic.error_code and topic.name:
                    self._names[topic.topic_id] = topic_metadata(topic).name
        for topic_id in target:
            if topic_id in known:
                self._names[topic_id] = known[topic_id]
        if any(topic_id not in self._names for topic_id in target):
            # Deleted, or not known everywhere yet; the coordinator will tell of a change.
            return None
        return [TopicPartition(self._names[topic_id], p) for topic_id, indexes in target.items() for p in indexes]

    async def _lose(self) -> None:
        """Joining again comes after that."""
        await self.host.errand(self._give_up_lost)
        self.host.want_poll()

    async def _give_up_lost(self) -> None:
        if self._lost:
            await self._give_up(list(self.host.subscriptions.partitions), LOST)
            self._lost = False

    async def _apply(self, target: Target, wanted: list[TopicPartition], epoch: int) -> None:
        """Errand."""
        subscriptions = self.host.subscriptions
        await self._give_up_lost()
        if self._target is not target or self.generation != epoch or not subscriptions.by_group:
            # There is a newer one, or we are out.
            return
        self._target = None
        owned = set(subscriptions.partitions)
        gone = owned.difference(wanted)
        if gone:
            await self._give_up(sorted(gone), REVOKED)
            if self._lost or self.generation <= 0:
                return
        new = [tp for tp in wanted if tp not in owned]
        if subscriptions.mode is Mode.SERVER_PATTERN:
            subscriptions.topics = frozenset(tp.topic for tp in wanted)
        subscriptions.set_partitions(wanted)
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in target}
        if gone or new:
            log.info("Member %s of group %s reads %s", self.member_id, self.group_id, names(wanted))
        self.host.assignment_changed()
        if self._target is None:
            self._hurry()
        if gone or new:
            await self._tell(ASSIGNED, new)
