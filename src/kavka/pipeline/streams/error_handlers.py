"""Handlers of records that cannot be deserialized, processed or produced, and the dead letter queue
(KIP-1034).

A handler is a function `(context, record, error)`, or an object with Kafka's methods:
`handle_error` or `handle`, for serializers `handle_serialization_error` or
`handle_serialization_exception` with the origin (KEY or VALUE) as fourth argument. It returns a
Response, or only its result. An object is configured by the name of Kafka's class, by
`module:Class`, or itself; its `configure(config)` is called.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kavka.client import classes
from kavka.client.producer.record import ProducerRecord
from kavka.common.config import ConfigError
from kavka.common.errors import KafkaError
from kavka.pipeline.streams.errors import StreamsException

logger = logging.getLogger(__name__)

CONTINUE, FAIL, RETRY = "CONTINUE", "FAIL", "RETRY"
KEY, VALUE = "KEY", "VALUE"
DESERIALIZATION, PROCESSING, PRODUCTION = "deserialization", "processing", "production"
DEAD_LETTER_TOPIC = "errors.dead.letter.queue.topic.name"

Headers = tuple[tuple[str, bytes | None], ...]

_RESULTS = {CONTINUE: CONTINUE, "RESUME": CONTINUE, FAIL: FAIL, RETRY: RETRY}
_PREFIX = "__streams.errors."


class Response(NamedTuple):
    """The decision about a record: CONTINUE leaves it out, FAIL ends the application, RETRY (only
    for errors of the sink that are retriable) repeats the micro-batch. The records are written to
    their topics, usually to a dead letter queue."""

    result: str
    dead_letter_queue_records: tuple[ProducerRecord[bytes, bytes], ...] = ()

    @classmethod
    def resume(cls, records: Iterable[ProducerRecord[bytes, bytes]] = ()) -> Response:
        return cls(CONTINUE, tuple(records))

    @classmethod
    def fail(cls, records: Iterable[ProducerRecord[bytes, bytes]] = ()) -> Response:
        return cls(FAIL, tuple(records))

    @classmethod
    def retry(cls) -> Response:
        return cls(RETRY)


class SourceRecord(NamedTuple):
    """A record as it was read, for handlers of deserialization errors."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


@dataclass(frozen=True)
class ErrorHandlerContext:
    """Where an error occurred, and the source record that was processed. A punctuator, and a record
    that the sink could not write, have no source record: `topic` is None."""

    processor_node_id: str | None
    task_id: str | None
    topic: str | None = None
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    headers: Headers = ()
    source_raw_key: bytes | None = None
    source_raw_value: bytes | None = None


def dead_letter_record(topic: str, context: ErrorHandlerContext, error: Exception) -> ProducerRecord[bytes, bytes]:
    """The source record, with the error in its headers."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    values = {
        "exception": name,
        "message": str(error),
        "stacktrace": "".join(traceback.format_exception(error)),
        "topic": context.topic,
        "partition": str(context.partition),
        "offset": str(context.offset),
    }
    headers = [(f"{_PREFIX}{name}", None if value is None else value.encode()) for name, value in values.items()]
    return ProducerRecord(
        topic,
        context.source_raw_value,
        context.source_raw_key,
        timestamp=context.timestamp if context.timestamp >= 0 else None,
        headers=[*context.headers, *headers],
    )


# --- Kafka's own handlers


class _Logging:
    """Logs an error, and adds the record to the dead letter queue if there is one."""

    _topic: str | None = None

    def configure(self, config: Mapping[str, Any]) -> None:
        self._topic = config.get(DEAD_LETTER_TOPIC) or None

    def _records(self, context: ErrorHandlerContext, error: Exception) -> list[ProducerRecord[bytes, bytes]]:
        return [] if self._topic is None else [dead_letter_record(self._topic, context, error)]

    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        raise NotImplementedError

    def handle_serialization_error(
        self, context: ErrorHandlerContext, record: Any, error: Exception, origin: str
    ) -> Response:
        return self.handle_error(context, record, error)


class LogAndContinue(_Logging):
    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        logger.warning("%s is left out: %s: %s", _place(context), type(error).__name__, error)
        return Response.resume(self._records(context, error))


class LogAndFail(_Logging):
    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        return Response.fail(self._records(context, error))


class DefaultProduction(LogAndFail):
    """Repeats a micro-batch after a retriable error of the sink."""

    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        return Response.retry() if is_retriable(error) else super().handle_error(context, record, error)

    def handle_serialization_error(
        self, context: ErrorHandlerContext, record: Any, error: Exception, origin: str
    ) -> Response:
        return Response.fail(self._records(context, error))


def _place(context: ErrorHandlerContext) -> str:
    record = "" if context.topic is None else f" {context.topic}-{context.partition} offset {context.offset}"
    return f"a record{record} (task {context.task_id}, {context.processor_node_id})"


def is_retriable(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.retriable


_DEFAULTS = {
    DESERIALIZATION: "LogAndFailExceptionHandler",
    PROCESSING: "LogAndFailProcessingExceptionHandler",
    PRODUCTION: "DefaultProductionExceptionHandler",
}
_NAMES = {
    DESERIALIZATION: {"LogAndContinueExceptionHandler": LogAndContinue, "LogAndFailExceptionHandler": LogAndFail},
    PROCESSING: {
        "LogAndContinueProcessingExceptionHandler": LogAndContinue,
        "LogAndFailProcessingExceptionHandler": LogAndFail,
    },
    PRODUCTION: {
        "DefaultProductionExceptionHandler": DefaultProduction,
        "LogAndContinueExceptionHandler": LogAndContinue,
    },
}


class ErrorHandler:
    """Calls a handler of one kind. Its results are checked, and its errors end the application."""

    def __init__(self, kind: str, target: Any) -> None:
        self.kind, self._target = kind, target
        self._handle = _method(target, "handle_error", "handle") or (target if callable(target) else None)
        if self._handle is None:
            raise StreamsException(f"{target!r} is no {kind} exception handler: it has no handle_error(…)")

    @property
    def fails(self) -> bool:
        """Whether it says FAIL to every error that is not retriable."""
        return isinstance(self._target, LogAndFail)

    def __call__(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        return self._checked(error, self._handle, context, record, error)

    def serialization(self, context: ErrorHandlerContext, record: Any, error: Exception, origin: str) -> Response:
        method = _method(self._target, "handle_serialization_error", "handle_serialization_exception")
        if method is not None:
            return self._checked(error, method, context, record, error, origin)
        # As in Kafka an object without the method fails. A function handles both.
        return self(context, record, error) if self._handle is self._target else Response.fail()

    def _checked(self, error: Exception, method: Any, *arguments: Any) -> Response:
        try:
            answer = method(*arguments)
        except Exception as raised:
            raise StreamsException(
                f"Fatal user code error in {self.kind} error callback: {type(raised).__name__}: {raised}; it was "
                f"called for: {type(error).__name__}: {error}"
            ) from raised
        response = answer if isinstance(answer, Response) else Response(str(getattr(answer, "value", answer)).upper())
        if response.result not in _RESULTS or (response.result == RETRY and self.kind != PRODUCTION):
            raise StreamsException(f"Invalid response of the {self.kind} exception handler: {answer!r}")
        if response.result == RETRY and not is_retriable(error):
            logger.warning("The handler returned RETRY for an error that is not retriable: it is treated as FAIL")
            return Response.fail(response.dead_letter_queue_records)
        return Response(_RESULTS[response.result], response.dead_letter_queue_records)


def _method(target: Any, *names: str) -> Any:
    """The first of these methods that the target has."""
    return next(filter(callable, (getattr(target, name, None) for name in names)), None)


def handler_of(kind: str, setting: Any, name: str, config: Mapping[str, Any]) -> ErrorHandler:
    if setting is None:
        setting = _DEFAULTS[kind]
    java_names = {java: f"{__name__}:{handler.__name__}" for java, handler in _NAMES[kind].items()}
    try:
        return ErrorHandler(kind, classes.make(name, setting, java_names, f"a {kind} exception handler", config))
    except ConfigError as error:
        raise StreamsException(str(error)) from None
