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

# The error codes that callers get, by the error code of the append. Clients then retry, or look up
# the coordinator again.
COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}

# A pending caller: its future (None for a background operation), its response, and the operation's
# callback.
Waiter = tuple["asyncio.Future[Any] | None", Any, "OnAppend | None"]


def complete(waiters: Iterable[Waiter]) -> None:
    for future, response, on_append in waiters:
        if on_append is not None:
            _call(on_append, None)
        if future is not None and not future.done():
            future.set_result(response)


def fail(waiters: Iterable[Waiter], error: KafkaError) -> None:
    code = COORDINATOR_ERRORS.get(error.code, error.code)
    coordinator_error = error if code is error.code else KafkaError(code, error.message)
    for future, _, on_append in waiters:
        if on_append is not None:
            _call(on_append, coordinator_error)
        if future is not None and not future.done():
            future.set_exception(coordinator_error)


def _call(on_append: OnAppend, error: KafkaError | None) -> None:
    try:
        on_append(error)
    except Exception:
        logger.exception("The callback of an append failed")


@dataclass(slots=True, eq=False, repr=False)
class CommitQueue:
    """Owns the uncommitted batches of one partition in log order, each with its pending callers and
    their deadline.

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
        """Complete `waiters` when the high watermark reaches the offset `end`."""
        deadline = self._loop.time() + self._timeout_s
        self._batches.append((end, waiters, deadline))
        self._partition.pending_appends.add(self)
        if self._timeout is None:
            self._timeout = self._loop.call_at(deadline, self._on_timeout)

    def wait_for_last(self, waiter: Waiter) -> None:
        """Complete `waiter` when the last batch is committed. The queue must not be empty."""
        end, waiters, _ = self._batches[-1]
        if self._timeout is None:
            # All batches have timed out. The waiter needs a new deadline.
            self.add(end, [waiter])
        else:
            waiters.append(waiter)

    def check(self, partition: Partition) -> None:
        """Complete the callers of the batches that are committed."""
        log = partition.log
        if log is None:
            return
        committed_end = log.high_watermark
        if len(partition.maximal_isr) == 1 and committed_end < self.loaded_end:
            # No other replica can become leader without a copy of the loaded records, so they count
            # as committed. The high watermark does not advance if min.insync.replicas is above 1.
            committed_end = self.loaded_end
        batches = self._batches
        while batches and batches[0][0] <= committed_end:
            complete(batches.popleft()[1])
        if not batches:
            partition.pending_appends.discard(self)
            self.cancel_timeout()

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        """Fail all pending callers with `code`."""
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
        timed_out: list[Waiter] = []
        for _, waiters, deadline in self._batches:
            if deadline > now:
                self._timeout = self._loop.call_at(deadline, self._on_timeout)
                break
            timed_out += waiters
            waiters.clear()
        fail(timed_out, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
