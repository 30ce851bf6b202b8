"""The base class of the members of both group protocols. See `member_states.py` for the states."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, ClassVar, Protocol, TypeVar

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import Coordinator, Identity, Membership
from kavka.client.consumer.member_states import MemberState, Transitions
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer.subscription import Subscriptions, drop
from kavka.client.types import ConsumerGroupMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

ASSIGNED, REVOKED, LOST = "assigned", "revoked", "lost"


class Host(Protocol):
    """The interface of the consumer that a member belongs to."""

    subscriptions: Subscriptions
    cluster: Cluster
    coordinator: Coordinator
    metrics: ConsumerMetrics
    auto_commit: bool
    last_poll: float
    in_poll: bool

    async def run_in_poll(self, work: Callable[[], Awaitable[T]]) -> T:
        """Make the next poll run `work`, and return the result of `work`. Only a poll may change
        the assignment or call functions of the application."""

    async def notify_listener(self, event: str, partitions: Collection[TopicPartition]) -> None:
        """Call the rebalance listener. Allowed only in a poll task or in a call of the
        application."""

    async def commit_positions(self, deadline: float) -> None:
        """Commit the consumed positions. A failure is logged, not raised."""

    def request_poll(self) -> None:
        """Make the next poll run its tasks, and wake a poll that is waiting."""

    def fail(self, error: BaseException) -> None:
        """Make the next poll raise this error."""

    def on_assignment_changed(self) -> None:
        """Called after partitions were added to or removed from the assignment."""


class Member(Membership):
    """A member of a group: polls make it join, a background task sends heartbeats, and poll tasks
    apply assignments.

    Owns the member's id, `generation` (or epoch; -1 while it is not a member) and `state`. All
    methods run on the event loop. Only a poll task changes the assignment.
    """

    TRANSITIONS: ClassVar[Transitions]

    def __init__(self, config: ClientConfig, host: Host) -> None:
        self.host = host
        self.coordinator = host.coordinator
        self.group_id: str = config["group.id"]
        self.instance_id: str | None = config["group.instance.id"]
        self.rack: str | None = config["client.rack"] or None
        self.generation = -1
        self.member_id = ""
        self.state = MemberState.UNJOINED
        self._max_poll_interval = config.seconds("max.poll.interval.ms")
        self._tasks: list[asyncio.Task[None]] = []
        self._heartbeat_wakeup = asyncio.Event()

    # --- for requests to the coordinator

    def identity(self) -> Identity:
        return Identity(self.generation, self.member_id, self.instance_id)

    def metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(self.group_id, self.generation, self.member_id, self.instance_id)

    # --- for the consumer

    def poll(self) -> None:
        """Start the background tasks that the state requires. Called by `run_poll_work`."""
        raise NotImplementedError

    def on_metadata(self) -> None:
        """Called when the cluster has newer metadata."""

    def on_subscription_changed(self) -> None:
        self.host.request_poll()

    def rejoin(self, reason: str) -> None:
        """Rejoin the group with the next poll. Has no effect in the consumer protocol, in which the
        coordinator decides when to rebalance."""

    async def leave(self, deadline: float, *, leave_group: bool | None = None) -> None:
        """Give up all partitions and leave the group. Called while the application waits. If
        `leave_group` is None, a static member stays in the group."""
        raise NotImplementedError

    @property
    def is_rebalancing(self) -> bool:
        raise NotImplementedError

    # --- shared parts

    def _transition(self, state: MemberState) -> None:
        if state is self.state:
            return
        if state not in self.TRANSITIONS[self.state]:
            raise RuntimeError(f"a group member cannot change from {self.state.name} to {state.name}")
        logger.debug("Member %s of group %s: %s to %s", self.member_id, self.group_id, self.state.name, state.name)
        self.state = state

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        new_task = asyncio.create_task(work, name=f"kavka-{name}")
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(new_task)
        return new_task

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sleep(self, seconds: float) -> None:
        """Wait for this time, or until `_heartbeat_wakeup` is set."""
        self._heartbeat_wakeup.clear()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._heartbeat_wakeup.wait()
        except TimeoutError:
            pass

    def _exceeds_poll_interval(self) -> bool:
        host = self.host
        return not host.in_poll and time.monotonic() - host.last_poll > self._max_poll_interval

    def _log_poll_interval_exceeded(self) -> None:
        logger.warning(
            "Member %s leaves group %s: the application has not polled for longer than max.poll.interval.ms (%g s); "
            "poll more often, or take fewer records per poll (max.poll.records)",
            self.member_id, self.group_id, self._max_poll_interval,
        )  # fmt: skip

    def _hold_partitions(self) -> None:
        """Make polls return no more records of the owned partitions, because other members may
        already own them."""
        for state in self.host.subscriptions.partitions.values():
            state.held = True

    async def _give_up(self, partitions: Collection[TopicPartition], event: str) -> None:
        """Remove partitions from the assignment after calling the listener. If the partitions are
        revoked and auto-commit is enabled, commits the consumed positions first."""
        host = self.host
        states = [host.subscriptions.partitions[tp] for tp in partitions]
        for state in states:
            state.held = True
        if event == REVOKED and host.auto_commit:
            await host.commit_positions(time.monotonic() + min(self._max_poll_interval, self.coordinator.timeout))
        if partitions:
            await self._notify_listener(event, partitions)
        dropped = set(partitions)
        for state in states:
            drop(state)
        host.subscriptions.partitions = {
            tp: state for tp, state in host.subscriptions.partitions.items() if tp not in dropped
        }
        if partitions:
            host.on_assignment_changed()

    async def _notify_listener(self, event: str, partitions: Collection[TopicPartition]) -> None:
        """Call the rebalance listener. If the listener fails, the rebalance continues and the next
        poll raises the error."""
        try:
            await self.host.notify_listener(event, partitions)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            logger.info("The rebalance listener failed for partitions that were %s: %r", event, error)
            self.host.fail(error)


class Retry(Exception):
    """A step of joining must be retried, immediately or after a backoff."""

    def __init__(self, reason: str, *, backoff: bool) -> None:
        super().__init__(reason)
        self.backoff = backoff


def describe(error: KafkaError) -> str:
    return f"{error.code.name}: {error}"


def names(partitions: Collection[Any]) -> str:
    return ", ".join(sorted(map(str, partitions))) or "none"
