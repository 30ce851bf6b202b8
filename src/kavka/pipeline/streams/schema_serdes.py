"""Serdes with schemas of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kavka.client.schemas.registry import SchemaRegistry, shared_registry
from kavka.client.schemas.serializers import (
    KafkaAvroSerializer,
    KafkaJsonSchemaSerializer,
    KafkaProtobufSerializer,
    RegistrySerializer,
)
from kavka.pipeline.streams.serdes import Serde

Registry = SchemaRegistry | Mapping[str, Any] | str


class SchemaSerdes:
    """Serdes of Avro, JSON Schema and Protobuf, with Confluent's framing. `registry` is the URL of
    the registry, its settings, or a SchemaRegistry.

    A serde does not know the topics that it is used for. `topic` names the one whose subject has
    the schema. It is required to write, unless a `subject_name` strategy does not need it. Other
    options are those of the serializers: `use_latest`, `auto_register`, `is_key` …
    """

    @staticmethod
    def avro(schema: Any = None, *, registry: Registry, topic: str = "", **options: Any) -> Serde:
        return _serde("Avro", KafkaAvroSerializer(schema, registry=_registry(registry), **options), topic)

    @staticmethod
    def json_schema(schema: Any = None, *, registry: Registry, topic: str = "", **options: Any) -> Serde:
        return _serde("JsonSchema", KafkaJsonSchemaSerializer(schema, registry=_registry(registry), **options), topic)

    @staticmethod
    def protobuf(message: Any = None, *, registry: Registry, topic: str = "", **options: Any) -> Serde:
        return _serde("Protobuf", KafkaProtobufSerializer(message, registry=_registry(registry), **options), topic)


def _registry(registry: Registry) -> SchemaRegistry:
    if isinstance(registry, SchemaRegistry):
        return registry
    return shared_registry({"schema.registry.url": registry} if isinstance(registry, str) else registry)


def _serde(name: str, serializer: RegistrySerializer, topic: str) -> Serde:
    write = partial(_write, serializer, topic)
    return Serde(f"SchemaSerdes.{name}", write, partial(serializer.deserialize, topic))


def _write(serializer: RegistrySerializer, topic: str, value: Any) -> bytes:
    if not topic and serializer.needs_topic:
        raise ValueError("the serde needs the argument topic, which names the subject of its schema")
    return serializer.serialize(topic, value) or b""
