"""The blocking consumer."""

from __future__ import annotations

import concurrent.futures
import queue
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from kavka.client.consumer._decode import Columns
from kavka.client.consumer.arguments import (
    Offsets,
    OnPartitions,
    Partition,
    Partitions,
    make_listener,
    to_partition,
    to_partitions,
)
from kavka.client.consumer.background_events import BackgroundEvents, Callback
from kavka.client.consumer.commits import CommitCallback
from kavka.client.consumer.core import SEEK_BEGINNING, SEEK_END, ConsumerCore
from kavka.client.consumer.errors import ConcurrentAccess, Wakeup
from kavka.client.consumer.records import EMPTY, ConsumerRecord, Records
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import ClientClosed
from kavka.client.io_thread import IoThread, warn_unclosed
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
    """Reads records of topics, alone or as a member of a group.

        with Consumer(bootstrap_servers="localhost:9092", group_id="g") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.key, record.value)

    Not thread-safe: a method raises ConcurrentAccess while another thread is in a method. Only
    `wakeup` may be called from any thread. Fetches and heartbeats run in a background thread.
    Listeners, callbacks, interceptors and deserializers run in the application's thread, inside its
    calls.

    When an exception leaves the `with` block, the automatic commit excludes the records that the
    application was processing: the last record of an iteration, or the records of the last poll.
    An explicit `close` commits them, as in Java. A consumer that is dropped without `close` issues
    a ResourceWarning and leaves its group in the background, without a commit.

    Times are in seconds. A call without a timeout uses `default.api.timeout.ms`, and raises
    KafkaTimeout when it expires. A partition is a TopicPartition or (topic, number). See
    `consumer_config.py` for the settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ConsumerSettings[K, V]]) -> None:
        settings = consumer_config(config, keywords)
        events = self._events = BackgroundEvents()
        self._woken = False
        self._mutex = threading.Lock()
        self._owner = 0
        self._depth = 0
        core = self._core = ConsumerCore(settings, events.call_user, events.wake_poll, lambda: events.on_room())
        self._unread = self._core.unread
        self._limit: int = settings["max.poll.records"]
        name = settings["client.id"] or "consumer"
        io = self._io = IoThread(f"kavka-{name}", partial(events.abandon, core))
        events.on_room = partial(io.call_soon, core.fetcher.wake)
        try:
            self._io.run(self._core.start())
        except BaseException:
            self._io.stop()
            raise

    # --- subscription and assignment

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics whose whole name matches a pattern, as a member of
        the group. Replaces the previous subscription. An empty list of topics unsubscribes.

        With `group.protocol=consumer`, the broker matches a pattern that is a string (RE2 syntax),
        and the client matches a compiled pattern. A listener has the methods of
        `RebalanceListener`; alternatively, pass functions."""
        rebalance_listener = make_listener(listener, on_assigned, on_revoked, on_lost)
        if (topics is None) == (pattern is None):
            raise TypeError("pass either topics or a pattern")
        with self._acquire():
            self._refetch_unread()
            if pattern is not None:
                self._call_on_loop(self._core.subscribe_pattern, pattern, rebalance_listener)
            elif topics:
                self._call_on_loop(self._core.subscribe, topics, rebalance_listener)
            else:
                self._run(self._core.unsubscribe())

    def unsubscribe(self) -> None:
        """Leave the group, or give up the manually assigned partitions."""
        with self._acquire():
            self._refetch_unread()
            self._run(self._core.unsubscribe())

    def assign(self, partitions: Partitions) -> None:
        """Assign partitions manually, outside a group. Replaces the previous assignment; partitions
        that stay assigned keep their position."""
        with self._acquire():
            requested = to_partitions(partitions)
            # `assign` commits the consumed positions of the previous assignment, so `keep` follows.
            self._run(self._core.assign(requested))
            self._unread.keep(requested)

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads."""
        with self._acquire():
            return set(self._core.subscriptions.partitions)

    def subscription(self) -> set[str]:
        """Return the subscribed topics or, for a pattern, the topics that currently match it."""
        with self._acquire():
            return set(self._core.subscriptions.topics)

    def pause(self, partitions: Partitions) -> None:
        """Make polls return no records of these partitions until `resume`. The group does not
        rebalance."""
        with self._acquire():
            self._call_on_loop(self._core.set_paused, to_partitions(partitions), True)

    def resume(self, partitions: Partitions) -> None:
        """Let polls return records of paused partitions again."""
        with self._acquire():
            self._call_on_loop(self._core.set_paused, to_partitions(partitions), False)

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        with self._acquire():
            return {tp for tp, state in self._core.subscriptions.partitions.items() if state.paused}

    # --- records

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> Records[K, V]:
        """Return available records, at most `max.poll.records`. Waits up to `timeout` seconds for
        the first record. The result is empty if no record arrives in time.

        A poll marks the records of earlier polls as processed, so that automatic commits include
        them. It also runs the tasks of the group member: a member that does not poll for
        `max.poll.interval.ms` leaves the group."""
        with self._acquire():
            return self._poll(timeout, self._limit if max_records is None else max_records)

    def poll_arrow(
        self, timeout: float = 0.0, max_records: int | None = None, *, views: bool = False
    ) -> pyarrow.RecordBatch | None:
        """Like `poll`, but return an Arrow batch with the columns topic, partition, offset,
        timestamp, timestamp_type, key, value and headers, or None if no records arrive in time.
        Keys and values are bytes; deserializers and interceptors are not called, and no Python
        object is created per record. The size of the fetched data limits the batch, not
        `max.poll.records`. Requires pyarrow (`kavka[arrow]`).

        With `views`, keys and values have the type `binary_view` instead of `binary`. They refer to
        the received data, which is not copied, and keep it in memory."""
        from kavka.client.consumer.arrow import record_batch

        columns = self._poll_columns(timeout, max_records, views)
        return None if columns is None else record_batch(columns)

    def poll_columns(self, timeout: float = 0.0, max_records: int | None = None) -> Columns | None:
        """Like `poll_arrow`, but return the underlying columns, which do not require pyarrow."""
        return self._poll_columns(timeout, max_records, False)

    def _poll_columns(self, timeout: float, max_records: int | None, views: bool) -> Columns | None:
        with self._acquire():
            self._refetch_unread()
            limit = _NO_RECORD_LIMIT if max_records is None else max_records
            return self._wait_for(timeout, lambda: self._core.buffer.take_columns(limit, views))

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Iterate over records until the consumer is closed. A commit during the iteration commits
        the records that were yielded, including the last one."""
        while not self._core.closing:
            if not self._unread:
                with self._acquire():
                    records = self._poll(_ITERATION_TIMEOUT_S, self._limit)
                self._unread.set(records)
            yield from self._unread

    def _poll(self, timeout: float, limit: int) -> Records[K, V]:
        if self._unread:
            self._core.on_poll_started()
            return self._unread.take(limit)
        taken = self._wait_for(timeout, lambda: self._take(limit))
        if taken is None:
            return EMPTY
        records: Records[K, V] = Records(*taken)
        return self._core.interceptors.on_consume(records) if self._core.interceptors.has_consume_methods else records

    def _take(self, limit: int) -> Any:
        taken = self._core.buffer.take(limit)
        return taken if taken[0] else None

    def _wait_for(self, timeout: float, take: Callable[[], T | None]) -> T | None:
        core = self._core
        core.on_poll_started()
        deadline = core.last_poll + timeout
        core.in_poll = True
        try:
            while True:
                self._check_woken()
                if core.has_poll_work:
                    self._run(core.run_poll_work(deadline, nested=self._depth > 1), wakes=True)
                result = take()
                if result is not None:
                    return result
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._wait(remaining)
        finally:
            core.in_poll = False
            core.last_poll = time.monotonic()

    # --- positions

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Set the position. The next poll returns records from this offset on."""
        with self._acquire():
            tp = to_partition(partition)
            self._call_on_loop(self._core.seek, tp, offset)
            self._unread.drop((tp,))

    def seek_to_beginning(self, partitions: Partitions = ()) -> None:
        """Seek to the first offset of these partitions, or of all assigned partitions. The offset
        is looked up in the background."""
        self._seek_to(partitions, SEEK_BEGINNING)

    def seek_to_end(self, partitions: Partitions = ()) -> None:
        """Seek to the end of these partitions, or of all assigned partitions. With
        `isolation.level=read_committed`, the end is the last stable offset."""
        self._seek_to(partitions, SEEK_END)

    def _seek_to(self, partitions: Partitions, timestamp: int) -> None:
        with self._acquire():
            requested = to_partitions(partitions)
            self._call_on_loop(self._core.seek_to_timestamp, requested, timestamp)
            self._unread.drop(requested or self._core.subscriptions.partitions)

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """Return the position: the offset of the next record of the partition that a poll
        returns."""
        with self._acquire():
            tp = to_partition(partition)
            unread = self._unread.first().get(tp)
            if unread is not None:
                return unread
            return self._run(self._core.queries.position(tp, self._core.deadline(timeout)), wakes=True)

    @overload
    def lag(self, partition: None = None, timeout: float | None = None) -> dict[TopicPartition, int]: ...

    @overload
    def lag(self, partition: Partition, timeout: float | None = None) -> int: ...

    def lag(self, partition: Partition | None = None, timeout: float | None = None) -> dict[TopicPartition, int] | int:
        """Return the number of offsets between the position of a partition and its end. Without a
        partition, returns the lag of each assigned partition. The end is the one that the last
        fetch returned; before the first fetch it is looked up."""
        with self._acquire():
            requested = [] if partition is None else [to_partition(partition)]
            lags = self._run(self._core.queries.lag(requested, self._core.deadline(timeout)), wakes=True)
            return lags if partition is None else lags[requested[0]]

    def current_lag(self, partition: Partition) -> int | None:
        """Like `lag`, but without a request. Returns None before the first fetch."""
        with self._acquire():
            return self._call_on_loop(self._core.queries.current_lag, to_partition(partition))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, the offset and timestamp of the first record whose timestamp
        is the given one (ms since 1970) or later, or None if there is no such record."""
        with self._acquire():
            requested = {to_partition(tp): timestamp for tp, timestamp in times.items()}
            return self._run(self._core.queries.offsets_for_times(requested, self._core.deadline(timeout)), wakes=True)

    def beginning_offsets(self, partitions: Partitions, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the first offsets that exist."""
        with self._acquire():
            requested = to_partitions(partitions)
            return self._run(
                self._core.queries.edge_offsets(requested, SEEK_BEGINNING, self._core.deadline(timeout)), wakes=True
            )

    def end_offsets(self, partitions: Partitions, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return the high watermarks, or with read_committed the last stable offsets."""
        with self._acquire():
            requested = to_partitions(partitions)
            return self._run(
                self._core.queries.edge_offsets(requested, SEEK_END, self._core.deadline(timeout)), wakes=True
            )

    # --- commits

    def commit_sync(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit offsets, and wait for the response. `offsets` is None for all consumed positions,
        a list of partitions whose positions are committed, or a mapping from partitions to offsets.
        A committed offset is the offset of the next record to read.

        Raises CommitFailed if the consumer is no longer a member of the group, and
        RebalanceInProgress if it must poll first."""
        with self._acquire():
            commits = self._core.commits
            self._run(commits.commit(commits.parse_offsets(offsets), self._core.deadline(timeout)), wakes=True)

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting and without retries. A later poll or commit calls
        `callback(offsets, error)`."""
        with self._acquire():
            self._call_on_loop(self._core.commits.commit_async, self._core.commits.parse_offsets(offsets), callback)

    def committed(
        self, partitions: Partitions, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets, with None for a partition without a committed
        offset."""
        with self._acquire():
            requested = to_partitions(partitions)
            return self._run(self._core.commits.committed(requested, self._core.deadline(timeout)), wakes=True)

    # --- the cluster and the group

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the partitions of a topic, with their leaders and replicas."""
        with self._acquire():
            return self._run(self._core.partitions_for(topic, self._core.deadline(timeout)), wakes=True)

    def list_topics(self, timeout: float | None = None) -> dict[str, list[PartitionMetadata]]:
        """Return all topics that this consumer is authorized to describe, with their partitions."""
        with self._acquire():
            return self._run(self._core.list_topics(self._core.deadline(timeout)), wakes=True)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the metadata that `Producer.send_offsets_to_transaction` requires."""
        with self._acquire():
            return self._core.group_metadata()

    def enforce_rebalance(self, reason: str | None = None) -> None:
        """Make a classic group rebalance with the next poll."""
        with self._acquire():
            self._call_on_loop(self._core.enforce_rebalance, reason)

    def metrics(self) -> dict[str, float]:
        """Return the metrics, by Kafka's names."""
        return self._core.all_metrics()

    def wakeup(self) -> None:
        """Make the blocked call, or the next call that blocks, raise Wakeup. May be called from any
        thread."""
        self._woken = True
        self._events.queue.put(None)

    def close(self, timeout: float = 30.0, *, leave_group: bool | None = None) -> None:
        """Commit the consumed positions if auto-commit is enabled, leave the group, and close. A
        static member stays in the group until its session expires, unless `leave_group` is True."""
        if self._core.closing:
            return
        if self._io.forked:
            # The group member is in the parent process.
            self._core.closing = self._core.closed = True
            return
        with self._acquire():
            try:
                self._run(self._core.close(timeout, leave_group))
            finally:
                self._unread.clear()
                self._io.stop()

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and io.alive and not self._core.closing:
            io.abandon()
            warn_unclosed(self, io.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._unread.put_back()
        self.close()

    # --- exclusive access

    def _acquire(self) -> _Guard:
        thread_id = threading.get_ident()
        # A listener may still use the consumer while it is being closed.
        if self._core.closed or (self._core.closing and self._owner != thread_id):
            raise ClientClosed("the consumer is closed")
        self._io.check()
        if self._owner != thread_id:
            if not self._mutex.acquire(blocking=False):
                raise ConcurrentAccess("the consumer is not thread-safe: another thread is in one of its methods")
            self._owner = thread_id
        self._depth += 1
        return _Guard(self)

    def _release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._mutex.release()

    # --- calls between the application's thread and the loop

    def _run(self, work: Coroutine[Any, Any, T], *, wakes: bool = False) -> T:
        """Run a coroutine on the event loop and return its result. Runs callbacks of the
        application while it waits.

        A callback may call the consumer and wait in this method as well. The inner call may take
        the event of the outer future from the queue, so the future is checked after every
        callback."""
        try:
            if wakes:
                self._check_woken()
            future: concurrent.futures.Future[T] = self._io.submit(work)
        except BaseException:
            work.close()
            raise
        future.add_done_callback(self._events.queue.put)
        try:
            while True:
                item = self._events.queue.get()
                if item is future:
                    break
                self._handle(item)
                if future.done():
                    break
                if wakes:
                    self._check_woken()
        except BaseException:
            future.cancel()
            raise
        result: T = future.result()
        return result

    def _call_on_loop(self, function: Callable[..., T], *args: Any) -> T:
        async def call() -> T:
            return function(*args)

        return self._run(call())

    def _wait(self, seconds: float) -> None:
        """Wait up to this time for an event of the event loop."""
        self._events.is_waiting = True
        if self._core.buffer or self._core.has_poll_work or self._woken:
            self._events.is_waiting = False
            return
        try:
            item = self._events.queue.get(timeout=seconds)
        except queue.Empty:
            return
        finally:
            self._events.is_waiting = False
        self._handle(item)

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise Wakeup("wakeup was called")

    def _handle(self, item: Any) -> None:
        if isinstance(item, Callback):
            item.run()

    def _refetch_unread(self) -> None:
        """Seek back to the records that an iteration has not yielded yet."""
        for tp, offset in self._unread.first().items():
            if tp in self._core.subscriptions.partitions:
                self._call_on_loop(self._core.seek, tp, offset)
        self._unread.clear()


class _Guard:
    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer[Any, Any]) -> None:
        self._consumer = consumer

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._consumer._release()
