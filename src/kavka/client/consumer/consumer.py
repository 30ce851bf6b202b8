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
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kavka.client.consumer._decode import Columns, ConsumerRecord
from kavka.client.consumer.arguments import OnPartitions, make_listener, many_partitions, one_partition
from kavka.client.consumer.commits import CommitCallback
from kavka.client.consumer.core import SEEK_BEGINNING, SEEK_END, ConsumerCore
from kavka.client.consumer.errors import ConcurrentAccess, Wakeup
from kavka.client.consumer.mailbox import Call, Mailbox
from kavka.client.consumer.records import EMPTY, Records
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import ClientClosed
from kavka.client.io_thread import IoThread, warn_unclosed
from kavka.client.metadata import PartitionMetadata
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

_NO_LIMIT = 1 << 62
# An iteration polls with this; how long only matters to a program that looks at metrics.
_ITERATION = 1.0


class Consumer:
    """Reads records of topics, alone or as one of a group.

        with Consumer(bootstrap_servers="localhost:9092", group_id="g") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.key, record.value)

    Not safe for threads: a second thread that calls anything but `wakeup` while a first one is inside raises
    ConcurrentAccess. Fetching and heartbeats go on in a thread of the consumer's own; everything that the program gives
    it (listeners, callbacks, interceptors, deserializers) is called in the program's thread, inside its calls.

    When an exception leaves the `with` block, automatic commits leave out what the program was handling: the record
    that the iteration returned last, or those of the last poll. `close` commits them, as Java's does. A consumer that
    is dropped without `close` gives a ResourceWarning and leaves its group in the background, without a commit.

    Times are in seconds; a call that may wait takes `default.api.timeout.ms` where no timeout is given, and raises
    KafkaTimeout after it. Partitions are TopicPartition or (topic, number). Settings: `consumer_config.py`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        settings = consumer_config(config, keywords)
        mailbox = self._mailbox = Mailbox()
        self._woken = False
        self._mutex = threading.Lock()
        self._user = 0
        self._depth = 0
        core = self._core = ConsumerCore(settings, mailbox.call_user, mailbox.signal, lambda: mailbox.on_room())
        self._unread = self._core.unread
        self._limit: int = settings["max.poll.records"]
        name = settings["client.id"] or "consumer"
        io = self._io = IoThread(f"kavka-{name}", partial(mailbox.abandon, core))
        mailbox.on_room = partial(io.call_soon, core.fetcher.kick)
        try:
            self._io.run(self._core.start())
        except BaseException:
            self._io.stop()
            raise

    # --- what to read

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: Any = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Read these topics, or all that match a pattern as a whole, as a member of the group; instead of what was
        subscribed to before. No topics: `unsubscribe`.

        With `group.protocol=consumer` a pattern that is text is matched by the broker (RE2), a compiled one here.
        A listener has `on_partitions_assigned`, `on_partitions_revoked`, `on_partitions_lost`; or give functions."""
        heard = make_listener(listener, on_assigned, on_revoked, on_lost)
        if (topics is None) == (pattern is None):
            raise TypeError("either topics or a pattern")
        with self._used():
            self._give_back()
            if pattern is not None:
                self._on_loop(self._core.subscribe_pattern, pattern, heard)
            elif topics:
                self._on_loop(self._core.subscribe, topics, heard)
            else:
                self._run(self._core.unsubscribe())

    def unsubscribe(self) -> None:
        """Read nothing: leave the group, or give up the partitions that were assigned."""
        with self._used():
            self._give_back()
            self._run(self._core.unsubscribe())

    def assign(self, partitions: Iterable[Any]) -> None:
        """Read these partitions, without sharing them with others; instead of those that were assigned before. Those
        that are in both keep their position."""
        with self._used():
            wanted = many_partitions(partitions)
            # Commits what was consumed of the old ones.
            self._run(self._core.assign(wanted))
            self._unread.keep(wanted)

    def assignment(self) -> set[TopicPartition]:
        with self._used():
            return set(self._core.subscriptions.partitions)

    def subscription(self) -> set[str]:
        """The topics subscribed to; with a pattern, those that it stands for now."""
        with self._used():
            return set(self._core.subscriptions.topics)

    def pause(self, partitions: Iterable[Any]) -> None:
        """Polls return nothing of these until `resume`; the group is not told."""
        with self._used():
            self._on_loop(self._core.pause, many_partitions(partitions), True)

    def resume(self, partitions: Iterable[Any]) -> None:
        with self._used():
            self._on_loop(self._core.pause, many_partitions(partitions), False)

    def paused(self) -> set[TopicPartition]:
        with self._used():
            return {tp for tp, state in self._core.subscriptions.partitions.items() if state.paused}

    # --- records

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> Records:
        """Records that are there, at most `max.poll.records`; waits up to `timeout` seconds for the first. Nothing in
        time is no error: the result is empty.

        To poll is also to say that what earlier polls returned is done with (it is what automatic commits commit), and
        to take part in the group: a member that does not poll for `max.poll.interval.ms` is out."""
        with self._used():
            return self._poll(timeout, self._limit if max_records is None else max_records)

    def poll_arrow(self, timeout: float = 0.0, max_records: int | None = None) -> pyarrow.RecordBatch | None:
        """As `poll`, to Arrow: columns topic, partition, offset, timestamp, timestamp_type, key, value and headers,
        keys and values as bytes. No Python object is made for a record; deserializers and interceptors are not called.
        None if nothing came in time. The limit is what was fetched, not `max.poll.records`. Needs pyarrow
        (`kavka[arrow]`)."""
        from kavka.client.consumer.arrow import record_batch

        columns = self.poll_columns(timeout, max_records)
        return None if columns is None else record_batch(columns)

    def poll_columns(self, timeout: float = 0.0, max_records: int | None = None) -> Columns | None:
        """As `poll_arrow`, to the columns that Arrow would get: for whoever only counts, and needs no pyarrow."""
        with self._used():
            self._give_back()
            limit = _NO_LIMIT if max_records is None else max_records
            return self._wait_for(timeout, lambda: self._core.buffer.take_columns(limit))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record by record, for ever; ends when the consumer is closed. A commit in the middle commits what was given
        out so far, the last record included."""
        while not self._core.closing:
            if not self._unread:
                with self._used():
                    records = self._poll(_ITERATION, self._limit)
                self._unread.set(records)
            yield from self._unread

    def _poll(self, timeout: float, limit: int) -> Records:
        if self._unread:
            self._core.polled()
            return self._unread.take(limit)
        taken = self._wait_for(timeout, lambda: self._take(limit))
        if taken is None:
            return EMPTY
        records = Records(*taken)
        return self._core.interceptors.on_consume(records) if self._core.interceptors.see_records else records

    def _take(self, limit: int) -> Any:
        taken = self._core.buffer.take(limit)
        return taken if taken[0] else None

    def _wait_for(self, timeout: float, take: Callable[[], T | None]) -> T | None:
        core = self._core
        core.polled()
        deadline = core.last_poll + timeout
        core.in_poll = True
        try:
            while True:
                self._check_woken()
                if core.attention:
                    self._run(core.attend(deadline, nested=self._depth > 1), wakes=True)
                found = take()
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._wait(left)
        finally:
            core.in_poll = False
            core.last_poll = time.monotonic()

    # --- positions

    def seek(self, partition: Any, offset: int | OffsetAndMetadata) -> None:
        """The next poll goes on at this offset."""
        with self._used():
            tp = one_partition(partition)
            self._on_loop(self._core.seek, tp, offset)
            self._unread.drop((tp,))

    def seek_to_beginning(self, partitions: Iterable[Any] = ()) -> None:
        """Of all assigned partitions where none are given. Where that is is looked up by the next poll or
        `position`."""
        self._seek_to(partitions, SEEK_BEGINNING)

    def seek_to_end(self, partitions: Iterable[Any] = ()) -> None:
        """With `isolation.level=read_committed`, to the first record of a transaction that is still open."""
        self._seek_to(partitions, SEEK_END)

    def _seek_to(self, partitions: Iterable[Any], when: int) -> None:
        with self._used():
            wanted = many_partitions(partitions)
            self._on_loop(self._core.seek_to, wanted, when)
            self._unread.drop(wanted or self._core.subscriptions.partitions)

    def position(self, partition: Any, timeout: float | None = None) -> int:
        """The offset of the next record that this consumer gets of the partition."""
        with self._used():
            tp = one_partition(partition)
            unread = self._unread.first().get(tp)
            if unread is not None:
                return unread
            return self._run(self._core.position(tp, self._core.deadline(timeout)), wakes=True)

    def lag(self, partition: Any = None, timeout: float | None = None) -> Any:
        """How many records a partition has after the position; without an argument, of all assigned partitions by
        partition. It is as of the last fetch, and asked for only where nothing was fetched yet."""
        with self._used():
            asked = [] if partition is None else [one_partition(partition)]
            found = self._run(self._core.lag(asked, self._core.deadline(timeout)), wakes=True)
            return found if partition is None else found[asked[0]]

    def current_lag(self, partition: Any) -> int | None:
        """As `lag`, of what is known now: asks nobody, and is None before the first fetch."""
        with self._used():
            return self._on_loop(self._core.known_lag, one_partition(partition))

    def offsets_for_times(
        self, times: Mapping[Any, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition the first record of that time (ms since 1970) or later; None where there is none."""
        with self._used():
            asked = {one_partition(tp): when for tp, when in times.items()}
            return self._run(self._core.offsets_for_times(asked, self._core.deadline(timeout)), wakes=True)

    def beginning_offsets(self, partitions: Iterable[Any], timeout: float | None = None) -> dict[TopicPartition, int]:
        with self._used():
            asked = many_partitions(partitions)
            return self._run(self._core.edge_offsets(asked, SEEK_BEGINNING, self._core.deadline(timeout)), wakes=True)

    def end_offsets(self, partitions: Iterable[Any], timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offsets of the next records to be written; with read_committed, of the first that is not committed."""
        with self._used():
            asked = many_partitions(partitions)
            return self._run(self._core.edge_offsets(asked, SEEK_END, self._core.deadline(timeout)), wakes=True)

    # --- commits

    def commit_sync(self, offsets: Any = None, timeout: float | None = None) -> None:
        """Commit and wait until it is done: everything that polls have returned, or that of some partitions (a list of
        them), or the offsets of a mapping by partition (the next to be read, so the last record's plus one).

        CommitFailed: others have the partitions by now. RebalanceInProgress: poll first."""
        with self._used():
            commits = self._core.commits
            self._run(commits.commit(commits.meant(offsets), self._core.deadline(timeout)), wakes=True)

    def commit_async(self, offsets: Any = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting, and without trying again. `callback(offsets, error)` is called by a later poll, or
        other call that waits."""
        with self._used():
            self._on_loop(self._core.commits.commit_later, self._core.commits.meant(offsets), callback)

    def committed(
        self, partitions: Iterable[Any], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, by whichever member; None where nothing is."""
        with self._used():
            asked = many_partitions(partitions)
            return self._run(self._core.commits.committed(asked, self._core.deadline(timeout)), wakes=True)

    # --- the cluster and the group

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """The partitions of a topic, with their leaders and replicas."""
        with self._used():
            return self._run(self._core.partitions_for(topic, self._core.deadline(timeout)), wakes=True)

    def list_topics(self, timeout: float | None = None) -> dict[str, list[PartitionMetadata]]:
        """All topics that this consumer may see, with their partitions."""
        with self._used():
            return self._run(self._core.topic_names(self._core.deadline(timeout)), wakes=True)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """For `Producer.send_offsets_to_transaction`."""
        with self._used():
            return self._core.group_metadata()

    def enforce_rebalance(self, reason: str | None = None) -> None:
        """Have a classic group rebalance with the next poll."""
        with self._used():
            self._on_loop(self._core.enforce_rebalance, reason)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, by Kafka's names."""
        return self._core.all_metrics()

    def wakeup(self) -> None:
        """From any thread: the call that waits now, or the next one that would, raises Wakeup."""
        self._woken = True
        self._mailbox.inbox.put(None)

    def close(self, timeout: float = 30.0, *, leave_group: bool | None = None) -> None:
        """Commit (where that is automatic), leave the group, end. A static member stays in the group until its session
        is over, unless `leave_group` says otherwise."""
        if self._core.closing:
            return
        if self._io.forked:
            # The membership is that of the process it was made in.
            self._core.closing = self._core.closed = True
            return
        with self._used():
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

    # --- one thread at a time

    def _used(self) -> _Use:
        me = threading.get_ident()
        # A listener may still use the consumer while it is being closed.
        if self._core.closed or (self._core.closing and self._user != me):
            raise ClientClosed("the consumer is closed")
        self._io.check()
        if self._user != me:
            if not self._mutex.acquire(blocking=False):
                raise ConcurrentAccess(
                    "the consumer is not safe for threads: another thread is inside one of its methods"
                )
            self._user = me
        self._depth += 1
        return _Use(self)

    def _unused(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._user = 0
            self._mutex.release()

    # --- between the program's thread and the loop's

    def _run(self, work: Coroutine[Any, Any, T], *, wakes: bool = False) -> T:
        """Run it on the loop and wait. Functions of the program's that the loop wants called are called meanwhile.

        Such a function may call the consumer, and so wait in here too, where it may take the news of the outer future
        from the inbox: so after each of them it is looked at."""
        try:
            if wakes:
                self._check_woken()
            future: concurrent.futures.Future[T] = self._io.submit(work)
        except BaseException:
            work.close()
            raise
        future.add_done_callback(self._mailbox.inbox.put)
        try:
            while True:
                item = self._mailbox.inbox.get()
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

    def _on_loop(self, function: Callable[..., T], *args: Any) -> T:
        async def call() -> T:
            return function(*args)

        return self._run(call())

    def _wait(self, seconds: float) -> None:
        """Until the loop has something, or the time is up."""
        self._mailbox.is_waiting = True
        if self._core.buffer or self._core.attention or self._woken:
            self._mailbox.is_waiting = False
            return
        try:
            item = self._mailbox.inbox.get(timeout=seconds)
        except queue.Empty:
            return
        finally:
            self._mailbox.is_waiting = False
        self._handle(item)

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise Wakeup("wakeup was called")

    def _handle(self, item: Any) -> None:
        if isinstance(item, Call):
            item.run()

    def _give_back(self) -> None:
        """Records that an iteration has not given out yet are fetched again."""
        for tp, offset in self._unread.first().items():
            if tp in self._core.subscriptions.partitions:
                self._on_loop(self._core.seek, tp, offset)
        self._unread.clear()


class _Use:
    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._consumer._unused()
