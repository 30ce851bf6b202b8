"""A consumer in every thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import CommitFailed, RebalanceInProgress, RecordDeserializationError, Wakeup
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.parallel.handling import Handler, HandlerFailed, Handling, OnError, Runner, settings_of, subscribe

log = logging.getLogger(__name__)

_POLL = 0.5


class ConsumerThreads(Runner):
    """So many consumers of one group, each in a thread of its own that polls, handles and commits.

    What a consumer has handled is committed every `commit_interval` seconds, when partitions are taken away, and at the
    end. `handler` and `on_error` are called in all the threads: what they share must be safe for that.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        topics: Iterable[str] | str | None,
        handler: Handler,
        *,
        threads: int = 4,
        pattern: Any = None,
        on_error: OnError | None = None,
        retries: int = 0,
        backoff: float = 0.1,
        commit_interval: float = 1.0,
        **keywords: Any,
    ) -> None:
        if threads < 1:
            raise ValueError("at least one thread")
        self._settings = settings_of(config, keywords)
        self._topics = topics
        self._pattern = pattern
        self._commit_interval = commit_interval
        self._handling = Handling(handler, on_error, retries, backoff)
        self._stopping = self._handling.stopping
        self._lock = threading.Lock()
        self._consumers: set[Consumer] = set()
        self._threads = [
            threading.Thread(target=self._run, name=f"kavka-consumer-{number}", daemon=True)
            for number in range(threads)
        ]

    def _all_threads(self) -> list[threading.Thread]:
        return self._threads

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it came in time. Raises what ended a thread."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._report()
        return True

    def stop(self, timeout: float | None = 30.0) -> bool:
        """No more records are handled; those that are being handled are finished, and committed."""
        self._stopping.set()
        with self._lock:
            for consumer in self._consumers:
                consumer.wakeup()
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # --- in each thread

    def _run(self) -> None:
        try:
            with Consumer(self._settings) as consumer:
                with self._lock:
                    self._consumers.add(consumer)
                try:
                    _Loop(self, consumer).run()
                except BaseException as error:
                    # Before this consumer leaves the group: what it could not handle would go to another one.
                    self._end_all(error)
                    raise
                finally:
                    with self._lock:
                        self._consumers.discard(consumer)
        except BaseException as error:
            self._end_all(error)

    def _end_all(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        log.info("A thread of consumers ends, and the others with it: %r", error)
        self._stopping.set()
        with self._lock:
            for consumer in self._consumers:
                consumer.wakeup()


class _Loop:
    """One consumer's. `_done` is what was handled and is not committed."""

    def __init__(self, owner: ConsumerThreads, consumer: Consumer) -> None:
        self._handling = owner._handling
        self._interval = owner._commit_interval
        self._consumer = consumer
        self._done: dict[TopicPartition, OffsetAndMetadata | int] = {}
        self._gone: set[TopicPartition] = set()
        subscribe(consumer, owner._topics, owner._pattern, self)

    def run(self) -> None:
        due = time.monotonic() + self._interval
        try:
            while not self._handling.stopping.is_set():
                try:
                    records = self._consumer.poll(_POLL)
                except Wakeup:
                    continue
                except RecordDeserializationError as error:
                    tp, offset = self._handling.pass_over(self._consumer, error)
                    self._done[tp] = offset
                    continue
                for tp, some in records.by_partition().items():
                    for record in some:
                        if self._handling.stopping.is_set() or not self._handling.handle(record):
                            return
                        self._done[tp] = record.offset + 1
                    self._done[tp] = records.next_offsets[tp]
                if time.monotonic() >= due:
                    self._commit(self._done)
                    due = time.monotonic() + self._interval
        finally:
            self._commit(self._done)

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        if not offsets:
            return
        while True:
            try:
                self._consumer.commit_sync(dict(offsets))
                break
            except Wakeup:
                # Of a stop; there may be more than one.
                continue
            except (CommitFailed, RebalanceInProgress) as error:
                log.info("Not committed, others will handle it again: %s", error)
                break
            except KafkaError as error:
                log.warning("Not committed: %s", error)
                return
        for tp in list(offsets):
            self._done.pop(tp, None)

    # A rebalance listener.

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self._commit({tp: offset for tp, offset in self._done.items() if tp in partitions})
        # Committed or not: who gets them next may soon be further than this.
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions:
            self._done.pop(tp, None)


__all__ = ["ConsumerThreads", "HandlerFailed"]
