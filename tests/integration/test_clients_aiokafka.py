"""aiokafka works with the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.support.targets import Target

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


async def create_topic(target: Target, topic: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=target.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()


async def produce(target: Target, topic: str, records: list[dict[str, Any]], **config: Any) -> list[Any]:
    async with AIOKafkaProducer(bootstrap_servers=target.bootstrap_servers, **config) as producer:
        futures = [await producer.send(topic, partition=0, **record) for record in records]
        return list(await asyncio.wait_for(asyncio.gather(*futures), 30))


async def read(target: Target, topic: str, start: int | str, count: int, timeout: float = 20.0) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=target.bootstrap_servers, group_id=None, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        if start == "beginning":
            await consumer.seek_to_beginning(partition)
        elif start == "end":
            await consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, int(start))
        received: list[Any] = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while len(received) < count and loop.time() < deadline:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                received += records
        return received
    finally:
        await consumer.stop()


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_as_sent_with_every_codec_and_acks(
    target: Target, topic: str, codec: str | None, acks: int | str
) -> None:
    records = [{"key": f"k{n}".encode(), "value": f"value {n} ".encode() * 20} for n in range(100)]

    async def scenario() -> list[Any]:
        await create_topic(target, topic)
        await produce(target, topic, records, acks=acks, compression_type=codec, linger_ms=5)
        return await read(target, topic, "beginning", 100)

    received = asyncio.run(scenario())
    assert [(r.offset, r.key, r.value) for r in received] == [
        (n, record["key"], record["value"]) for n, record in enumerate(records)
    ]


def test_an_idempotent_producer_delivers_each_record_once_in_order(target: Target, topic: str) -> None:
    async def scenario() -> tuple[list[Any], list[Any]]:
        await create_topic(target, topic)
        sent = await produce(
            target,
            topic,
            [{"value": b"%d" % n} for n in range(1000)],
            enable_idempotence=True,
            max_batch_size=500,
        )
        return sent, await read(target, topic, "beginning", 1000)

    sent, received = asyncio.run(scenario())
    assert [metadata.offset for metadata in sent] == list(range(1000))
    assert [int(r.value) for r in received] == list(range(1000))


def test_null_and_empty_keys_and_values_are_distinct_and_headers_are_kept(target: Target, topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]

    async def scenario() -> list[Any]:
        await create_topic(target, topic)
        await produce(
            target,
            topic,
            [
                {"key": b"k", "value": None},
                {"key": b"", "value": b""},
                {"value": b"v", "headers": headers, "timestamp_ms": 1_600_000_000_123},
            ],
        )
        return await read(target, topic, "beginning", 3)

    received = asyncio.run(scenario())
    assert [(r.key, r.value, list(r.headers)) for r in received] == [
        (b"k", None, []),
        (b"", b"", []),
        (None, b"v", headers),
    ]
    assert received[2].timestamp == 1_600_000_000_123


def test_a_consumer_starts_at_the_beginning_an_offset_a_time_or_the_end(target: Target, topic: str) -> None:
    base = 1_600_000_000_000

    async def scenario() -> None:
        await create_topic(target, topic)
        await produce(target, topic, [{"value": b"%d" % n, "timestamp_ms": base + n * 1000} for n in range(50)])
        assert (await read(target, topic, "beginning", 1))[0].offset == 0
        assert [r.offset for r in await read(target, topic, 40, 10)] == list(range(40, 50))
        assert await read(target, topic, "end", 1, timeout=0.6) == []
        consumer = AIOKafkaConsumer(bootstrap_servers=target.bootstrap_servers, group_id=None)
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            result = (await consumer.offsets_for_times({partition: base + 24_001}))[partition]
            assert (result.offset, result.timestamp) == (25, base + 25_000)
            assert await consumer.end_offsets([partition]) == {partition: 50}
        finally:
            await consumer.stop()

    asyncio.run(scenario())


def test_a_topic_is_created_by_the_first_record_sent_to_it(target: Target, topic: str) -> None:
    async def scenario() -> list[Any]:
        async with AIOKafkaProducer(bootstrap_servers=target.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"first")
        return await read(target, topic, "beginning", 1)

    assert asyncio.run(scenario())[0].value == b"first"


def test_records_are_deleted_partitions_added_and_topics_deleted(target: Target, topic: str) -> None:
    async def scenario() -> None:
        await create_topic(target, topic)
        await produce(target, topic, [{"value": b"%d" % n} for n in range(10)])
        admin = AIOKafkaAdminClient(bootstrap_servers=target.bootstrap_servers)
        await admin.start()
        try:
            partition = TopicPartition(topic, 0)
            assert await admin.delete_records({partition: RecordsToDelete(before_offset=7)}) == {partition: 7}
            assert [r.offset for r in await read(target, topic, "beginning", 3)] == [7, 8, 9]

            await admin.create_partitions({topic: NewPartitions(3)})
            for _ in range(100):
                if len((await admin.describe_topics([topic]))[0]["partitions"]) == 3:
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the third partition was not created")

            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            config_response = (await admin.describe_configs([resource]))[0].resources[0]
            entries = {entry[0]: entry[1] for entry in config_response[4]}
            assert entries["retention.ms"] == "604800000"

            await admin.delete_topics([topic])
            for _ in range(100):
                if topic not in await admin.list_topics():
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the topic was not deleted")
        finally:
            await admin.close()

    asyncio.run(scenario())
