"""What both patterns do with a record, and with what goes wrong."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import RecordDeserializationError
from kavka.client.errors import KafkaTimeout
from kavka.common.config import ConfigError
from kavka.common.types import TopicPartition

log = logging.getLogger(__name__)

# How long the end of a `with` block waits for handlers that are running.
STOP_TIMEOUT_S = 30.0

Handler = Callable[[ConsumerRecord], object]
OnError = Callable[[ConsumerRecord, BaseException], object]


class HandlerFailed(RuntimeError):
    """A record could not be handled. `record` is which; its `__cause__` is why. It is not committed, nor is anything
    after it in its partition."""

    def __init__(self, record: ConsumerRecord) -> None:
        super().__init__(f"{record.topic}-{record.partition} at offset {record.offset} could not be handled")
        self.record = record


class Handling:
    """One record: the handler, again where `retries` says so, then `on_error`."""

    def __init__(self, handler: Handler, on_error: OnError | None, retries: int, backoff: float) -> None:
        if retries < 0 or backoff < 0:
            raise ValueError("retries and backoff cannot be negative")
        self._handler = handler
        self._on_error = on_error
        self._retries = retries
        self._backoff = backoff
        self.stopping = threading.Event()

    def handle(self, record: ConsumerRecord) -> bool:
        """Whether the record is done; HandlerFailed where it cannot be. False: it was given up, as everything stops."""
        attempt = 0
        while True:
            try:
                self._handler(record)
                return True
            except Exception as error:
                attempt += 1
                if attempt > self._retries:
                    self.decide(record, error)
                    return True
                where = f"{record.topic}-{record.partition}"
                log.info("Attempt %s at %s offset %s failed: %r", attempt, where, record.offset, error)
                if self.stopping.wait(self._backoff * 2 ** (attempt - 1)):
                    return False

    def decide(self, record: ConsumerRecord, error: Exception) -> None:
        """Nothing where the program says that the record counts as done; else HandlerFailed."""
        if self._on_error is not None and self._on_error(record, error) is True:
            return
        raise HandlerFailed(record) from error

    def pass_over(self, consumer: Consumer, error: RecordDeserializationError) -> tuple[TopicPartition, int]:
        """A record that could not even be read; returns where to go on, if the program says so."""
        tp = error.topic_partition
        record = ConsumerRecord(tp.topic, tp.partition, error.offset, error.key, error.value, headers=error.headers)
        self.decide(record, error)
        consumer.seek(tp, error.offset + 1)
        return tp, error.offset + 1


class Runner(ABC):
    """What both patterns are to a program: started, waited for, stopped; a context that stops at its end.

    The end of the context raises what ended the handling, unless `run` or `join` has raised it before, and KafkaTimeout
    where a handler does not return."""

    _started = False
    _error: BaseException | None = None
    _is_reported = False

    @abstractmethod
    def _all_threads(self) -> Iterable[threading.Thread]: ...

    @abstractmethod
    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it came in time. Raises what ended it."""

    @abstractmethod
    def stop(self, timeout: float | None = 30.0) -> bool:
        """No more records are begun; those that are being handled are finished, and what is done is committed."""

    def start(self) -> Self:
        if not self._started:
            self._started = True
            for thread in self._all_threads():
                thread.start()
        return self

    def run(self) -> None:
        """Until `stop` is called from elsewhere, or a record cannot be handled (HandlerFailed)."""
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
            # The error that leaves the block goes first.
            if not is_stopped:
                log.error("A handler is still running %g s after the stop", STOP_TIMEOUT_S)
            if self._error is not None and not self._is_reported:
                log.error("The handling had ended before: %r", self._error)
        elif not is_stopped:
            raise KafkaTimeout(f"a handler is still running {STOP_TIMEOUT_S:g} s after the stop")
        elif not self._is_reported:
            self._report()

    def _report(self) -> None:
        """Raise what ended the handling."""
        if self._error is not None:
            self._is_reported = True
            raise self._error


def settings_of(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """For a consumer that commits itself."""
    given = dict(config or {}) | {name.replace("_", "."): value for name, value in keywords.items()}
    if given.get("enable.auto.commit") not in (None, False, "false", "False"):
        raise ConfigError("enable.auto.commit", "it must be off: what is done is committed, not what was polled")
    if not given.get("group.id"):
        raise ConfigError("group.id", "it must be given: what is done is committed for a group")
    return {**given, "enable.auto.commit": False}


def subscribe(consumer: Consumer, topics: Iterable[str] | str | None, pattern: Any, listener: Any) -> None:
    if pattern is not None:
        consumer.subscribe(pattern=pattern, listener=listener)
    else:
        consumer.subscribe(topics, listener=listener)
