"""The consumer against a real broker: Kavka by default, Apache Kafka with --target."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kavka import (
    Admin,
    ConcurrentAccess,
    ConfigError,
    Consumer,
    KafkaTimeout,
    NewPartitions,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetOutOfRange,
    Producer,
    RecordDeserializationError,
    Records,
    TopicPartition,
    Wakeup,
)
from kavka.client.errors import ClientClosed, IllegalState
from tests.support.our_consumer import (
    RecordingListener,
    fill,
    group_settings,
    make_topic,
    numbers,
    poll_until,
    read,
)

Make = Callable[..., Consumer]


def values(records: Any) -> list[Any]:
    return [record.value for record in records]


# --- assigned partitions


def test_assigned_partitions_are_read_from_the_beginning(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic, 2)
    fill(servers, topic, numbers(300), 0)
    fill(servers, topic, numbers(200, 300), 1)
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0), TopicPartition(topic, 1)])
    records = read(consumer, 500)
    by_partition = {p: [r.value for r in records if r.partition == p] for p in (0, 1)}
    assert by_partition == {0: numbers(300), 1: numbers(200, 300)}
    assert [r.offset for r in records if r.partition == 1] == list(range(200))
    assert consumer.position((topic, 0)) == 300
    assert consumer.assignment() == {(topic, 0), (topic, 1)}
    assert consumer.lag() == {(topic, 0): 0, (topic, 1): 0}


def test_a_poll_returns_no_more_than_max_poll_records(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(1000))
    consumer = make(auto_offset_reset="earliest", max_poll_records=7)
    consumer.assign([(topic, 0)])
    first = consumer.poll(10)
    assert values(first) == numbers(7)
    assert values(consumer.poll(10, max_records=3)) == numbers(3, 7)
    assert first.next_offsets[TopicPartition(topic, 0)].offset == 7
    assert consumer.position((topic, 0)) == 10


def test_a_poll_without_records_returns_after_its_timeout(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic)
    consumer = make()
    consumer.assign([(topic, 0)])
    start_time = time.monotonic()
    assert not consumer.poll(0.3)
    assert 0.25 < time.monotonic() - start_time < 5
    assert len(consumer.poll()) == 0


def test_records_have_keys_headers_times_and_sizes(servers: str, make: Make, topic: str) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"value", key=b"key", timestamp=123_456, headers=[("a", b"1"), ("b", None)])
        producer.send(topic, None, key=b"gone")
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    first, second = read(consumer, 2)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert (first.key, first.value, first.timestamp, first.timestamp_type) == (b"key", b"value", 123_456, 0)
    assert first.headers == (("a", b"1"), ("b", None))
    assert (first.serialized_key_size, first.serialized_value_size) == (3, 5)
    assert (second.value, second.serialized_value_size, second.headers) == (None, -1, ())
    assert first.leader_epoch >= 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_type_are_read(servers: str, make: Make, topic: str, codec: str) -> None:
    expected = [b"value %d " % i * 20 for i in range(2000)]
    fill(servers, topic, expected, compression_type=codec)
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    assert values(read(consumer, 2000)) == expected


def test_a_record_larger_than_a_fetch_is_read(servers: str, make: Make, topic: str) -> None:
    big = b"x" * 600_000
    fill(servers, topic, [big, b"small", big])
    consumer = make(auto_offset_reset="earliest", max_partition_fetch_bytes=1000, fetch_max_bytes=1000)
    consumer.assign([(topic, 0)])
    assert values(read(consumer, 3)) == [big, b"small", big]


# --- positions


def test_seek_moves_to_any_offset(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(100))
    consumer = make(auto_offset_reset="earliest", max_poll_records=10)
    consumer.assign([(topic, 0)])
    assert values(read(consumer, 10)) == numbers(10)
    consumer.seek((topic, 0), 95)
    assert consumer.position((topic, 0)) == 95
    assert values(read(consumer, 5)) == numbers(5, 95)
    consumer.seek_to_beginning([(topic, 0)])
    assert values(read(consumer, 10))[:3] == numbers(3)
    consumer.seek_to_end()
    assert consumer.position((topic, 0)) == 100
    fill(servers, topic, [b"new"])
    assert values(read(consumer, 1)) == [b"new"]
    consumer.seek((topic, 0), OffsetAndMetadata(50, "", 0))
    assert values(read(consumer, 1))[0] == b"50"


def test_seeking_an_unassigned_partition_is_rejected(make: Make, topic: str) -> None:
    consumer = make()
    with pytest.raises(IllegalState, match="not assigned"):
        consumer.seek((topic, 0), 1)
    with pytest.raises(IllegalState, match="not assigned"):
        consumer.position((topic, 0))
    with pytest.raises(IllegalState, match="no subscription"):
        consumer.poll()


def test_offsets_are_found_by_time_and_at_the_ends(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic, 2)
    with Producer(bootstrap_servers=servers) as producer:
        for i in range(10):
            producer.send(topic, b"x", partition=0, timestamp=1000 + 10 * i)
    consumer = make()
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    result = consumer.offsets_for_times({both[0]: 1035, both[1]: 1035})
    assert result[both[0]] is not None and result[both[0]][:2] == (4, 1040)
    assert result[both[1]] is None
    assert consumer.offsets_for_times({both[0]: 5000})[both[0]] is None
    assert consumer.beginning_offsets(both) == {both[0]: 0, both[1]: 0}
    assert consumer.end_offsets(both) == {both[0]: 10, both[1]: 0}
    with pytest.raises(ValueError):
        consumer.offsets_for_times({both[0]: -1})


def test_a_paused_partition_returns_no_records_and_loses_none(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic, 2)
    fill(servers, topic, numbers(500), 0)
    fill(servers, topic, numbers(500), 1)
    consumer = make(auto_offset_reset="earliest", max_poll_records=50)
    consumer.assign([(topic, 0), (topic, 1)])
    records = read(consumer, 50)
    consumer.pause([(topic, 0)])
    assert consumer.paused() == {(topic, 0)}
    count = sum(1 for r in records if r.partition == 0)
    deadline = time.monotonic() + 20
    while consumer.position((topic, 1)) < 500 and time.monotonic() < deadline:
        records += consumer.poll(0.1)
    assert sum(1 for r in records if r.partition == 0) == count
    assert not consumer.poll(0.3)
    consumer.resume([(topic, 0)])
    records += read(consumer, 500 - count)
    assert [r.value for r in records if r.partition == 0] == numbers(500)
    assert [r.value for r in records if r.partition == 1] == numbers(500)


@pytest.mark.parametrize(
    ("policy", "expected"), [("earliest", b"old"), ("latest", b"new"), ("by_duration:PT1H", b"young")]
)
def test_auto_offset_reset_determines_the_first_record(
    servers: str, make: Make, topic: str, policy: str, expected: bytes
) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"old", timestamp=int(time.time() * 1000) - 7_200_000).get(30)
        producer.send(topic, b"young").get(30)
    consumer = make(auto_offset_reset=policy)
    consumer.assign([(topic, 0)])
    consumer.position((topic, 0))
    fill(servers, topic, [b"new"])
    assert read(consumer, 1)[0].value == expected


def test_without_a_policy_every_poll_raises_an_error_for_a_missing_offset(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(5))
    consumer = make(auto_offset_reset="none", group_id=f"g-{topic}")
    consumer.assign([(topic, 0)])
    for _ in range(2):
        with pytest.raises(NoOffsetForPartition) as raised:
            for _ in range(100):
                consumer.poll(0.1)
        assert raised.value.partitions == {(topic, 0)}
    consumer.seek((topic, 0), 3)
    assert values(read(consumer, 2)) == numbers(2, 3)


def test_an_offset_out_of_range_is_reset_or_raised(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(100))
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 60})
    reset = make(auto_offset_reset="earliest")
    reset.assign([(topic, 0)])
    reset.seek((topic, 0), 5)
    assert read(reset, 40)[0].offset == 60
    strict = make(auto_offset_reset="none")
    strict.assign([(topic, 0)])
    strict.seek((topic, 0), 5)
    with pytest.raises(OffsetOutOfRange) as raised:
        for _ in range(100):
            strict.poll(0.1)
    assert raised.value.offsets == {(topic, 0): 5}
    strict.seek((topic, 0), 99)
    assert values(read(strict, 1)) == [b"99"]


# --- commits


def test_a_consumer_continues_from_the_committed_offsets_of_another(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(100))
    settings = {**group_settings(protocol), "group_id": group, "enable_auto_commit": False}
    first = make(**settings, max_poll_records=30)
    first.subscribe([topic])
    assert values(read(first, 30)) == numbers(30)
    first.commit_sync()
    assert first.committed([(topic, 0)]) == {TopicPartition(topic, 0): OffsetAndMetadata(30, "", 0)}
    read(first, 30)
    first.close()
    second = make(**settings)
    second.subscribe([topic])
    assert values(read(second, 70)) == numbers(70, 30)


def test_chosen_partitions_and_offsets_are_committed(servers: str, make: Make, topic: str, group: str) -> None:
    make_topic(servers, topic, 3)
    for partition in range(3):
        fill(servers, topic, numbers(10), partition)
    consumer = make(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    parts = [TopicPartition(topic, p) for p in range(3)]
    consumer.assign(parts)
    read(consumer, 30)
    consumer.commit_sync([parts[1]])
    offsets = consumer.committed(parts)
    assert {tp: offset and offset.offset for tp, offset in offsets.items()} == {
        parts[0]: None,
        parts[1]: 10,
        parts[2]: None,
    }
    consumer.commit_sync({parts[0]: 4, parts[2]: OffsetAndMetadata(7, "a note")})
    assert consumer.committed(parts)[parts[0]] == OffsetAndMetadata(4)
    assert consumer.committed(parts)[parts[2]] == OffsetAndMetadata(7, "a note")
    with pytest.raises(ValueError):
        consumer.commit_sync({parts[0]: -1})


def test_commit_async_calls_back_in_a_later_poll(servers: str, make: Make, topic: str, group: str) -> None:
    fill(servers, topic, numbers(10))
    consumer = make(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([(topic, 0)])
    read(consumer, 10)
    callbacks: list[Any] = []
    thread = threading.current_thread()

    def callback(offsets: Any, error: Any) -> None:
        assert threading.current_thread() is thread
        callbacks.append((offsets, error))
        raise RuntimeError("this goes to the log")

    consumer.commit_async(callback=callback)
    poll_until([consumer], lambda: bool(callbacks))
    assert callbacks == [({TopicPartition(topic, 0): OffsetAndMetadata(10, "", 0)}, None)]
    assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)] == OffsetAndMetadata(10, "", 0)


def test_automatic_commits_happen_at_the_interval_and_on_close(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(100))
    consumer = make(**group_settings(protocol), group_id=group, auto_commit_interval_ms=200, max_poll_records=10)
    consumer.subscribe([topic])
    read(consumer, 10)
    other = make(group_id=group)
    tp = TopicPartition(topic, 0)
    deadline = time.monotonic() + 20
    while (committed := other.committed([tp])[tp]) is None or committed.offset < 30:
        assert time.monotonic() < deadline
        consumer.poll(0.05)
        time.sleep(0.1)
    assert committed.offset % 10 == 0
    at_the_end = consumer.position(tp)
    consumer.close()
    last = other.committed([tp])[tp]
    assert last is not None and last.offset == at_the_end


def test_leaving_a_loop_commits_the_records_that_it_returned(servers: str, make: Make, topic: str, group: str) -> None:
    fill(servers, topic, numbers(100))
    consumer = make(group_id=group, auto_offset_reset="earliest")
    consumer.subscribe([topic])
    tp = TopicPartition(topic, 0)
    for count, record in enumerate(consumer, 1):
        assert record.value == b"%d" % (count - 1)
        if count == 5:
            consumer.commit_sync()
            assert consumer.committed([tp])[tp] == OffsetAndMetadata(5, "", 0)
            assert consumer.position(tp) == 5
        if count == 8:
            break
    assert consumer.lag(tp) == consumer.current_lag(tp) == 92
    for record in consumer:
        assert record.offset == 8
        break
    consumer.close()
    assert make(group_id=group).committed([tp])[tp] == OffsetAndMetadata(9, "", 0)


class HandlerError(Exception):
    pass


def fail_at(offset: int, how: str, consumer: Consumer) -> None:
    """Reads up to the record at this offset, whose handler raises an error."""
    if how == "wakeup":
        read(consumer, 1)
        consumer.wakeup()
        consumer.poll(30)
    if how == "loop":
        for record in consumer:
            if record.offset == offset:
                raise HandlerError
    while True:
        if how == "columns":
            columns = consumer.poll_columns(1.0, max_records=10)
            if columns is not None and consumer.position((columns.runs[0][0], 0)) > offset:
                raise HandlerError
        else:
            for record in consumer.poll(1.0):
                if how == "commit" and record.offset == offset:
                    consumer.commit_sync({(record.topic, 0): offset})
                if record.offset == offset:
                    raise HandlerError


@pytest.mark.parametrize(
    ("how", "committed"),
    [
        # A loop has handled all records before this one. With poll, the records of earlier polls
        # are handled.
        ("loop", 25),
        ("poll", 20),
        ("columns", 20),
        # Offsets that the program committed stay committed.
        ("commit", 25),
        # A poll that raises an error means that earlier records are handled.
        ("wakeup", 10),
    ],
)
def test_a_record_whose_handler_raised_is_not_committed(
    servers: str, make: Make, topic: str, group: str, protocol: str, how: str, committed: int
) -> None:
    fill(servers, topic, numbers(100))
    settings = group_settings(protocol) | {"group_id": group, "max_poll_records": 10}
    with pytest.raises((HandlerError, Wakeup)), make(**settings) as consumer:
        consumer.subscribe([topic])
        fail_at(25, how, consumer)
    tp = TopicPartition(topic, 0)
    with make(group_id=group) as other:
        assert other.committed([tp])[tp] == OffsetAndMetadata(committed, "", 0)


def test_a_loop_continues_after_a_poll_and_ends_on_close(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(50))
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    assert next(iter(consumer)).offset == 0
    assert [r.offset for r in consumer.poll(5, max_records=2)] == [1, 2]
    assert consumer.poll_arrow(5, max_records=2)["offset"].to_pylist() == [3, 4]  # type: ignore[index]
    offsets = []
    for record in consumer:
        offsets.append(record.offset)
        if len(offsets) == 3:
            consumer.close()
    assert offsets == [5, 6, 7]


def test_commit_and_subscribe_require_a_group(make: Make, topic: str) -> None:
    consumer = make()
    for call in (
        consumer.commit_sync,
        consumer.commit_async,
        lambda: consumer.committed([(topic, 0)]),
        lambda: consumer.subscribe([topic]),
        consumer.group_metadata,
    ):
        with pytest.raises(IllegalState, match=r"group\.id"):
            call()


# --- Arrow


@pytest.mark.parametrize("views", [False, True])
def test_arrow_has_all_columns(servers: str, make: Make, topic: str, views: bool) -> None:
    make_topic(servers, topic, 2)
    with Producer(bootstrap_servers=servers) as producer:
        for i in range(500):
            producer.send(
                topic, b"v%d" % i, key=b"k%d" % i, partition=i % 2, timestamp=i, headers={"h": b"1"} if i == 3 else None
            )
        producer.send(topic, None, key=None, partition=0, timestamp=500)
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0), (topic, 1)])
    rows: list[dict[str, Any]] = []
    while len(rows) < 501:
        batch = consumer.poll_arrow(10, views=views)
        assert batch is not None
        batch.validate(full=True)
        assert {str(batch[name].type) for name in ("key", "value")} == {"binary_view" if views else "binary"}
        rows += batch.to_pylist()
    rows.sort(key=lambda row: row["timestamp"])
    assert [row["value"] for row in rows] == [b"v%d" % i for i in range(500)] + [None]
    assert [row["key"] for row in rows] == [b"k%d" % i for i in range(500)] + [None]
    assert [row["offset"] for row in rows] == [i // 2 for i in range(500)] + [250]
    assert {row["topic"] for row in rows} == {topic}
    assert [row["headers"] for row in rows[2:5]] == [None, [{"key": "h", "value": b"1"}], None]
    assert consumer.poll_arrow(0.1) is None
    assert consumer.position((topic, 0)) == 251


# --- interceptors and deserializers


class Failing:
    def on_consume(self, records: Records) -> Records:
        raise RuntimeError("this goes to the log")

    def on_commit(self, offsets: Any) -> None:
        raise RuntimeError("this too")


def test_interceptors_receive_records_and_commits(servers: str, make: Make, topic: str, group: str) -> None:
    fill(servers, topic, numbers(10))
    commits: list[Any] = []

    class OnlyEven:
        closed = False

        def configure(self, configs: Any) -> None:
            assert configs["group.id"] == group

        def on_consume(self, records: Records) -> Records:
            return Records(
                {tp: [r for r in some if r.offset % 2 == 0] for tp, some in records.by_partition().items()},
                records.next_offsets,
            )

        def on_commit(self, offsets: Any) -> None:
            commits.append(offsets)

        def close(self) -> None:
            OnlyEven.closed = True

    consumer = make(group_id=group, auto_offset_reset="earliest", interceptor_classes=[Failing, OnlyEven])
    consumer.subscribe([topic])
    assert values(read(consumer, 5)) == [b"0", b"2", b"4", b"6", b"8"]
    consumer.commit_sync()
    assert [dict(commit)[TopicPartition(topic, 0)].offset for commit in commits] == [10]
    consumer.close()
    assert OnlyEven.closed


def test_deserializers_are_set_by_name_object_or_function(servers: str, make: Make, topic: str) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, value={"a": 1}, key=7)
    consumer = make(
        auto_offset_reset="earliest",
        key_deserializer="org.apache.kafka.common.serialization.LongDeserializer",
        value_deserializer=lambda data: data.decode().upper(),
    )
    consumer.assign([(topic, 0)])
    record = read(consumer, 1)[0]
    assert (record.key, record.value) == (7, '{"A":1}')


def test_a_record_that_cannot_be_deserialized_blocks_until_it_is_skipped(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, [b"1", b"x", b"3"])
    consumer = make(auto_offset_reset="earliest", value_deserializer=lambda data: int(data))
    consumer.assign([(topic, 0)])
    assert values(read(consumer, 1)) == [1]
    for _ in range(2):
        with pytest.raises(RecordDeserializationError) as raised:
            consumer.poll(5)
        assert (raised.value.offset, raised.value.value) == (1, b"x")
    consumer.seek((topic, 0), 2)
    assert values(read(consumer, 1)) == [3]


# --- threads


def test_concurrent_use_by_a_second_thread_is_rejected(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic)
    consumer = make(group_id=f"g-{topic}")
    consumer.assign([(topic, 0)])
    refused: list[BaseException] = []

    def meddle() -> None:
        time.sleep(0.3)
        for call in (consumer.poll, consumer.commit_sync, lambda: consumer.seek((topic, 0), 1), consumer.close):
            try:
                call()
            except BaseException as error:
                refused.append(error)

    other = threading.Thread(target=meddle)
    other.start()
    consumer.poll(1.0)
    other.join()
    assert [type(error) for error in refused] == [ConcurrentAccess] * 4
    assert not consumer.poll(0.1)
    # Threads may use the consumer one after the other.
    answers: list[Any] = []
    third = threading.Thread(target=lambda: answers.append(consumer.poll(0.1)))
    third.start()
    third.join()
    assert len(answers) == 1


def test_wakeup_ends_the_current_or_the_next_poll(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic)
    consumer = make()
    consumer.assign([(topic, 0)])
    threading.Timer(0.3, consumer.wakeup).start()
    start_time = time.monotonic()
    with pytest.raises(Wakeup):
        consumer.poll(30)
    assert time.monotonic() - start_time < 10
    consumer.wakeup()
    with pytest.raises(Wakeup):
        consumer.poll(0)
    assert not consumer.poll(0.1)


def test_wakeup_ends_other_blocking_calls(make: Make, topic: str) -> None:
    consumer = make(allow_auto_create_topics=False)
    threading.Timer(0.3, consumer.wakeup).start()
    with pytest.raises(Wakeup):
        consumer.end_offsets([(f"no-{topic}", 0)])


def test_a_closed_consumer_raises_an_error(make: Make, topic: str) -> None:
    consumer = make(group_id="g")
    consumer.close()
    consumer.close()
    for call in (consumer.poll, lambda: consumer.subscribe([topic]), consumer.commit_sync, consumer.assignment):
        with pytest.raises(ClientClosed):
            call()
    assert list(consumer) == []


# --- the cluster


def test_topics_and_partitions_can_be_listed(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic, 3)
    consumer = make(allow_auto_create_topics=False)
    assert [p.partition for p in consumer.partitions_for(topic)] == [0, 1, 2]
    assert all(p.leader >= 0 and p.topic == topic for p in consumer.partitions_for(topic))
    assert len(consumer.list_topics()[topic]) == 3
    with pytest.raises(KafkaTimeout):
        consumer.partitions_for(f"no-{topic}", timeout=0.5)


def test_metrics_count_consumed_records(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(100))
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    read(consumer, 100)
    metrics = consumer.metrics()
    assert metrics["records-consumed-total"] == 100
    assert metrics["fetch-total"] >= 1 and metrics["connection-count"] >= 1
    assert metrics["assigned-partitions"] == 1 and metrics["records-lag-max"] == 0


def test_lag_is_available_before_the_first_fetch(servers: str, make: Make, topic: str) -> None:
    fill(servers, topic, numbers(10))
    consumer = make(auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    consumer.pause([(topic, 0)])
    assert consumer.current_lag((topic, 0)) is None
    assert consumer.lag((topic, 0)) == 10


# --- settings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"auto_offset_reset": "first"}, "auto.offset.reset"),
        ({"isolation_level": "all"}, "isolation.level"),
        ({"enable_auto_commit": True}, "enable.auto.commit"),
        ({"group_id": "g", "partition_assignment_strategy": "unfair"}, "partition.assignment.strategy"),
        ({"partition_assignment_strategy": "unfair"}, "partition.assignment.strategy"),
        ({"group_protocol": "consumer", "partition_assignment_strategy": "range"}, "partition.assignment.strategy"),
        ({"group_id": "g", "group_protocol": "consumer", "session_timeout_ms": 9000}, "session.timeout.ms"),
        ({"group_id": "g", "group_remote_assignor": "uniform"}, "group.remote.assignor"),
        ({"group_id": "g", "session_timeout_ms": 1000}, "heartbeat.interval.ms"),
        ({"value_deserializer": "NoSuch"}, "value.deserializer"),
        ({"interceptor_classes": [object]}, "interceptor.classes"),
    ],
)
def test_an_invalid_setting_is_reported_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        Consumer(bootstrap_servers="localhost:1", **settings)


def test_invalid_arguments_raise_an_error(make: Make, topic: str) -> None:
    consumer = make(group_id="g")
    with pytest.raises(TypeError, match="either topics or a pattern"):
        consumer.subscribe()
    with pytest.raises(TypeError, match="either topics or a pattern"):
        consumer.subscribe([topic], pattern="x")
    with pytest.raises(ValueError):
        consumer.subscribe([""])
    with pytest.raises(ValueError, match="regular expression"):
        consumer.subscribe(pattern="(")
    with pytest.raises(TypeError, match="listener"):
        consumer.subscribe([topic], listener=object())
    with pytest.raises(TypeError):
        consumer.assign(topic)
    with pytest.raises(TypeError):
        consumer.assign([topic])
    with pytest.raises(ValueError):
        consumer.assign([(topic, -1)])
    consumer.assign([(topic, 0)])
    with pytest.raises(IllegalState, match="unsubscribe"):
        consumer.subscribe([topic])
    with pytest.raises(ValueError):
        consumer.seek((topic, 0), -5)
    consumer.unsubscribe()
    consumer.subscribe([topic])


# --- other methods


def test_added_partitions_are_read(servers: str, make: Make, topic: str, group: str, protocol: str) -> None:
    make_topic(servers, topic, 1)
    listener = RecordingListener()
    consumer = make(**group_settings(protocol), group_id=group, metadata_max_age_ms=200)
    consumer.subscribe([topic], listener=listener)
    poll_until([consumer], lambda: len(consumer.assignment()) == 1)
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_partitions({topic: NewPartitions(3)})
    poll_until([consumer], lambda: len(consumer.assignment()) == 3)
    fill(servers, topic, [b"x"], 2)
    assert read(consumer, 1)[0].partition == 2
    assert listener.assignment() == consumer.assignment()


def test_a_topic_that_is_created_later_is_read(servers: str, make: Make, topic: str, group: str, protocol: str) -> None:
    consumer = make(**group_settings(protocol), group_id=group, metadata_max_age_ms=200, allow_auto_create_topics=False)
    consumer.subscribe([topic])
    assert not consumer.poll(1.0)
    make_topic(servers, topic, 2)
    fill(servers, topic, [b"x"])
    assert values(read(consumer, 1)) == [b"x"]
