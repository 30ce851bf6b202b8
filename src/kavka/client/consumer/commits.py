"""Commits of a consumer: explicit commits of the application, and automatic commits.

Runs on the event loop. The application's thread may also call `consumed` and `parse_offsets`.
Asynchronous commits are tasks. The next poll, synchronous commit or close calls their callbacks
(`run_callbacks`).
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

logger = logging.getLogger(__name__)

CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], BaseException | None], object]

_NEVER = float("inf")
# Seconds to defer an automatic commit while the group rebalances.
_REBALANCE_DELAY_S = 0.1


class Commits:
    """Owns the commits in flight and their pending callbacks. If `is_auto_commit` is set, polls
    commit the consumed positions, the next time at `next_auto_commit`. `ConsumerCore` documents
    `call_user`, and `Host` in `member.py` documents `request_poll`."""

    def __init__(
        self,
        config: ClientConfig,
        coordinator: Coordinator,
        subscriptions: Subscriptions,
        interceptors: Interceptors,
        unread: Unread,
        call_user: Callable[..., Awaitable[Any]],
        request_poll: Callable[[], object],
        is_rebalancing: Callable[[], bool],
    ) -> None:
        self._coordinator = coordinator
        self._subscriptions = subscriptions
        self._interceptors = interceptors
        self._unread = unread
        self._call_user = call_user
        self._request_poll = request_poll
        self._is_rebalancing = is_rebalancing
        self._has_group = config["group.id"] is not None
        self._interval = config.seconds("auto.commit.interval.ms")
        self.is_auto_commit = self._has_group and config["enable.auto.commit"]
        self.next_auto_commit = _NEVER
        self._callbacks: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def check_group(self) -> None:
        if not self._has_group:
            raise IllegalState("group.id is not set: a commit requires a group")

    # --- offsets to commit

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the consumed position of each partition. Call it in the polling thread, or while
        the polling thread waits."""
        unread = self._unread.first()
        return {
            tp: OffsetAndMetadata(unread.get(tp, state.position), "", state.epoch if state.epoch >= 0 else None)
            for tp, state in self._subscriptions.partitions.items()
            if state.position >= 0
        }

    def parse_offsets(self, offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit for the argument of a commit: None (all consumed positions),
        partitions (their consumed positions), or offsets by partition. Raises ValueError for a
        negative offset, and IllegalState for a partition without an offset that is not
        assigned."""
        if offsets is None:
            return self.consumed()
        if isinstance(offsets, Mapping):
            result: dict[TopicPartition, OffsetAndMetadata] = {}
            for tp, value in offsets.items():
                position = OffsetAndMetadata(value) if isinstance(value, int) else OffsetAndMetadata(*value)
                if position.offset < 0:
                    raise ValueError(f"the offset of {TopicPartition(*tp)} cannot be negative: {position.offset}")
                result[TopicPartition(*tp)] = position
            return result
        if isinstance(offsets, TopicPartition):
            offsets = (offsets,)
        consumed = self.consumed()
        requested = [TopicPartition(*tp) for tp in offsets]
        for tp in requested:
            self._subscriptions.state(tp)
        return {tp: consumed[tp] for tp in requested if tp in consumed}

    # --- commits of the application

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], deadline: float) -> None:
        self.check_group()
        self._unread.on_commit(offsets)
        # Keep the order of commits, as long as the deadline permits.
        await self.wait_for_pending(deadline)
        await self.run_callbacks()
        await self._coordinator.commit(offsets, deadline)
        if offsets and self._interceptors.has_commit_methods:
            await self._call_user(self._interceptors.on_commit, offsets)

    def commit_async(self, offsets: Any, callback: CommitCallback | None = None) -> None:
        self.check_group()
        requested = self.parse_offsets(offsets)
        self._unread.on_commit(requested)
        self._start(requested, callback)

    async def committed(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self.check_group()
        return await self._coordinator.committed(partitions, deadline)

    # --- automatic commits

    def start_auto_commit(self) -> None:
        """Start the interval of automatic commits. Called when partitions are assigned."""
        if self.is_auto_commit and self.next_auto_commit == _NEVER:
            self.next_auto_commit = time.monotonic() + self._interval

    def commit_if_due(self) -> None:
        now = time.monotonic()
        if now < self.next_auto_commit or not self.is_auto_commit:
            return
        if self._is_rebalancing():
            self.next_auto_commit = now + min(self._interval, _REBALANCE_DELAY_S)
            return
        self.next_auto_commit = now + self._interval
        offsets = self.consumed()
        if offsets:
            self._start(offsets, None)

    async def commit_consumed(self, deadline: float) -> None:
        """Commit the consumed positions. A failure is logged, not raised."""
        offsets: Offsets = self.consumed()
        await self.wait_for_pending(deadline)
        try:
            await self._coordinator.commit(offsets, deadline)
        except KafkaError as error:
            logger.warning("The consumed positions were not committed: %s", error)
            return
        if offsets and self._interceptors.has_commit_methods:
            self._callbacks.append((self._interceptors.on_commit, (offsets,)))

    # --- commits in flight

    async def wait_for_pending(self, deadline: float) -> None:
        """Wait for the commits in flight, at most until the deadline."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, deadline - time.monotonic()))

    async def run_callbacks(self) -> None:
        """Call the callbacks and interceptors of completed commits."""
        while self._callbacks:
            function, args = self._callbacks.popleft()
            try:
                await self._call_user(function, *args)
            except Exception:
                logger.exception("A commit callback failed")

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _start(self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None) -> None:
        task = asyncio.create_task(self._commit_once(offsets, callback), name="kavka-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _commit_once(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> None:
        error: BaseException | None = None
        try:
            await self._coordinator.commit_once(offsets)
        except KafkaError as failure:
            error = failure
            logger.log(
                logging.WARNING if callback is None else logging.DEBUG, "Offsets were not committed: %s", failure
            )
        if error is None and self._interceptors.has_commit_methods and offsets:
            self._callbacks.append((self._interceptors.on_commit, (offsets,)))
        if callback is not None:
            self._callbacks.append((callback, (offsets, error)))
        if self._callbacks:
            self._request_poll()
