"""From Python's values to bytes and back, byte for byte as Kafka's own serializers do.

A serializer is any of: an object with `serialize(topic, value)` or `serialize(topic, value, headers)`, or a function of
the value alone. A deserializer: `deserialize(topic, data)` or `deserialize(topic, data, headers)`, or a function of the
bytes. None stays None: a null key, or a tombstone. Settings take such an object, its class, or Java's name of one of
Kafka's.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from kavka.client import classes
from kavka.client.errors import SerializationError
from kavka.common.config import ConfigError

Data: TypeAlias = bytes | bytearray | memoryview


class Serializer(Protocol):
    def serialize(self, topic: str, value: Any) -> Data | None: ...


class Deserializer(Protocol):
    def deserialize(self, topic: str, data: bytes | None) -> Any: ...


class BytesSerializer:
    def serialize(self, topic: str, value: Data | None) -> Data | None:
        if value is None or isinstance(value, (bytes, bytearray, memoryview)):
            return value
        raise SerializationError(f"bytes are wanted, not {type(value).__name__}")

    def deserialize(self, topic: str, data: bytes | None) -> bytes | None:
        return None if data is None else bytes(data)


class StringSerializer:
    """UTF-8, or what `key.serializer.encoding`, `value.serializer.encoding` or `serializer.encoding` says (and the same
    with `deserializer`)."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        part = "key" if is_key else "value"
        for name in (f"{part}.serializer", f"{part}.deserializer", "serializer", "deserializer"):
            encoding = configs.get(f"{name}.encoding")
            if encoding is not None:
                try:
                    "".encode(encoding)
                except LookupError:
                    raise ConfigError(f"{name}.encoding", f"there is no encoding {encoding}") from None
                self.encoding = encoding
                return

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise SerializationError(f"text is wanted, not {type(value).__name__}")
        return value.encode(self.encoding)

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else bytes(data).decode(self.encoding)


class _Number:
    """A number of fixed size, big-endian."""

    LAYOUT = Struct(">q")
    NAME = "a whole number of 64 bits"

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return self.LAYOUT.pack(value)
        except (StructError, OverflowError):
            raise SerializationError(f"{value!r} is not {self.NAME}") from None

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != self.LAYOUT.size:
            raise SerializationError(f"{self.NAME} takes {self.LAYOUT.size} bytes, not {len(data)}")
        return self.LAYOUT.unpack(data)[0]


class ShortSerializer(_Number):
    LAYOUT, NAME = Struct(">h"), "a whole number of 16 bits"


class IntegerSerializer(_Number):
    LAYOUT, NAME = Struct(">i"), "a whole number of 32 bits"


class LongSerializer(_Number):
    LAYOUT, NAME = Struct(">q"), "a whole number of 64 bits"


class FloatSerializer(_Number):
    LAYOUT, NAME = Struct(">f"), "a float of 32 bits"


class DoubleSerializer(_Number):
    LAYOUT, NAME = Struct(">d"), "a float of 64 bits"


class BooleanSerializer(_Number):
    LAYOUT, NAME = Struct(">?"), "true or false"

    def serialize(self, topic: str, value: bool | None) -> bytes | None:
        if value is not None and not isinstance(value, bool):
            raise SerializationError(f"{value!r} is not {self.NAME}")
        return super().serialize(topic, value)

    def deserialize(self, topic: str, data: bytes | None) -> bool | None:
        if data is not None and bytes(data) not in (b"\x00", b"\x01"):
            raise SerializationError(f"{bytes(data)!r} is not {self.NAME}")
        return None if data is None else bytes(data) == b"\x01"


class UUIDSerializer:
    """As text of 36 characters, which is what Kafka's does."""

    def serialize(self, topic: str, value: UUID | None) -> bytes | None:
        if value is not None and not isinstance(value, UUID):
            raise SerializationError(f"a UUID is wanted, not {type(value).__name__}")
        return None if value is None else str(value).encode()

    def deserialize(self, topic: str, data: bytes | None) -> UUID | None:
        if data is None:
            return None
        try:
            return UUID(bytes(data).decode())
        except ValueError as error:
            raise SerializationError(f"{bytes(data)!r} is not a UUID: {error}") from None


class VoidSerializer:
    def serialize(self, topic: str, value: None) -> None:
        if value is not None:
            raise SerializationError(f"nothing is wanted, not {value!r}")

    def deserialize(self, topic: str, data: bytes | None) -> None:
        if data is not None:
            raise SerializationError("there should be no data")


class JsonSerializer:
    """Anything that `json` takes, compact, in UTF-8."""

    def __init__(self, **options: Any) -> None:
        self._options = {"separators": (",", ":"), "ensure_ascii": False, **options}

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return None if value is None else json.dumps(value, **self._options).encode()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else json.loads(bytes(data))


class AutoSerializer:
    """The default: by the value's type. Text as UTF-8, whole numbers as LongSerializer, floats as DoubleSerializer,
    UUIDs as text, lists and mappings as JSON; bytes as they are."""

    def serialize(self, topic: str, value: Any) -> Data | None:
        if value is None or isinstance(value, (bytes, bytearray, memoryview)):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bool):
            return b"\x01" if value else b"\x00"
        if isinstance(value, int):
            return _LONG.serialize(topic, value)
        if isinstance(value, float):
            return _DOUBLE.serialize(topic, value)
        if isinstance(value, UUID):
            return str(value).encode()
        if isinstance(value, (dict, list, tuple)):
            return _JSON.serialize(topic, value)
        raise SerializationError(f"there is no serializer for {type(value).__name__}; set one, or give bytes")


_LONG, _DOUBLE, _JSON = LongSerializer(), DoubleSerializer(), JsonSerializer()

_HERE = "kavka.client.serializers"
_NAMES = {
    "String": "StringSerializer",
    "Bytes": "BytesSerializer",
    "ByteArray": "BytesSerializer",
    "ByteBuffer": "BytesSerializer",
    "Short": "ShortSerializer",
    "Integer": "IntegerSerializer",
    "Long": "LongSerializer",
    "Float": "FloatSerializer",
    "Double": "DoubleSerializer",
    "Boolean": "BooleanSerializer",
    "UUID": "UUIDSerializer",
    "Void": "VoidSerializer",
    "Json": "JsonSerializer",
    "KafkaJson": "JsonSerializer",
}
SERIALIZERS = {f"{java}Serializer": f"{_HERE}:{ours}" for java, ours in _NAMES.items()} | {
    "StringEncoder": f"{_HERE}:StringSerializer",
    "DefaultEncoder": f"{_HERE}:BytesSerializer",
    "AvroSerializer": "kavka.client.serializers_extra:AvroSerializer",
    "ProtobufSerializer": "kavka.client.serializers_extra:ProtobufSerializer",
}
DESERIALIZERS = {f"{java}Deserializer": f"{_HERE}:{ours}" for java, ours in _NAMES.items()} | {
    "StringDecoder": f"{_HERE}:StringSerializer",
    "DefaultDecoder": f"{_HERE}:BytesSerializer",
    "AvroDeserializer": "kavka.client.serializers_extra:AvroSerializer",
    "ProtobufDeserializer": "kavka.client.serializers_extra:ProtobufSerializer",
}
"""Each class here does both directions, so either name finds it."""

Convert: TypeAlias = Callable[[str, Any, Any], Any]
"""(topic, value, headers) to the converted value."""


def make_serializer(name: str, value: Any, configs: Mapping[str, Any]) -> tuple[Any, Convert | None]:
    """The object behind `key.serializer` or `value.serializer`, and its function; None where none is set:
    then `AutoSerializer` is for what is not bytes."""
    if value is None:
        return None, None
    found = classes.make(name, value, SERIALIZERS, "a serializer", configs, name.startswith("key"))
    return found, _convert(name, found, "serialize")


def make_deserializer(name: str, value: Any, configs: Mapping[str, Any]) -> tuple[Any, Convert | None]:
    """The object behind `key.deserializer` or `value.deserializer`, and its function; None where bytes stay bytes."""
    if value is None:
        return None, None
    found = classes.make(name, value, DESERIALIZERS, "a deserializer", configs, name.startswith("key"))
    return found, None if isinstance(found, BytesSerializer) else _convert(name, found, "deserialize")


def _convert(name: str, found: Any, method: str) -> Convert:
    function = getattr(found, method, None)
    if function is None:
        if not callable(found):
            raise ConfigError(name, f"a {type(found).__name__} has no method {method} and cannot be called")
        return lambda topic, value, headers: None if value is None else found(value)
    try:
        takes_headers = len(inspect.signature(function).parameters) > 2
    except (TypeError, ValueError):
        takes_headers = False
    if takes_headers:
        return lambda topic, value, headers: function(topic, value, headers)
    return _without_headers(function)


def _without_headers(function: Callable[[str, Any], Any]) -> Convert:
    return lambda topic, value, headers: function(topic, value)
