from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kavka.client import serializers as s
from kavka.client.errors import SerializationError
from kavka.client.serializers_extra import AvroSerializer, ProtobufSerializer
from kavka.common.config import ConfigError

# The bytes of Kafka's serializers.
PAIRS: list[tuple[Any, Any, bytes]] = [
    (s.StringSerializer(), "größe", b"gr\xc3\xb6\xc3\x9fe"),
    (s.StringSerializer("utf-16-be"), "a", b"\x00a"),
    (s.ShortSerializer(), -2, b"\xff\xfe"),
    (s.IntegerSerializer(), 258, b"\x00\x00\x01\x02"),
    (s.LongSerializer(), -1, b"\xff" * 8),
    (s.FloatSerializer(), 1.5, b"\x3f\xc0\x00\x00"),
    (s.DoubleSerializer(), -2.0, b"\xc0" + b"\x00" * 7),
    (s.BooleanSerializer(), True, b"\x01"),
    (s.BytesSerializer(), b"x", b"x"),
    (s.UUIDSerializer(), UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
    (s.JsonSerializer(), {"a": [1, "ä"]}, '{"a":[1,"ä"]}'.encode()),
]


@pytest.mark.parametrize(("serializer", "value", "data"), PAIRS)
def test_values_round_trip_with_the_bytes_of_kafka(serializer: Any, value: Any, data: bytes) -> None:
    assert serializer.serialize("t", value) == data
    assert serializer.deserialize("t", data) == value
    assert serializer.serialize("t", None) is None
    assert serializer.deserialize("t", None) is None


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (s.ShortSerializer(), 40_000),
        (s.StringSerializer(), 5),
        (s.StringSerializer(), b"bytes"),
        (s.UUIDSerializer(), "00000000-0000-0000-0000-000000000001"),
        (s.IntegerSerializer(), "1"),
        (s.LongSerializer(), 2**63),
        (s.BooleanSerializer(), 1),
        (s.BytesSerializer(), "text"),
        (s.VoidSerializer(), 1),
        (s.AutoSerializer(), object()),
    ],
)
def test_value_of_a_wrong_type_raises_serialization_error(serializer: Any, value: Any) -> None:
    with pytest.raises(SerializationError):
        serializer.serialize("t", value)


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (s.IntegerSerializer(), b"\x00"),
        (s.BooleanSerializer(), b"\x02"),
        (s.UUIDSerializer(), b"no uuid"),
        (s.VoidSerializer(), b""),
    ],
)
def test_invalid_bytes_raise_serialization_error(serializer: Any, data: bytes) -> None:
    with pytest.raises(SerializationError):
        serializer.deserialize("t", data)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("text", b"text"),
        (b"bytes", b"bytes"),
        (bytearray(b"b"), b"b"),
        (7, b"\x00" * 7 + b"\x07"),
        (True, b"\x01"),
        (0.5, b"\x3f\xe0" + b"\x00" * 6),
        (UUID(int=0), b"00000000-0000-0000-0000-000000000000"),
        ({"a": 1}, b'{"a":1}'),
        ([1], b"[1]"),
        (None, None),
    ],
)
def test_auto_serializer_depends_on_the_type(value: Any, data: bytes | None) -> None:
    assert s.AutoSerializer().serialize("t", value) == data


def test_string_encoding_is_configurable() -> None:
    serializer, convert = s.make_serializer(
        "key.serializer", "StringSerializer", {"key.serializer.encoding": "latin-1", "serializer.encoding": "utf-8"}
    )
    assert convert is not None
    assert convert("t", "ä", None) == b"\xe4"
    with pytest.raises(ConfigError, match="unknown encoding"):
        s.make_serializer("key.serializer", s.StringSerializer, {"serializer.encoding": "klingon"})
    assert serializer.encoding == "latin-1"


def test_deserializers_have_java_names_and_bytes_are_not_converted() -> None:
    _, convert = s.make_deserializer("value.deserializer", "org.apache.kafka.common.serialization.LongDeserializer", {})
    assert convert is not None
    assert convert("t", b"\x00" * 7 + b"\x05", None) == 5
    assert s.make_deserializer("value.deserializer", "ByteArrayDeserializer", {})[1] is None
    assert s.make_deserializer("value.deserializer", None, {})[1] is None


def test_invalid_serializer_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"value\.serializer: int has no method"):
        s.make_serializer("value.serializer", 17, {})


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": "string"}],
}


def test_avro_round_trips() -> None:
    serializer = AvroSerializer(SCHEMA)
    data = serializer.serialize("t", {"id": 3, "who": "me"})
    assert data == b"\x06\x04me"
    assert serializer.deserialize("t", data) == {"id": 3, "who": "me"}
    with pytest.raises(SerializationError):
        serializer.serialize("t", {"id": "x"})
    with pytest.raises(SerializationError):
        serializer.deserialize("t", b"\x06")
    configured, convert = s.make_serializer("value.serializer", "AvroSerializer", {"avro.schema": SCHEMA})
    assert convert is not None
    assert convert("t", {"id": 3, "who": "me"}, None) == data
    with pytest.raises(ConfigError, match=r"avro\.schema"):
        s.make_serializer("value.serializer", AvroSerializer, {})
    assert configured is not None


def test_protobuf_round_trips() -> None:
    from google.protobuf.wrappers_pb2 import StringValue

    serializer = ProtobufSerializer(StringValue)
    data = serializer.serialize("t", StringValue(value="x"))
    assert serializer.deserialize("t", data).value == "x"
    with pytest.raises(SerializationError):
        serializer.serialize("t", "no message")
    with pytest.raises(SerializationError):
        serializer.deserialize("t", b"\xff")
