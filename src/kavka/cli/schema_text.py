"""Records of a schema registry as text: the formatters `avro`, `json-schema` and `protobuf` of
console-consumer, and the readers of these names of console-producer.

The properties are those of Confluent's tools: `schema.registry.url` and the settings of the
registry, `value.schema`, `value.schema.file`, `value.schema.id`, and the same for keys. Keys are
text unless `key.format` names a format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kavka.common.config import ConfigError

if TYPE_CHECKING:
    from kavka.client.schemas.registry import Schema
    from kavka.client.schemas.serializers import RegistrySerializer

Properties = Mapping[str, str]

_CONFLUENT = "io.confluent.kafka.formatter."
NAMES = {
    "avro": "avro",
    "json-schema": "json-schema",
    "protobuf": "protobuf",
    f"{_CONFLUENT}AvroMessageFormatter": "avro",
    f"{_CONFLUENT}json.JsonSchemaMessageFormatter": "json-schema",
    f"{_CONFLUENT}protobuf.ProtobufMessageFormatter": "protobuf",
    f"{_CONFLUENT}AvroMessageReader": "avro",
    f"{_CONFLUENT}json.JsonSchemaMessageReader": "json-schema",
    f"{_CONFLUENT}protobuf.ProtobufMessageReader": "protobuf",
}
"""Formats by the names that --formatter and --line-reader accept."""


def key_format(properties: Properties) -> str | None:
    """Return the format of keys; None if keys are text."""
    name = properties.get("key.format")
    if name is None or name == "text":
        return None
    if name not in NAMES:
        raise ConfigError("key.format", f"'{name}' is not a format: avro, json-schema, protobuf or text")
    return NAMES[name]


def reading_serializer(format: str, properties: Properties, is_key: bool) -> RegistrySerializer:
    """Return the deserializer of a format. Raise ConfigError if a property is invalid."""
    from kavka.client.schemas.serializers import FORMATS

    serializer = FORMATS[format]()
    serializer.configure(properties, is_key)
    return serializer


def writing_serializer(format: str, properties: Properties, is_key: bool) -> RegistrySerializer:
    """Return the serializer of a format: with the schema of the properties, or else the latest of
    the subject. Raise ConfigError if a property is invalid."""
    from kavka.client.schemas.serializers import FORMATS, KafkaProtobufSerializer

    side = "key" if is_key else "value"
    schema = _schema(format, properties, side)
    settings = dict(properties)
    if (schema_id := properties.get(f"{side}.schema.id")) is not None:
        settings["use.schema.id"] = schema_id
    uses_latest = schema is None and schema_id is None
    serializer: RegistrySerializer
    if format == "protobuf":
        serializer = KafkaProtobufSerializer(schema=schema, use_latest=uses_latest)
    else:
        serializer = FORMATS[format](schema, use_latest=uses_latest)
    serializer.configure(settings, is_key)
    return serializer


def _schema(format: str, properties: Properties, side: str) -> Schema | None:
    from kavka.client.schemas.registry import Schema, SchemaReference

    text, file = properties.get(f"{side}.schema"), properties.get(f"{side}.schema.file")
    if file is not None:
        try:
            text = Path(file).read_text()
        except OSError as error:
            raise ConfigError(f"{side}.schema.file", f"{file}: {error.strerror}") from None
    if text is None:
        return None
    try:
        references = tuple(
            SchemaReference(reference["name"], reference["subject"], int(reference["version"]))
            for reference in json.loads(properties.get(f"{side}.refs", "[]"))
        )
    except (ValueError, KeyError, TypeError):
        example = '[{"name": "a.B", "subject": "b-value", "version": 1}]'
        raise ConfigError(f"{side}.refs", f"must be like {example}") from None
    return Schema(text, FORMAT_TYPES[format], references)


FORMAT_TYPES = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
