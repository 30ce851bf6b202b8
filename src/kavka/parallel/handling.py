"""The common base of `ConsumerThreads` and `HandlerPool`: calling the handler, and reporting
errors."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import RecordDeserializationError
from kavka.client.consumer.records import ConsumerRecord
from kavka.client.errors import KafkaTimeout
from kavka.common.config import ConfigError
from kavka.common.types import TopicPartition

logger = logging.getLogger(__name__)

# The end of a `with` block waits this many seconds for running handlers.
STOP_TIMEOUT_S = 30.0

Handler = Callable[[ConsumerRecord], object]
OnError = Callable[[ConsumerRecord, BaseException], object]


class HandlerFailed(RuntimeError):
    """`record` could not be processed. `__cause__` is the error of the handler or of the
    deserializer. The offset of the record, and later offsets of its partition, are not
    committed."""

    def __init__(self, record: ConsumerRecord) -> None:
        super().__init__(f"{record.topic}-{record.partition} at offset {record.offset} could not be processed")
        self.record = record


class Handling:
    """Calls the handler for a record, with retries, and then `on_error`. All threads share it."""

    def __init__(self, handler: Handler, on_error: OnError | None, retries: int, backoff: float) -> None:
        if retries < 0 or backoff < 0:
            raise ValueError("retries and backoff cannot be negative")
        self._handler = handler
        self._on_error = on_error
        self._retries = retries
        self._backoff = backoff
        self.stopping = threading.Event()

    def handle(self, record: ConsumerRecord) -> bool:
        """Process a record. Returns False if the retries were interrupted, by `stop` or by an error
        in another thread. Raises HandlerFailed if the last attempt failed and `on_error` does not
        mark the record as processed."""
        attempt = 0
        while True:
            try:
                self._handler(record)
                return True
            except Exception as error:
                attempt += 1
                if attempt > self._retries:
                    self.handle_failure(record, error)
                    return True
                partition = f"{record.topic}-{record.partition}"
                logger.info("Attempt %s for %s offset %s failed: %r", attempt, partition, record.offset, error)
                if self.stopping.wait(self._backoff * 2 ** (attempt - 1)):
                    return False

    def handle_failure(self, record: ConsumerRecord, error: Exception) -> None:
        """Call `on_error`. Raises HandlerFailed unless it marks the record as processed."""
        if self._on_error is not None and self._on_error(record, error) is True:
            return
        raise HandlerFailed(record) from error

    def skip_invalid(self, consumer: Consumer, error: RecordDeserializationError) -> tuple[TopicPartition, int]:
        """Skip a record that cannot be deserialized, if `on_error` marks it as processed. Returns
        the partition and its new position. Raises HandlerFailed otherwise."""
        tp = error.topic_partition
        record = ConsumerRecord(tp.topic, tp.partition, error.offset, error.key, error.value, headers=error.headers)
        self.handle_failure(record, error)
        consumer.seek(tp, error.offset + 1)
        return tp, error.offset + 1


class Runner(ABC):
    """The interface of `ConsumerThreads` and `HandlerPool`: start, run, join, stop, and a context
    manager that stops the threads when it exits.

    The exit raises the error that stopped the threads, unless `run` or `join` has already raised
    it. It raises KafkaTimeout if a handler does not return within STOP_TIMEOUT_S."""

    _started = False
    _error: BaseException | None = None
    _is_reported = False

    @abstractmethod
    def _all_threads(self) -> Iterable[threading.Thread]: ...

    @abstractmethod
    def join(self, timeout: float | None = None) -> bool:
        """Wait for the threads. Returns False after `timeout` seconds. Raises the error that
        stopped the threads."""

    @abstractmethod
    def stop(self, timeout: float | None = 30.0) -> bool:
        """Start no more records, wait for the records in progress, and commit. Returns False after
        `timeout` seconds."""

    def start(self) -> Self:
        if not self._started:
            self._started = True
            for thread in self._all_threads():
                thread.start()
        return self

    def run(self) -> None:
        """Start the threads, and wait until `stop` is called in another thread. Raises the error
        that stopped the threads: HandlerFailed, or an error of the consumer."""
        self.start()
        try:
            self.join()
        except BaseException:
            self.stop(None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_stopped = self.stop(STOP_TIMEOUT_S)
        if kind is not None:
            # The error that leaves the block takes precedence.
            if not is_stopped:
                logger.error("A handler is still running %g s after stop() was called", STOP_TIMEOUT_S)
            if self._error is not None and not self._is_reported:
                logger.error("The threads were stopped by an error: %r", self._error)
        elif not is_stopped:
            raise KafkaTimeout(f"a handler is still running {STOP_TIMEOUT_S:g} s after stop() was called")
        elif not self._is_reported:
            self._report()

    def _report(self) -> None:
        """Raise the error that stopped the threads, if any."""
        if self._error is not None:
            self._is_reported = True
            raise self._error


def consumer_settings(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer without automatic commits. Raises ConfigError if
    enable.auto.commit is true or group.id is missing."""
    settings = dict(config or {}) | {name.replace("_", "."): value for name, value in keywords.items()}
    if settings.get("enable.auto.commit") not in (None, False, "false", "False"):
        raise ConfigError("enable.auto.commit", "must be false: offsets are committed after the records were processed")
    if not settings.get("group.id"):
        raise ConfigError("group.id", "is required to commit offsets")
    return {**settings, "enable.auto.commit": False}


def subscribe(consumer: Consumer, topics: Iterable[str] | str | None, pattern: Any, listener: Any) -> None:
    if pattern is not None:
        consumer.subscribe(pattern=pattern, listener=listener)
    else:
        consumer.subscribe(topics, listener=listener)
