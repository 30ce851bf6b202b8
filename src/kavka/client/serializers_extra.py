"""Serializers for Avro and Protobuf. They require `fastavro` or `protobuf` (`pip install
kavka[serializers]`). With a registry (`registry=…` or `schema.registry.url`) they are the
serializers of `schemas/serializers.py`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka.client import avro_bounds
from kavka.client.errors import SerializationError
from kavka.common.config import INT, AtLeast, ConfigError, ConfigKey

if TYPE_CHECKING:
    from kavka.client.schemas.registry import SchemaRegistry
    from kavka.client.schemas.serializers import RegistrySerializer

_URL = "schema.registry.url"
_DEPTH = ConfigKey("avro.max.depth", INT, avro_bounds.MAX_DEPTH, "Largest depth of nested Avro data.", AtLeast(1))


def _parse_schema(name: str, schema: Any) -> Any:
    if schema is None:
        return None
    try:
        import fastavro
    except ImportError:
        raise ConfigError(name, "fastavro is not installed: pip install kavka[serializers]") from None
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        avro_bounds.check_schema(schema, avro_bounds.MAX_DEPTH)
        return fastavro.parse_schema(schema)
    except Exception as error:
        raise ConfigError(name, f"invalid Avro schema: {str(error) or type(error).__name__}") from error


class AvroSerializer:
    """Serializes values of one Avro schema as binary data without the schema. A reader with a
    different schema also needs the writer's schema: `AvroSerializer(reader, writer_schema=writer)`.

    Settings: `avro.schema` (a mapping, or JSON) for both directions, `avro.writer.schema`. Data
    with more than `max_depth` (`avro.max.depth`) nested levels is rejected.

    With a registry, data starts with the id of its schema, and readers need no schema.
    """

    def __init__(
        self,
        schema: Any = None,
        *,
        writer_schema: Any = None,
        max_depth: int = avro_bounds.MAX_DEPTH,
        registry: SchemaRegistry | str | None = None,
        **registry_options: Any,
    ) -> None:
        self._registered: RegistrySerializer | None = None
        if registry is not None:
            from kavka.client.schemas.serializers import KafkaAvroSerializer

            self._registered = KafkaAvroSerializer(schema, registry=registry, **registry_options)
            return
        self._source = schema
        self._schema = _parse_schema("avro.schema", schema)
        self._writer = _parse_schema("avro.writer.schema", writer_schema) if writer_schema is not None else self._schema
        self._set_bounds(max_depth)

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        if self._registered is None and configs.get(_URL):
            from kavka.client.schemas.serializers import KafkaAvroSerializer

            self._registered = KafkaAvroSerializer(self._source)
        if self._registered is not None:
            self._registered.configure(configs, is_key)
            return
        prefix = "key" if is_key else "value"
        schema = configs.get(f"{prefix}.avro.schema", configs.get("avro.schema"))
        if self._schema is None and schema is None:
            raise ConfigError("avro.schema", "is required by AvroSerializer")
        if schema is not None:
            self._schema = self._writer = _parse_schema("avro.schema", schema)
        if (writer := configs.get("avro.writer.schema")) is not None:
            self._writer = _parse_schema("avro.writer.schema", writer)
        depth = configs.get("avro.max.depth")
        self._set_bounds(self._max_depth if depth is None else _DEPTH.parse(str(depth)))

    def _set_bounds(self, max_depth: int) -> None:
        self._max_depth = max_depth
        if self._schema is not None:
            self._can_nest = avro_bounds.DataBounds(self._schema).contains_itself
            self._bounds = avro_bounds.DataBounds(self._writer, max_depth)

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._registered is not None:
            return self._registered.serialize(topic, value)
        import fastavro

        out = io.BytesIO()
        try:
            if self._can_nest:
                avro_bounds.check_value(value, self._max_depth)
            fastavro.schemaless_writer(out, self._schema, value)
        except Exception as error:
            raise SerializationError(f"the value does not match the Avro schema: {error}") from error
        return out.getvalue()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if self._registered is not None:
            return self._registered.deserialize(topic, data)
        import fastavro

        try:
            self._bounds.check(data)
            return fastavro.schemaless_reader(io.BytesIO(data), self._writer, self._schema)
        except Exception as error:
            raise SerializationError(f"the data does not match the Avro schema: {error}") from error


class ProtobufSerializer:
    """Serializes messages of one Protobuf class. Setting: `protobuf.message` (the generated
    class). With a registry, data starts with the id of its schema, and readers need no class."""

    def __init__(
        self, message: Any = None, *, registry: SchemaRegistry | str | None = None, **registry_options: Any
    ) -> None:
        self._message = message
        self._registered: RegistrySerializer | None = None
        if registry is not None:
            from kavka.client.schemas.serializers import KafkaProtobufSerializer

            self._registered = KafkaProtobufSerializer(message, registry=registry, **registry_options)

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        if self._registered is None and configs.get(_URL):
            from kavka.client.schemas.serializers import KafkaProtobufSerializer

            self._registered = KafkaProtobufSerializer(self._message)
        if self._registered is not None:
            self._registered.configure(configs, is_key)
            return
        prefix = "key" if is_key else "value"
        self._message = configs.get(f"{prefix}.protobuf.message", configs.get("protobuf.message", self._message))

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._registered is not None:
            return self._registered.serialize(topic, value)
        try:
            return bytes(value.SerializeToString())
        except Exception as error:
            raise SerializationError(f"the value is not a Protobuf message that can be serialized: {error}") from error

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if self._registered is not None:
            return self._registered.deserialize(topic, data)
        if self._message is None:
            raise ConfigError("protobuf.message", "is required by ProtobufDeserializer")
        try:
            return self._message.FromString(bytes(data))
        except Exception as error:
            raise SerializationError(f"the data is not a {self._message.__name__}: {error}") from error


AvroDeserializer = AvroSerializer
ProtobufDeserializer = ProtobufSerializer
