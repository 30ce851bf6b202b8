"""Encodes and sends messages from the inputs of a form."""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Mapping
from typing import Any

from kavka.client.consumer.records import ConsumerRecord
from kavka.client.errors import SerializationError
from kavka.client.producer.aio import Producer
from kavka.client.producer.record import RecordMetadata
from kavka.common.config import ConfigError
from kavka.console.decoders import strict_json
from kavka.console.errors import Refused

FORMATS = ("text", "json", "number", "double", "hex", "avro", "null")
MAX_MESSAGE_BYTES = 1_000_000
TIMEOUT_MS = 15_000


def encode(name: str, text: str, format: str, schema: str = "") -> bytes | None:
    """Encode a text in a format. Raises Refused for the input `name` if the text is invalid."""
    try:
        match format:
            case "null":
                if text:
                    raise ValueError("leave the text of null empty")
                return None
            case "text":
                return text.encode()
            case "json":
                strict_json(text)
                return text.encode()
            case "number":
                return _number(text)
            case "double":
                return struct.pack(">d", float(text))
            case "hex":
                return binascii.unhexlify("".join(text.split()))
            case "avro":
                return _avro(text, schema)
    except (ValueError, RecursionError, struct.error, SerializationError, ConfigError) as error:
        raise Refused(f"{name} is not {format}: {str(error)[:300] or 'too deep'}", field=name) from None
    raise Refused(f"{name}: '{format}' is not one of {', '.join(FORMATS)}", field=name)


def _number(text: str) -> bytes:
    """Encode a number in eight bytes, or in the size of its suffix `int8`, `int16` or `int32`."""
    number, _, integer_type = text.strip().partition(" ")
    sizes = {"": ">q", "int64": ">q", "int32": ">i", "int16": ">h", "int8": ">b"}
    if integer_type.strip() not in sizes:
        raise ValueError("expected a whole number, and optionally its size: int8, int16, int32 or int64")
    return struct.pack(sizes[integer_type.strip()], int(number))


def _avro(text: str, schema: str) -> bytes | None:
    from kavka.client.serializers_extra import AvroSerializer

    if not schema.strip():
        raise ValueError("the schema is missing")
    try:
        serializer = AvroSerializer(json.loads(schema))
    except ConfigError:
        raise
    except Exception as error:
        raise ValueError(f"the schema is invalid: {error}") from None
    return serializer.serialize("", json.loads(text))


def headers_of(text: str) -> list[tuple[str, bytes | None]]:
    """Parse a header per line: `name: value`. Without a colon the value is null. Raises Refused if
    a name is missing."""
    headers: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not name.strip():
            raise Refused("a header has no name: a line must be name: value", field="headers")
        headers.append((name.strip(), value.strip().encode() if colon else None))
    return headers


async def send(
    client: Mapping[str, Any],
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> RecordMetadata:
    """Send a message and wait for the acknowledgement of all in-sync replicas. Raises Refused (413)
    if it is too large, and KafkaError."""
    if len(key or b"") + len(value or b"") > MAX_MESSAGE_BYTES:
        raise Refused(f"the message has more than {MAX_MESSAGE_BYTES} bytes", 413)
    settings = {
        **client,
        "acks": "all",
        "delivery.timeout.ms": str(TIMEOUT_MS),
        "request.timeout.ms": str(TIMEOUT_MS - 1000),
        "max.block.ms": str(TIMEOUT_MS),
        "linger.ms": "0",
    }
    async with Producer(settings) as producer:
        return await producer.send_and_wait(topic, value=value, key=key, partition=partition, headers=headers or None)


async def copy(
    client: Mapping[str, Any], record: ConsumerRecord, to_topic: str, to_partition: int | None
) -> RecordMetadata:
    """Send the bytes and headers of a record with the current time."""
    return await send(client, to_topic, to_partition, record.key, record.value, list(record.headers))
