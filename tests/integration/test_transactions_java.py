"""Transactions of Apache's Java clients. Version 3.9 adds partitions explicitly. Version 4.3 uses
transaction version 2, which increases the epoch with every transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.java_client import JavaClient, JavaError
from tests.support.processes import wait_until
from tests.support.targets import Target
from tests.support.transactions import JavaTransactions

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.records]

RAISES_EPOCH = {"3.9.1": False, "4.3.0": True}


@pytest.fixture(scope="module")
def transactions(java_parts: None, java_version: str, target: Target) -> Iterator[JavaTransactions]:
    with JavaTransactions(java_version, target.bootstrap_servers) as client:
        yield client


@pytest.fixture
def created(java: JavaClient, topic: str) -> str:
    java.call("createTopic", topic=topic, partitions=2)
    return topic


@pytest.fixture
def name() -> str:
    return f"id-{uuid.uuid4().hex[:10]}"


def committed(java: JavaClient, topic: str, count: int, partition: int = 0) -> list[object]:
    """The records of a read_committed consumer, up to the last stable offset."""
    records = java.consume(
        topic, count, partition=partition, config={"isolation.level": "read_committed"}, timeoutMs=20_000
    )
    return [record["value"] for record in records]


def uncommitted(java: JavaClient, topic: str, count: int) -> list[object]:
    return [record["value"] for record in java.consume(topic, count)]


def test_read_committed_returns_committed_records_only(
    java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    producer = transactions.producer(name)
    for round_number, end in enumerate((producer.commit, producer.abort, producer.commit, producer.abort)):
        producer.begin()
        for partition in (0, 1):
            producer.send(created, [f"{round_number}-{n}" for n in range(3)], partition)
        end()
    producer.begin()
    producer.send(created, ["last"])
    producer.commit()
    committed_values = [f"{round_number}-{n}" for round_number in (0, 2) for n in range(3)]
    assert committed(java, created, 7) == [*committed_values, "last"]
    assert committed(java, created, 6, partition=1) == committed_values
    assert len(uncommitted(java, created, 13)) == 13
    producer.close()


def test_an_open_transaction_blocks_later_records_for_read_committed(
    java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    java.produce(created, [{"partition": 0, "value": "before"}])
    first = transactions.producer(name)
    first.begin()
    first.send(created, ["open"])
    java.produce(created, [{"partition": 0, "value": "after"}])
    config = {"isolation.level": "read_committed"}
    records = java.consume(created, 3, config=config, timeoutMs=1500)
    assert [record["value"] for record in records] == ["before"]
    first.abort()
    assert committed(java, created, 2) == ["before", "after"]
    first.close()


def test_a_second_producer_with_the_same_id_fences_the_first_and_aborts_its_transaction(
    java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    old = transactions.producer(f"{name}-old", transactional_id=name)
    old.begin()
    old.send(created, ["old"])
    new = transactions.producer(f"{name}-new", transactional_id=name)
    with pytest.raises(JavaError) as raised:
        old.commit()
    assert raised.value.name in ("ProducerFencedException", "InvalidProducerEpochException", "KafkaException")
    new.begin()
    new.send(created, ["new"])
    new.commit()
    assert committed(java, created, 1) == ["new"]
    for producer in (old, new):
        producer.close()


def test_a_fenced_producer_cannot_write(
    java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    old = transactions.producer(f"{name}-old", transactional_id=name)
    old.begin()
    old.send(created, ["first"])
    transactions.producer(f"{name}-new", transactional_id=name).close()
    with pytest.raises(JavaError):
        old.send(created, ["second"])
    assert uncommitted(java, created, 1) == ["first"]
    old.close()


def test_offsets_sent_to_a_transaction_apply_when_it_is_committed(
    target: Target, java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    group = f"group-{name}"
    producer = transactions.producer(name)
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})

    def offset() -> int:
        partition = TopicPartition(created, 0)
        offsets = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [partition])], require_stable=True, request_timeout=20
        )
        return int(offsets[group].result(20).topic_partitions[0].offset)

    producer.begin()
    producer.send(created, ["x"])
    producer.send_offsets(group, created, 5)
    producer.commit()
    wait_until(lambda: offset() == 5, timeout=10, what="the committed offset")
    producer.begin()
    producer.send_offsets(group, created, 9)
    producer.abort()
    wait_until(lambda: offset() == 5, timeout=10, what="the unchanged offset")
    producer.begin()
    producer.send_offsets(group, created, 7)
    producer.commit()
    wait_until(lambda: offset() == 7, timeout=10, what="the next committed offset")
    producer.close()


def test_a_consumer_waits_for_offsets_that_a_transaction_may_still_change(
    target: Target, transactions: JavaTransactions, created: str, name: str
) -> None:
    group = f"group-{name}"
    producer = transactions.producer(name)
    producer.begin()
    producer.send_offsets(group, created, 3)
    consumer = Consumer({"bootstrap.servers": target.bootstrap_servers, "group.id": group, "log_level": 0})
    partition = TopicPartition(created, 0)
    try:
        with pytest.raises(Exception, match=r"UNSTABLE_OFFSET_COMMIT|timed out|Timed out"):
            consumer.committed([partition], timeout=1.5)
        producer.commit()
        assert [committed.offset for committed in consumer.committed([partition], timeout=20)] == [3]
    finally:
        consumer.close()
        producer.close()


def test_a_transaction_that_takes_too_long_is_aborted_by_the_broker(
    java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    producer = transactions.producer(name, transaction_timeout_ms=1000)
    producer.begin()
    producer.send(created, ["expired"])
    java.produce(created, [{"partition": 0, "value": "blocked"}])
    assert committed(java, created, 1) == ["blocked"]
    with pytest.raises(JavaError):
        producer.commit()
    assert transactions.call("describeTransaction", id=name)["state"] == "CompleteAbort"
    producer.close()


def test_a_timeout_above_the_brokers_limit_is_rejected(transactions: JavaTransactions, name: str) -> None:
    producer = transactions.producer(name, init=False, transaction_timeout_ms=900_001)
    with pytest.raises(JavaError) as raised:
        producer.init()
    assert "timeout" in str(raised.value).lower()
    producer.close()


def test_newer_clients_increase_the_epoch_with_every_transaction(
    transactions: JavaTransactions, created: str, name: str, java_version: str
) -> None:
    producer = transactions.producer(name)
    epochs = []
    for _ in range(3):
        producer.begin()
        producer.send(created, ["x"])
        epochs.append(transactions.call("describeTransaction", id=name)["epoch"])
        producer.commit()
    assert epochs == ([0, 1, 2] if RAISES_EPOCH[java_version] else [0, 0, 0])
    producer.close()


def test_transactions_can_be_described_and_listed(
    transactions: JavaTransactions, created: str, name: str, java_version: str
) -> None:
    producer = transactions.producer(name, transaction_timeout_ms=54_321)
    producer.begin()
    producer.send(created, ["x"], 0)
    producer.send(created, ["x"], 1)
    description = transactions.call("describeTransaction", id=name)
    assert description["state"] == "Ongoing"
    assert description["partitions"] == [f"{created}-0", f"{created}-1"]
    assert (description["timeoutMs"], description["began"] > 0) == (54_321, True)
    listed = transactions.call("listTransactions", states=["Ongoing"])
    assert listed[name] == {"producerId": description["producerId"], "state": "Ongoing"}
    assert name not in transactions.call("listTransactions", states=["CompleteAbort"])
    assert list(transactions.call("listTransactions", producerIds=[description["producerId"]])) == [name]
    assert name not in transactions.call("listTransactions", duration=3_600_000)
    if java_version != "3.9.1":
        assert list(transactions.call("listTransactions", pattern=f"{name[:-1]}.")) == [name]
        assert transactions.call("listTransactions", pattern=name[:-1]) == {}
        with pytest.raises(JavaError):
            transactions.call("listTransactions", pattern="(")
    producer.abort()
    assert transactions.call("describeTransaction", id=name)["state"] == "CompleteAbort"
    producer.close()
    with pytest.raises(JavaError) as raised:
        transactions.call("describeTransaction", id=f"{name}-unknown")
    assert raised.value.name == "TransactionalIdNotFoundException"


def test_an_open_transaction_is_listed_for_its_partition_and_can_be_aborted_there(
    java: JavaClient, transactions: JavaTransactions, created: str, name: str
) -> None:
    java.produce(created, [{"partition": 0, "value": "before"}])
    producer = transactions.producer(name)
    producer.begin()
    [offset] = producer.send(created, ["open"])
    states = transactions.call("producers", topic=created)
    [open_state] = [state for state in states if state["openSince"] >= 0]
    assert open_state["openSince"] == offset == 1
    transactions.call(
        "abortTransaction",
        topic=created,
        producerId=open_state["id"],
        epoch=open_state["epoch"],
        coordinatorEpoch=open_state["coordinatorEpoch"],
    )
    java.produce(created, [{"partition": 0, "value": "after"}])
    assert committed(java, created, 2) == ["before", "after"]
    assert all(state["openSince"] == -1 for state in transactions.call("producers", topic=created))
    producer.close()


def test_an_administrator_can_fence_a_producer(transactions: JavaTransactions, created: str, name: str) -> None:
    producer = transactions.producer(name)
    producer.begin()
    producer.send(created, ["x"])
    transactions.call("fence", id=name)
    with pytest.raises(JavaError):
        producer.commit()
    wait_until(
        lambda: transactions.call("describeTransaction", id=name)["state"] in ("CompleteAbort", "Empty"),
        timeout=10,
        what="the aborted transaction",
    )
    producer.close()
