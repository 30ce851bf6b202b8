"""Names and values of the settings of Streams."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kavka.pipeline.streams.error_handlers import CONTINUE, FAIL, RETRY
from kavka.pipeline.streams.own_topics import create_own
from kavka.pipeline.streams.settings import Settings, settings_of
from kavka.streams import (
    Consumed,
    ErrorHandlerContext,
    Response,
    StreamsBuilder,
    StreamsException,
    TestRecord,
    TopologyTestDriver,
)


def settings(**more: Any) -> Settings:
    names = {name.replace("__", "-").replace("_", "."): value for name, value in more.items()}
    return settings_of({"application.id": "app", "bootstrap.servers": "x:1", **names})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("comit.interval.ms", "commit.interval.ms"),
        ("fail.on.dataloss", "fail.on.data.loss"),
        ("acks.", "acks"),
        ("consumer.max.poll.record", "consumer.max.poll.records"),
        ("producer.compresion.type", "producer.compression.type"),
        ("topic.retention.mss", "topic.retention.ms"),
    ],
)
def test_an_unknown_setting_is_refused_with_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(StreamsException, match=rf"^{name} is not a setting of Streams; did you mean {suggestion}\?$"):
        settings_of({"application.id": "app", "bootstrap.servers": "x:1", name: "1"})


def test_unknown_settings_are_legal_under_the_prefixes_of_clients_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        accepted = settings(consumer_my_serializer_url="x", producer_my_interceptor="y")
    assert "my.serializer.url" not in accepted.consumer()
    assert [line.split()[0] for line in caplog.messages] == ["consumer.my.serializer.url", "producer.my.interceptor"]
    for name in ("my_serializer_url", "topic_my_setting"):
        with pytest.raises(StreamsException, match="is not a setting of Streams"):
            settings(**{name: "x"})


def test_settings_of_kafka_without_meaning_here_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings(
            num_standby_replicas="1", num_stream_threads="4", client_tag_zone="a", restore_consumer_fetch_min_bytes="1"
        )
        settings(producer_enable_idempotence="true", consumer_group_id="g")
    assert len(caplog.messages) == 6
    assert all("has no effect here" in line for line in caplog.messages)


def test_a_prefix_restricts_a_setting_to_a_client_and_takes_precedence() -> None:
    configured = settings(
        request_timeout_ms="1",
        fetch_min_bytes="2",
        consumer_request_timeout_ms="3",
        main_consumer_fetch_min_bytes="4",
        global_consumer_fetch_min_bytes="5",
        producer_linger_ms="6",
        admin_request_timeout_ms="7",
        topic_segment_bytes="8000000",
    )
    servers = {"bootstrap.servers": "x:1"}
    assert configured.consumer() == {**servers, "request.timeout.ms": "3", "fetch.min.bytes": "4"}
    assert configured.consumer(is_global=True) == {**servers, "request.timeout.ms": "3", "fetch.min.bytes": "5"}
    assert configured.producer == {**servers, "request.timeout.ms": "1", "linger.ms": "6"}
    assert configured.admin == {**servers, "request.timeout.ms": "7"}
    assert configured.topic == {"segment.bytes": "8000000"}


def test_the_reset_policy_and_the_largest_record_may_have_a_prefix() -> None:
    assert settings(auto_offset_reset="earliest", consumer_auto_offset_reset="latest").reset == "latest"
    assert settings(producer_max_request_size="77").max_request == 77
    with pytest.raises(StreamsException, match=r"^consumer.auto.offset.reset is earliest, latest or none, not newest$"):
        settings(consumer_auto_offset_reset="newest")


def test_own_topics_get_the_settings_of_topics() -> None:
    created: list[Any] = []

    class Admin:
        def describe_topics(self, topics: list[str], timeout: float) -> dict[str, Any]:
            return {}

        def create_topics(self, topics: list[Any], timeout: float) -> None:
            created.extend(topics)

    admin: Any = Admin()
    create_own(admin, {"app-r": 2}, -1, {"segment.bytes": "8000000", "min.insync.replicas": "2"})
    (topic,) = created
    assert topic.configs["segment.bytes"] == "8000000"
    assert topic.configs["min.insync.replicas"] == "2"
    assert topic.configs["cleanup.policy"] == "delete"


# --- timestamp extractors


class AddsOne:
    def extract(self, record: Any, partition_time: int) -> int:
        return int(record.timestamp) + 1


def times(extractor: Any, *timestamps: int, in_consumed: bool = False) -> list[int | None]:
    builder = StreamsBuilder()
    builder.stream("in", Consumed.with_(timestamp_extractor=extractor if in_consumed else None)).to("out")
    config = {} if in_consumed or extractor is None else {"default.timestamp.extractor": extractor}
    with TopologyTestDriver(builder.build(), config) as driver:
        for timestamp in timestamps:
            driver.create_input_topic("in").pipe_input("k", "v", timestamp)
        records: list[TestRecord] = driver.create_output_topic("out").read_records_to_list()
        return [record.timestamp for record in records]


def test_timestamp_extractors_have_the_names_of_kafka() -> None:
    package = "org.apache.kafka.streams.processor"
    assert times(f"{package}.LogAndSkipOnInvalidTimestamp", 5, -1, 7) == [5, 7]
    assert times("UsePartitionTimeOnInvalidTimestamp", 5, -1, 7) == [5, 5, 7]
    assert min(time or 0 for time in times(f"{package}.WallclockTimestampExtractor", -1)) > 1_700_000_000_000
    for name in (None, f"{package}.FailOnInvalidTimestamp"):
        assert times(name, 5) == [5]
        with pytest.raises(StreamsException, match="in-0 offset 0 has the timestamp -1"):
            times(name, -1)
    with pytest.raises(StreamsException, match="partition time is unknown"):
        times("UsePartitionTimeOnInvalidTimestamp", -1)


def test_timestamp_extractors_of_users_are_functions_classes_objects_or_names() -> None:
    for extractor in (f"{__name__}:AddsOne", AddsOne, AddsOne(), AddsOne().extract):
        assert times(extractor, 5) == [6]
        assert times(extractor, 5, in_consumed=True) == [6]
    with pytest.raises(StreamsException, match="NoSuchExtractor' is not a supported name of a timestamp extractor"):
        settings(default_timestamp_extractor="NoSuchExtractor")
    with pytest.raises(StreamsException, match="cannot be loaded"):
        settings(default_timestamp_extractor="no_such_module:Class")


# --- exception handlers by name


class Resuming:
    def configure(self, config: Any) -> None:
        self.name = config["application.id"]

    def handle_error(self, context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        return Response.resume() if self.name == "app" else Response.fail()


def test_exception_handlers_are_named_as_in_kafka_or_as_python_classes() -> None:
    package, error = "org.apache.kafka.streams.errors", ValueError("no")
    context = ErrorHandlerContext("node", "0_0", "in", 0, 1)
    for setting, result in (
        (f"{package}.LogAndContinueExceptionHandler", CONTINUE),
        (f"{package}.LogAndFailExceptionHandler", FAIL),
        (f"{__name__}:Resuming", CONTINUE),
        (Resuming, CONTINUE),
        (lambda context, record, error: "resume", CONTINUE),
    ):
        for name in ("deserialization.exception.handler", "default.deserialization.exception.handler"):
            configured = settings(**{name: setting})
            assert configured.deserialization_handler(context, None, error).result == result
    assert settings().production_handler(context, None, error).result == FAIL
    processing = f"{package}.LogAndContinueProcessingExceptionHandler"
    assert settings(processing_exception_handler=processing).processing_handler(context, None, error) == (CONTINUE, ())
    with pytest.raises(StreamsException, match=r"LogAndContinueExceptionHandler.* is not a supported name"):
        settings(processing_exception_handler="LogAndContinueExceptionHandler")
    with pytest.raises(StreamsException, match="is no processing exception handler"):
        settings(processing_exception_handler=object())


@pytest.mark.parametrize("answer", ["maybe", None, RETRY])
def test_an_invalid_response_ends_the_application(answer: Any) -> None:
    configured = settings(processing_exception_handler=lambda context, record, error: answer)
    with pytest.raises(StreamsException, match="Invalid response of the processing exception handler"):
        configured.processing_handler(ErrorHandlerContext("n", "0_0"), None, ValueError("no"))
