"""`HandlerPool`: one consumer and a pool of workers.

The polling thread owns the consumer and the progress of partitions: it submits records, commits
offsets, and gives up partitions. Workers take records from one queue. The records with the same key
(or of the same partition) form a sequence. At most one record of a sequence is in progress; later
records wait in the queue of the sequence. The worker that completes a record takes the next record
of its sequence, so the records of a sequence are processed in order.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import CommitFailed, RebalanceInProgress, RecordDeserializationError, Wakeup
from kavka.client.consumer.records import ConsumerRecord
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.parallel.handling import Handler, Handling, OnError, Runner, consumer_settings, subscribe
from kavka.parallel.progress import Progress, Ticket

logger = logging.getLogger(__name__)

KEY, PARTITION, NONE = "key", "partition", "none"
_POLL_TIMEOUT_S = 0.2
_POLL_TIMEOUT_WHEN_FULL_S = 0.02


class Work(NamedTuple):
    """A record to process. `sequence` is None if the record may be processed in any order."""

    sequence: Any
    record: ConsumerRecord
    ticket: Ticket


class HandlerPool(Runner):
    """One consumer, and workers that process its records. `order` is `key`, `partition` or `none`.
    With `key`, the records of a partition with the same key are processed in order, and records
    without a key in any order. At `max_waiting` unprocessed records, the pool pauses reading until
    half of them are processed.

    When partitions are revoked, the pool waits up to `revoke_timeout` seconds for the records in
    progress and the records before them. The next owner of a partition processes its remaining
    records.
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
            raise ValueError("workers must be at least 1")
        orders: dict[str, Callable[[ConsumerRecord], Any]] = {
            KEY: lambda record: (
                None if record.key is None else (record.topic, record.partition, _sequence_key(record.key))
            ),
            PARTITION: lambda record: (record.topic, record.partition),
            NONE: lambda record: None,
        }
        if order not in orders:
            raise ValueError(f"order must be one of {', '.join(orders)}, not {order!r}")
        self._sequence_of = orders[order]
        self._handling = Handling(handler, on_error, retries, backoff)
        self._stopping = self._handling.stopping
        self._consumer = Consumer(consumer_settings(config, keywords))
        self._commit_interval = commit_interval
        self._revoke_timeout = revoke_timeout
        self._max_waiting = max(workers * 50, 1000) if max_waiting is None else max_waiting
        self._progress: dict[TopicPartition, Progress] = {}
        self._lock = threading.Lock()
        self._sequences: dict[Any, deque[Work]] = {}
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._changed = threading.Event()
        self._waiting = 0
        self._poller = threading.Thread(target=self._poll, name="kavka-pool-poll", daemon=True)
        self._workers = [
            threading.Thread(target=self._work_loop, name=f"kavka-pool-{number}", daemon=True)
            for number in range(workers)
        ]
        try:
            subscribe(self._consumer, topics, pattern, self)
        except BaseException:
            self._consumer.close()
            raise

    def _all_threads(self) -> tuple[threading.Thread, ...]:
        return self._poller, *self._workers

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the polling thread. Returns False after `timeout` seconds. Raises the error that
        stopped the pool."""
        self._poller.join(timeout)
        if self._poller.is_alive():
            return False
        self._report()
        return True

    def stop(self, timeout: float | None = 30.0) -> bool:
        """Start no more records, wait for the records in progress, and commit. Returns False after
        `timeout` seconds."""
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
        """The number of records that were read and are not processed yet."""
        return self._waiting

    # --- the polling thread

    def _poll(self) -> None:
        is_full = False
        next_commit = time.monotonic() + self._commit_interval
        try:
            while not self._stopping.is_set():
                is_full = self._pause_if_full(is_full)
                self._read(_POLL_TIMEOUT_WHEN_FULL_S if is_full else _POLL_TIMEOUT_S)
                if time.monotonic() >= next_commit:
                    self._commit(self._progress)
                    next_commit = time.monotonic() + self._commit_interval
        except BaseException as error:
            self._fail(error)
        self._finish()

    def _pause_if_full(self, is_full: bool) -> bool:
        """Pause all partitions while too many records are unprocessed. Polls continue, so that the
        consumer stays in the group. Returns whether the partitions are paused."""
        if not is_full and self._waiting >= self._max_waiting:
            self._consumer.pause(self._consumer.assignment())
            return True
        if is_full:
            if self._waiting > self._max_waiting // 2:
                # Also pause partitions that a rebalance has added.
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
            tp, offset = self._handling.skip_invalid(self._consumer, error)
            self._progress.setdefault(tp, Progress()).advance(offset)
            return
        for tp, partition_records in records.by_partition().items():
            progress = self._progress.setdefault(tp, Progress())
            for record in partition_records:
                self._submit(record, progress.begin(record.offset))
            progress.advance(records.next_offsets[tp].offset)

    def _submit(self, record: ConsumerRecord, ticket: Ticket) -> None:
        sequence = self._sequence_of(record)
        work = Work(sequence, record, ticket)
        with self._lock:
            self._waiting += 1
            if sequence is not None:
                queued = self._sequences.get(sequence)
                if queued is not None:
                    queued.append(work)
                    return
                self._sequences[sequence] = deque()
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
                # `stop` or a failed worker has called `wakeup`, perhaps several times.
                continue
            except (CommitFailed, RebalanceInProgress) as error:
                logger.info(
                    "Offsets were not committed; the commit is retried or the records are processed again: %s",
                    error,
                )
                return
            except KafkaError as error:
                logger.warning("Offsets were not committed: %s", error)
                return
            for tp, offset in offsets.items():
                self._progress[tp].mark_committed(offset)
            return

    def _finish(self) -> None:
        try:
            self._drain(list(self._progress.values()), None if self._error is None else self._revoke_timeout)
            self._commit(self._progress)
            self._consumer.close()
        except BaseException as error:
            self._fail(error)
        finally:
            for _ in self._workers:
                self._work.put(None)

    def _drain(self, progress_list: list[Progress], timeout: float | None) -> bool:
        """Start no more records of these partitions, and wait for the records in progress and the
        records before them. Returns False after `timeout` seconds."""
        with self._lock:
            for progress in progress_list:
                progress.close()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_drained(progress_list):
            remaining = 1.0 if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._changed.clear()
            if not self._is_drained(progress_list):
                self._changed.wait(min(remaining, 1.0))
        return True

    def _is_drained(self, progress_list: list[Progress]) -> bool:
        if self._error is not None:
            # No record starts after an error, so the records before a started record may never be
            # processed.
            return not any(progress.is_running for progress in progress_list)
        return all(progress.is_drained for progress in progress_list)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._stopping.set()
        self._consumer.wakeup()

    # --- rebalance listener, called inside poll

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        revoked = [self._progress[tp] for tp in partitions if tp in self._progress]
        if not self._drain(revoked, self._revoke_timeout):
            logger.warning("Partitions were revoked while their records were being processed: %s", sorted(partitions))
        self._commit(partitions)
        for tp in partitions:
            self._progress.pop(tp, None)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions:
            progress = self._progress.pop(tp, None)
            if progress is not None:
                progress.limit = -1

    # --- the workers

    def _work_loop(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            while work is not None:
                self._process(work.record, work.ticket)
                work = self._next_in_sequence(work.sequence)

    def _process(self, record: ConsumerRecord, ticket: Ticket) -> None:
        with self._lock:
            if ticket.offset > ticket.progress.limit or self._error is not None:
                return
            ticket.started = True
        is_processed = False
        try:
            is_processed = self._handling.handle(record)
        except BaseException as error:
            self._fail(error)
        with self._lock:
            ticket.done = ticket.started = is_processed
            if not is_processed:
                # The record failed, or a stop interrupted its retries. Records before it may still
                # complete.
                ticket.progress.limit = min(ticket.progress.limit, ticket.offset - 1)
        self._changed.set()

    def _next_in_sequence(self, sequence: Any) -> Work | None:
        with self._lock:
            self._waiting -= 1
            if sequence is None:
                return None
            queued = self._sequences[sequence]
            if queued:
                return queued.popleft()
            del self._sequences[sequence]
            return None


def _sequence_key(key: Any) -> Any:
    """Return the key, or its `repr` if a deserializer returned a key that is not hashable."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
