"""Requests that wait (Kafka's purgatory): a produce for its replicas or its flush, a fetch for its data.

A waiter is a future with a deadline. Partitions hold the waiters that depend on them and call `check()` when
something moved; a waiter that is done removes itself from every partition it was registered with. Only the loop
thread touches any of this.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kavka.common.errors import ErrorCode

if TYPE_CHECKING:
    from kavka.replication.follower_session import FollowerSession
    from kavka.replication.partition import Partition


LONGEST_DOUBT_S = 1.0
"""How long a produce waits to hear what became of its records when their leader has changed."""


class AppendWaiter(Protocol):
    """Waits for a partition to have committed, or flushed, what was appended to it."""

    def check(self, partition: Partition) -> None:
        """The high watermark or the flushed offset may have moved."""

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        """The partition can no longer say."""


class _ResponseWaiter(ABC):
    """Completes with the response when every partition of the request has come to what it waits for there.

    A partition that fails meanwhile, or is not there when the time is up, gets its error code in the response.
    """

    __slots__ = ("_left", "_timer", "future", "response")

    def __init__(self, response: Any) -> None:
        self.response = response
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # A request may name a partition more than once. The last of each tuple is the partition's part of the response.
        self._left: dict[Partition, list[tuple[Any, ...]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def _wait_at(self, partition: Partition, *wanted: Any) -> None:
        self._left.setdefault(partition, []).append(wanted)
        partition.produce_waiters.add(self)

    def start(self, timeout_ms: int) -> asyncio.Future[Any]:
        self._timer = asyncio.get_running_loop().call_later(max(0, timeout_ms) / 1000, self._expire)
        self.future.add_done_callback(self._on_done)
        return self.future

    @abstractmethod
    def check(self, partition: Partition) -> None:
        """Something moved there: `_finish` where all that is waited for has come."""

    @abstractmethod
    def _refuse(self, answer: Any, code: ErrorCode) -> None:
        """Put the error into a partition's part of the response."""

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        wanted = self._left.get(partition)
        if wanted is not None:
            for *_, answer in wanted:
                self._refuse(answer, code)
            self._finish(partition)

    def _finish(self, partition: Partition) -> None:
        del self._left[partition]
        partition.produce_waiters.discard(self)
        if not self._left:
            self._complete()

    def _expire(self) -> None:
        for wanted in self._left.values():
            for *_, answer in wanted:
                self._refuse(answer, ErrorCode.REQUEST_TIMED_OUT)
        self._detach()
        self._complete()

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._detach()

    def _detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._left:
            partition.produce_waiters.discard(self)
        self._left.clear()

    def _complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.future.done():
            self.future.set_result(self.response)


class ProduceWaiter(_ResponseWaiter):
    """Waits until every partition has what the request's acks ask for.

    A broker that is the leader no more cannot commit, but what it had appended may be committed by its successor, who
    had copied it. A client that was told NOT_LEADER_OR_FOLLOWER would send it again, and one that is not idempotent
    would double it. So the answer waits for what this broker hears as a follower: its log is not cut, and the high
    watermark passes what was appended, or it is cut below; or neither within a second."""

    __slots__ = ()

    def add(self, partition: Partition, end_offset: int, acks_all: bool, answer: Any) -> None:
        """Wait until `partition` has committed (acks=all) or flushed what lies before `end_offset`."""
        self._wait_at(partition, end_offset, acks_all, answer)

    def check(self, partition: Partition) -> None:
        wanted = self._left.get(partition)
        if wanted is not None and all(partition.has(end_offset, acks_all) for end_offset, acks_all, _ in wanted):
            if len(partition.maximal_isr) < partition.min_isr:
                for _, acks_all, answer in wanted:
                    if acks_all:
                        self._refuse(answer, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            self._finish(partition)

    def leader_lost(self, partition: Partition) -> None:
        """This broker follows another one now."""
        wanted = self._left.get(partition)
        if wanted is None:
            return
        if all(acks_all for _, acks_all, _ in wanted):
            asyncio.get_running_loop().call_later(LONGEST_DOUBT_S, self._doubt_ends, partition)
        else:
            self.fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _doubt_ends(self, partition: Partition) -> None:
        if not partition.is_leader:
            self.fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def was_cut(self, partition: Partition, offset: int) -> None:
        """Nothing from `offset` on is in the log any more."""
        wanted = self._left.get(partition)
        if wanted is not None and any(end_offset > offset for end_offset, _, _ in wanted):
            self.fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _refuse(self, answer: Any, code: ErrorCode) -> None:
        answer.error_code = int(code)
        answer.base_offset = -1
        answer.log_append_time_ms = -1
        answer.log_start_offset = -1


class DeletionWaiter(_ResponseWaiter):
    """Waits until all replicas of every partition have deleted what was asked for."""

    __slots__ = ()

    def add(self, partition: Partition, offset: int, answer: Any) -> None:
        """Wait until the low watermark of `partition` is at `offset`; `answer` is its part of the response."""
        self._wait_at(partition, offset, answer)

    def check(self, partition: Partition) -> None:
        reached = partition.low_watermark if partition.log is not None else -1
        wanted = self._left.get(partition)
        if wanted is not None and all(reached >= offset for offset, _ in wanted):
            for _, answer in wanted:
                answer.low_watermark = reached
            self._finish(partition)

    def _refuse(self, answer: Any, code: ErrorCode) -> None:
        answer.error_code = int(code)
        # When the time is up, the answer says how far the leader is.
        if code is not ErrorCode.REQUEST_TIMED_OUT:
            answer.low_watermark = -1


class FetchWaiter:
    """Completes with what `read()` gives as soon as enough is there, or the wait is over.

    `ready()` says cheaply whether reading again would answer the request; `read()` makes the answer, and may itself
    give a future (cold data is warmed first). A follower's waits for appends, a consumer's for the high watermark.
    """

    __slots__ = ("_of_follower", "_partitions", "_read", "_ready", "_session", "_timer", "future")

    def __init__(
        self,
        partitions: list[Partition],
        ready: Callable[[], bool],
        read: Callable[[], Any],
        max_wait_ms: int,
        session: FollowerSession | None = None,
        of_follower: bool = False,
    ) -> None:
        """`session` is a follower's, which knows by itself of what happens; else it waits at the partitions."""
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._partitions = partitions
        self._ready = ready
        self._read = read
        self._of_follower = of_follower
        self._session = session
        if session is not None:
            session.waiter = self
        for partition in partitions:
            (partition.follower_waiters if of_follower else partition.fetch_waiters).add(self)
        self._timer = loop.call_later(max_wait_ms / 1000, self._complete)
        self.future.add_done_callback(self._on_done)

    def check(self) -> None:
        try:
            ready = self._ready()
        except Exception:
            ready = True  # reading will say what is wrong, to the one who asked
        if ready:
            self._complete()

    def abandon(self) -> None:
        """A partition moved or failed: answer at once with what there is to say."""
        self._complete()

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._detach()

    def _detach(self) -> None:
        self._timer.cancel()
        if self._session is not None and self._session.waiter is self:
            self._session.waiter = None
        for partition in self._partitions:
            (partition.follower_waiters if self._of_follower else partition.fetch_waiters).discard(self)

    def _complete(self) -> None:
        self._detach()
        if self.future.done():
            return
        try:
            answer = self._read()
        except Exception as error:
            self.future.set_exception(error)
            return
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(self._pass_on)
        else:
            self.future.set_result(answer)

    def _pass_on(self, answer: asyncio.Future[Any]) -> None:
        if self.future.done():
            if not answer.cancelled():
                answer.exception()
            return
        if answer.cancelled():
            self.future.cancel()
            return
        error = answer.exception()
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(answer.result())
