"""kafka-python works with the broker, also with the protocol versions of Kafka 0.8.2 to 2.1."""

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
def created_topic(admin: KafkaAdminClient, topic: str) -> str:
    create_topic(admin, topic)
    return topic


def create_topic(admin: KafkaAdminClient, topic: str, partitions: int = 1, **configs: str) -> None:
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
def test_records_are_read_as_sent_with_every_codec_and_acks(
    target: Target, created_topic: str, codec: str | None, acks: int | str
) -> None:
    records = [{"key": f"k{n}".encode(), "value": f"value {n} ".encode() * 20} for n in range(100)]
    produce(target, created_topic, records, acks=acks, compression_type=codec, linger_ms=5, enable_idempotence=False)
    received = read(target, created_topic, "beginning", 100)
    assert [(r.offset, r.key, r.value) for r in received] == [
        (n, record["key"], record["value"]) for n, record in enumerate(records)
    ]


def test_an_idempotent_producer_delivers_each_record_once_in_order(target: Target, created_topic: str) -> None:
    sent = produce(
        target,
        created_topic,
        [{"value": b"%d" % n} for n in range(1000)],
        enable_idempotence=True,
        acks="all",
        batch_size=200,
    )
    assert [metadata.offset for metadata in sent] == list(range(1000))
    assert [int(r.value) for r in read(target, created_topic, "beginning", 1000)] == list(range(1000))


def test_null_and_empty_keys_and_values_are_distinct_and_headers_are_kept(target: Target, created_topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    produce(
        target,
        created_topic,
        [
            {"key": b"k", "value": None},
            {"key": b"", "value": b""},
            {"key": None, "value": b"v", "headers": headers, "timestamp_ms": 1_600_000_000_123},
        ],
    )
    received = read(target, created_topic, "beginning", 3)
    assert [(r.key, r.value, list(r.headers)) for r in received] == [
        (b"k", None, []),
        (b"", b"", []),
        (None, b"v", headers),
    ]
    assert (received[2].timestamp, received[2].timestamp_type) == (1_600_000_000_123, 0)


def test_a_consumer_starts_at_the_beginning_an_offset_a_time_or_the_end(target: Target, created_topic: str) -> None:
    base = 1_600_000_000_000
    produce(target, created_topic, [{"value": b"%d" % n, "timestamp_ms": base + n * 1000} for n in range(50)])
    assert read(target, created_topic, "beginning", 1)[0].offset == 0
    assert [r.offset for r in read(target, created_topic, 40, 10)] == list(range(40, 50))
    assert read(target, created_topic, "end", 1, timeout=0.6) == []
    consumer = KafkaConsumer(bootstrap_servers=target.bootstrap_servers, group_id=None)
    try:
        partition = TopicPartition(created_topic, 0)
        result = consumer.offsets_for_times({partition: base + 24_001})[partition]
        assert (result.offset, result.timestamp) == (25, base + 25_000)
        assert consumer.offsets_for_times({partition: base + 99_000_000})[partition] is None
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 50}
    finally:
        consumer.close()


def test_an_offset_out_of_range_is_reported(target: Target, created_topic: str) -> None:
    produce(target, created_topic, [{"value": b"x"}])
    with pytest.raises(OffsetOutOfRangeError):
        read(target, created_topic, 99, 1)


def test_a_topic_is_created_by_the_first_record_sent_to_it(target: Target, topic: str) -> None:
    produce(target, topic, [{"value": b"first"}])
    assert read(target, topic, "beginning", 1)[0].value == b"first"


def test_topics_are_created_extended_and_deleted(admin: KafkaAdminClient, topic: str) -> None:
    create_topic(admin, topic, 2)
    with pytest.raises(TopicAlreadyExistsError):
        create_topic(admin, topic, 2)
    with pytest.raises(InvalidTopicError):
        admin.create_topics({"with/slash": {"num_partitions": 1, "replication_factor": 1}})
    admin.create_partitions({topic: 4})

    def partitions() -> int:
        return len(admin.describe_topics([topic])[0]["partitions"])

    wait_until(lambda: partitions() == 4, timeout=10, what="4 partitions")
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), timeout=10, what="the topic is deleted")


def test_configs_are_described_and_altered(admin: KafkaAdminClient, created_topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, created_topic)

    def retention_ms() -> str:
        configs = admin.describe_configs([resource], config_filter="all")
        return str(configs["TOPIC" if "TOPIC" in configs else "topic"][created_topic]["retention.ms"]["value"])

    assert retention_ms() == "604800000"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, created_topic, configs={"retention.ms": "1234567"})])
    wait_until(lambda: retention_ms() == "1234567", timeout=10, what="the new retention")


def test_records_are_deleted_up_to_an_offset(target: Target, admin: KafkaAdminClient, created_topic: str) -> None:
    produce(target, created_topic, [{"value": b"%d" % n} for n in range(10)])
    admin.delete_records({TopicPartition(created_topic, 0): 6})
    assert [r.offset for r in read(target, created_topic, "beginning", 4)] == [6, 7, 8, 9]


def test_log_dirs_are_described_with_their_replicas(
    admin: KafkaAdminClient, target: Target, created_topic: str
) -> None:
    produce(target, created_topic, [{"value": b"x" * 1000}])
    description = repr(admin.describe_log_dirs())
    assert str(target.log_dirs[0]) in description
    assert created_topic in description


@pytest.mark.parametrize("version", [(0, 8, 2), (0, 9), (0, 10), (0, 10, 1), (0, 11), (1, 0), (2, 1)])
def test_a_client_with_old_protocol_versions_and_a_current_client_read_the_same_topic(
    target: Target, target_name: str, created_topic: str, version: tuple[int, ...]
) -> None:
    if target_name == APACHE and version < (2, 1):
        pytest.skip("Apache Kafka 4 does not support clients before 2.1")
    for codec in (None, "gzip", "lz4" if version >= (0, 10) else "snappy"):
        records = [{"key": b"k%d" % n, "value": b"old %d" % n} for n in range(10)]
        produce(
            target,
            created_topic,
            records,
            api_version=version,
            acks=1,
            compression_type=codec,
            enable_idempotence=False,
        )
    produce(
        target, created_topic, [{"key": b"new", "value": b"today", "headers": [("h", b"1")]}], compression_type="gzip"
    )

    expected = [(n, b"k%d" % (n % 10), b"old %d" % (n % 10)) for n in range(30)] + [(30, b"new", b"today")]
    current_records = read(target, created_topic, "beginning", 31)
    assert [(r.offset, r.key, r.value) for r in current_records] == expected
    old_records = read(target, created_topic, "beginning", 31, api_version=version)
    assert [(r.offset, r.key, r.value) for r in old_records] == expected
    assert [r.value for r in read(target, created_topic, 25, 6, api_version=version)] == [
        value for _, _, value in expected[25:]
    ]
