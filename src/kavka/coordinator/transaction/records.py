"""[pure] The records of `__transaction_state`, in Kafka's layout.

The key is int16 0 and the transactional id. The value is an int16 version and TransactionLogValue.
A tombstone has no value.

    value 0   written by Kafka up to 3.9
    value 1   flexible; tagged fields for the previous and next producer id and the client's
              transaction version

We write version 1 if the feature `transaction.version` is 1 or 2, because then all brokers of the
cluster can read it. We read both versions.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kavka.common.types import TopicPartition, by_topic
from kavka.coordinator.transaction.state import (
    DEAD,
    EMPTY,
    PREPARE_EPOCH_FENCE,
    STATE_NUMBERS,
    STATES_BY_NUMBER,
    Transaction,
)
from kavka.protocol.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kavka.protocol.primitives import ProtocolError

KEY_VERSION = 0
OLD_VALUE_VERSION = 0
FLEXIBLE_VALUE_VERSION = 1

_VERSION = Struct(">h")
_KEY_START = Struct(">hh")


class TransactionRecord(NamedTuple):
    transactional_id: str
    value: Transaction | None
    value_version: int = FLEXIBLE_VALUE_VERSION


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    transactional_id, value, value_version = record
    encoded_id = transactional_id.encode()
    key = _KEY_START.pack(KEY_VERSION, len(encoded_id)) + encoded_id
    return key, None if value is None else _encode_value(value, value_version)


def _encode_value(transaction: Transaction, version: int) -> bytes:
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=STATE_NUMBERS[transaction.state],
        transaction_partitions=None if transaction.state is EMPTY else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version >= FLEXIBLE_VALUE_VERSION:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_transaction_version
    out: list[bytes] = [_VERSION.pack(version)]
    value.encode(out, version)
    return b"".join(out)


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic(sorted(partitions)).items()]


def decode(key: memoryview, value: memoryview | None) -> TransactionRecord | None:
    """Return the record, or None if its type is unknown. Raises ProtocolError if the bytes are
    invalid."""
    if len(key) < 2 or (value is not None and len(value) < 2):
        raise ProtocolError("the key or the value has no version")
    if _VERSION.unpack_from(key, 0)[0] != KEY_VERSION:
        return None
    parsed_key, _ = TransactionLogKey.decode(key, 2, KEY_VERSION)
    if value is None:
        return TransactionRecord(parsed_key.transactional_id, None)
    (version,) = _VERSION.unpack_from(value, 0)
    if not OLD_VALUE_VERSION <= version <= FLEXIBLE_VALUE_VERSION:
        raise ProtocolError(f"unknown version {version} of a transaction state record")
    decoded, _ = TransactionLogValue.decode(value, 2, version)
    state_number = decoded.transaction_status
    if not 0 <= state_number < len(STATES_BY_NUMBER) or STATES_BY_NUMBER[state_number] in (DEAD, PREPARE_EPOCH_FENCE):
        raise ProtocolError(f"invalid transaction state {state_number}")
    transaction = Transaction(
        producer_id=decoded.producer_id,
        epoch=decoded.producer_epoch,
        timeout_ms=decoded.transaction_timeout_ms,
        state=STATES_BY_NUMBER[state_number],
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in decoded.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=decoded.transaction_start_timestamp_ms,
        update_ms=decoded.transaction_last_update_timestamp_ms,
        previous_producer_id=decoded.previous_producer_id,
        next_producer_id=decoded.next_producer_id,
        client_transaction_version=decoded.client_transaction_version,
    )
    return TransactionRecord(parsed_key.transactional_id, transaction, version)
