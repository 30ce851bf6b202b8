"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.arguments import OnPartitions, make_listener, many_partitions, one_partition
from kavka.client.consumer.commits import CommitCallback
from kavka.client.consumer.core import SEEK_BEGINNING, SEEK_END, ConsumerCore
from kavka.client.consumer.errors import ConcurrentAccess, Wakeup
from kavka.client.consumer.records import EMPTY, Records
from kavka.client.consumer_config import consumer_config
from kavka.client.dropped import close_on_loop
from kavka.client.errors import ClientClosed, IllegalState
from kavka.client.io_thread import warn_unclosed
from kavka.client.metadata import PartitionMetadata
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

_NO_LIMIT = 1 << 62
_ITERATION = 1.0


class Consumer:
    """Reads records of topics, alone or as one of a group, on the loop it was started on.

        async with Consumer(bootstrap_servers="localhost:9092", group_id="g") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.key, record.value)

    Without `async with`: `await consumer.start()`, and `await consumer.close()` at the end. All that is said of the
    blocking `kavka.Consumer` holds, with `await`; listeners and callbacks may be coroutine functions. Two polls at a
    time raise ConcurrentAccess, other calls may be made while one waits. A poll that is cancelled loses nothing. A
    consumer that is dropped without `close` gives a ResourceWarning and leaves its group while its loop runs.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        settings = consumer_config(config, keywords)
        bell = self._bell = _Bell()
        core = self._core = ConsumerCore(settings, _call_user, bell.ring, lambda: bell.on_room())
        bell.on_room = core.fetcher.kick
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
        """Commit (where that is automatic), leave the group, end."""
        if self._core.closing:
            return
        if not self._started:
            self._core.closing = self._core.closed = True
            return
        self._bell.ring()
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

    # --- what to read

    async def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: Any = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        core = self._open()
        heard = make_listener(listener, on_assigned, on_revoked, on_lost)
        if (topics is None) == (pattern is None):
            raise TypeError("either topics or a pattern")
        self._give_back()
        if pattern is not None:
            core.subscribe_pattern(pattern, heard)
        elif topics:
            core.subscribe(topics, heard)
        else:
            await core.unsubscribe()

    async def unsubscribe(self) -> None:
        core = self._open()
        self._give_back()
        await core.unsubscribe()

    async def assign(self, partitions: Iterable[Any]) -> None:
        core = self._open()
        wanted = many_partitions(partitions)
        # Commits what was consumed of the old ones.
        await core.assign(wanted)
        self._unread.keep(wanted)

    def assignment(self) -> set[TopicPartition]:
        return set(self._core.subscriptions.partitions)

    def subscription(self) -> set[str]:
        return set(self._core.subscriptions.topics)

    async def pause(self, partitions: Iterable[Any]) -> None:
        self._open().pause(many_partitions(partitions), True)

    async def resume(self, partitions: Iterable[Any]) -> None:
        self._open().pause(many_partitions(partitions), False)

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._core.subscriptions.partitions.items() if state.paused}

    # --- records

    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> Records:
        limit = self._limit if max_records is None else max_records
        if self._unread:
            self._open().polled()
            return self._unread.take(limit)
        taken = await self._wait_for(timeout, lambda: self._take(limit))
        if taken is None:
            return EMPTY
        records = Records(*taken)
        return self._core.interceptors.on_consume(records) if self._core.interceptors.see_records else records

    async def poll_arrow(self, timeout: float = 0.0, max_records: int | None = None) -> pyarrow.RecordBatch | None:
        from kavka.client.consumer.arrow import record_batch

        self._give_back()
        limit = _NO_LIMIT if max_records is None else max_records
        columns = await self._wait_for(timeout, lambda: self._core.buffer.take_columns(limit))
        return None if columns is None else record_batch(columns)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while not self._core.closing:
            if not self._unread:
                self._unread.set(await self.poll(_ITERATION))
            for record in self._unread:
                yield record

    def _take(self, limit: int) -> Any:
        taken = self._core.buffer.take(limit)
        return taken if taken[0] else None

    async def _wait_for(self, timeout: float, take: Callable[[], T | None]) -> T | None:
        core = self._open()
        if self._polling:
            raise ConcurrentAccess("another task polls this consumer")
        core.polled()
        deadline = core.last_poll + timeout
        self._polling = core.in_poll = True
        try:
            while True:
                self._check_woken()
                if core.attention and not core.closing:
                    await core.attend(deadline)
                found = take()
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    # A loop of polls that never wait must not keep others from running.
                    await asyncio.sleep(0)
                    return None
                await self._wait(left)
                if core.closing:
                    raise ClientClosed("the consumer was closed while it polled")
        finally:
            self._polling = core.in_poll = False
            core.last_poll = time.monotonic()

    # --- positions

    async def seek(self, partition: Any, offset: int | OffsetAndMetadata) -> None:
        tp = one_partition(partition)
        self._open().seek(tp, offset)
        self._unread.drop((tp,))

    async def seek_to_beginning(self, partitions: Iterable[Any] = ()) -> None:
        self._seek_to(partitions, SEEK_BEGINNING)

    async def seek_to_end(self, partitions: Iterable[Any] = ()) -> None:
        self._seek_to(partitions, SEEK_END)

    def _seek_to(self, partitions: Iterable[Any], when: int) -> None:
        wanted = many_partitions(partitions)
        self._open().seek_to(wanted, when)
        self._unread.drop(wanted or self._core.subscriptions.partitions)

    async def position(self, partition: Any, timeout: float | None = None) -> int:
        core = self._open()
        tp = one_partition(partition)
        unread = self._unread.first().get(tp)
        return await core.position(tp, core.deadline(timeout)) if unread is None else unread

    async def lag(self, partition: Any = None, timeout: float | None = None) -> Any:
        core = self._open()
        asked = [] if partition is None else [one_partition(partition)]
        found = await core.lag(asked, core.deadline(timeout))
        return found if partition is None else found[asked[0]]

    async def current_lag(self, partition: Any) -> int | None:
        return self._open().known_lag(one_partition(partition))

    async def offsets_for_times(
        self, times: Mapping[Any, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        core = self._open()
        asked = {one_partition(tp): when for tp, when in times.items()}
        return await core.offsets_for_times(asked, core.deadline(timeout))

    async def beginning_offsets(
        self, partitions: Iterable[Any], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        core = self._open()
        return await core.edge_offsets(many_partitions(partitions), SEEK_BEGINNING, core.deadline(timeout))

    async def end_offsets(self, partitions: Iterable[Any], timeout: float | None = None) -> dict[TopicPartition, int]:
        core = self._open()
        return await core.edge_offsets(many_partitions(partitions), SEEK_END, core.deadline(timeout))

    # --- commits

    async def commit_sync(self, offsets: Any = None, timeout: float | None = None) -> None:
        core = self._open()
        await core.commits.commit(core.commits.meant(offsets), core.deadline(timeout))

    async def commit_async(self, offsets: Any = None, callback: CommitCallback | None = None) -> None:
        """Returns at once; `callback(offsets, error)` is called by a later poll."""
        self._open().commits.commit_later(offsets, callback)

    async def committed(
        self, partitions: Iterable[Any], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        core = self._open()
        return await core.commits.committed(many_partitions(partitions), core.deadline(timeout))

    # --- the cluster and the group

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        core = self._open()
        return await core.partitions_for(topic, core.deadline(timeout))

    async def list_topics(self, timeout: float | None = None) -> dict[str, list[PartitionMetadata]]:
        core = self._open()
        return await core.topic_names(core.deadline(timeout))

    def group_metadata(self) -> ConsumerGroupMetadata:
        return self._core.group_metadata()

    async def enforce_rebalance(self, reason: str | None = None) -> None:
        self._open().enforce_rebalance(reason)

    def metrics(self) -> dict[str, float]:
        return self._core.all_metrics()

    def wakeup(self) -> None:
        """The poll that waits now, or the next one, raises Wakeup. On the consumer's loop."""
        self._woken = True
        self._bell.ring()

    # --- inside

    def _give_back(self) -> None:
        """Records that an iteration has not returned yet are fetched again."""
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
        if self._core.buffer or self._core.attention or self._woken:
            return
        loop = asyncio.get_running_loop()
        waiter = self._bell.waiter = loop.create_future()
        timer = loop.call_later(seconds, _done, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._bell.waiter = None


class _Bell:
    """Wakes a poll that waits. The core refers to this, and not to the consumer: a consumer that the program drops can
    be collected."""

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self.on_room: Callable[[], object] = lambda: None

    def ring(self) -> None:
        if self.waiter is not None:
            _done(self.waiter)


async def _call_user(function: Callable[..., Any], *args: Any) -> Any:
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
