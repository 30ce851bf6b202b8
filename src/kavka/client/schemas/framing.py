"""The bytes before a payload: a zero, the schema id in four bytes, and for Protobuf the position of
the message type in its file. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from kavka.client.errors import SerializationError
from kavka.common.errors import KafkaError
from kavka.records.varint import decode_varint, encode_varint

HEADER_BYTES = 5
MAX_INDEXES = 100


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def schema_id_of(data: bytes) -> int:
    """Return the schema id of framed data. Raises SerializationError if the data is not framed."""
    if len(data) < HEADER_BYTES or data[0] != 0:
        raise SerializationError("the data does not start with a zero byte and a schema id of four bytes")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """Encode the position of a message type: its index in the file, then the index in each
    enclosing type. The first type of a file is a single zero."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(encode_varint(number) for number in (len(indexes), *indexes))


def decode_indexes(data: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """Decode the position of a message type. Returns it and the position of the payload."""
    try:
        count, position = decode_varint(data, position)
        if count == 0:
            return (0,), position
        if not 0 < count <= MAX_INDEXES:
            raise SerializationError(f"a Protobuf message type with {count} indexes")
        indexes = []
        for _ in range(count):
            index, position = decode_varint(data, position)
            indexes.append(index)
    except (IndexError, KafkaError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError("the indexes of the Protobuf message type are incomplete") from None
    return tuple(indexes), position
