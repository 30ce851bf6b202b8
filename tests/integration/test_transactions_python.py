"""Transactions of other Python clients: confluent-kafka (librdkafka), aiokafka, kafka-python."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator

import aiokafka
import kafka
import pytest
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.timeout(120), pytest.mark.records]


@pytest.fixture
def name() -> str:
    return f"id-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def created(target: Target, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        future.result(20)
    wait_until(
        lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 2, timeout=10, what="the topic"
    )
    return topic


@pytest.fixture
def producers(target: Target) -> Iterator[Callable[[str], Producer]]:
    def create(transactional_id: str, **config: object) -> Producer:
        settings = {"bootstrap.servers": target.bootstrap_servers, "log_level": 0, "linger.ms": 1}
        return Producer(settings | {"transactional.id": transactional_id} | config)

    yield create


def read(target: Target, topic: str, count: int, *, committed: bool = True, partition: int = 0) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[str] = []
    try:
        wait_until(lambda: _poll(consumer, values) >= count, timeout=20, what=f"{count} records", interval=0)
        for _ in range(3):
            _poll(consumer, values)
    finally:
        consumer.close()
    return values


def _poll(consumer: Consumer, values: list[str]) -> int:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        values.append(message.value().decode())
    return len(values)


# ---- librdkafka


def test_librdkafka_commits_and_aborts(
    target: Target, producers: Callable[..., Producer], created: str, name: str
) -> None:
    producer = producers(name)
    producer.init_transactions(20)
    for round_number in range(6):
        producer.begin_transaction()
        for n in range(10):
            producer.produce(created, f"{round_number}-{n}", partition=0)
        producer.flush(20)
        if round_number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    expected = [f"{round_number}-{n}" for round_number in (0, 2, 4) for n in range(10)]
    assert read(target, created, 30) == expected
    assert len(read(target, created, 60, committed=False)) == 60


def test_a_librdkafka_producer_is_fenced_by_another_with_its_id(
    target: Target, producers: Callable[..., Producer], created: str, name: str
) -> None:
    old, new = producers(name), producers(name)
    old.init_transactions(20)
    old.begin_transaction()
    old.produce(created, "old", partition=0)
    old.flush(20)
    new.init_transactions(30)
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(20)
    assert raised.value.args[0].fatal() or raised.value.args[0].txn_requires_abort()
    new.begin_transaction()
    new.produce(created, "new", partition=0)
    new.commit_transaction(20)
    assert read(target, created, 1) == ["new"]


def test_librdkafka_commits_offsets_and_output_in_one_transaction(
    target: Target, producers: Callable[..., Producer], created: str, name: str
) -> None:
    input_producer = Producer({"bootstrap.servers": target.bootstrap_servers, "log_level": 0})
    for n in range(20):
        input_producer.produce(created, str(n), partition=0)
    input_producer.flush(20)
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([created])
    producer = producers(name)
    producer.init_transactions(20)
    copied = 0
    try:
        while copied < 20:
            messages = [m for m in consumer.consume(7, 1.0) if m.error() is None and m.partition() == 0]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(created, message.value() + b"!", partition=1)
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
            )
            producer.commit_transaction(20)
            copied += len(messages)
        [position] = consumer.committed([TopicPartition(created, 0)], timeout=20)
        assert position.offset == 20
    finally:
        consumer.close()
    assert read(target, created, 20, partition=1) == [f"{n}!" for n in range(20)]


def test_offsets_of_an_old_generation_are_rejected_in_a_transaction(
    target: Target, producers: Callable[..., Producer], created: str, name: str
) -> None:
    settings = {"bootstrap.servers": target.bootstrap_servers, "group.id": name, "log_level": 0}
    first = Consumer(settings | {"session.timeout.ms": 6000})
    first.subscribe([created])
    wait_until(lambda: first.poll(0.1) is None and bool(first.assignment()), timeout=20, what="an assignment")
    old_metadata = first.consumer_group_metadata()
    first.close()
    second = Consumer(settings)
    second.subscribe([created])
    wait_until(lambda: second.poll(0.1) is None and bool(second.assignment()), timeout=20, what="an assignment")
    producer = producers(name)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(created, "x", partition=1)
    try:
        with pytest.raises(KafkaException):
            producer.send_offsets_to_transaction([TopicPartition(created, 0, 3)], old_metadata, 10)
            producer.commit_transaction(10)
        producer.abort_transaction(20)
        [position] = second.committed([TopicPartition(created, 0)], timeout=20)
        assert position.offset < 0
    finally:
        second.close()


# ---- aiokafka


def test_aiokafka_commits_and_aborts(target: Target, created: str, name: str) -> None:
    async def run() -> list[str]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=target.bootstrap_servers, transactional_id=name)
        await producer.start()
        try:
            for round_number in range(4):
                try:
                    async with producer.transaction():
                        for n in range(5):
                            await producer.send_and_wait(created, f"{round_number}-{n}".encode(), partition=0)
                        if round_number % 2:
                            raise LookupError
                except LookupError:
                    pass
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=target.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        consumer.assign([aiokafka.TopicPartition(created, 0)])
        await consumer.start()
        try:
            values = []
            for _ in range(10):
                record = await asyncio.wait_for(consumer.getone(), 20)
                values.append(record.value.decode())
            return values
        finally:
            await consumer.stop()

    assert asyncio.run(run()) == [f"{round_number}-{n}" for round_number in (0, 2) for n in range(5)]


def test_an_aiokafka_producer_is_fenced_by_another_with_its_id(target: Target, created: str, name: str) -> None:
    async def run() -> None:
        old = aiokafka.AIOKafkaProducer(bootstrap_servers=target.bootstrap_servers, transactional_id=name)
        new = aiokafka.AIOKafkaProducer(bootstrap_servers=target.bootstrap_servers, transactional_id=name)
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait(created, b"old", partition=0)
        await new.start()
        with pytest.raises(AioError):
            await old.send_and_wait(created, b"older", partition=0)
            await old.commit_transaction()
        async with new.transaction():
            await new.send_and_wait(created, b"new", partition=0)
        await new.stop()
        await old.stop()

    asyncio.run(run())
    assert read(target, created, 1) == ["new"]


# ---- kafka-python


def test_kafka_python_commits_and_aborts(target: Target, created: str, name: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=target.bootstrap_servers, transactional_id=name)
    try:
        producer.init_transactions()
        for round_number in range(4):
            producer.begin_transaction()
            for n in range(5):
                producer.send(created, f"{round_number}-{n}".encode(), partition=0)
            if round_number % 2:
                producer.flush(20)
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close(10)
    assert read(target, created, 10) == [f"{round_number}-{n}" for round_number in (0, 2) for n in range(5)]
