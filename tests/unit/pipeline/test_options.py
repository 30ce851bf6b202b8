"""The options of the Spark source and sink."""

from __future__ import annotations

import pytest

from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import OptionError
from kavka.pipeline.spark.options import (
    EARLIEST,
    LATEST,
    ByOffset,
    ByTime,
    SourceOptions,
    sink_options,
    source_options,
)

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def source(streaming: bool = True, **options: str) -> SourceOptions:
    return source_options({**SERVERS, "subscribe": "a", **options}, streaming=streaming)


def test_the_defaults_equal_those_of_spark() -> None:
    options = source()
    assert (options.kind, options.topics) == ("subscribe", ("a",))
    assert (options.starting, options.fail_on_data_loss, options.include_headers) == (LATEST, True, False)
    assert (options.max_delay, options.poll_timeout, options.retries, options.retry_interval) == (900.0, 120.0, 3, 1.0)
    assert (options.isolation_level, options.text_columns) == ("read_uncommitted", frozenset())
    assert source(textColumns=" Value,key ").text_columns == {"key", "value"}
    assert (source(streaming=False).starting, source(streaming=False).ending) == (EARLIEST, LATEST)


def test_case_is_ignored_and_kafka_options_are_client_settings() -> None:
    options = source_options(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "subscribepattern": "a.*", "kafka.isolation.level": "read_committed"},
        streaming=True,
    )
    assert (options.kind, options.pattern) == ("subscribePattern", "a.*")
    assert options.client == {"bootstrap.servers": "h:1", "isolation.level": "read_committed"}
    assert options.isolation_level == "read_committed"


def test_options_of_the_source_without_effect_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    source(**{"groupIdPrefix": "p", "kafka.group.id": "g", "kafka.linger.ms": "1", "kafka.fetch.min.byte": "1"})
    names = [message.split()[0] for message in caplog.messages]
    assert names[:2] == ["groupIdPrefix", "kafka.group.id"]
    assert sorted(names[2:]) == ["kafka.fetch.min.byte", "kafka.linger.ms"]
    caplog.clear()
    source(**{"kafka.fetch.min.bytes": "1", "kafka.security.protocol": "SSL", "kafka.retries": "2"})
    assert caplog.messages == []


def test_offsets_and_timestamps_are_parsed_from_json() -> None:
    assert source(startingOffsets='{"a":{"0":23,"1":-2}}').starting == ByOffset({A0: 23, A1: EARLIEST})
    assert source(startingOffsetsByTimestamp='{"a":{"0":1000}}').starting == ByTime({A0: 1000})
    assert source(startingTimestamp="5", startingOffsets="latest").starting == ByTime(5)
    assert source(streaming=False, endingOffsets='{"a":{"0":-1}}').ending == ByOffset({A0: LATEST})


def test_assign_lists_partitions() -> None:
    options = source_options({**SERVERS, "assign": '{"b":[1,0],"a":[0]}'}, streaming=True)
    assert options.partitions == (A0, TopicPartition("b", 0), TopicPartition("b", 1))
    assert options.topics == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscrbe": "a"}, "subscrbe is not an option of kavka; the nearest is subscribe"),
        ({"maxoffsetspertriger": "1"}, "the nearest is maxOffsetsPerTrigger"),
        ({"fetch.max.bytes": "1"}, "settings of the client start with kafka."),
        (
            {"assign": '{"a":[0]}'},
            "one of subscribe, subscribePattern and assign must be set, not assign and subscribe",
        ),
        ({"startingOffsets": "begin"}, 'startingOffsets must be like {"topic":{"0":23,"1":45}}, not \'begin\''),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets of a-0 cannot be -3"),
        ({"startingOffsets": '{"b":{"0":1}}'}, "startingOffsets has b-0, which is not read"),
        ({"startingOffsets": '{"a":{"x":1}}'}, "startingOffsets must be like"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "startingOffsets must be like"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batches: a stream has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number of at least 1, not '0'"),
        ({"minPartitions": "x"}, "minPartitions must be a whole number of at least 1, not 'x'"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is more than maxOffsetsPerTrigger (4)"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration like 500ms, 30s, 15m or 2h, not 'soon'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "must be error or latest, not 'x'"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set: startingOffsets determines"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set"),
        ({"kafka.value.deserializer": "x"}, "values are bytes, or text with textColumns=value"),
        ({"textColumns": "value,topic"}, "textColumns must be key, value, or both with a comma between"),
        ({"groupIdCommit": " "}, "groupIdCommit must be the name of a consumer group"),
    ],
)
def test_invalid_options_are_rejected_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        source(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest for a batch"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest for a batch"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets of a-0 cannot be -1 for a batch"),
        ({"groupIdCommit": "g"}, "groupIdCommit is for streams"),
    ],
)
def test_invalid_options_of_batches_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        source(streaming=False, **options)
    assert message in str(caught.value)


def test_an_invalid_pattern_and_missing_servers_are_rejected() -> None:
    with pytest.raises(OptionError, match="is not a regular expression"):
        source_options({**SERVERS, "subscribePattern": "("}, streaming=True)
    with pytest.raises(
        OptionError, match=r"kafka.bootstrap.servers must be set.*kafka.bootstrap.server is not an option"
    ):
        source_options({"kafka.bootstrap.server": "h:1", "subscribe": "a"}, streaming=True)


def test_durations_have_sparks_format() -> None:
    for text, seconds in {"250ms": 0.25, "7": 0.007, "30s": 30, "15m": 900, "2 h": 7200, "1d": 86400}.items():
        assert source(maxTriggerDelay=text).max_delay == seconds


def test_the_sink_ignores_options_of_the_source() -> None:
    options = sink_options({**SERVERS, "topic": " t ", "exactlyOnce": "TRUE", "startingOffsets": "x", "queryname": "q"})
    assert (options.topic, options.exactly_once) == ("t", True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "topic is empty"),
        ({"topik": "t"}, "topik is not an option of kavka; the nearest is topic"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id cannot be set: exactlyOnce=true uses transactions"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer cannot be set"),
        ({"exactlyOnce": "true", "kafka.acks": "1"}, "kafka.acks must be all with exactlyOnce=true"),
    ],
)
def test_invalid_options_of_the_sink_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        sink_options({**SERVERS, **options})
    assert message in str(caught.value)
