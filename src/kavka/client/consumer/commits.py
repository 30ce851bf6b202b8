"""What a consumer commits: what it was told to, and from time to time what was polled.

All on the loop, but for `consumed` and `meant`, which who polls may call, too. Commits that nobody waits for are tasks;
what is to be told of them waits for the next poll (`tell`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from kavka.client.config import ClientConfig
from kavka.client.consumer.coordinator import Coordinator, Offsets
from kavka.client.consumer.interceptors import Interceptors
from kavka.client.consumer.subscription import Subscriptions
from kavka.client.consumer.unread import Unread
from kavka.client.errors import IllegalState
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

log = logging.getLogger(__name__)

CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], object]

_NEVER = float("inf")
# How soon to look again where a rebalance is under way: it commits, or it is over soon.
_AFTER_REBALANCE = 0.1


class Commits:
    """`auto`: what was polled is committed by itself, next at `next_auto`. `rebalancing()` says whether the group is
    just then; for `call_user` and `want_poll` see ConsumerCore."""

    def __init__(
        self,
        config: ClientConfig,
        coordinator: Coordinator,
        subscriptions: Subscriptions,
        interceptors: Interceptors,
        unread: Unread,
        call_user: Callable[..., Awaitable[Any]],
        want_poll: Callable[[], object],
        rebalancing: Callable[[], bool],
    ) -> None:
        self._coordinator = coordinator
        self._subscriptions = subscriptions
        self._interceptors = interceptors
        self._unread = unread
        self._call_user = call_user
        self._want_poll = want_poll
        self._rebalancing = rebalancing
        self._has_group = config["group.id"] is not None
        self._interval = config.seconds("auto.commit.interval.ms")
        self.auto = self._has_group and config["enable.auto.commit"]
        self.next_auto = _NEVER
        self._to_tell: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def check_group(self) -> None:
        if not self._has_group:
            raise IllegalState("group.id is not set: offsets are committed for a group")

    # --- what

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What was polled of each partition; for who polls, or while it waits."""
        unread = self._unread.first()
        return {
            tp: OffsetAndMetadata(unread.get(tp, state.position), "", state.epoch if state.epoch >= 0 else None)
            for tp, state in self._subscriptions.partitions.items()
            if state.position >= 0
        }

    def meant(self, offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit's argument means: nothing for everything polled, partitions, or offsets by partition."""
        if offsets is None:
            return self.consumed()
        if isinstance(offsets, Mapping):
            result: dict[TopicPartition, OffsetAndMetadata] = {}
            for tp, what in offsets.items():
                one = OffsetAndMetadata(what) if isinstance(what, int) else OffsetAndMetadata(*what)
                if one.offset < 0:
                    raise ValueError(f"the offset of {TopicPartition(*tp)} cannot be {one.offset}")
                result[TopicPartition(*tp)] = one
            return result
        if isinstance(offsets, TopicPartition):
            offsets = (offsets,)
        consumed = self.consumed()
        chosen = [TopicPartition(*tp) for tp in offsets]
        for tp in chosen:
            self._subscriptions.state(tp)
        return {tp: consumed[tp] for tp in chosen if tp in consumed}

    # --- by the program

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], deadline: float) -> None:
        self.check_group()
        self._unread.committed(offsets)
        # Those that were asked for before come before.
        await self.settle(deadline)
        await self.tell()
        await self._coordinator.commit(offsets, deadline)
        if offsets and self._interceptors.see_commits:
            await self._call_user(self._interceptors.on_commit, offsets)

    def commit_later(self, offsets: Any, callback: CommitCallback | None = None) -> None:
        self.check_group()
        chosen = self.meant(offsets)
        self._unread.committed(chosen)
        self._begin(chosen, callback)

    async def committed(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.check_group()
        return await self._coordinator.committed(partitions, deadline)

    # --- by itself

    def assigned(self) -> None:
        """From now on there is something to commit."""
        if self.auto and self.next_auto == _NEVER:
            self.next_auto = time.monotonic() + self._interval

    def commit_if_due(self) -> None:
        now = time.monotonic()
        if now < self.next_auto or not self.auto:
            return
        if self._rebalancing():
            self.next_auto = now + min(self._interval, _AFTER_REBALANCE)
            return
        self.next_auto = now + self._interval
        offsets = self.consumed()
        if offsets:
            self._begin(offsets, None)

    async def commit_consumed(self, deadline: float) -> None:
        """What was polled; that it fails is said in the log alone."""
        offsets: Offsets = self.consumed()
        await self.settle(deadline)
        try:
            await self._coordinator.commit(offsets, deadline)
        except KafkaError as error:
            log.warning("What was polled was not committed: %s", error)
            return
        if offsets and self._interceptors.see_commits:
            self._to_tell.append((self._interceptors.on_commit, (offsets,)))

    # --- those under way

    async def settle(self, deadline: float) -> None:
        """Wait for them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, deadline - time.monotonic()))

    async def tell(self) -> None:
        """Call who wants to hear of those that are done."""
        while self._to_tell:
            function, args = self._to_tell.popleft()
            try:
                await self._call_user(function, *args)
            except Exception:
                log.exception("A callback of a commit failed")

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _begin(self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None) -> None:
        task = asyncio.create_task(self._once(offsets, callback), name="kavka-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _once(self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None) -> None:
        error: BaseException | None = None
        try:
            await self._coordinator.commit_once(offsets)
        except KafkaError as failure:
            error = failure
            log.log(logging.WARNING if callback is None else logging.DEBUG, "Offsets were not committed: %s", failure)
        if error is None and self._interceptors.see_commits and offsets:
            self._to_tell.append((self._interceptors.on_commit, (offsets,)))
        if callback is not None:
            self._to_tell.append((callback, (offsets, error)))
        if self._to_tell:
            self._want_poll()
