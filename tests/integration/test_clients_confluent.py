"""librdkafka (through confluent-kafka) works with the broker. Consumers use `assign` and commit
nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.processes import wait_until
from tests.support.targets import Target

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def admin(target: Target) -> AdminClient:
    return AdminClient({"bootstrap.servers": target.bootstrap_servers})


def create_topic(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    options = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=options)])[topic].result(20)


@pytest.fixture
def created_topic(admin: AdminClient, topic: str) -> str:
    create_topic(admin, topic)
    return topic


def produce(target: Target, topic: str, records: list[dict[str, Any]], **config: Any) -> list[Message]:
    """Produce to partition 0 and return the delivered messages in the order of their delivery
    reports."""
    delivered: list[Message] = []
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            delivered.append(message)

    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": target.bootstrap_servers, "linger.ms": 5, **settings})
    for record in records:
        producer.produce(topic, partition=0, on_delivery=on_delivery, **record)
        producer.poll(0)
    assert producer.flush(30) == 0
    if errors:
        raise KafkaException(errors[0])
    return delivered


@pytest.fixture
def consumer(target: Target) -> Iterator[Consumer]:
    # librdkafka requires a group id even if the consumer never joins a group.
    client = Consumer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    yield client
    client.close()


def read(consumer: Consumer, topic: str, offset: int, count: int, timeout: float = 20.0) -> list[Message]:
    consumer.assign([TopicPartition(topic, 0, offset)])
    received: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(received) < count and time.monotonic() < deadline:
        for message in consumer.consume(100, 0.2):
            error = message.error()
            if error is None:
                received.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
    return received


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_as_sent_with_every_codec_and_acks(
    target: Target, created_topic: str, consumer: Consumer, codec: str, acks: int
) -> None:
    records = [{"key": f"k{n}", "value": f"value {n} " * 20} for n in range(200)]
    produce(target, created_topic, records, acks=acks, compression_type=codec)
    received = read(consumer, created_topic, OFFSET_BEGINNING, 200)
    assert [(m.offset(), m.key(), m.value()) for m in received] == [
        (n, record["key"].encode(), record["value"].encode()) for n, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_an_idempotent_producer_delivers_each_record_once_in_order(
    target: Target, created_topic: str, consumer: Consumer, codec: str
) -> None:
    records = [{"value": str(n)} for n in range(3000)]
    delivered = produce(
        target, created_topic, records, enable_idempotence=True, compression_type=codec, batch_num_messages=50
    )
    assert sorted(m.offset() for m in delivered) == list(range(3000))
    assert [int(m.value()) for m in read(consumer, created_topic, OFFSET_BEGINNING, 3000)] == list(range(3000))


def test_null_and_empty_keys_and_values_are_distinct_and_headers_are_kept(
    target: Target, created_topic: str, consumer: Consumer
) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]
    produce(
        target,
        created_topic,
        [
            {"key": None, "value": None},
            {"key": b"", "value": b""},
            {"key": b"k", "value": b"v", "headers": headers, "timestamp": 1_600_000_000_123},
        ],
    )
    received = read(consumer, created_topic, OFFSET_BEGINNING, 3)
    assert [(m.key(), m.value(), m.headers()) for m in received] == [
        (None, None, None),
        (b"", b"", None),
        (b"k", b"v", headers),
    ]
    assert received[2].timestamp() == (1, 1_600_000_000_123)


def test_large_batches_are_read_completely(target: Target, created_topic: str, consumer: Consumer) -> None:
    payload = bytes(range(256)) * 3500
    produce(target, created_topic, [{"value": payload}] * 20, batch_size=1_000_000, linger_ms=50)
    assert [m.value() for m in read(consumer, created_topic, OFFSET_BEGINNING, 20)] == [payload] * 20


def test_a_consumer_starts_at_the_beginning_an_offset_a_time_or_the_end(
    target: Target, created_topic: str, consumer: Consumer
) -> None:
    base = 1_600_000_000_000
    produce(target, created_topic, [{"value": str(n), "timestamp": base + n * 1000} for n in range(100)])
    assert read(consumer, created_topic, OFFSET_BEGINNING, 1)[0].value() == b"0"
    assert [m.offset() for m in read(consumer, created_topic, 90, 10)] == list(range(90, 100))
    result = consumer.offsets_for_times([TopicPartition(created_topic, 0, base + 49_001)], 10)[0]
    assert result.offset == 50
    after_last_record = consumer.offsets_for_times([TopicPartition(created_topic, 0, base + 1_000_000)], 10)[0]
    assert after_last_record.offset == OFFSET_END
    assert read(consumer, created_topic, OFFSET_END, 1, timeout=0.6) == []
    assert consumer.get_watermark_offsets(TopicPartition(created_topic, 0), 10) == (0, 100)


def test_a_consumer_at_the_end_receives_the_next_record(target: Target, created_topic: str, consumer: Consumer) -> None:
    produce(target, created_topic, [{"value": "old"}])
    read(consumer, created_topic, OFFSET_END, 1, timeout=1.0)
    produce(target, created_topic, [{"value": "new"}])
    message = None
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (message is None or message.error() is not None):
        message = consumer.poll(0.5)
    assert message is not None and message.value() == b"new"


def test_an_offset_out_of_range_is_reported(target: Target, created_topic: str, consumer: Consumer) -> None:
    produce(target, created_topic, [{"value": "x"}])
    with pytest.raises(KafkaException) as raised:
        read(consumer, created_topic, 99, 1)
    assert raised.value.args[0].code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


def test_a_topic_is_created_by_the_first_record_sent_to_it(target: Target, topic: str, consumer: Consumer) -> None:
    assert produce(target, topic, [{"value": "first"}])[0].offset() == 0
    assert read(consumer, topic, OFFSET_BEGINNING, 1)[0].value() == b"first"


def test_topics_are_created_extended_and_deleted(admin: AdminClient, topic: str) -> None:
    create_topic(admin, topic, 3)

    def partitions() -> int:
        topics = admin.list_topics(timeout=10).topics
        return len(topics[topic].partitions) if topic in topics else 0

    wait_until(lambda: partitions() == 3, timeout=10, what="3 partitions")
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(10)
    wait_until(lambda: partitions() == 5, timeout=10, what="5 partitions")
    admin.delete_topics([topic])[topic].result(10)
    wait_until(lambda: partitions() == 0, timeout=10, what="the topic is deleted")


@pytest.mark.parametrize(
    ("name", "partitions", "replication", "config", "code"),
    [
        ("a/b", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("fine", 1, 9, {}, KafkaError.INVALID_REPLICATION_FACTOR),
        ("fine", 1, 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_an_invalid_topic_is_rejected_with_kafkas_error_code(
    admin: AdminClient, topic: str, name: str, partitions: int, replication: int, config: dict[str, str], code: int
) -> None:
    name = f"{topic}-{name}"
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([NewTopic(name, partitions, replication, config=config)])[name].result(10)
    assert raised.value.args[0].code() == code


def test_configs_are_described_and_altered(admin: AdminClient, created_topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, created_topic)
    configs = admin.describe_configs([resource])[resource].result(10)
    assert configs["retention.ms"].value == "604800000"
    change = ConfigResource(
        ResourceType.TOPIC,
        created_topic,
        incremental_configs=[ConfigEntry("retention.ms", "1234567", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([change])[change].result(10)

    def retention_ms() -> str:
        return str(admin.describe_configs([resource])[resource].result(10)["retention.ms"].value)

    wait_until(lambda: retention_ms() == "1234567", timeout=10, what="the new retention")


def test_records_are_deleted_and_offsets_listed(
    target: Target, admin: AdminClient, created_topic: str, consumer: Consumer
) -> None:
    produce(target, created_topic, [{"value": str(n)} for n in range(10)])
    partition = TopicPartition(created_topic, 0, 4)
    assert admin.delete_records([partition])[partition].result(10).low_watermark == 4
    topic_partition = TopicPartition(created_topic, 0)
    for spec, expected in ((OffsetSpec.earliest(), 4), (OffsetSpec.latest(), 10)):
        offsets = admin.list_offsets({topic_partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        assert offsets[topic_partition].result(10).offset == expected
    assert [m.value() for m in read(consumer, created_topic, OFFSET_BEGINNING, 6)] == [
        b"4",
        b"5",
        b"6",
        b"7",
        b"8",
        b"9",
    ]


def test_the_cluster_is_described_with_id_and_controller(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(10)
    assert len(cluster.cluster_id) == 22
    assert cluster.controller.id in [node.id for node in cluster.nodes]


def test_a_fetch_waits_for_min_bytes_until_max_wait_ms(target: Target, created_topic: str) -> None:
    client = Consumer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "fetch.min.bytes": 100_000,
            "fetch.wait.max.ms": 400,
        }
    )
    try:
        produce(target, created_topic, [{"value": "small"}])
        start = time.monotonic()
        received = read(client, created_topic, 0, 1, timeout=10)
        assert received[0].value() == b"small"
        assert 0.3 < time.monotonic() - start < 5
    finally:
        client.close()
