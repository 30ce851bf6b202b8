"""The records of `__transaction_state`: Kafka's layout, and invalid bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.records import (
    FLEXIBLE_VALUE_VERSION,
    OLD_VALUE_VERSION,
    TransactionRecord,
    decode,
    encode,
)
from kavka.coordinator.transaction.state import AT_REST, EMPTY, ENDING, ONGOING, Transaction
from kavka.protocol.primitives import ProtocolError

PARTITIONS = frozenset({TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("u", 5)})
OPEN = Transaction(7, 3, 60_000, ONGOING, PARTITIONS, 1000, 2000, previous_producer_id=7, client_transaction_version=2)


def round_trip(record: TransactionRecord) -> TransactionRecord | None:
    key, value = encode(record)
    return decode(memoryview(key), None if value is None else memoryview(value))


def test_the_old_format_matches_kafka() -> None:
    key, value = encode(TransactionRecord("id", OPEN, OLD_VALUE_VERSION))
    assert key == b"\0\0" + b"\0\x02id"
    assert value == bytes.fromhex(
        "0000" "0000000000000007" "0003" "0000ea60" "01"
        "00000002" "0001" "74" "00000002" "00000000" "00000001" "0001" "75" "00000001" "00000005"
        "00000000000007d0" "00000000000003e8"
    )  # fmt: skip


def test_the_flexible_format_matches_kafka() -> None:
    _, value = encode(TransactionRecord("id", OPEN._replace(next_producer_id=9, partitions=frozenset()), 1))
    assert value == bytes.fromhex(
        "0001" "0000000000000007" "0003" "0000ea60" "01" "01" "00000000000007d0" "00000000000003e8"
        "03" "00" "08" "0000000000000007" "01" "08" "0000000000000009" "02" "02" "0002"
    )  # fmt: skip


def test_an_empty_transaction_has_no_list_of_partitions() -> None:
    _, value = encode(TransactionRecord("id", Transaction(7, 0, 1, EMPTY, update_ms=5), OLD_VALUE_VERSION))
    assert value is not None
    assert value[17:21] == b"\xff\xff\xff\xff"


def test_a_tombstone_has_no_value() -> None:
    assert encode(TransactionRecord("id", None)) == (b"\0\0\0\x02id", None)
    assert round_trip(TransactionRecord("id", None)) == TransactionRecord("id", None)


numbers = st.integers(-1, 2**63 - 1)
transactions = st.builds(
    Transaction,
    producer_id=numbers,
    epoch=st.integers(0, 32767),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(sorted(AT_REST | ENDING | {ONGOING}, key=lambda s: s.value)),
    partitions=st.frozensets(st.builds(TopicPartition, st.text(max_size=4), st.integers(0, 2**31 - 1)), max_size=4),
    start_ms=numbers,
    update_ms=numbers,
    previous_producer_id=numbers,
    next_producer_id=numbers,
    last_epoch=st.just(-1),
    client_transaction_version=st.integers(0, 2),
)


@given(st.text(max_size=9), transactions, st.sampled_from([OLD_VALUE_VERSION, FLEXIBLE_VALUE_VERSION]))
def test_records_survive_a_round_trip(name: str, transaction: Transaction, version: int) -> None:
    if transaction.state is EMPTY:
        transaction = transaction._replace(partitions=frozenset())
    expected = transaction
    if version == OLD_VALUE_VERSION:
        expected = transaction._replace(previous_producer_id=-1, next_producer_id=-1, client_transaction_version=0)
    assert round_trip(TransactionRecord(name, transaction, version)) == TransactionRecord(name, expected, version)


def test_a_record_of_an_unknown_type_is_skipped() -> None:
    assert decode(memoryview(b"\0\x01whatever"), memoryview(b"\0\0")) is None


@pytest.mark.parametrize(
    "defect", ["no key", "no value", "truncated key", "truncated value", "version", "state", "dead"]
)
def test_invalid_bytes_are_protocol_errors(defect: str) -> None:
    key, value = encode(TransactionRecord("id", OPEN))
    assert value is not None
    data = bytearray(value)
    if defect == "no key":
        key = b"\0"
    elif defect == "no value":
        data = bytearray(b"\0")
    elif defect == "truncated key":
        key = key[:-1]
    elif defect == "truncated value":
        del data[-1]
    elif defect == "version":
        data[1] = 2
    elif defect == "state":
        data[16] = 8
    else:
        data[16] = 6
    with pytest.raises(ProtocolError):
        decode(memoryview(key), memoryview(data))
