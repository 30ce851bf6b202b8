"""Serializers and deserializers that are compatible with those of Kafka.

A serializer is an object with `serialize(topic, value)` or `serialize(topic, value, headers)`, or a
function of the value. A deserializer is an object with `deserialize(topic, data)` or
`deserialize(topic, data, headers)`, or a function of the bytes. None is not converted: it is a null
key or a tombstone. A setting is such an object or function, its class, or the Java name of a
serializer of Kafka.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from kavka.client import classes
from kavka.client.errors import SerializationError
from kavka.common.config import ConfigError

Data: TypeAlias = bytes | bytearray | memoryview


Input = TypeVar("Input", contravariant=True)
Output = TypeVar("Output", covariant=True)
Number = TypeVar("Number", int, float, bool)


class Serializer(Protocol[Input]):
    def serialize(self, topic: str, value: Input, /) -> Data | None: ...


class Deserializer(Protocol[Output]):
    def deserialize(self, topic: str, data: bytes | None, /) -> Output: ...


class BytesSerializer:
    def serialize(self, topic: str, value: Data | None) -> Data | None:
        if value is None or isinstance(value, (bytes, bytearray, memoryview)):
            return value
        raise SerializationError(f"the value must be bytes, not {type(value).__name__}")

    def deserialize(self, topic: str, data: bytes | None) -> bytes | None:
        return None if data is None else bytes(data)


class StringSerializer:
    """Text in UTF-8, or in the encoding that `key.serializer.encoding`, `value.serializer.encoding`
    or `serializer.encoding` sets. Deserializers have the corresponding settings."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        prefix = "key" if is_key else "value"
        for name in (f"{prefix}.serializer", f"{prefix}.deserializer", "serializer", "deserializer"):
            encoding = configs.get(f"{name}.encoding")
            if encoding is not None:
                try:
                    "".encode(encoding)
                except LookupError:
                    raise ConfigError(f"{name}.encoding", f"unknown encoding {encoding}") from None
                self.encoding = encoding
                return

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise SerializationError(f"the value must be text, not {type(value).__name__}")
        return value.encode(self.encoding)

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else bytes(data).decode(self.encoding)


class _Number(Generic[Number]):
    """A big-endian number of fixed size."""

    LAYOUT = Struct(">q")
    NAME = "an integer of 64 bits"

    def serialize(self, topic: str, value: Number | None) -> bytes | None:
        if value is None:
            return None
        try:
            return self.LAYOUT.pack(value)
        except (StructError, OverflowError):
            raise SerializationError(f"{value!r} is not {self.NAME}") from None

    def deserialize(self, topic: str, data: bytes | None) -> Number | None:
        if data is None:
            return None
        if len(data) != self.LAYOUT.size:
            raise SerializationError(f"{self.NAME} has {self.LAYOUT.size} bytes, not {len(data)}")
        number: Number = self.LAYOUT.unpack(data)[0]
        return number


class ShortSerializer(_Number[int]):
    LAYOUT, NAME = Struct(">h"), "an integer of 16 bits"


class IntegerSerializer(_Number[int]):
    LAYOUT, NAME = Struct(">i"), "an integer of 32 bits"


class LongSerializer(_Number[int]):
    LAYOUT, NAME = Struct(">q"), "an integer of 64 bits"


class FloatSerializer(_Number[float]):
    LAYOUT, NAME = Struct(">f"), "a float of 32 bits"


class DoubleSerializer(_Number[float]):
    LAYOUT, NAME = Struct(">d"), "a float of 64 bits"


class BooleanSerializer(_Number[bool]):
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
    """A UUID as text of 36 characters, as in Kafka."""

    def serialize(self, topic: str, value: UUID | None) -> bytes | None:
        if value is not None and not isinstance(value, UUID):
            raise SerializationError(f"the value must be a UUID, not {type(value).__name__}")
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
            raise SerializationError(f"the value must be None, not {value!r}")

    def deserialize(self, topic: str, data: bytes | None) -> None:
        if data is not None:
            raise SerializationError("the data must be null")


class JsonSerializer:
    """Any value that `json` can encode, as compact JSON in UTF-8."""

    def __init__(self, **options: Any) -> None:
        self._options = {"separators": (",", ":"), "ensure_ascii": False, **options}

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return None if value is None else json.dumps(value, **self._options).encode()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else json.loads(bytes(data))


class AutoSerializer:
    """The default serializer. It serializes by type: text as UTF-8, booleans as one byte, integers
    like LongSerializer, floats like DoubleSerializer, UUIDs as text, dicts, lists and tuples as
    JSON, and bytes unchanged."""

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
        raise SerializationError(f"there is no serializer for {type(value).__name__}; set a serializer, or pass bytes")


# Each class converts in both directions, and has both of Kafka's names.
BooleanDeserializer = BooleanSerializer
BytesDeserializer = BytesSerializer
DoubleDeserializer = DoubleSerializer
FloatDeserializer = FloatSerializer
IntegerDeserializer = IntegerSerializer
JsonDeserializer = JsonSerializer
LongDeserializer = LongSerializer
ShortDeserializer = ShortSerializer
StringDeserializer = StringSerializer
UUIDDeserializer = UUIDSerializer
VoidDeserializer = VoidSerializer

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
# The serializers of Confluent, which find their schemas in a registry.
_REGISTRY = "kavka.client.schemas.serializers"
_REGISTRY_NAMES = {
    "KafkaAvro": "KafkaAvroSerializer",
    "KafkaJsonSchema": "KafkaJsonSchemaSerializer",
    "JsonSchema": "KafkaJsonSchemaSerializer",
    "KafkaProtobuf": "KafkaProtobufSerializer",
}
SERIALIZERS = {f"{java}Serializer": f"{_HERE}:{class_name}" for java, class_name in _NAMES.items()} | {
    "StringEncoder": f"{_HERE}:StringSerializer",
    "DefaultEncoder": f"{_HERE}:BytesSerializer",
    "AvroSerializer": "kavka.client.serializers_extra:AvroSerializer",
    "ProtobufSerializer": "kavka.client.serializers_extra:ProtobufSerializer",
    **{f"{name}Serializer": f"{_REGISTRY}:{class_name}" for name, class_name in _REGISTRY_NAMES.items()},
}
DESERIALIZERS = {f"{java}Deserializer": f"{_HERE}:{class_name}" for java, class_name in _NAMES.items()} | {
    "StringDecoder": f"{_HERE}:StringSerializer",
    "DefaultDecoder": f"{_HERE}:BytesSerializer",
    "AvroDeserializer": "kavka.client.serializers_extra:AvroSerializer",
    "ProtobufDeserializer": "kavka.client.serializers_extra:ProtobufSerializer",
    **{f"{name}Deserializer": f"{_REGISTRY}:{class_name}" for name, class_name in _REGISTRY_NAMES.items()},
}

# Settings that only serializers read.
_SETTINGS = frozenset(
    {
        "avro.schema", "avro.writer.schema", "avro.max.depth", "json.schema", "protobuf.message", "protobuf.schema",
        "auto.register.schemas", "normalize.schemas", "use.latest.version", "use.schema.id", "subject.name.strategy",
        "serializer.encoding", "deserializer.encoding", "latest.cache.ttl.sec", "max.retries", "retries.wait.ms",
        "http.connect.timeout.ms", "http.read.timeout.ms",
    }
)  # fmt: skip
_SETTING_PREFIXES = ("schema.registry.", "basic.auth.", "bearer.auth.")


def is_serializer_setting(name: str) -> bool:
    return name.startswith(_SETTING_PREFIXES) or name.removeprefix("key.").removeprefix("value.") in _SETTINGS


Convert: TypeAlias = Callable[[str, Any, Any], Any]
"""A function from (topic, value, headers) to the converted value."""


def make_serializer(name: str, value: Any, configs: Mapping[str, Any]) -> tuple[Any, Convert | None]:
    """Return the object that `key.serializer` or `value.serializer` names, and its function. Both
    are None if the setting is not set; the producer then uses `AutoSerializer`."""
    if value is None:
        return None, None
    serializer = classes.make(name, value, SERIALIZERS, "a serializer", configs, name.startswith("key"))
    return serializer, _convert(name, serializer, "serialize")


def make_deserializer(name: str, value: Any, configs: Mapping[str, Any]) -> tuple[Any, Convert | None]:
    """Return the object that `key.deserializer` or `value.deserializer` names, and its function.
    The function is None if the bytes are not converted."""
    if value is None:
        return None, None
    deserializer = classes.make(name, value, DESERIALIZERS, "a deserializer", configs, name.startswith("key"))
    is_identity = isinstance(deserializer, BytesSerializer)
    return deserializer, None if is_identity else _convert(name, deserializer, "deserialize")


def _convert(name: str, serializer: Any, method: str) -> Convert:
    function = getattr(serializer, method, None)
    if function is None:
        if not callable(serializer):
            raise ConfigError(name, f"{type(serializer).__name__} has no method {method} and cannot be called")
        return lambda topic, value, headers: None if value is None else serializer(value)
    try:
        takes_headers = len(inspect.signature(function).parameters) > 2
    except (TypeError, ValueError):
        takes_headers = False
    if takes_headers:
        return lambda topic, value, headers: function(topic, value, headers)
    return _without_headers(function)


def _without_headers(function: Callable[[str, Any], Any]) -> Convert:
    return lambda topic, value, headers: function(topic, value)
