"""The asyncio consumer."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from kavka.client.consumer.arguments import (
    Offsets,
    OnPartitions,
    Partition,
    Partitions,
    make_listener,
    to_partition,
    to_partitions,
)
from kavka.client.consumer.commits import CommitCallback
from kavka.client.consumer.core import SEEK_BEGINNING, SEEK_END, ConsumerCore
from kavka.client.consumer.errors import ConcurrentAccess, Wakeup
from kavka.client.consumer.records import EMPTY, ConsumerRecord, Records
from kavka.client.consumer_config import consumer_config
from kavka.client.dropped import close_on_loop
from kavka.client.errors import ClientClosed, IllegalState
from kavka.client.io_thread import warn_unclosed
from kavka.client.metadata import PartitionMetadata
from kavka.client.types import ConsumerGroupMetadata, K, OffsetAndMetadata, OffsetAndTimestamp, V
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from kavka.client.settings import ConsumerSettings

T = TypeVar("T")

_NO_RECORD_LIMIT = 1 << 62
# Timeout in seconds of each poll of an iteration. The iteration polls until it gets records, so the
# timeout affects only metrics.
_ITERATION_TIMEOUT_S = 1.0


class Consumer(Generic[K, V]):
    """Reads records of topics, alone or as a member of a group, on the event loop that started it.

        async with Consumer(bootstrap_servers="localhost:9092", group_id="g") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.key, record.value)

    Without `async with`, call `await consumer.start()` and `await consumer.close()`. The methods
    are those of the blocking `kavka.Consumer`, with `await`; listeners and callbacks may be
    coroutine functions. Two concurrent polls raise ConcurrentAccess; other calls may run while a
    poll waits. Cancelling a poll loses no records. A consumer that is dropped without `close`
    issues a ResourceWarning and leaves its group while its loop runs.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ConsumerSettings[K, V]]) -> None:
        settings = consumer_config(config, keywords)
        waiter = self._waiter = _PollWaiter()
        core = self._core = ConsumerCore(settings, _call_user, waiter.wake, lambda: waiter.on_room())
        waiter.on_room = core.fetcher.wake
        self._unread = self._core.unread
        self._limit: int = settings["max.poll.records"]
        self._started = False
        self._polling = False
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> Self:
        if not self._started:
            await self._core.start()
            self._loop = asyncio.get_running_loop()
            self._started = True
        return self

    async def close(self, timeout: float = 30.0, *, leave_group: bool | None = None) -> None:
        """Commit the consumed positions if auto-commit is enabled, leave the group, and close."""
        if self._core.closing:
            return
        if not self._started:
            self._core.closing = self._core.closed = True
            return
        self._waiter.wake()
        try:
            await self._core.close(timeout, leave_group)
        finally:
            self._unread.clear()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not self._core.closing:
            close_on_loop(loop, self._core.abandon)
            warn_unclosed(self, self._core.config["client.id"])

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._unread.put_back()
        await self.close()

    # --- subscription and assignment

    async def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        core = self._open()
        rebalance_listener = make_listener(listener, on_assigned, on_revoked, on_lost)
        if (topics is None) == (pattern is None):
            raise TypeError("pass either topics or a pattern")
        self._refetch_unread()
        if pattern is not None:
            core.subscribe_pattern(pattern, rebalance_listener)
        elif topics:
            core.subscribe(topics, rebalance_listener)
        else:
            await core.unsubscribe()

    async def unsubscribe(self) -> None:
        core = self._open()
        self._refetch_unread()
        await core.unsubscribe()

    async def assign(self, partitions: Partitions) -> None:
        core = self._open()
        requested = to_partitions(partitions)
        # `assign` commits the consumed positions of the previous assignment, so `keep` follows.
        await core.assign(requested)
        self._unread.keep(requested)

    def assignment(self) -> set[TopicPartition]:
        return set(self._core.subscriptions.partitions)

    def subscription(self) -> set[str]:
        return set(self._core.subscriptions.topics)

    async def pause(self, partitions: Partitions) -> None:
        self._open().set_paused(to_partitions(partitions), True)

    async def resume(self, partitions: Partitions) -> None:
        self._open().set_paused(to_partitions(partitions), False)

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._core.subscriptions.partitions.items() if state.paused}

    # --- records

    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> Records[K, V]:
        limit = self._limit if max_records is None else max_records
        if self._unread:
            self._open().on_poll_started()
            return self._unread.take(limit)
        taken = await self._wait_for(timeout, lambda: self._take(limit))
        if taken is None:
            return EMPTY
        records: Records[K, V] = Records(*taken)
        return self._core.interceptors.on_consume(records) if self._core.interceptors.has_consume_methods else records

    async def poll_arrow(
        self, timeout: float = 0.0, max_records: int | None = None, *, views: bool = False
    ) -> pyarrow.RecordBatch | None:
        from kavka.client.consumer.arrow import record_batch

        self._refetch_unread()
        limit = _NO_RECORD_LIMIT if max_records is None else max_records
        columns = await self._wait_for(timeout, lambda: self._core.buffer.take_columns(limit, views))
        return None if columns is None else record_batch(columns)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        while not self._core.closing:
            if not self._unread:
                self._unread.set(await self.poll(_ITERATION_TIMEOUT_S))
            for record in self._unread:
                yield record

    def _take(self, limit: int) -> Any:
        taken = self._core.buffer.take(limit)
        return taken if taken[0] else None

    async def _wait_for(self, timeout: float, take: Callable[[], T | None]) -> T | None:
        core = self._open()
        if self._polling:
            raise ConcurrentAccess("another task is polling this consumer")
        core.on_poll_started()
        deadline = core.last_poll + timeout
        self._polling = core.in_poll = True
        try:
            while True:
                self._check_woken()
                if core.has_poll_work and not core.closing:
                    await core.run_poll_work(deadline)
                result = take()
                if result is not None:
                    return result
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    # Let other tasks run: the application may poll without a timeout in a loop.
                    await asyncio.sleep(0)
                    return None
                await self._wait(remaining)
                if core.closing:
                    raise ClientClosed("the consumer was closed during a poll")
        finally:
            self._polling = core.in_poll = False
            core.last_poll = time.monotonic()

    # --- positions

    async def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        tp = to_partition(partition)
        self._open().seek(tp, offset)
        self._unread.drop((tp,))

    async def seek_to_beginning(self, partitions: Partitions = ()) -> None:
        self._seek_to(partitions, SEEK_BEGINNING)

    async def seek_to_end(self, partitions: Partitions = ()) -> None:
        self._seek_to(partitions, SEEK_END)

    def _seek_to(self, partitions: Partitions, timestamp: int) -> None:
        requested = to_partitions(partitions)
        self._open().seek_to_timestamp(requested, timestamp)
        self._unread.drop(requested or self._core.subscriptions.partitions)

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        core = self._open()
        tp = to_partition(partition)
        unread = self._unread.first().get(tp)
        return await core.queries.position(tp, core.deadline(timeout)) if unread is None else unread

    @overload
    async def lag(self, partition: None = None, timeout: float | None = None) -> dict[TopicPartition, int]: ...

    @overload
    async def lag(self, partition: Partition, timeout: float | None = None) -> int: ...

    async def lag(
        self, partition: Partition | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int] | int:
        core = self._open()
        requested = [] if partition is None else [to_partition(partition)]
        lags = await core.queries.lag(requested, core.deadline(timeout))
        return lags if partition is None else lags[requested[0]]

    async def current_lag(self, partition: Partition) -> int | None:
        return self._open().queries.current_lag(to_partition(partition))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        core = self._open()
        requested = {to_partition(tp): timestamp for tp, timestamp in times.items()}
        return await core.queries.offsets_for_times(requested, core.deadline(timeout))

    async def beginning_offsets(
        self, partitions: Partitions, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        core = self._open()
        return await core.queries.edge_offsets(to_partitions(partitions), SEEK_BEGINNING, core.deadline(timeout))

    async def end_offsets(self, partitions: Partitions, timeout: float | None = None) -> dict[TopicPartition, int]:
        core = self._open()
        return await core.queries.edge_offsets(to_partitions(partitions), SEEK_END, core.deadline(timeout))

    # --- commits

    async def commit_sync(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        core = self._open()
        await core.commits.commit(core.commits.parse_offsets(offsets), core.deadline(timeout))

    async def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting. A later poll or commit calls `callback(offsets, error)`."""
        self._open().commits.commit_async(offsets, callback)

    async def committed(
        self, partitions: Partitions, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        core = self._open()
        return await core.commits.committed(to_partitions(partitions), core.deadline(timeout))

    # --- the cluster and the group

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        core = self._open()
        return await core.partitions_for(topic, core.deadline(timeout))

    async def list_topics(self, timeout: float | None = None) -> dict[str, list[PartitionMetadata]]:
        core = self._open()
        return await core.list_topics(core.deadline(timeout))

    def group_metadata(self) -> ConsumerGroupMetadata:
        return self._core.group_metadata()

    async def enforce_rebalance(self, reason: str | None = None) -> None:
        self._open().enforce_rebalance(reason)

    def metrics(self) -> dict[str, float]:
        return self._core.all_metrics()

    def wakeup(self) -> None:
        """Make the waiting poll, or the next poll, raise Wakeup. Call it on the consumer's event
        loop."""
        self._woken = True
        self._waiter.wake()

    # --- internals

    def _refetch_unread(self) -> None:
        """Seek back to the records that an iteration has not yielded yet."""
        for tp, offset in self._unread.first().items():
            if tp in self._core.subscriptions.partitions:
                self._core.seek(tp, offset)
        self._unread.clear()

    def _open(self) -> ConsumerCore:
        self._core.check_open()
        if not self._started:
            raise IllegalState("the consumer is not started: use `async with`, or `await consumer.start()`")
        return self._core

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise Wakeup("wakeup was called")

    async def _wait(self, seconds: float) -> None:
        if self._core.buffer or self._core.has_poll_work or self._woken:
            return
        loop = asyncio.get_running_loop()
        future = self._waiter.future = loop.create_future()
        timer = loop.call_later(seconds, _complete, future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiter.future = None


class _PollWaiter:
    """Wakes a poll that is waiting. The core refers to this object and not to the consumer, so that
    a consumer that the application drops can be garbage collected."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None
        self.on_room: Callable[[], object] = lambda: None

    def wake(self) -> None:
        if self.future is not None:
            _complete(self.future)


async def _call_user(function: Callable[..., Any], *args: Any) -> Any:
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
