"""Requests that cannot complete yet (Kafka's purgatory): Produce waits for the replicas or the
flush, DeleteRecords for the replicas, Fetch for data.

A delayed operation is a future with a deadline. Each partition has a set of the operations that
depend on it, and calls `check()` when an offset has moved. A completed operation removes itself
from every partition. Responses are opaque in this module: the handlers pass functions that write
errors into them. Only the loop thread uses these classes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from kavka.common.errors import ErrorCode

if TYPE_CHECKING:
    from kavka.replication.follower_session import FollowerSession
    from kavka.replication.partition import Partition


LEADER_CHANGE_TIMEOUT_S = 1.0
"""How long a produce waits, after a leader change, to learn whether its records are committed."""

# Writes an error code into a partition's result.
SetError = Callable[[Any, ErrorCode], None]


class DelayedAppend(Protocol):
    """An operation that waits until a partition has committed or flushed an append, or until its
    replicas have deleted records."""

    def check(self, partition: Partition) -> None:
        """The high watermark, the flushed offset or the low watermark may have moved."""

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        """The partition cannot complete the operation."""


class _DelayedResponse(ABC):
    """Completes with the response when every partition of the request has completed.

    A partition that fails, or has not completed at the deadline, gets its error code through
    `set_error`.
    """

    __slots__ = ("_pending", "_set_error", "_timer", "future", "response")

    def __init__(self, response: Any, set_error: SetError) -> None:
        self.response = response
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._set_error = set_error
        # A request may contain a partition more than once. The last item of each tuple is the
        # partition's result in the response.
        self._pending: dict[Partition, list[tuple[Any, ...]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def _watch(self, partition: Partition, *condition: Any) -> None:
        self._pending.setdefault(partition, []).append(condition)
        partition.pending_appends.add(self)

    def start(self, timeout_ms: int) -> asyncio.Future[Any]:
        """Start the timer. Returns the future of the response."""
        self._timer = asyncio.get_running_loop().call_later(max(0, timeout_ms) / 1000, self._expire)
        self.future.add_done_callback(self._on_done)
        return self.future

    @abstractmethod
    def check(self, partition: Partition) -> None:
        """Call `_complete_partition` if all conditions of the partition are met."""

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        conditions = self._pending.get(partition)
        if conditions is not None:
            for *_, result in conditions:
                self._set_error(result, code)
            self._complete_partition(partition)

    def _complete_partition(self, partition: Partition) -> None:
        del self._pending[partition]
        partition.pending_appends.discard(self)
        if not self._pending:
            self._complete()

    def _expire(self) -> None:
        for conditions in self._pending.values():
            for *_, result in conditions:
                self._set_error(result, ErrorCode.REQUEST_TIMED_OUT)
        self._detach()
        self._complete()

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._detach()

    def _detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._pending:
            partition.pending_appends.discard(self)
        self._pending.clear()

    def _complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.future.done():
            self.future.set_result(self.response)


class DelayedProduce(_DelayedResponse):
    """Waits until every partition meets the request's acks.

    A broker that has lost the leadership cannot commit records, but the new leader may commit the
    records that it has copied. After NOT_LEADER_OR_FOLLOWER the client would send the records
    again, and a producer without idempotence would duplicate them. So the response waits until this
    broker, as a follower, learns the outcome: the high watermark passes the records, or a
    truncation removes them. After `LEADER_CHANGE_TIMEOUT_S` the partition fails, unless this broker
    leads it again.
    """

    __slots__ = ()

    def add(self, partition: Partition, end_offset: int, acks_all: bool, result: Any) -> None:
        """Wait until `partition` has committed (acks=all) or flushed all records before
        `end_offset`."""
        self._watch(partition, end_offset, acks_all, result)

    def check(self, partition: Partition) -> None:
        conditions = self._pending.get(partition)
        if conditions is None:
            return
        for end_offset, acks_all, _ in conditions:
            if not partition.has_reached(end_offset, acks_all):
                return
        if len(partition.isr_state.maximal_isr) < partition.min_isr:
            for _, acks_all, result in conditions:
                if acks_all:
                    self._set_error(result, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self._complete_partition(partition)

    def on_leader_lost(self, partition: Partition) -> None:
        """This broker follows another leader now. A request with acks=all waits for the outcome,
        any other request fails."""
        conditions = self._pending.get(partition)
        if conditions is None:
            return
        if all(acks_all for _, acks_all, _ in conditions):
            asyncio.get_running_loop().call_later(LEADER_CHANGE_TIMEOUT_S, self._fail_unless_leader, partition)
        else:
            self.fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _fail_unless_leader(self, partition: Partition) -> None:
        if not partition.is_leader:
            self.fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def on_truncate(self, partition: Partition, offset: int) -> None:
        """Fail the request if the truncation to `offset` has removed its records."""
        conditions = self._pending.get(partition)
        if conditions is not None and any(end_offset > offset for end_offset, _, _ in conditions):
            self.fail(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class DelayedDeleteRecords(_DelayedResponse):
    """Waits until all live replicas of every partition have deleted their records up to the
    requested offset."""

    __slots__ = ("_set_low_watermark",)

    def __init__(self, response: Any, set_error: SetError, set_low_watermark: Callable[[Any, int], None]) -> None:
        super().__init__(response, set_error)
        self._set_low_watermark = set_low_watermark

    def add(self, partition: Partition, offset: int, result: Any) -> None:
        """Wait until the low watermark of `partition` reaches `offset`."""
        self._watch(partition, offset, result)

    def check(self, partition: Partition) -> None:
        low_watermark = partition.low_watermark if partition.log is not None else -1
        conditions = self._pending.get(partition)
        if conditions is not None and all(low_watermark >= offset for offset, _ in conditions):
            for _, result in conditions:
                self._set_low_watermark(result, low_watermark)
            self._complete_partition(partition)


class DelayedFetch:
    """Completes with the result of `read()` as soon as enough data exists, or at the deadline.

    `is_ready(partition)` is a cheap test whether another read would complete the request, after a
    change of this partition alone; `is_ready(None)` tests all partitions. `read()` builds the
    response. It returns a future if data has to be read from disk first. A follower's fetch waits
    for appends, a consumer's fetch for the high watermark.
    """

    __slots__ = ("_from_follower", "_is_ready", "_partitions", "_read", "_session", "_timer", "future")

    def __init__(
        self,
        partitions: Collection[Partition],
        is_ready: Callable[[Partition | None], bool],
        read: Callable[[], Any],
        max_wait_ms: int,
        session: FollowerSession | None = None,
        from_follower: bool = False,
    ) -> None:
        """Register with each of `partitions`, as a follower's fetch if `from_follower`. A follower
        with a fetch session passes `session` and no partitions: its partitions notify the session,
        which checks this fetch."""
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._partitions = partitions
        self._is_ready = is_ready
        self._read = read
        self._from_follower = from_follower
        self._session = session
        if session is not None:
            session.pending_fetch = self
        for partition in partitions:
            (partition.pending_follower_fetches if from_follower else partition.pending_fetches).add(self)
        self._timer = loop.call_later(max_wait_ms / 1000, self.complete)
        self.future.add_done_callback(self._on_done)

    def check(self, partition: Partition | None = None) -> None:
        """Respond if there is enough data. `partition` is the only partition that has changed since
        the last check."""
        try:
            is_ready = self._is_ready(partition)
        except Exception:
            is_ready = True  # the read raises the error for the client
        if is_ready:
            self.complete()

    def complete(self) -> None:
        """Respond now with the current data, for example because a partition moved or failed."""
        self._detach()
        if self.future.done():
            return
        try:
            response = self._read()
        except Exception as error:
            self.future.set_exception(error)
            return
        if isinstance(response, asyncio.Future):
            response.add_done_callback(self._copy_outcome)
        else:
            self.future.set_result(response)

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._detach()

    def _detach(self) -> None:
        self._timer.cancel()
        if self._session is not None and self._session.pending_fetch is self:
            self._session.pending_fetch = None
        for partition in self._partitions:
            (partition.pending_follower_fetches if self._from_follower else partition.pending_fetches).discard(self)

    def _copy_outcome(self, response: asyncio.Future[Any]) -> None:
        if self.future.done():
            if not response.cancelled():
                response.exception()  # marks the exception as retrieved
        elif response.cancelled():
            self.future.cancel()
        elif (error := response.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(response.result())
