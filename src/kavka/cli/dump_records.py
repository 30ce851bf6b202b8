"""Decoding keys and values of records for dump-log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kavka.cli.options import Arguments
from kavka.cli.tool import ToolError
from kavka.common.config import ConfigError
from kavka.protocol.messages.offsets_topic import GroupMetadataValue
from kavka.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue
from kavka.protocol.primitives import ProtocolError
from kavka.records import internal_topics
from kavka.records.record import Record

Texts = tuple[str | None, str | None]
"""The key and the value as text. Each is None if it is not printed."""
Decoder = Callable[[Record], Texts]


def make_decoder(args: Arguments) -> Decoder | None:
    """Return the decoder that the options select; None if no keys and values are printed."""
    if args["offsets-decoder"]:
        return decode_offset_record
    if args["transaction-log-decoder"]:
        return decode_transaction_record
    if not args["print-data-log"] and "key-decoder-class" not in args and "value-decoder-class" not in args:
        return None
    key = decoder_of(args["key-decoder-class"] or "StringDecoder")
    value = decoder_of(args["value-decoder-class"] or "StringDecoder")
    return lambda record: (
        None if record.key is None else key(record.key),
        None if record.value is None else value(record.value),
    )


def decoder_of(name: str) -> Callable[[bytes], str]:
    """Return the decoder with this name: a class of Kafka, with or without its package, or a Python
    class with `from_bytes(data)`. Raise ConfigError if there is none."""
    short_name = name.rpartition(".")[2]
    if name == short_name or name.startswith(("kafka.serializer.", "org.apache.kafka.tools.api.")):
        if short_name not in _DECODERS:
            raise ConfigError("decoder", f"unknown decoder '{name}'; valid decoders are {', '.join(_DECODERS)}")
        return _DECODERS[short_name]
    from kavka.client import classes

    decoder = classes.make("decoder", name, {}, "a decoder", {})
    return lambda data: str(decoder.from_bytes(data))


def _integer_decoder(size: int) -> Callable[[bytes], str]:
    def text(data: bytes) -> str:
        if len(data) != size:
            raise ToolError(f"expected a number of {size} bytes, not {len(data)}")
        return str(int.from_bytes(data, "big", signed=True))

    return text


_DECODERS: dict[str, Callable[[bytes], str]] = {
    "StringDecoder": lambda data: data.decode(errors="replace"),
    "IntegerDecoder": _integer_decoder(4),
    "LongDecoder": _integer_decoder(8),
    "DefaultDecoder": lambda data: repr(data),
}


def decode_offset_record(record: Record) -> Texts:
    """Decode a record of `__consumer_offsets`. Raise ToolError if it has no key."""
    if record.key is None:
        raise ToolError(
            f"Failed to decode message at offset {record.offset} using offset topic decoder (message had a missing key)"
        )
    try:
        record_type = internal_topics.version_of(record.key)
        if record_type not in internal_topics.OFFSET_TOPIC:
            return f"Unknown record type {record_type} at offset {record.offset}, skipping.", None
        key_type, value_type = internal_topics.OFFSET_TOPIC[record_type]
        key = internal_topics.decode(key_type, record.key).message
        assert key is not None
        key_text = internal_topics.dumps({"type": str(record_type), "data": internal_topics.to_json(key, record_type)})
        return key_text, _value_text(record, value_type)
    except ProtocolError as error:
        return f"Error at offset {record.offset}, skipping. {error}", None


def _value_text(record: Record, value_type: Any) -> str:
    if record.value is None:
        return "<DELETE>"
    version, value = internal_topics.decode(value_type, record.value)
    if value is None:
        raise ProtocolError(f"the value has the unknown version {version}")
    if isinstance(value, GroupMetadataValue):
        fields = internal_topics.group_metadata_to_json(value, version)
    else:
        fields = internal_topics.to_json(value, version)
    return internal_topics.dumps({"version": str(version), "data": fields})


def decode_transaction_record(record: Record) -> Texts:
    """Decode a record of `__transaction_state`. Raise ToolError if it has no key."""
    if record.key is None:
        raise ToolError(
            f"Failed to decode message at offset {record.offset} using transaction log decoder (message had a "
            "missing key)"
        )
    try:
        version, key = internal_topics.decode(TransactionLogKey, record.key)
        if key is None:
            return f"unknown::version={version}", None
        assert isinstance(key, TransactionLogKey)
        return f"transaction_metadata::transactionalId={key.transactional_id}", _transaction_text(record.value)
    except ProtocolError as error:
        return f"Error at offset {record.offset}, skipping. {error}", None


def _transaction_text(data: bytes | None) -> str:
    if data is None:
        return "<DELETE>"
    version, value = internal_topics.decode(TransactionLogValue, data)
    if value is None:
        raise ProtocolError(f"the value has the unknown version {version}")
    assert isinstance(value, TransactionLogValue)
    states = internal_topics.TRANSACTION_STATES
    state = states[value.transaction_status] if 0 <= value.transaction_status < len(states) else "Unknown"
    partitions = ",".join(
        f"{topic.topic}-{partition}"
        for topic in value.transaction_partitions or ()
        for partition in topic.partition_ids
    )
    return (
        f"producerId:{value.producer_id},producerEpoch:{value.producer_epoch},state={state},partitions=[{partitions}],"
        f"txnLastUpdateTimestamp={value.transaction_last_update_timestamp_ms},"
        f"txnTimeoutMs={value.transaction_timeout_ms}"
    )
