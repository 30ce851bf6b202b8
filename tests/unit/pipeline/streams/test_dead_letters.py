"""The dead letter queue (KIP-1034), and handlers of records that cannot be produced."""

from __future__ import annotations

from typing import Any

import pytest

from kavka import ProducerRecord
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.streams.error_handlers import CONTINUE, FAIL, RETRY, ErrorHandler
from kavka.streams import (
    Consumed,
    ErrorHandlerContext,
    Produced,
    Response,
    Serdes,
    StreamsBuilder,
    StreamsException,
    TopologyTestDriver,
)

CONTINUING = {
    "errors.dead.letter.queue.topic.name": "dlq",
    "deserialization.exception.handler": "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
    "processing.exception.handler": "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler",
}
BYTES = Serdes.ByteArray()


def unless_seven(value: int) -> int:
    if value == 7:
        raise ValueError("seven")
    return value


def numbers() -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed.with_(Serdes.String(), Serdes.Integer()))
    stream.map_values(unless_seven).to("out", Produced.with_(Serdes.String(), Serdes.Integer()))
    return builder


def test_records_that_fail_go_to_the_dead_letter_queue_with_the_headers_of_kafka() -> None:
    """The same topology and input as Kafka Streams 4.3 ran: raw key and value, the record's time
    and headers, and then these six."""
    with TopologyTestDriver(numbers().build(), CONTINUING) as driver:
        source = driver.create_input_topic("in", Serdes.String(), BYTES)
        source.pipe_input("k", b"\1\2", 55, (("mine", b"x"),))
        source.pipe_input("k", b"\0\0\0\7", 66, (("mine", b"x"),))
        source.pipe_input("k", b"\0\0\0\x08", 77)
        queue = driver.create_output_topic("dlq", Serdes.String(), BYTES).read_records_to_list()
        assert driver.create_output_topic("out", value_serde=Serdes.Integer()).read_values_to_list() == [8]
    assert [(record.key, record.value, record.timestamp) for record in queue] == [
        ("k", b"\1\2", 55),
        ("k", b"\0\0\0\7", 66),
    ]
    for record in queue:
        assert [name for name, _ in record.headers] == [
            "mine",
            "__streams.errors.exception",
            "__streams.errors.message",
            "__streams.errors.stacktrace",
            "__streams.errors.topic",
            "__streams.errors.partition",
            "__streams.errors.offset",
        ]
    headers = dict(queue[1].headers)
    assert headers["__streams.errors.exception"] == b"ValueError"
    assert headers["__streams.errors.message"] == b"seven"
    assert b'raise ValueError("seven")' in (headers["__streams.errors.stacktrace"] or b"")
    assert [headers[f"__streams.errors.{name}"] for name in ("topic", "partition", "offset")] == [b"in", b"0", b"1"]


def test_without_a_queue_or_with_handlers_that_fail_nothing_is_added() -> None:
    without = {name: value for name, value in CONTINUING.items() if name.endswith("handler")}
    with TopologyTestDriver(numbers().build(), without) as driver:
        driver.create_input_topic("in", Serdes.String(), BYTES).pipe_input("k", b"\0\0\0\7")
        assert driver.producer_topics() == set()
    failing = {"errors.dead.letter.queue.topic.name": "dlq"}
    with TopologyTestDriver(numbers().build(), failing) as driver, pytest.raises(StreamsException, match="in-0 offset"):
        driver.create_input_topic("in", Serdes.String(), BYTES).pipe_input("k", b"\1\2")


def test_a_handler_of_a_user_returns_records_for_any_topic() -> None:
    class Parking:
        def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
            assert (context.topic, context.offset, context.task_id) == ("in", 0, "0_0")
            return Response.resume(
                [ProducerRecord("parking", record.value, b"why", headers=[("e", str(error).encode())])]
            )

    with TopologyTestDriver(numbers().build(), {"deserialization.exception.handler": Parking}) as driver:
        driver.create_input_topic("in", Serdes.String(), BYTES).pipe_input("k", b"\1\2")
        (parked,) = driver.create_output_topic("parking", BYTES, BYTES).read_records_to_list()
    assert (parked.key, parked.value) == (b"why", b"\1\2")
    assert parked.headers[0][0] == "e"


def test_a_handler_that_raises_ends_the_application() -> None:
    def broken(context: ErrorHandlerContext, record: Any, error: Exception) -> str:
        raise KeyError("oops")

    fatal = pytest.raises(StreamsException, match="Fatal user code error in deserialization error callback: KeyError")
    with TopologyTestDriver(numbers().build(), {"deserialization.exception.handler": broken}) as driver, fatal:
        driver.create_input_topic("in", Serdes.String(), BYTES).pipe_input("k", b"\1\2")


class Choosing:
    """Continues after errors of serializers."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> str:
        self.calls.append((record.topic, error))
        return FAIL

    def handle_serialization_exception(
        self, context: ErrorHandlerContext, record: Any, error: Exception, origin: str
    ) -> str:
        self.calls.append((record.topic, origin))
        return CONTINUE


def test_errors_of_serializers_are_handled_by_their_method_with_the_origin() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("values", Produced.with_(Serdes.String(), Serdes.Integer()))
    builder.stream("in2").to("keys", Produced.with_(Serdes.Integer(), Serdes.String()))
    handler = Choosing()
    config = {"production.exception.handler": handler, "max.request.size": 1000}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in").pipe_input("a", "b")
        driver.create_input_topic("in2").pipe_input("a", "b")
        assert driver.producer_topics() == set()
    assert handler.calls == [("values", "VALUE"), ("keys", "KEY")]
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with (
        TopologyTestDriver(builder.build(), config) as driver,
        pytest.raises(StreamsException, match="larger than max"),
    ):
        driver.create_input_topic("in").pipe_input("a", "x" * 1000)


class OnlyErrors:
    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> str:
        return CONTINUE


def test_a_handler_without_the_method_fails_for_serializers_as_in_kafka() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("values", Produced.with_(Serdes.String(), Serdes.Integer()))
    config = {"production.exception.handler": OnlyErrors}
    with TopologyTestDriver(builder.build(), config) as driver, pytest.raises(StreamsException):
        driver.create_input_topic("in").pipe_input("a", "b")


def test_retry_is_for_retriable_errors_of_the_sink(caplog: pytest.LogCaptureFixture) -> None:
    context = ErrorHandlerContext("sink", "0_0")
    handler = ErrorHandler("production", lambda context, record, error: RETRY)
    assert handler(context, None, KafkaError(ErrorCode.REQUEST_TIMED_OUT)).result == RETRY
    assert handler(context, None, KafkaError(ErrorCode.MESSAGE_TOO_LARGE)).result == FAIL
    assert "RETRY for an error that is not retriable" in caplog.messages[0]
