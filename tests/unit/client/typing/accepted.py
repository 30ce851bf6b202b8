"""A program that type checkers accept, with the types that they infer. It is checked, never run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import kavka.aio
from kavka import (
    Admin,
    Consumer,
    ConsumerGroupMetadata,
    ConsumerRecord,
    ConsumerSettings,
    IntegerSerializer,
    JsonDeserializer,
    KafkaError,
    LongDeserializer,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    Producer,
    ProducerRecord,
    ProducerSettings,
    RecordFuture,
    RecordMetadata,
    Records,
    StringDeserializer,
    StringSerializer,
    TopicPartition,
)


@dataclass
class Order:
    number: int


class OrderSerializer:
    def serialize(self, topic: str, value: Order) -> bytes:
        return str(value.number).encode()

    def deserialize(self, topic: str, data: bytes | None) -> Order:
        return Order(int(data or b"0"))


class OrderWithHeaders:
    def deserialize(self, topic: str, data: bytes | None, headers: object) -> Order:
        return Order(len(data or b""))


def decode_order(data: bytes) -> Order:
    return Order(int(data))


def encode_order(order: Order) -> bytes:
    return str(order.number).encode()


def on_done(metadata: RecordMetadata | None, error: BaseException | None) -> None: ...


def on_stored(metadata: RecordMetadata) -> None: ...


def on_failed(error: Exception) -> None: ...


def producers() -> None:
    with Producer(bootstrap_servers="localhost:9092", acks=1, linger_ms=5, compression_type="zstd") as producer:
        assert_type(producer, Producer[Any, Any])
        future = producer.send("orders", key="k1", value={"number": 1}, headers={"source": b"web"})
        assert_type(future, RecordFuture)
        assert_type(future.get(10), RecordMetadata)
        assert_type(future.result().offset, int)
        assert_type(future.exception(), KafkaError | None)
        assert_type(future.on_done(on_done).add_callback(on_stored).add_errback(on_failed), RecordFuture)
        producer.send("orders", b"v", b"k", 0, 1_700_000_000_000, [("h", None)], on_done)
        producer.send(ProducerRecord("orders", "v"), callback=lambda metadata, error: print(metadata, error))
        assert_type(producer.partitions_for("orders")[0].leader, int)

    typed = Producer(key_serializer=IntegerSerializer, value_serializer=OrderSerializer())
    typed.send("orders", Order(1), 7)
    typed.send(ProducerRecord("orders", Order(1), 7))
    typed.send("orders", None, 7)
    assert_type(Producer(value_serializer=encode_order), Producer[Any, Order])
    assert_type(Producer(key_serializer=StringSerializer()), Producer[str | None, Any])
    Producer(value_serializer=lambda value: json.dumps(value).encode())
    Producer({"bootstrap.servers": "localhost:9092", "value.serializer": OrderSerializer}, retries="3")
    Producer[str, Order]({"bootstrap.servers": "localhost:9092"}).send("orders", Order(1), "k")
    settings: ProducerSettings = {"bootstrap_servers": ["localhost:9092"], "enable_idempotence": True}
    Producer(**settings)


def transactions(producer: Producer[str, str], consumer: Consumer[str, str]) -> None:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("t", 0): 5}, consumer.group_metadata())
    producer.send_offsets_to_transaction({TopicPartition("t", 0): OffsetAndMetadata(5)}, ConsumerGroupMetadata("g"))
    producer.commit_transaction(timeout=10)


def consumers() -> None:
    with Consumer(bootstrap_servers="localhost:9092", group_id="g", auto_offset_reset="earliest") as consumer:
        assert_type(consumer, Consumer[Any, Any])
        consumer.subscribe(["orders"], on_assigned=lambda partitions: print(sorted(partitions)))
        consumer.subscribe(pattern=re.compile("orders.*"))
        print(next(iter(consumer)).value.decode())

    typed = Consumer(key_deserializer=StringDeserializer, value_deserializer=decode_order, max_poll_records=10)
    assert_type(typed, Consumer[str | None, Order])
    records = typed.poll(1.0)
    assert_type(records, Records[str | None, Order])
    for record in records:
        assert_type(record, ConsumerRecord[str | None, Order])
        assert_type(record.key, str | None)
        assert_type(record.value.number, int)
        assert_type(record.offset, int)
        assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
    for partition, batch in records.by_partition().items():
        assert_type(partition, TopicPartition)
        assert_type(batch, list[ConsumerRecord[str | None, Order]])
    assert_type(iter(typed), Iterator[ConsumerRecord[str | None, Order]])
    assert_type(typed.lag(), dict[TopicPartition, int])
    assert_type(typed.lag(("orders", 0)), int)
    assert_type(typed.lag(TopicPartition("orders", 0), timeout=1), int)
    assert_type(typed.current_lag(("orders", 0)), int | None)
    assert_type(typed.position(("orders", 0)), int)
    typed.assign([("orders", 0), TopicPartition("orders", 1)])
    typed.pause(typed.assignment())
    typed.seek(("orders", 0), 5)
    typed.commit_sync()
    typed.commit_sync({TopicPartition("orders", 0): 5})
    typed.commit_sync({("orders", 0): OffsetAndMetadata(5, "note")})
    typed.commit_sync([("orders", 0)])
    typed.commit_async(callback=lambda offsets, error: print(offsets, error))
    assert_type(typed.committed([("orders", 0)]), dict[TopicPartition, OffsetAndMetadata | None])

    assert_type(Consumer(value_deserializer=LongDeserializer()), Consumer[Any, int | None])
    assert_type(Consumer(value_deserializer=JsonDeserializer), Consumer[Any, Any])
    assert_type(Consumer(value_deserializer=json.loads), Consumer[Any, Any])
    assert_type(Consumer(value_deserializer=OrderWithHeaders), Consumer[Any, Order])
    assert_type(Consumer(value_deserializer=lambda data: data.decode()), Consumer[Any, str])
    assert_type(Consumer(value_deserializer="StringDeserializer"), Consumer[Any, Any])
    annotated: Consumer[str, Order] = Consumer({"bootstrap.servers": "localhost:9092"})
    assert_type(annotated.poll(), Records[str, Order])
    settings: ConsumerSettings[str | None, Order] = {
        "group_id": "g",
        "key_deserializer": StringDeserializer,
        "value_deserializer": decode_order,
    }
    assert_type(Consumer(**settings), Consumer[str | None, Order])


def admins() -> None:
    with Admin(bootstrap_servers="localhost:9092", request_timeout_ms=1000) as admin:
        admin.create_topics([NewTopic("orders", 3)])
        assert_type(
            admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.latest()})[TopicPartition("orders", 0)].offset,
            int,
        )


async def asynchronous() -> None:
    async with kavka.aio.Producer(value_serializer=OrderSerializer) as producer:
        future = await producer.send("orders", Order(1))
        assert_type(await future, RecordMetadata)
        assert_type(await producer.send_and_wait("orders", Order(1)), RecordMetadata)
    async with kavka.aio.Consumer(value_deserializer=OrderSerializer) as consumer:
        await consumer.subscribe(["orders"])
        assert_type(await consumer.poll(), Records[Any, Order])
        assert_type(await consumer.lag(("orders", 0)), int)
        assert_type(await consumer.lag(), dict[TopicPartition, int])
        async for record in consumer:
            assert_type(record.value, Order)
    async with kavka.aio.Admin(bootstrap_servers="localhost:9092") as admin:
        await admin.delete_topics(["orders"])
