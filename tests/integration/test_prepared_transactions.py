"""Prepared transactions: a producer writes the records, and another client ends the transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kavka import Admin, Consumer, ErrorCode, KafkaError, Producer, TopicPartition
from kavka.client.errors import IllegalState
from kavka.client.types import PreparedTransaction
from tests.support.targets import Target

pytestmark = pytest.mark.records


@pytest.fixture
def admin(target: Target, topic: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([topic])
        yield admin


def producer_of(target: Target, transactional_id: str) -> Producer:
    producer = Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def prepared(target: Target, topic: str, value: str, transactional_id: str | None = None) -> PreparedTransaction:
    with producer_of(target, transactional_id or f"id-{topic}") as producer:
        producer.send(topic, value, partition=0)
        transaction = producer.prepare_transaction()
    assert transaction is not None
    return transaction


def committed(target: Target, topic: str, *, is_open: bool = False) -> list[bytes]:
    """Return the records that a read_committed consumer can read. With `is_open`, these are the
    records before the open transaction. Otherwise wait until the consumer has read to the end."""
    tp = TopicPartition(topic, 0)
    with (
        Consumer(bootstrap_servers=target.bootstrap_servers, isolation_level="read_committed") as consumer,
        Consumer(bootstrap_servers=target.bootstrap_servers) as other,
    ):
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        (end,) = (consumer if is_open else other).end_offsets([tp]).values()
        records = []
        while consumer.position(tp) < end:
            records += [record.value for record in consumer.poll(0.1)]
        return records


def test_another_client_commits_the_transaction_of_a_closed_producer(target: Target, admin: Admin, topic: str) -> None:
    transaction = prepared(target, topic, "a")
    assert committed(target, topic, is_open=True) == []
    admin.end_transactions([transaction])
    assert committed(target, topic) == [b"a"]
    admin.end_transactions([transaction])
    assert committed(target, topic) == [b"a"]
    with pytest.raises(KafkaError) as raised:
        admin.end_transactions([transaction], commit=False)
    assert raised.value.code == ErrorCode.INVALID_TXN_STATE


def test_several_transactions_are_ended_in_one_call_and_failures_are_reported(
    target: Target, admin: Admin, topic: str
) -> None:
    transactions = [prepared(target, topic, str(number), f"{topic}-{number}") for number in range(3)]
    admin.fence_producers([f"{topic}-1"])
    with pytest.raises(KafkaError) as raised:
        admin.end_transactions(transactions)
    assert list(raised.value.errors) == [f"{topic}-1"]  # type: ignore[attr-defined]
    assert committed(target, topic) == [b"0", b"2"]


def test_another_client_aborts_the_transaction(target: Target, admin: Admin, topic: str) -> None:
    transaction = prepared(target, topic, "a")
    admin.end_transactions([transaction], commit=False)
    admin.end_transactions([prepared(target, topic, "b")])
    assert committed(target, topic) == [b"b"]


def test_the_next_producer_of_the_id_aborts_the_transaction_and_a_commit_fails(
    target: Target, admin: Admin, topic: str
) -> None:
    first = prepared(target, topic, "a")
    second = prepared(target, topic, "b")
    with pytest.raises(KafkaError) as raised:
        admin.end_transactions([first])
    assert raised.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    admin.end_transactions([second])
    assert committed(target, topic) == [b"b"]


def test_a_prepared_producer_can_end_its_transaction_but_not_send(target: Target, admin: Admin, topic: str) -> None:
    with producer_of(target, f"id-{topic}") as producer:
        producer.send(topic, "a", partition=0)
        assert producer.prepare_transaction() is not None
        with pytest.raises(IllegalState, match="prepared"):
            producer.send(topic, "b", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        assert producer.prepare_transaction() is None
        producer.abort_transaction()
    assert committed(target, topic) == [b"a"]
    with pytest.raises(ValueError, match="one transaction at a time"):
        admin.end_transactions([PreparedTransaction("x", 1, 1), PreparedTransaction("x", 1, 2)])
