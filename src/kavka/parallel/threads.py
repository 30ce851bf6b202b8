"""The pattern of one consumer per thread."""

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
from kavka.parallel.handling import Handler, HandlerFailed, Handling, OnError, Runner, consumer_settings, subscribe

logger = logging.getLogger(__name__)

_POLL_TIMEOUT_S = 0.5


class ConsumerThreads(Runner):
    """Consumers of one group. Each consumer runs in a separate thread that polls, processes and
    commits.

    Offsets of processed records are committed every `commit_interval` seconds, when partitions are
    revoked, and at the end. `handler` and `on_error` run in all threads and must be thread-safe.
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
            raise ValueError("threads must be at least 1")
        self._settings = consumer_settings(config, keywords)
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
        """Wait for all threads. Returns False after `timeout` seconds. Raises the error that
        stopped the threads."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._report()
        return True

    def stop(self, timeout: float | None = 30.0) -> bool:
        """Start no more records, wait for the records in progress, and commit. Returns False after
        `timeout` seconds."""
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
                    # Stop all threads before this consumer leaves the group. Otherwise another
                    # consumer would process the failed record.
                    self._stop_all(error)
                    raise
                finally:
                    with self._lock:
                        self._consumers.discard(consumer)
        except BaseException as error:
            self._stop_all(error)

    def _stop_all(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        logger.info("A consumer thread failed; stopping all threads: %r", error)
        self._stopping.set()
        with self._lock:
            for consumer in self._consumers:
                consumer.wakeup()


class _Loop:
    """The loop of one consumer. `_processed` has the offsets to commit."""

    def __init__(self, owner: ConsumerThreads, consumer: Consumer) -> None:
        self._handling = owner._handling
        self._interval = owner._commit_interval
        self._consumer = consumer
        self._processed: dict[TopicPartition, OffsetAndMetadata | int] = {}
        subscribe(consumer, owner._topics, owner._pattern, self)

    def run(self) -> None:
        next_commit = time.monotonic() + self._interval
        try:
            while not self._handling.stopping.is_set():
                try:
                    records = self._consumer.poll(_POLL_TIMEOUT_S)
                except Wakeup:
                    continue
                except RecordDeserializationError as error:
                    tp, offset = self._handling.skip_invalid(self._consumer, error)
                    self._processed[tp] = offset
                    continue
                for tp, partition_records in records.by_partition().items():
                    for record in partition_records:
                        if self._handling.stopping.is_set() or not self._handling.handle(record):
                            return
                        self._processed[tp] = record.offset + 1
                    self._processed[tp] = records.next_offsets[tp]
                if time.monotonic() >= next_commit:
                    self._commit(self._processed)
                    next_commit = time.monotonic() + self._interval
        finally:
            self._commit(self._processed)

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        if not offsets:
            return
        pending: dict[TopicPartition, OffsetAndMetadata | int] = dict(offsets)
        while True:
            try:
                self._consumer.commit_sync(pending)
                break
            except Wakeup:
                # Each call of `stop` calls `wakeup`.
                continue
            except (CommitFailed, RebalanceInProgress) as error:
                logger.info("Offsets were not committed; other members will process the records again: %s", error)
                break
            except KafkaError as error:
                logger.warning("Offsets were not committed: %s", error)
                return
        for tp in list(offsets):
            self._processed.pop(tp, None)

    # --- rebalance listener

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self._commit({tp: offset for tp, offset in self._processed.items() if tp in partitions})
        # Discard the offsets even if the commit failed: the next owner may have committed later
        # ones.
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions:
            self._processed.pop(tp, None)


__all__ = ["ConsumerThreads", "HandlerFailed"]
