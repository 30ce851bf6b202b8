"""One consumer, many threads that handle what it reads.

The thread that polls owns everything but the lanes: it begins records, commits what is done, gives partitions up.
Workers take work from one queue. A lane is a key (or a partition) that has a record being handled; later ones of the
same lane wait in it, and who finishes one takes the next: so no two records of a lane are handled at the same time, or
out of order.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import CommitFailed, RebalanceInProgress, RecordDeserializationError, Wakeup
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.parallel.handling import Handler, Handling, OnError, Runner, settings_of, subscribe
from kavka.parallel.progress import Progress, Ticket

log = logging.getLogger(__name__)

KEY, PARTITION, NONE = "key", "partition", "none"
_POLL = 0.2
_POLL_WHEN_FULL = 0.02

Work = tuple[Any, ConsumerRecord, Ticket]


class HandlerPool(Runner):
    """`order` is `key` (records with the same key, of one partition, in order; those without a key in any),
    `partition`, or `none`. At most `max_waiting` records are held; beyond that nothing more is read until half of them
    are done.

    When partitions are taken away, records of theirs that are being handled are waited for, and those before them, up
    to `revoke_timeout` seconds; the others are left to who gets them next.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        topics: Iterable[str] | str | None,
        handler: Handler,
        *,
        workers: int = 16,
        order: str = KEY,
        pattern: Any = None,
        on_error: OnError | None = None,
        retries: int = 0,
        backoff: float = 0.1,
        max_waiting: int | None = None,
        commit_interval: float = 1.0,
        revoke_timeout: float = 30.0,
        **keywords: Any,
    ) -> None:
        if workers < 1:
            raise ValueError("at least one worker")
        lanes: dict[str, Callable[[ConsumerRecord], Any]] = {
            KEY: lambda record: None if record.key is None else (record.topic, record.partition, _lane_key(record.key)),
            PARTITION: lambda record: (record.topic, record.partition),
            NONE: lambda record: None,
        }
        if order not in lanes:
            raise ValueError(f"order is one of {', '.join(lanes)}, not {order!r}")
        self._lane_of = lanes[order]
        self._handling = Handling(handler, on_error, retries, backoff)
        self._stopping = self._handling.stopping
        self._consumer = Consumer(settings_of(config, keywords))
        self._commit_interval = commit_interval
        self._revoke_timeout = revoke_timeout
        self._max_waiting = max(workers * 50, 1000) if max_waiting is None else max_waiting
        self._progress: dict[TopicPartition, Progress] = {}
        self._lock = threading.Lock()
        self._lanes: dict[Any, deque[Work]] = {}
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._changed = threading.Event()
        self._waiting = 0
        self._poller = threading.Thread(target=self._poll, name="kavka-pool-poll", daemon=True)
        self._workers = [
            threading.Thread(target=self._handle, name=f"kavka-pool-{number}", daemon=True) for number in range(workers)
        ]
        try:
            subscribe(self._consumer, topics, pattern, self)
        except BaseException:
            self._consumer.close()
            raise

    def _all_threads(self) -> tuple[threading.Thread, ...]:
        return self._poller, *self._workers

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it came in time. Raises what ended it."""
        self._poller.join(timeout)
        if self._poller.is_alive():
            return False
        self._report()
        return True

    def stop(self, timeout: float | None = 30.0) -> bool:
        """No more records are begun; those that are being handled are finished, and what is done is committed."""
        self._stopping.set()
        self._consumer.wakeup()
        if not self._started:
            self._consumer.close()
            return True
        if threading.current_thread() not in (self._poller, *self._workers):
            self._poller.join(timeout)
        return not self._poller.is_alive()

    @property
    def waiting(self) -> int:
        """Records that were read and are not done."""
        return self._waiting

    # --- the thread that polls

    def _poll(self) -> None:
        full = False
        due = time.monotonic() + self._commit_interval
        try:
            while not self._stopping.is_set():
                full = self._hold_back(full)
                self._read(_POLL_WHEN_FULL if full else _POLL)
                if time.monotonic() >= due:
                    self._commit(self._progress)
                    due = time.monotonic() + self._commit_interval
        except BaseException as error:
            self._fail(error)
        self._finish()

    def _hold_back(self, full: bool) -> bool:
        """Pausing keeps the membership alive without reading more."""
        if not full and self._waiting >= self._max_waiting:
            self._consumer.pause(self._consumer.assignment())
            return True
        if full:
            if self._waiting > self._max_waiting // 2:
                # What a rebalance has brought meanwhile waits too.
                self._consumer.pause(self._consumer.assignment())
                return True
            self._consumer.resume(self._consumer.assignment())
        return False

    def _read(self, timeout: float) -> None:
        try:
            records = self._consumer.poll(timeout)
        except Wakeup:
            return
        except RecordDeserializationError as error:
            tp, offset = self._handling.pass_over(self._consumer, error)
            self._progress.setdefault(tp, Progress()).passed(offset)
            return
        for tp, some in records.by_partition().items():
            progress = self._progress.setdefault(tp, Progress())
            for record in some:
                self._begin(record, progress.begin(record.offset))
            progress.passed(records.next_offsets[tp].offset)

    def _begin(self, record: ConsumerRecord, ticket: Ticket) -> None:
        lane = self._lane_of(record)
        work: Work = (lane, record, ticket)
        with self._lock:
            self._waiting += 1
            if lane is not None:
                queued = self._lanes.get(lane)
                if queued is not None:
                    queued.append(work)
                    return
                self._lanes[lane] = deque()
        self._work.put(work)

    def _commit(self, partitions: Iterable[TopicPartition]) -> None:
        offsets = {}
        for tp in partitions:
            progress = self._progress.get(tp)
            offset = None if progress is None else progress.to_commit()
            if offset is not None:
                offsets[tp] = offset
        if not offsets:
            return
        while True:
            try:
                self._consumer.commit_sync(offsets)
            except Wakeup:
                # Of a stop, or of a worker that failed; there may be many.
                continue
            except (CommitFailed, RebalanceInProgress) as error:
                log.info("Not committed, it will be tried again or handled again: %s", error)
                return
            except KafkaError as error:
                log.warning("Not committed: %s", error)
                return
            for tp, offset in offsets.items():
                self._progress[tp].committed(offset)
            return

    def _finish(self) -> None:
        try:
            self._settle(list(self._progress.values()), None if self._error is None else self._revoke_timeout)
            self._commit(self._progress)
            self._consumer.close()
        except BaseException as error:
            self._fail(error)
        finally:
            for _ in self._workers:
                self._work.put(None)

    def _settle(self, some: list[Progress], timeout: float | None) -> bool:
        """Until none of their records is being handled, and there are no gaps between those that were."""
        with self._lock:
            for progress in some:
                progress.close()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._settled(some):
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.clear()
            if not self._settled(some):
                self._changed.wait(min(left, 1.0))
        return True

    def _settled(self, some: list[Progress]) -> bool:
        if self._error is not None:
            # Nothing begins any more, so gaps stay.
            return not any(progress.running for progress in some)
        return all(progress.settled for progress in some)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._stopping.set()
        self._consumer.wakeup()

    # A rebalance listener, called inside poll.

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        gone = [self._progress[tp] for tp in partitions if tp in self._progress]
        if not self._settle(gone, self._revoke_timeout):
            log.warning("Partitions are given up while records of theirs are still handled: %s", sorted(partitions))
        self._commit(partitions)
        for tp in partitions:
            self._progress.pop(tp, None)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions:
            progress = self._progress.pop(tp, None)
            if progress is not None:
                progress.limit = -1

    # --- the threads that handle

    def _handle(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            while work is not None:
                self._handle_one(work[1], work[2])
                work = self._next_of(work[0])

    def _handle_one(self, record: ConsumerRecord, ticket: Ticket) -> None:
        with self._lock:
            if ticket.offset > ticket.progress.limit or self._error is not None:
                return
            ticket.begun = True
        done = False
        try:
            done = self._handling.handle(record)
        except BaseException as error:
            self._fail(error)
        with self._lock:
            ticket.done = ticket.begun = done
            if not done:
                # It was given up, as everything stops: what stands before it is still worth finishing.
                ticket.progress.limit = min(ticket.progress.limit, ticket.offset - 1)
        self._changed.set()

    def _next_of(self, lane: Any) -> Work | None:
        with self._lock:
            self._waiting -= 1
            if lane is None:
                return None
            queued = self._lanes[lane]
            if queued:
                return queued.popleft()
            del self._lanes[lane]
            return None


def _lane_key(key: Any) -> Any:
    """Keys that a deserializer made may not be hashable; then what they look like decides."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
