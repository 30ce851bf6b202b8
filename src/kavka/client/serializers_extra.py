"""Avro and Protobuf, for those who have `fastavro` or `protobuf` installed (`pip install kavka[serializers]`)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from kavka.client.errors import SerializationError
from kavka.common.config import ConfigError


class AvroSerializer:
    """Records of one Avro schema, as plain binary without a schema in front. The reader needs the same schema, or gives
    its own and the writer's: `AvroSerializer(reader, writer_schema=writer)`.

    By settings: `avro.schema` (a mapping, or JSON) for both directions, `avro.writer.schema`.
    """

    def __init__(self, schema: Any = None, *, writer_schema: Any = None) -> None:
        self._schema = self._parse(schema)
        self._writer = self._parse(writer_schema) if writer_schema is not None else self._schema

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        part = "key" if is_key else "value"
        schema = configs.get(f"{part}.avro.schema", configs.get("avro.schema"))
        if self._schema is None and schema is None:
            raise ConfigError("avro.schema", "it must be given for AvroSerializer")
        if schema is not None:
            self._schema = self._writer = self._parse(schema)
        if (writer := configs.get("avro.writer.schema")) is not None:
            self._writer = self._parse(writer)

    @staticmethod
    def _parse(schema: Any) -> Any:
        if schema is None:
            return None
        try:
            import fastavro
        except ImportError:
            raise ConfigError("avro.schema", "fastavro is not installed: pip install kavka[serializers]") from None
        if isinstance(schema, str):
            import json

            schema = json.loads(schema)
        return fastavro.parse_schema(schema)

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        import fastavro

        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._schema, value)
        except Exception as error:
            raise SerializationError(f"the value does not fit the schema: {error}") from error
        return out.getvalue()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        import fastavro

        try:
            return fastavro.schemaless_reader(io.BytesIO(data), self._writer, self._schema)
        except Exception as error:
            raise SerializationError(f"the data does not fit the schema: {error}") from error


class ProtobufSerializer:
    """Messages of one Protobuf class; by settings: `protobuf.message` (the generated class)."""

    def __init__(self, message: Any = None) -> None:
        self._message = message

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        part = "key" if is_key else "value"
        self._message = configs.get(f"{part}.protobuf.message", configs.get("protobuf.message", self._message))

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return bytes(value.SerializeToString())
        except Exception as error:
            raise SerializationError(f"not a Protobuf message that can be written: {error}") from error

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        if self._message is None:
            raise ConfigError("protobuf.message", "it must be given for ProtobufDeserializer")
        try:
            return self._message.FromString(bytes(data))
        except Exception as error:
            raise SerializationError(f"not a {self._message.__name__}: {error}") from error
