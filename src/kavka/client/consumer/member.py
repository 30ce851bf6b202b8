"""What the two kinds of group members have in common."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Protocol, TypeVar

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import Coordinator, Identity, Membership
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer.subscription import Subscriptions, drop
from kavka.client.types import ConsumerGroupMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

ASSIGNED, REVOKED, LOST = "assigned", "revoked", "lost"


class Host(Protocol):
    """What a member needs of the consumer that it is part of."""

    subscriptions: Subscriptions
    cluster: Cluster
    coordinator: Coordinator
    metrics: ConsumerMetrics
    auto_commit: bool
    last_poll: float
    in_poll: bool

    async def errand(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have it done by the next poll, in which the assignment may change and the program's functions be called."""

    async def tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Call the program's rebalance listener. Only in an errand, or in a call of the program's."""

    async def commit_positions(self, deadline: float) -> None:
        """Commit what was polled; a failure goes to the log."""

    def want_poll(self) -> None:
        """There is something for the next poll to do."""

    def fail(self, error: BaseException) -> None:
        """The next poll raises this."""

    def assignment_changed(self) -> None:
        """Partitions came or went."""


class Member(Membership):
    """A member of a group: joins when polled, is heard of in the background, is told what to read.

    `generation` is -1 while it is no member. Everything runs on the loop; what changes the assignment is an errand.
    """

    def __init__(self, config: ClientConfig, host: Host) -> None:
        self.host = host
        self.coordinator = host.coordinator
        self.group_id: str = config["group.id"]
        self.instance_id: str | None = config["group.instance.id"]
        self.rack: str | None = config["client.rack"] or None
        self.generation = -1
        self.member_id = ""
        self._lost = False
        self._max_poll_interval = config.seconds("max.poll.interval.ms")
        self._tasks: list[asyncio.Task[None]] = []
        self._awake = asyncio.Event()

    # --- for the coordinator's other requests

    def identity(self) -> Identity:
        return Identity(self.generation, self.member_id, self.instance_id)

    def metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(self.group_id, self.generation, self.member_id, self.instance_id)

    # --- for the consumer

    def poll(self) -> None:
        """The program polls: join where need be, and go on with what waited for that."""
        raise NotImplementedError

    def on_metadata(self) -> None:
        """There is newer metadata."""

    def subscription_changed(self) -> None:
        self.host.want_poll()

    def rejoin(self, reason: str) -> None:
        """The program wants a rebalance."""

    async def leave(self, deadline: float, *, tell_group: bool | None = None) -> None:
        """Stop being a member. Called by the program, or for it, in a call that it waits for."""
        raise NotImplementedError

    @property
    def rebalancing(self) -> bool:
        raise NotImplementedError

    # --- parts of both

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"kavka-{name}")
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sleep(self, seconds: float) -> None:
        """Until that time has passed, or `_awake` is set."""
        self._awake.clear()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._awake.wait()
        except TimeoutError:
            pass

    def _polls_too_rarely(self) -> bool:
        host = self.host
        return not host.in_poll and time.monotonic() - host.last_poll > self._max_poll_interval

    def _lose_all(self) -> None:
        """Others may read them by now: nothing more is handed out, and the next poll tells the program."""
        for state in self.host.subscriptions.partitions.values():
            state.held = True
            self._lost = True

    async def _give_up(self, gone: Collection[TopicPartition], what: str) -> None:
        """Take partitions away, having told the program. Before they are revoked, what was polled is committed."""
        host = self.host
        states = [host.subscriptions.partitions[tp] for tp in gone]
        for state in states:
            state.held = True
        if what == REVOKED and host.auto_commit:
            await host.commit_positions(time.monotonic() + min(self._max_poll_interval, self.coordinator.timeout))
        if gone:
            await self._tell(what, gone)
        dropped = set(gone)
        for state in states:
            drop(state)
        host.subscriptions.partitions = {
            tp: state for tp, state in host.subscriptions.partitions.items() if tp not in dropped
        }
        if gone:
            host.assignment_changed()

    async def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """The program's listener; what it raises is raised by poll, and changes nothing of what happens here."""
        try:
            await self.host.tell(what, partitions)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.info("A rebalance listener failed at partitions that were %s: %r", what, error)
            self.host.fail(error)


class Again(Exception):
    """A step of joining has to be repeated: at once, or after a pause."""

    def __init__(self, why: str, *, pause: bool) -> None:
        super().__init__(why)
        self.pause = pause


def describe(error: KafkaError) -> str:
    return f"{error.code.name}: {error}"


def names(partitions: Collection[Any]) -> str:
    return ", ".join(sorted(map(str, partitions))) or "none"
