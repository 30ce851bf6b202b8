"""A member of a classic group: the members agree on an assignor, and the leader among them runs it.

    UNJOINED --JoinGroup--> JOINING --answer--> SYNCING --SyncGroup, errand--> STABLE
        ^                                                                        |
        +---- thrown out, or polls too rarely -------------- rebalance: JOINING <+

- A rebalance begins in a poll. With assignors that are not cooperative everything is revoked first; with cooperative
  ones only what is no longer subscribed to, and what moves is revoked when the assignment says so, after which the
  member joins once more.
- From JoinGroup's answer on, heartbeats say that the member lives; while JoinGroup is on its way the coordinator knows.
- JoinGroup may take as long as the slowest member's max.poll.interval.ms, and a broker answers the requests of a
  connection in order: joining has a connection of its own, so that commits and heartbeats do not wait behind it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum
from functools import partial
from typing import Any

from kavka.client.config import ClientConfig
from kavka.client.consumer import assignors, embedded
from kavka.client.consumer.assignors import Assignment, Subscription
from kavka.client.consumer.coordinator import Identity
from kavka.client.consumer.errors import CommitFailed, RebalanceInProgress
from kavka.client.consumer.member import ASSIGNED, LOST, REVOKED, Again, Host, Member, describe, names
from kavka.client.consumer.subscription import Mode
from kavka.client.errors import Disconnected, KafkaTimeout, error_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kavka.protocol.primitives import ProtocolError, TopMessage

log = logging.getLogger(__name__)

JOIN_CHANNEL = "join"
LEAVES_BY_LIST_FROM = 3
# What the coordinator may take beyond the rebalance timeout before it is taken for dead.
JOIN_LAPSE = 5.0

_MEMBER_UNKNOWN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
# Joining again without its id, a static member would throw out the one that has taken its place, and any other would
# have the group wait for the member that it was.
_KEEPS_ID = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
_PASSING = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS})


class State(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class ClassicMember(Member):
    def __init__(self, config: ClientConfig, host: Host) -> None:
        super().__init__(config, host)
        self.assignors = assignors.load(config["partition.assignment.strategy"], config.originals)
        self.cooperative = all(getattr(one, "cooperative", False) for one in self.assignors)
        self.state = State.UNJOINED
        self.protocol = ""
        self._session_timeout = config.seconds("session.timeout.ms")
        self._heartbeat_interval = config.seconds("heartbeat.interval.ms")
        self._rejoin = "the consumer begins"
        self._prepared = False
        self._is_leader = False
        self._joined: frozenset[str] | None = None
        self._seen_partitions: dict[str, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._heart: asyncio.Task[None] | None = None

    # --- for the coordinator's other requests

    def committer(self) -> Identity:
        if self.host.subscriptions.by_group and self.state is not State.STABLE:
            if self.generation >= 0 or self.rebalancing:
                raise RebalanceInProgress("the offsets were not committed: the group rebalances; poll and commit again")
            raise CommitFailed(
                "the offsets were not committed: this consumer is not a member of the group (any more); if it was, it "
                "took longer than max.poll.interval.ms between two polls"
            )
        return self.identity() if self.host.subscriptions.by_group else Identity(instance_id=None)

    def refused(self, identity: Identity, code: ErrorCode) -> None:
        if identity.generation != self.generation or identity.member_id != self.member_id or self.generation < 0:
            return
        if code in _MEMBER_UNKNOWN or code == ErrorCode.FENCED_INSTANCE_ID:
            self._thrown_out(f"a commit was answered with {code.name}", keep_id=code in _KEEPS_ID)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._want_rejoin("a commit was answered with REBALANCE_IN_PROGRESS")

    # --- for the consumer

    @property
    def rebalancing(self) -> bool:
        return self._task is not None and not self._task.done()

    def poll(self) -> None:
        if not self.host.subscriptions.by_group:
            return
        if self._heart is None or self._heart.done():
            self._heart = self._start(self._beat(), "heartbeat")
        if self._needs_rejoin() and not self.rebalancing:
            self._task = self._start(self._rebalance(), "rebalance")

    def on_metadata(self) -> None:
        if self.host.subscriptions.by_group and self._needs_rejoin():
            self.host.want_poll()

    def rejoin(self, reason: str) -> None:
        self._want_rejoin(reason)

    async def leave(self, deadline: float, *, tell_group: bool | None = None) -> None:
        await self._stop()
        self._task = self._heart = None
        owned = list(self.host.subscriptions.partitions) if self.host.subscriptions.by_group else []
        await self._give_up(owned, REVOKED if self.generation >= 0 and not self._lost else LOST)
        if self.instance_id is None if tell_group is None else tell_group:
            left = max(0.001, min(self.coordinator.timeout, deadline - time.monotonic()))
            await self._send_leave(left, "the consumer is closed or unsubscribed")
        self._reset("it has left")
        self._lost = False

    def _needs_rejoin(self) -> bool:
        if self._rejoin:
            return True
        if self._joined is not None and self._joined != self.host.subscriptions.topics:
            self._rejoin = "its subscription has changed"
        elif self._seen_partitions is not None and self._seen_partitions != self._counts(self._seen_partitions):
            self._rejoin = "the number of partitions has changed"
        return bool(self._rejoin)

    def _counts(self, topics: Any) -> dict[str, int]:
        known = self.host.cluster.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    def _want_rejoin(self, reason: str) -> None:
        if not self._rejoin:
            log.info("Member %s of group %s joins again: %s", self.member_id, self.group_id, reason)
            self._rejoin = reason
        self.host.want_poll()

    def _thrown_out(self, why: str, *, keep_id: bool = False) -> None:
        """No member any more: what it had, others may have by now."""
        log.info("Member %s is not in group %s any more: %s", self.member_id, self.group_id, why)
        self._lose_all()
        self._prepared = False
        member_id = self.member_id
        self._reset(why)
        if keep_id:
            self.member_id = member_id
        self.host.want_poll()

    def _reset(self, why: str) -> None:
        self.generation = -1
        self.member_id = ""
        self.state = State.UNJOINED
        self._joined = self._seen_partitions = None
        self._rejoin = why

    # --- rebalances

    async def _rebalance(self) -> None:
        failures = 0
        started = time.monotonic()
        try:
            await self._match_pattern(fresh=self._joined is None)
            while self._needs_rejoin():
                try:
                    await self._match_pattern()
                    await self.coordinator.find()
                    if not self._prepared:
                        await self.host.errand(self._prepare)
                    assignment, topics = await self._join_and_sync()
                    await self.host.errand(partial(self._complete, assignment, topics, self.generation))
                    failures = 0
                    self.host.metrics.rebalance_latency.add(time.monotonic() - started)
                    started = time.monotonic()
                except Again as again:
                    self.host.metrics.failed_rebalances += 1
                    log.debug("Joining group %s: %s", self.group_id, again)
                    if again.pause:
                        failures += 1
                        await asyncio.sleep(self.coordinator.backoff.delay(failures))
                except (Disconnected, KafkaTimeout) as error:
                    self.host.metrics.failed_rebalances += 1
                    log.debug("Joining group %s: %s", self.group_id, error)
                    if self.state is not State.STABLE:
                        self.state = State.UNJOINED
                    failures += 1
                    await asyncio.sleep(self.coordinator.backoff.delay(failures))
        except KafkaError as error:
            self.state = State.UNJOINED
            self.host.fail(KafkaError(error.code, f"group {self.group_id}: {error}"))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # An assignor of the program's own, or a defect of ours.
            self.state = State.UNJOINED
            self.host.fail(error)
        self._task = None

    async def _match_pattern(self, fresh: bool = False) -> None:
        """What a pattern stands for is only known from the metadata of all topics: who joins without it would have
        the whole group rebalance again."""
        cluster, subscriptions = self.host.cluster, self.host.subscriptions
        while subscriptions.mode is Mode.PATTERN and (fresh or not subscriptions.matched):
            await cluster.wait_for_update(cluster.request_update(), None)
            fresh = False

    async def _prepare(self) -> None:
        """Errand: give up what must not be read while others may be told to."""
        subscriptions = self.host.subscriptions
        if self._lost:
            await self._give_up(list(subscriptions.partitions), LOST)
            self._lost = False
        elif not self.cooperative:
            await self._give_up(list(subscriptions.partitions), REVOKED)
        else:
            gone = [tp for tp in subscriptions.partitions if tp.topic not in subscriptions.topics]
            if gone:
                await self._give_up(gone, REVOKED)
            elif self.host.auto_commit:
                await self.host.commit_positions(time.monotonic() + self.coordinator.timeout)
        self._prepared = True

    async def _join_and_sync(self) -> tuple[bytes, frozenset[str]]:
        """The assignment as it came, and the topics that it is for."""
        topics = self.host.subscriptions.topics
        reason, self._rejoin = self._rejoin, ""
        self.state = State.JOINING
        try:
            answer = await self._join(topics, reason)
            self.state = State.SYNCING
            self._awake.set()
            assignments = await self._lead(answer) if self._is_leader else []
            return await self._sync(assignments), topics
        except BaseException:
            self._rejoin = self._rejoin or reason
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
        timeout = max(self.coordinator.timeout, self._max_poll_interval + JOIN_LAPSE)
        answer: JoinGroupResponse = await self._send(request, timeout)
        self.host.metrics.join_latency.add(time.monotonic() - started)
        code = answer.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            raise Again("the coordinator has given us a member id", pause=False)
        self._check(code, "JoinGroup")
        self.generation = answer.generation_id
        self.member_id = answer.member_id
        self.protocol = answer.protocol_name or ""
        self._is_leader = answer.leader == answer.member_id
        self._seen_partitions = None
        log.info(
            "Member %s is in generation %s of group %s%s",
            self.member_id, self.generation, self.group_id, " and leads it" if self._is_leader else "",
        )  # fmt: skip
        return answer

    def _subscription(self, assignor: Any, topics: frozenset[str], owned: tuple[TopicPartition, ...]) -> Subscription:
        user_data = getattr(assignor, "user_data", None)
        data = user_data(topics) if callable(user_data) else None
        return Subscription(topics, data, owned, self.generation, self.instance_id, self.rack)

    async def _lead(self, answer: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        members: dict[str, Subscription] = {}
        for one in answer.members:
            try:
                members[one.member_id] = embedded.read_subscription(one.metadata, one.group_instance_id)
            except ProtocolError as error:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"the subscription of {one.member_id} cannot be read: {error}",
                ) from None
        topics = frozenset(topic for one in members.values() for topic in one.topics)
        await self._learn(topics)
        if answer.skip_assignment:
            # A static member that came back to lead: everybody keeps what it has.
            self._seen_partitions = self._counts(topics)
            return []
        assignor = next((one for one in self.assignors if one.name == self.protocol), None)
        if assignor is None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group wants the assignor {self.protocol}, which is not set"
            )
        counts = self._counts(topics)
        found = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
        assignments = assignors.as_assignments(found, members)
        if self.cooperative:
            wrong = assignors.check_cooperative(members, assignments)
            if wrong is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"assignor {self.protocol} is said to be cooperative, but {wrong}"
                )
        self._seen_partitions = counts
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=embedded.write_assignment(assignment))
            for member_id, assignment in assignments.items()
        ]

    async def _learn(self, topics: frozenset[str]) -> None:
        """Metadata of the topics of all members; those that do not exist stay unknown."""
        cluster = self.host.cluster
        subscriptions = self.host.subscriptions
        subscriptions.group_topics = topics
        missing = [topic for topic in topics if topic not in cluster.topics]
        if not cluster.all_topics:
            cluster.set_topics(subscriptions.topics | topics)
        if missing:
            try:
                await cluster.wait_for_update(cluster.request_update(), self._session_timeout / 2)
            except KafkaTimeout as error:
                log.warning("The leader of group %s assigns without metadata of %s: %s", self.group_id, missing, error)

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
        # The coordinator answers when the leader has sent its assignments, or when the rebalance timeout is over.
        answer = await self._send(request, max(self.coordinator.timeout, self._max_poll_interval + JOIN_LAPSE))
        self.host.metrics.sync_latency.add(time.monotonic() - started)
        self._check(answer.error_code, "SyncGroup")
        return bytes(answer.assignment)

    async def _send(self, request: TopMessage, timeout: float) -> Any:
        node = await self.coordinator.find()
        try:
            return await self.host.cluster.request(node, request, timeout=timeout, channel=JOIN_CHANNEL)
        except (Disconnected, KafkaTimeout):
            self.coordinator.forget()
            raise

    def _check(self, code: int, what: str) -> None:
        if not code:
            return
        error = error_of(code)
        if code in _MEMBER_UNKNOWN:
            why = f"{what} was answered with {error.code.name}"
            self._thrown_out(why, keep_id=code in _KEEPS_ID)
            raise Again(describe(error), pause=False)
        if self.coordinator.lost(code) or code in _PASSING:
            self.state = State.UNJOINED
            raise Again(describe(error), pause=True)
        raise error

    async def _complete(self, data: bytes, topics: frozenset[str], generation: int) -> None:
        """Errand: read what the leader has given us."""
        if generation != self.generation:
            # Thrown out while the program was busy.
            return
        subscriptions = self.host.subscriptions
        try:
            assignment = embedded.read_assignment(data)
        except ProtocolError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"an assignment cannot be read: {error}") from None
        # What is not subscribed to any more is given back by the rebalance that follows.
        given = [tp for tp in assignment.partitions if tp.topic in subscriptions.topics]
        owned = set(subscriptions.partitions)
        self.state = State.STABLE
        self._prepared = False
        self._joined = topics
        if self.cooperative and (gone := owned.difference(given)):
            await self._give_up(sorted(gone), REVOKED)
            if generation != self.generation:
                return
            self._want_rejoin(f"it has given up {names(gone)}")
        subscriptions.set_partitions(given)
        for assignor in self.assignors:
            if assignor.name == self.protocol and callable(getattr(assignor, "on_assignment", None)):
                assignor.on_assignment(Assignment(tuple(given), assignment.user_data), self.generation)
        self.host.assignment_changed()
        new = [tp for tp in given if tp not in owned] if self.cooperative else given
        log.info("Member %s of group %s reads %s", self.member_id, self.group_id, names(given))
        await self._tell(ASSIGNED, new)

    # --- heartbeats

    async def _beat(self) -> None:
        heard = time.monotonic()
        due = heard + self._heartbeat_interval
        while True:
            await self._sleep(min(due - time.monotonic(), self._heartbeat_interval))
            now = time.monotonic()
            if self.generation < 0 or self.state is State.JOINING:
                heard, due = now, now + self._heartbeat_interval
                continue
            if self._polls_too_rarely():
                await self._leave_as_too_slow()
                continue
            if now < due:
                continue
            if now - heard > self._session_timeout:
                # It has thrown us out by now, or is gone.
                self.coordinator.forget()
                heard = now
            due = now + self._heartbeat_interval
            if await self._heartbeat():
                heard = time.monotonic()
            else:
                due = time.monotonic() + min(self.coordinator.backoff.delay(1), self._heartbeat_interval)

    async def _heartbeat(self) -> bool:
        identity = self.identity()
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
        )
        started = time.monotonic()
        try:
            answer = await self.coordinator.send(request, timeout=min(self.coordinator.timeout, self._session_timeout))
        except KafkaError as failure:
            log.debug("No answer to a heartbeat: %s", failure)
            return False
        self.host.metrics.heard(time.monotonic() - started)
        code = answer.error_code
        if not code:
            return True
        if identity != self.identity():
            # The answer is to what we were before.
            return True
        if self.coordinator.lost(code):
            return False
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.state is State.STABLE and not self.rebalancing:
                self._want_rejoin("the group rebalances")
            return True
        error = error_of(code)
        if code in _MEMBER_UNKNOWN:
            self._thrown_out(f"a heartbeat was answered with {error.code.name}", keep_id=code in _KEEPS_ID)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._thrown_out("another member has its instance id", keep_id=True)
            self.host.fail(KafkaError(error.code, f"group {self.group_id}: {error}"))
        elif not error.retriable:
            self.host.fail(KafkaError(error.code, f"group {self.group_id}: {error}"))
        return error.retriable is False

    async def _leave_as_too_slow(self) -> None:
        why = (
            f"the program has not polled for longer than max.poll.interval.ms ({self._max_poll_interval:g} s); poll "
            "more often, or take fewer records at a time (max.poll.records)"
        )
        log.warning("Member %s leaves group %s: %s", self.member_id, self.group_id, why)
        if self.rebalancing and self._task is not None:
            self._task.cancel()
            self._task = None
        if self.instance_id is None:
            await self._send_leave(self.coordinator.timeout, "it polls too rarely")
        self._thrown_out("it polls too rarely")

    async def _send_leave(self, timeout: float, reason: str) -> None:
        if not self.member_id:
            return
        try:
            version = await self.coordinator.version_of(LeaveGroupRequest.API_KEY, timeout=timeout)
            request = LeaveGroupRequest(group_id=self.group_id)
            if version >= LEAVES_BY_LIST_FROM:
                request.members = [
                    MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id, reason=reason)
                ]
            else:
                request.member_id = self.member_id
            await self.coordinator.send(request, timeout=timeout, max_version=version)
        except KafkaError as error:
            log.debug("Leaving group %s: %s", self.group_id, error)
