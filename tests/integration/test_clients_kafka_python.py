"""kafka-python against a broker, as it is today and as it spoke to brokers of 2014 to 2016."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidTopicError, OffsetOutOfRangeError, TopicAlreadyExistsError

from tests.support.processes import wait_until
from tests.support.targets import APACHE, Target

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def admin(target: Target) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=target.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def created(admin: KafkaAdminClient, topic: str) -> str:
    make(admin, topic)
    return topic


def make(admin: KafkaAdminClient, topic: str, partitions: int = 1, **configs: str) -> None:
    options = {
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": {name.replace("_", "."): value for name, value in configs.items()},
    }
    admin.create_topics({topic: options}, wait_for_metadata=True)


def produce(target: Target, topic: str, records: list[dict[str, Any]], **config: Any) -> list[Any]:
    producer = KafkaProducer(bootstrap_servers=target.bootstrap_servers, **config)
    try:
        futures = [producer.send(topic, partition=0, **record) for record in records]
        producer.flush(30)
        return [future.get(10) for future in futures]
    finally:
        producer.close()


def read(target: Target, topic: str, start: int | str, count: int, timeout: float = 20.0, **config: Any) -> list[Any]:
    options = {"auto_offset_reset": "none", "enable_auto_commit": False, "group_id": None, **config}
    consumer = KafkaConsumer(bootstrap_servers=target.bootstrap_servers, **options)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        if start == "beginning":
            consumer.seek_to_beginning(partition)
        elif start == "end":
            consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, start)
        received: list[Any] = []
        deadline = time.monotonic() + timeout
        while len(received) < count and time.monotonic() < deadline:
            for records in consumer.poll(200).values():
                received += records
        return received
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_compression_with_every_acks_comes_back_as_sent(
    target: Target, created: str, codec: str | None, acks: int | str
) -> None:
    records = [{"key": f"k{n}".encode(), "value": f"value {n} ".encode() * 20} for n in range(100)]
    produce(target, created, records, acks=acks, compression_type=codec, linger_ms=5, enable_idempotence=False)
    received = read(target, created, "beginning", 100)
    assert [(r.offset, r.key, r.value) for r in received] == [
        (n, record["key"], record["value"]) for n, record in enumerate(records)
    ]


def test_an_idempotent_producer_delivers_each_record_once_in_order(target: Target, created: str) -> None:
    sent = produce(
        target,
        created,
        [{"value": b"%d" % n} for n in range(1000)],
        enable_idempotence=True,
        acks="all",
        batch_size=200,
    )
    assert [metadata.offset for metadata in sent] == list(range(1000))
    assert [int(r.value) for r in read(target, created, "beginning", 1000)] == list(range(1000))


def test_null_keys_null_values_and_headers_are_kept_apart(target: Target, created: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    produce(
        target,
        created,
        [
            {"key": b"k", "value": None},
            {"key": b"", "value": b""},
            {"key": None, "value": b"v", "headers": headers, "timestamp_ms": 1_600_000_000_123},
        ],
    )
    received = read(target, created, "beginning", 3)
    assert [(r.key, r.value, list(r.headers)) for r in received] == [
        (b"k", None, []),
        (b"", b"", []),
        (None, b"v", headers),
    ]
    assert (received[2].timestamp, received[2].timestamp_type) == (1_600_000_000_123, 0)


def test_a_consumer_starts_at_the_beginning_an_offset_a_time_or_the_end(target: Target, created: str) -> None:
    base = 1_600_000_000_000
    produce(target, created, [{"value": b"%d" % n, "timestamp_ms": base + n * 1000} for n in range(50)])
    assert read(target, created, "beginning", 1)[0].offset == 0
    assert [r.offset for r in read(target, created, 40, 10)] == list(range(40, 50))
    assert read(target, created, "end", 1, timeout=0.6) == []
    consumer = KafkaConsumer(bootstrap_servers=target.bootstrap_servers, group_id=None)
    try:
        partition = TopicPartition(created, 0)
        result = consumer.offsets_for_times({partition: base + 24_001})[partition]
        assert (result.offset, result.timestamp) == (25, base + 25_000)
        assert consumer.offsets_for_times({partition: base + 99_000_000})[partition] is None
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 50}
    finally:
        consumer.close()


def test_an_offset_out_of_range_is_reported(target: Target, created: str) -> None:
    produce(target, created, [{"value": b"x"}])
    with pytest.raises(OffsetOutOfRangeError):
        read(target, created, 99, 1)


def test_a_topic_is_created_by_the_first_record_sent_to_it(target: Target, topic: str) -> None:
    produce(target, topic, [{"value": b"first"}])
    assert read(target, topic, "beginning", 1)[0].value == b"first"


def test_topics_are_created_grown_and_deleted(admin: KafkaAdminClient, topic: str) -> None:
    make(admin, topic, 2)
    with pytest.raises(TopicAlreadyExistsError):
        make(admin, topic, 2)
    with pytest.raises(InvalidTopicError):
        admin.create_topics({"with/slash": {"num_partitions": 1, "replication_factor": 1}})
    admin.create_partitions({topic: 4})

    def partitions() -> int:
        return len(admin.describe_topics([topic])[0]["partitions"])

    wait_until(lambda: partitions() == 4, timeout=10, what="4 partitions")
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), timeout=10, what="the topic to be gone")


def test_configs_are_described_and_altered(admin: KafkaAdminClient, created: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, created)

    def value() -> str:
        described = admin.describe_configs([resource], config_filter="all")
        return str(described["TOPIC" if "TOPIC" in described else "topic"][created]["retention.ms"]["value"])

    assert value() == "604800000"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, created, configs={"retention.ms": "1234567"})])
    wait_until(lambda: value() == "1234567", timeout=10, what="the new value")


def test_records_are_deleted_up_to_an_offset(target: Target, admin: KafkaAdminClient, created: str) -> None:
    produce(target, created, [{"value": b"%d" % n} for n in range(10)])
    admin.delete_records({TopicPartition(created, 0): 6})
    assert [r.offset for r in read(target, created, "beginning", 4)] == [6, 7, 8, 9]


def test_log_dirs_name_the_replica(admin: KafkaAdminClient, target: Target, created: str) -> None:
    produce(target, created, [{"value": b"x" * 1000}])
    described = repr(admin.describe_log_dirs())
    assert str(target.log_dirs[0]) in described
    assert created in described


@pytest.mark.parametrize("era", [(0, 8, 2), (0, 9), (0, 10), (0, 10, 1), (0, 11), (1, 0), (2, 1)])
def test_a_client_of_that_era_and_one_of_today_read_the_same_topic(
    target: Target, target_name: str, created: str, era: tuple[int, ...]
) -> None:
    if target_name == APACHE and era < (2, 1):
        pytest.skip("Apache Kafka 4 has left the clients before 2.1 behind")
    for codec in (None, "gzip", "lz4" if era >= (0, 10) else "snappy"):
        records = [{"key": b"k%d" % n, "value": b"old %d" % n} for n in range(10)]
        produce(target, created, records, api_version=era, acks=1, compression_type=codec, enable_idempotence=False)
    produce(target, created, [{"key": b"new", "value": b"today", "headers": [("h", b"1")]}], compression_type="gzip")

    expected = [(n, b"k%d" % (n % 10), b"old %d" % (n % 10)) for n in range(30)] + [(30, b"new", b"today")]
    today = read(target, created, "beginning", 31)
    assert [(r.offset, r.key, r.value) for r in today] == expected
    then = read(target, created, "beginning", 31, api_version=era)
    assert [(r.offset, r.key, r.value) for r in then] == expected
    assert [r.value for r in read(target, created, 25, 6, api_version=era)] == [value for _, _, value in expected[25:]]
