"""Written batches of a shard that the high watermark has not passed yet."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.operations import OnAppend
from kavka.replication.partition import Partition

logger = logging.getLogger(__name__)

# The error that a caller gets for an error of the append: one that makes it look up the coordinator
# again, or retry.
COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}

# The future of a caller (None if no caller waits), its response, and the operation's callback.
Waiter = tuple["asyncio.Future[Any] | None", Any, "OnAppend | None"]


def complete(waiters: Iterable[Waiter]) -> None:
    for future, response, on_append in waiters:
        if on_append is not None:
            _call(on_append, None)
        if future is not None and not future.done():
            future.set_result(response)


def fail(waiters: Iterable[Waiter], error: KafkaError) -> None:
    code = COORDINATOR_ERRORS.get(error.code, error.code)
    mapped = error if code is error.code else KafkaError(code, error.message)
    for future, _, on_append in waiters:
        if on_append is not None:
            _call(on_append, mapped)
        if future is not None and not future.done():
            future.set_exception(mapped)


def _call(on_append: OnAppend, error: KafkaError | None) -> None:
    try:
        on_append(error)
    except Exception:
        logger.exception("Callback after an append failed")


@dataclass(slots=True, eq=False, repr=False)
class CommitQueue:
    """The uncommitted batches of one partition in log order, each with the callers that wait for
    it and their deadline.

    The queue is in the partition's purgatory while it is not empty (see replication/purgatory.py).
    """

    _partition: Partition
    _loop: asyncio.AbstractEventLoop
    _timeout_s: float
    _timeout: asyncio.TimerHandle | None = field(init=False, default=None)
    # (offset that the high watermark must reach, waiters, deadline)
    _batches: deque[tuple[int, list[Waiter], float]] = field(init=False, default_factory=deque)
    loaded_end: int = field(init=False, default=0)  # End of the log when the shard was loaded.

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, end: int, waiters: list[Waiter]) -> None:
        """Complete `waiters` when the high watermark reaches `end`."""
        deadline = self._loop.time() + self._timeout_s
        self._batches.append((end, waiters, deadline))
        self._partition.pending_appends.add(self)
        if self._timeout is None:
            self._timeout = self._loop.call_at(deadline, self._on_timeout)

    def wait_for_last(self, waiter: Waiter) -> None:
        end, waiters, _ = self._batches[-1]
        if self._timeout is None:
            # All batches have timed out: the waiter needs a deadline.
            self.add(end, [waiter])
        else:
            waiters.append(waiter)

    def check(self, partition: Partition) -> None:
        log_ = partition.log
        if log_ is None:
            return
        safe = log_.high_watermark
        if len(partition.maximal_isr) == 1 and safe < self.loaded_end:
            # No other replica can become leader without a copy of the loaded records. With
            # min.insync.replicas above one the high watermark does not show that.
            safe = self.loaded_end
        batches = self._batches
        while batches and batches[0][0] <= safe:
            complete(batches.popleft()[1])
        if not batches:
            partition.pending_appends.discard(self)
            self.cancel_timeout()

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        partition.pending_appends.discard(self)
        error = KafkaError(code)
        while self._batches:
            fail(self._batches.popleft()[1], error)

    def cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _on_timeout(self) -> None:
        """Fail the callers whose deadline has passed. Their records may still be committed."""
        self._timeout = None
        now = self._loop.time()
        late: list[Waiter] = []
        for _, waiters, deadline in self._batches:
            if deadline > now:
                self._timeout = self._loop.call_at(deadline, self._on_timeout)
                break
            late += waiters
            waiters.clear()
        fail(late, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
