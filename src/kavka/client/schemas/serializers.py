"""Serializers that find their schemas in a registry, with Confluent's names, settings and framing.

Each class converts in both directions. Settings, beside those of the registry (`http.py`):
`auto.register.schemas`, `normalize.schemas`, `use.latest.version`, `use.schema.id`,
`key.subject.name.strategy`, `value.subject.name.strategy`; for the schema `avro.schema`,
`json.schema` or `protobuf.message`, also with `key.` or `value.` before them;
`json.fail.invalid.schema`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kavka.client.errors import SchemaRegistryError, SerializationError
from kavka.client.schemas import avro, framing, json_schema, protobuf
from kavka.client.schemas.framing import HEADER_BYTES
from kavka.client.schemas.registry import Schema, SchemaReference, SchemaRegistry, shared_registry
from kavka.client.schemas.subjects import SubjectName, record_name, strategy, topic_name
from kavka.common.config import ConfigError

MAX_CACHED = 1000


class RegistrySerializer:
    """The part that all formats share: the subject, the registration and the header."""

    TYPE = ""
    SCHEMA_SETTING = ""

    def __init__(
        self,
        schema: Any = None,
        *,
        registry: SchemaRegistry | str | None = None,
        auto_register: bool = True,
        use_latest: bool = False,
        schema_id: int | None = None,
        normalize: bool = False,
        subject_name: SubjectName = topic_name,
        is_key: bool = False,
    ) -> None:
        self._schema = self._to_schema(schema)
        self._registry = SchemaRegistry(registry) if isinstance(registry, str) else registry
        self._auto_register = auto_register
        self._use_latest = use_latest
        self._schema_id = schema_id
        self._normalize = normalize
        self._subject_name = subject_name
        self._is_key = is_key
        self._writers: dict[Any, Any] = {}
        self._readers: dict[int, Any] = {}
        self._texts: dict[int, Any] = {}
        self._parsed: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Parsed schemas stay in their process.
        return {**self.__dict__, "_writers": {}, "_readers": {}, "_texts": {}, "_parsed": None}

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        self._is_key = is_key
        prefix = "key" if is_key else "value"
        schema = configs.get(f"{prefix}.{self.SCHEMA_SETTING}", configs.get(self.SCHEMA_SETTING))
        if schema is not None:
            self._schema = self._to_schema(schema)
        if self._registry is None or "schema.registry.url" in configs:
            self._registry = shared_registry(configs)
        self._auto_register = boolean(configs, "auto.register.schemas", self._auto_register)
        self._use_latest = boolean(configs, "use.latest.version", self._use_latest)
        self._normalize = boolean(configs, "normalize.schemas", self._normalize)
        if (schema_id := configs.get("use.schema.id")) is not None:
            self._schema_id = _integer("use.schema.id", schema_id)
        name = f"{prefix}.subject.name.strategy"
        if (configured := configs.get(name)) is not None:
            self._subject_name = strategy(name, configured)

    @property
    def registry(self) -> SchemaRegistry:
        if self._registry is None:
            raise ConfigError("schema.registry.url", "must be set to the URL of a schema registry")
        return self._registry

    @property
    def needs_topic(self) -> bool:
        """Whether the topic determines the subject."""
        return self._schema_id is None and self._subject_name is not record_name

    # --- writing

    def serialize(self, topic: str, value: Any) -> bytes | None:
        if value is None:
            return None
        key = self._writer_key(topic, value)
        prepared = self._writers.get(key)
        if prepared is None:
            if len(self._writers) >= MAX_CACHED:
                self._writers.clear()
            prepared = self._writers[key] = self._prepare(topic, value)
        header, write = prepared
        data: bytes = header + write(value)
        return data

    def _writer_key(self, topic: str, value: Any) -> Any:
        # With use.latest.version the registry decides when it looks for a later version.
        if self._use_latest:
            return topic, self.registry.latest(self._subject(topic)).id
        return topic

    def _prepare(self, topic: str, value: Any) -> tuple[bytes, Callable[[Any], bytes]]:
        """Return the header and the function that writes the payload."""
        schema_id, schema = self._schema_to_write(topic)
        return framing.header(schema_id), self._writer(schema)

    def _schema_to_write(self, topic: str) -> tuple[int, Schema]:
        if self._schema_id is not None:
            return self._schema_id, self._checked(self.registry.schema(self._schema_id), self._schema_id)
        if self._use_latest or self._schema is None:
            if self._schema is None and not self._use_latest:
                raise SerializationError(f"set {self.SCHEMA_SETTING}, or use.latest.version=true to write")
            latest = self.registry.latest(self._subject(topic))
            return latest.id, self._checked(latest.schema, latest.id)
        subject = self._subject(topic)
        return self._registered_id(subject, self._schema), self._schema

    def _registered_id(self, subject: str, schema: Schema) -> int:
        if self._auto_register:
            return self.registry.register(subject, schema, normalize=self._normalize)
        try:
            return self.registry.lookup(subject, schema, normalize=self._normalize).id
        except SchemaRegistryError as error:
            if error.status == 404:
                raise SerializationError(
                    f"the schema is not registered in subject {subject}, and auto.register.schemas=false"
                ) from error
            raise

    def _subject(self, topic: str) -> str:
        return self._subject_name(topic, self._is_key, self._record_name())

    def _own_parsed(self) -> Any:
        if self._parsed is None and self._schema is not None:
            self._parsed = self._parse(self._schema)
        return self._parsed

    # --- reading

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        data = bytes(data)
        schema_id = framing.schema_id_of(data)
        read = self._readers.get(schema_id)
        if read is None:
            if len(self._readers) >= MAX_CACHED:
                self._readers.clear()
            schema, _ = self.registry.written_with(schema_id)
            try:
                read = self._reader(self._checked(schema, schema_id))
            except SerializationError as error:
                read = failing(str(error))
            self._readers[schema_id] = read
        return read(data, HEADER_BYTES)

    # --- text, for tools

    def to_text(self, topic: str, data: bytes) -> str:
        """Return the JSON of serialized data, as Confluent's console tools print it."""
        return json.dumps(self.deserialize(topic, data), separators=(",", ":"), ensure_ascii=False)

    def from_text(self, topic: str, text: str) -> bytes | None:
        """Return the serialized data of JSON, as `to_text` returns it."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise SerializationError(f"the text is not JSON: {error}") from None
        return self.serialize(topic, value)

    def _checked(self, schema: Schema, schema_id: int) -> Schema:
        if schema.type != self.TYPE:
            raise SerializationError(f"schema {schema_id} has the type {schema.type}, not {self.TYPE}")
        return schema

    # --- formats

    def _to_schema(self, schema: Any) -> Schema | None:
        if schema is None or isinstance(schema, Schema):
            return schema
        return Schema(schema if isinstance(schema, str) else json.dumps(schema), self.TYPE)

    def _parse(self, schema: Schema) -> Any:
        raise NotImplementedError

    def _record_name(self) -> str | None:
        raise NotImplementedError

    def _writer(self, schema: Schema) -> Callable[[Any], bytes]:
        raise NotImplementedError

    def _reader(self, schema: Schema) -> Callable[[bytes, int], Any]:
        raise NotImplementedError


class KafkaAvroSerializer(RegistrySerializer):
    """Avro. Values are what fastavro takes, usually dicts. A reader with a schema resolves data of
    other versions to it; without one, data is read as it was written."""

    TYPE = avro.TYPE
    SCHEMA_SETTING = "avro.schema"

    def _parse(self, schema: Schema) -> Any:
        return avro.parse(schema, self.registry.dependencies(schema))

    def _record_name(self) -> str | None:
        return avro.record_name(self._own_parsed())

    def _writer(self, schema: Schema) -> Callable[[Any], bytes]:
        return avro.writer(self._parse(schema))

    def _reader(self, schema: Schema) -> Callable[[bytes, int], Any]:
        return avro.reader(self._parse(schema), self._own_parsed())

    def to_text(self, topic: str, data: bytes) -> str:
        value = self.deserialize(topic, data)
        schema_id = framing.schema_id_of(data)
        return avro.to_json(self._cached_parse(schema_id, self.registry.schema(schema_id)), value)

    def from_text(self, topic: str, text: str) -> bytes | None:
        schema_id, schema = self._schema_to_write(topic)
        return self.serialize(topic, avro.from_json(self._cached_parse(schema_id, schema), text))

    def _cached_parse(self, schema_id: int, schema: Schema) -> Any:
        if schema_id not in self._texts:
            if len(self._texts) >= MAX_CACHED:
                self._texts.clear()
            self._texts[schema_id] = self._parse(schema)
        return self._texts[schema_id]


class KafkaJsonSchemaSerializer(RegistrySerializer):
    """JSON that is validated with its schema when it is written, and with `validate_on_read`
    (`json.fail.invalid.schema`) also when it is read."""

    TYPE = json_schema.TYPE
    SCHEMA_SETTING = "json.schema"

    def __init__(self, schema: Any = None, *, validate_on_read: bool = False, **options: Any) -> None:
        super().__init__(schema, **options)
        self._validate_on_read = validate_on_read

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        super().configure(configs, is_key)
        self._validate_on_read = boolean(configs, json_schema.VALIDATE_ON_READ, self._validate_on_read)

    def _parse(self, schema: Schema) -> json_schema.JsonValidator:
        return json_schema.JsonValidator(schema, self.registry.dependencies(schema))

    def _record_name(self) -> str | None:
        own: json_schema.JsonValidator | None = self._own_parsed()
        return None if own is None else own.record_name

    def _writer(self, schema: Schema) -> Callable[[Any], bytes]:
        return self._parse(schema).write

    def _reader(self, schema: Schema) -> Callable[[bytes, int], Any]:
        validator = self._parse(schema)
        return validator.read_valid if self._validate_on_read else validator.read


class KafkaProtobufSerializer(RegistrySerializer):
    """Protobuf. Values to write are messages; their file and the files that it imports are
    registered. With a schema from the registry (`use.latest.version`, `use.schema.id`), mappings in
    Protobuf's JSON form are written. Data is read as `message`, or as a class that is created from
    the schema.

    `message` (`protobuf.message`) is a generated class, or for mappings the full name of a type.
    """

    TYPE = protobuf.TYPE
    SCHEMA_SETTING = "protobuf.schema"

    def __init__(self, message: Any = None, **options: Any) -> None:
        super().__init__(options.pop("schema", None), **options)
        self._message = message

    def configure(self, configs: Mapping[str, Any], is_key: bool) -> None:
        prefix = "key" if is_key else "value"
        self._message = configs.get(f"{prefix}.protobuf.message", configs.get("protobuf.message", self._message))
        super().configure(configs, is_key)

    def _writer_key(self, topic: str, value: Any) -> Any:
        descriptor = getattr(value, "DESCRIPTOR", None)
        if descriptor is None:
            return super()._writer_key(topic, value)
        schema_id = self._existing_schema(topic, descriptor.full_name)[0] if self._use_latest else None
        return topic, descriptor.file.name, descriptor.full_name, schema_id

    def _prepare(self, topic: str, value: Any) -> tuple[bytes, Callable[[Any], bytes]]:
        descriptor = getattr(value, "DESCRIPTOR", None)
        if descriptor is None:
            schema_id, schema = self._schema_to_write(topic)
            return framing.header(schema_id), self._writer(schema)
        if self._schema_id is None and not self._use_latest:
            subject = self._subject_name(topic, self._is_key, descriptor.full_name)
            schema_id = self._registered_id(subject, self._file_schema(descriptor.file))
            indexes = protobuf.indexes_of(descriptor)
        else:
            schema_id, schema = self._existing_schema(topic, descriptor.full_name)
            indexes = list(self._parse(schema).indexes_by_name(descriptor.full_name))
        return framing.header(schema_id) + framing.encode_indexes(indexes), protobuf.write

    def _existing_schema(self, topic: str, message: str) -> tuple[int, Schema]:
        """Return the configured schema, or the latest of the subject of a message type."""
        if self._schema_id is not None:
            return self._schema_id, self._checked(self.registry.schema(self._schema_id), self._schema_id)
        latest = self.registry.latest(self._subject_name(topic, self._is_key, message))
        return latest.id, self._checked(latest.schema, latest.id)

    def _file_schema(self, file: Any) -> Schema:
        """Return the schema of a file, after the files that it imports are registered in subjects
        of their names."""
        references = []
        for imported in file.dependencies:
            if not protobuf.is_built_in(imported.name):
                schema = self._file_schema(imported)
                self._registered_id(imported.name, schema)
                version = self.registry.lookup(imported.name, schema, normalize=self._normalize).version
                references.append(SchemaReference(imported.name, imported.name, version))
        return protobuf.schema_of(file, references)

    def to_text(self, topic: str, data: bytes) -> str:
        mapping = protobuf.to_mapping(self.deserialize(topic, data))
        return json.dumps(mapping, separators=(",", ":"), ensure_ascii=False)

    def _parse(self, schema: Schema) -> protobuf.ProtobufFile:
        return protobuf.ProtobufFile(schema, self.registry.dependencies(schema))

    def _record_name(self) -> str | None:
        if isinstance(self._message, str):
            return self._message
        if self._message is not None:
            return str(self._message.DESCRIPTOR.full_name)
        own: protobuf.ProtobufFile | None = self._own_parsed()
        return None if own is None else str(own.message_class((0,)).DESCRIPTOR.full_name)

    def _writer(self, schema: Schema) -> Callable[[Any], bytes]:
        file = self._parse(schema)
        name = self._message if self._message is None or isinstance(self._message, str) else self._record_name()
        indexes = file.indexes_by_name(name)
        prefix, message_class = framing.encode_indexes(indexes), file.message_class(indexes)
        return lambda value: prefix + protobuf.write(protobuf.from_mapping(message_class, value))

    def _reader(self, schema: Schema) -> Callable[[bytes, int], Any]:
        file = self._parse(schema)
        own_class = None if isinstance(self._message, str) else self._message

        def read(data: bytes, position: int) -> Any:
            indexes, start = framing.decode_indexes(data, position)
            message_class = file.message_class(indexes)
            if own_class is not None:
                name = message_class.DESCRIPTOR.full_name
                if name != own_class.DESCRIPTOR.full_name:
                    raise SerializationError(f"the data is a {name}, not a {own_class.DESCRIPTOR.full_name}")
                message_class = own_class
            return protobuf.read(message_class, data[start:])

        return read


def failing(message: str) -> Callable[[bytes, int], Any]:
    """Return the reader of a schema that cannot be used. A reader is cached, so that the schema is
    not parsed again for each record."""

    def read(data: bytes, position: int) -> Any:
        raise SerializationError(message)

    return read


def boolean(configs: Mapping[str, Any], name: str, default: bool) -> bool:
    value = str(configs.get(name, default)).lower()
    if value not in ("true", "false"):
        raise ConfigError(name, f"'{value}' is neither true nor false")
    return value == "true"


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(name, f"'{value}' is not a number") from None


JsonSchemaSerializer = JsonSchemaDeserializer = KafkaJsonSchemaSerializer
KafkaAvroDeserializer = KafkaAvroSerializer
KafkaJsonSchemaDeserializer = KafkaJsonSchemaSerializer
KafkaProtobufDeserializer = KafkaProtobufSerializer
FORMATS: dict[str, type[RegistrySerializer]] = {
    "avro": KafkaAvroSerializer,
    "json-schema": KafkaJsonSchemaSerializer,
    "protobuf": KafkaProtobufSerializer,
}
