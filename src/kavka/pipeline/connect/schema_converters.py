"""Converters with schemas of a registry: Avro, JSON Schema and Protobuf, with the names and options
of Confluent's converters.

A sink collects the schema ids of a micro-batch and merges the types of their schemas into the
recorded type, so that it follows the evolution of a schema. A source registers the schema of its
columns in the subject of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType, StringType, StructField, StructType

from kavka.client.classes import module_of
from kavka.client.errors import SchemaRegistryError, SchemaRegistryUnavailable, SerializationError
from kavka.client.schemas.framing import HEADER_BYTES, MAX_INDEXES
from kavka.client.schemas.http import RegistryHttp
from kavka.client.schemas.json_schema import VALIDATE_ON_READ
from kavka.client.schemas.protobuf import ProtobufFile
from kavka.client.schemas.registry import Schema
from kavka.client.schemas.serializers import (
    KafkaAvroSerializer,
    KafkaJsonSchemaSerializer,
    KafkaProtobufSerializer,
    RegistrySerializer,
)
from kavka.client.schemas.subjects import STRATEGIES, strategy
from kavka.common.config import ConfigError, ConfigType, Importance, OneOf
from kavka.pipeline.columns import avro, json_schema, protobuf
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.registry import RegistryColumns
from kavka.pipeline.columns.types import SchemaName, check_width, merge_types
from kavka.pipeline.connect.converters import Converter, Decoded
from kavka.pipeline.connect.errors import ConnectError, RetriableError
from kavka.pipeline.connect.options import REQUIRED, Option

URL = "schema.registry.url"
MAX_SCHEMAS = 1000
_STRATEGIES = ("key.subject.name.strategy", "value.subject.name.strategy")
_SSL_PATHS = ("truststore.location", "truststore.type", "keystore.location", "keystore.type")
_SSL_SECRETS = ("truststore.password", "keystore.password", "key.password")


def registry_options(url_default: Any) -> tuple[Option, ...]:
    """The options of a registry. The URL is required if `url_default` is REQUIRED."""
    return (
        Option(URL, default=url_default, importance=Importance.HIGH,
               doc="The URL of the schema registry, or several URLs with commas between them."),
        Option("basic.auth.credentials.source", default=None, doc="`USER_INFO` or `URL`.",
               importance=Importance.LOW),
        Option("basic.auth.user.info", ConfigType.PASSWORD, None, "`user:password` for the registry."),
        Option("bearer.auth.credentials.source", default=None, doc="`STATIC_TOKEN`.", importance=Importance.LOW),
        Option("bearer.auth.token", ConfigType.PASSWORD, None, "A token for the registry."),
        *(Option(f"schema.registry.ssl.{name}", default=None, doc=f"Like `ssl.{name}` of clients.",
                 importance=Importance.LOW) for name in _SSL_PATHS),
        *(Option(f"schema.registry.ssl.{name}", ConfigType.PASSWORD, None, f"Like `ssl.{name}` of clients.",
                 Importance.LOW) for name in _SSL_SECRETS),
        Option("auto.register.schemas", ConfigType.BOOLEAN, True, "Whether a source registers its schemas."),
        Option("use.latest.version", ConfigType.BOOLEAN, False,
               "Whether a source writes with the latest version of the subject instead of the schema of its columns."),
        Option("normalize.schemas", ConfigType.BOOLEAN, False, "Whether the registry normalizes schemas.",
               Importance.LOW),
        *(Option(name, default="TopicNameStrategy", importance=Importance.LOW,
                 doc="`TopicNameStrategy`, `RecordNameStrategy` or `TopicRecordNameStrategy`.")
          for name in _STRATEGIES),
    )  # fmt: skip


class RegistryConverter(Converter):
    """The part that all formats share."""

    format: ClassVar[str]
    noun: ClassVar[str]
    options = registry_options(REQUIRED)

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        if not config[URL]:
            return {}
        try:
            RegistryHttp(_settings(config))
            for name in _STRATEGIES:
                # A configuration may not import modules that are not declared as plugins.
                if module_of(config[name]) is not None:
                    raise ConfigError(name, f"'{config[name]}' is not one of {', '.join(STRATEGIES)}")
                strategy(name, config[name])
        except ConfigError as error:
            return {error.name: f"Invalid value for configuration {error.name}: {error.reason}"}
        return {}

    @property
    def is_static(self) -> bool:
        return False

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        assert batch is not None
        columns = RegistryColumns(self.format, _settings(self.config, (VALIDATE_ON_READ,)))
        self.recorded = _merged_type(columns, batch, column, self.recorded)
        kind = self.recorded or StringType()
        result_type = StructType([StructField("value", kind), StructField("error", StringType())])
        result = F.udf(_reader(columns, kind), result_type, useArrow=False)(column)
        message = F.when(result["error"].isNotNull(), F.lit(f"Failed to deserialize data to {self.noun}: "))
        decoded = F.struct(result["value"].alias("value"), message.alias("error"), result["error"].alias("cause"))
        return Decoded(decoded["value"], decoded["error"], decoded["cause"], combined=decoded)

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        serializer, to_value = self.writer(kind, name)
        serializer.configure(
            _settings(self.config, ("auto.register.schemas", "normalize.schemas", *_STRATEGIES)), self.is_key
        )
        return F.udf(_writer(serializer, to_value), "binary", useArrow=False)(column, F.col("topic"))

    def writer(self, kind: DataType, name: SchemaName) -> tuple[RegistrySerializer, Callable[[Any], Any]]:
        """Returns the serializer of a column, and the function from its values to those of the
        serializer."""
        raise NotImplementedError

    @property
    def _use_latest(self) -> bool:
        return bool(self.config["use.latest.version"])


class JsonSchemaConverter(RegistryConverter):
    """JSON with a schema of the registry, which validates the values that a source writes. Without
    `connect.type`, integers are long and other numbers double."""

    java_names = ("io.confluent.connect.json.JsonSchemaConverter",)
    format, noun = "json-schema", "JSON Schema"
    options = (
        *registry_options(REQUIRED),
        Option(VALIDATE_ON_READ, ConfigType.BOOLEAN, False,
               "Whether a sink validates values with their schema. A schema may be written so that this takes very "
               "long."),
    )  # fmt: skip

    def writer(self, kind: DataType, name: SchemaName) -> tuple[RegistrySerializer, Callable[[Any], Any]]:
        schema = None if self._use_latest else json_schema.from_spark(kind, name)
        return KafkaJsonSchemaSerializer(schema, use_latest=self._use_latest), lambda value: json_schema.to_json(
            value, kind
        )


class ProtobufConverter(RegistryConverter):
    """Protobuf messages. Enums are strings, and unsigned integers long."""

    java_names = ("io.confluent.connect.protobuf.ProtobufConverter",)
    format, noun = "protobuf", "Protobuf"
    options = tuple(option for option in RegistryConverter.options if option.name != "use.latest.version")

    def writer(self, kind: DataType, name: SchemaName) -> tuple[RegistrySerializer, Callable[[Any], Any]]:
        return KafkaProtobufSerializer(), _MessageOf(protobuf.from_spark(kind, name))


class _MessageOf:
    """A function from rows to messages. Each process creates the class of the messages."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._class: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_class": None}

    def __call__(self, row: Any) -> Any:
        if self._class is None:
            self._class = ProtobufFile(self._schema, {}).message_class((0,))
        return protobuf.fill(self._class(), row)


class AvroConverter(RegistryConverter):
    """Avro, one datum per record. With `schema.registry.url` the schemas are in a registry. Without
    it, the schema is configured: with `wire.format=confluent` a datum has Confluent's five-byte
    prefix (a zero and the schema id), and the id is ignored when reading."""

    java_names = ("io.confluent.connect.avro.AvroConverter",)
    format, noun = "avro", "Avro"
    options = (
        *registry_options(None),
        Option("schema", default=None, importance=Importance.HIGH,
               doc="The Avro schema as JSON. Sinks without a registry require it. Sources without it derive a schema "
                   "from their columns."),
        Option("wire.format", default="none", recommended=("none", "confluent"), validator=OneOf(("none", "confluent")),
               doc="Without a registry. `none`: the datum alone; `confluent`: a zero byte and the four-byte schema id "
                   "before it."),
        Option("schema.id", ConfigType.INT, default=0, doc="The schema id to write with `wire.format=confluent`."),
    )  # fmt: skip

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        try:
            if config["schema"]:
                avro.to_spark(config["schema"])
        except ColumnError as error:
            return {"schema": f"Invalid value for configuration schema: {error}"}
        return super().check(config)

    @property
    def is_static(self) -> bool:
        return not self.config[URL]

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        if self.config[URL]:
            return super().decode(column, batch)
        if not self.config["schema"]:
            raise ConnectError("AvroConverter requires the option schema.registry.url or schema to read records")
        kind = avro.to_spark(self.config["schema"])
        result_type = StructType([StructField("value", kind), StructField("error", StringType())])
        read = F.udf(avro.reader(self.config["schema"], self._confluent), result_type, useArrow=False)
        result = read(column)
        message = F.when(result["error"].isNotNull(), F.lit("Failed to deserialize data to Avro: "))
        return Decoded(result["value"], message, result["error"])

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        if self.config[URL]:
            return super().encode(column, kind, name)
        schema = self.config["schema"] or avro.from_spark(kind, name)
        prefix = b"\0" + int(self.config["schema.id"]).to_bytes(4, "big") if self._confluent else b""
        return F.udf(avro.writer(schema, prefix), "binary", useArrow=False)(column)

    def writer(self, kind: DataType, name: SchemaName) -> tuple[RegistrySerializer, Callable[[Any], Any]]:
        schema = None if self._use_latest else self.config["schema"] or avro.from_spark(kind, name)
        return KafkaAvroSerializer(schema, use_latest=self._use_latest), avro.from_row

    @property
    def _confluent(self) -> bool:
        return bool(self.config["wire.format"] == "confluent")


def _settings(config: Mapping[str, Any], more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the settings of the registry, and these other options."""
    values = {name: value for name, value in config.items() if value is not None}
    return RegistryHttp.own_settings(values) | {name: values[name] for name in more if name in values}


def _merged_type(
    columns: RegistryColumns, batch: DataFrame, column: Column, recorded: DataType | None
) -> DataType | None:
    """Returns the recorded type, merged with those of a micro-batch whose schemas have a type. The
    types of the most frequent schemas are merged first, up to MAX_SCHEMAS. Other records fail one
    by one when they are read. The type is None if no schema has one."""
    # For Protobuf also the position of the message type, which has a few bytes.
    header = F.substring(column, 1, HEADER_BYTES + 2 * MAX_INDEXES if columns.has_message_types else HEADER_BYTES)
    if columns.has_message_types:
        header = F.udf(columns.header_or_null, "binary", useArrow=False)(header)
    framed = batch.filter(F.startswith(column, F.lit(b"\0")))
    counts = framed.groupBy(header.alias("h")).count().filter("h IS NOT NULL")
    frequent = counts.orderBy(F.desc("count"), "h").limit(MAX_SCHEMAS).collect()
    kind: DataType = recorded or NullType()
    for row in frequent:
        try:
            merged = merge_types(kind, columns.type_of_header(bytes(row["h"])))
            check_width(merged)
        except SchemaRegistryError as error:
            raise _failure(error) from error
        except (ColumnError, SerializationError):
            continue
        kind = merged
    return None if isinstance(kind, NullType) else kind


def _reader(columns: RegistryColumns, kind: DataType) -> Callable[[Any], Any]:
    """Returns a function for a UDF, which converts bytes to (value, error message)."""

    def read(data: Any) -> Any:
        if data is None:
            return (None, None)
        try:
            return (columns.read_as(bytes(data), kind), None)
        except SerializationError as error:
            return (None, str(error))
        except SchemaRegistryError as error:
            raise _failure(error) from error

    return read


def _writer(serializer: RegistrySerializer, to_value: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def write(value: Any, topic: Any) -> Any:
        try:
            return None if value is None else serializer.serialize(topic, to_value(value))
        except SchemaRegistryError as error:
            raise _failure(error) from error

    return write


def _failure(error: SchemaRegistryError) -> ConnectError:
    """Returns the error of a task, which is retried if the registry is not available."""
    return (RetriableError if isinstance(error, SchemaRegistryUnavailable) else ConnectError)(str(error))
