"""A program with a type error in every line that ends with `# error`. It is checked, never run."""

from __future__ import annotations

import kavka.aio
from kavka import (
    Admin,
    Consumer,
    IntegerSerializer,
    OffsetAndMetadata,
    Producer,
    ProducerRecord,
    StringDeserializer,
    TopicPartition,
)


def count_bytes(data: bytes) -> int:
    return len(data)


def producers(producer: Producer[str, int]) -> None:
    Producer(bootstrap_server="localhost:9092")  # error
    Producer(linger_ms=[5])  # error
    Producer(compression_type="gzipp")  # error
    Producer(enable_idempotence=object())  # error
    Producer(value_serializer=7)  # error
    Producer(group_id="g")  # error
    producer.send("orders", "text")  # error
    producer.send("orders", 1, key=2)  # error
    producer.send(b"orders", 1)  # error
    producer.send("orders", 1, partition="0")  # error
    producer.send("orders", 1, headers=[("h", "text")])  # error
    producer.send("orders", 1, callback=lambda metadata: None)  # error
    producer.send(ProducerRecord("orders", "text"))  # error
    print(producer.send("orders", 1).get().offsets)  # error
    Producer(value_serializer=IntegerSerializer).send("orders", "text")  # error
    producer.send_offsets_to_transaction({"orders": 5}, "g")  # error


def consumers(consumer: Consumer[str, int]) -> None:
    Consumer(max_poll_record=1)  # error
    Consumer(auto_offset_reset=0)  # error
    Consumer(isolation_level="committed")  # error
    Consumer(value_deserializer=len("x"))  # error
    Consumer(linger_ms=5)  # error
    consumer.poll("1")  # error
    for record in consumer.poll():
        record.value.upper()  # error
        print(record.key + 1)  # error
        print(record.partitions)  # error
    next(iter(Consumer(value_deserializer=StringDeserializer))).value.upper()  # error
    next(iter(Consumer(value_deserializer=count_bytes))).value.decode()  # error
    consumer.lag().bit_length()  # error
    consumer.lag(("orders", 0)).items()  # error
    consumer.lag("orders")  # error
    consumer.assign(["orders"])  # error
    consumer.commit_sync({"orders": 5})  # error
    consumer.commit_sync({TopicPartition("orders", 0): "5"})  # error
    consumer.seek(TopicPartition("orders", 0), OffsetAndMetadata("5"))  # error


def admins(admin: Admin) -> None:
    Admin(bootstrap_servers=9092)  # error
    Admin(acks="all")  # error
    admin.create_topics([1])  # error


async def asynchronous(producer: kavka.aio.Producer[str, int], consumer: kavka.aio.Consumer[str, int]) -> None:
    await producer.send("orders", "text")  # error
    print((await producer.send("orders", 1)).offset)  # error
    kavka.aio.Consumer(max_poll_record=1)  # error
    (await consumer.poll()).commit()  # error
