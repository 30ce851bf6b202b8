"""Columns from data whose schemas are in a registry, for converters and the Spark source. The code
runs in Spark's Python workers: objects are pickled with their settings, and each process has its
own cache of schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
)

from kavka.client.errors import SchemaRegistryError, SerializationError
from kavka.client.schemas import avro as avro_format
from kavka.client.schemas import framing
from kavka.client.schemas.framing import HEADER_BYTES
from kavka.client.schemas.json_schema import VALIDATE_ON_READ, JsonValidator
from kavka.client.schemas.protobuf import ProtobufFile
from kavka.client.schemas.protobuf import read as read_message
from kavka.client.schemas.registry import Schema, SchemaRegistry, shared_registry
from kavka.client.schemas.serializers import boolean, failing
from kavka.pipeline.columns import avro, avro_arrays, json_schema, protobuf
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import merge_types

Read = Callable[[bytes, int], Any]
Convert = Callable[[Any], Any]

MAX_CACHED = 1000
TYPES = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
"""The types of the registry by the names of formats."""


class RegistryColumns:
    """Data of one format. Without a reader's schema, each record is read with its own schema. With
    one, it is resolved to it: by Avro's rules, by the field numbers of Protobuf, or by the names of
    JSON. `message` is the full name of a Protobuf type, by default the first of the reader's
    schema."""

    def __init__(
        self,
        format: str,
        settings: Mapping[str, Any],
        reader_schema: Schema | None = None,
        message: str | None = None,
    ) -> None:
        self._type = TYPES[format]
        self._settings = dict(settings)
        self._reader_schema = reader_schema
        self._message = message
        self._forget()

    def _forget(self) -> None:
        self._readers: dict[int, Read] = {}
        self._equal: dict[int, bool] = {}
        self._converters: dict[bytes, Convert | None] = {}
        self._reader_definition: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Parsed schemas stay in their process.
        names = ("_type", "_settings", "_reader_schema", "_message")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def registry(self) -> SchemaRegistry:
        return shared_registry(self._settings)

    # --- types

    def type_of(self, schema: Schema, indexes: tuple[int, ...] | None = None) -> DataType:
        """Returns the column type of a schema. `indexes` is the position of a Protobuf type. Raises
        ColumnError or SerializationError."""
        self._check(schema)
        definition = self._parsed(schema)
        if isinstance(definition, JsonValidator):
            return json_schema.to_column(definition).kind
        if isinstance(definition, ProtobufFile):
            position = definition.indexes_by_name(self._message) if indexes is None else indexes
            return protobuf.column_type(definition.message_class(position).DESCRIPTOR)
        return avro.column_type(definition)

    @property
    def has_message_types(self) -> bool:
        """Whether a schema has several types, so that the header names one."""
        return self._type == "PROTOBUF"

    def header_or_null(self, data: Any) -> bytes | None:
        """Returns the bytes that determine the type of the data; None if there are none."""
        try:
            return None if data is None else self._header(bytes(data))
        except SerializationError:
            return None

    def type_of_header(self, header: bytes) -> DataType:
        """Returns the column type of data that starts with these bytes: at least the schema id, and
        for Protobuf the position of the message type."""
        schema, _ = self.registry.written_with(framing.schema_id_of(header))
        return self.type_of(schema, framing.decode_indexes(header, HEADER_BYTES)[0] if self.has_message_types else None)

    def _check(self, schema: Schema) -> None:
        if schema.type != self._type:
            raise SerializationError(f"the schema has the type {schema.type}, not {self._type}")

    def _parsed(self, schema: Schema) -> Any:
        dependencies = self.registry.dependencies(schema)
        if self._type == "JSON":
            return JsonValidator(schema, dependencies)
        if self._type == "PROTOBUF":
            return ProtobufFile(schema, dependencies)
        return avro_format.parse(schema, dependencies)

    # --- values

    def read(self, data: bytes) -> Any:
        """Returns the value of a column. Raises SchemaRegistryError, or SerializationError if the
        data does not fit."""
        try:
            schema_id = framing.schema_id_of(data)
            read = self._readers.get(schema_id)
            if read is None:
                if len(self._readers) >= MAX_CACHED:
                    self._readers.clear()
                schema, _ = self.registry.written_with(schema_id)
                read = self._readers[schema_id] = self._reader_or_failing(schema)
            return read(data, HEADER_BYTES)
        except (SchemaRegistryError, SerializationError):
            raise
        except ColumnError as error:
            raise SerializationError(str(error)) from None
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise SerializationError(f"the data does not match schema {schema_id}: {reason}") from None

    def read_array(self, column: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """Returns the array of a column of Avro data that is written with the reader's schema; None
        if `read` must read the values one by one. Raises SchemaRegistryError."""
        if self._type != "AVRO" or self._reader_schema is None or column.type != pa.binary():
            return None
        if self._reader_definition is None:
            self._reader_definition = self._parsed(self._reader_schema)
        try:
            return avro_arrays.decode(column, self._reader_definition, kind, self._is_reader_schema)
        except (avro_arrays.Unreadable, pa.ArrowException, SerializationError):
            return None

    def _is_reader_schema(self, schema_id: int) -> bool:
        if schema_id not in self._equal:
            schema, _ = self.registry.written_with(schema_id)
            self._check(schema)
            if len(self._equal) >= MAX_CACHED:
                self._equal.clear()
            self._equal[schema_id] = avro.has_same_data(self._parsed(schema), self._reader_definition)
        return self._equal[schema_id]

    def read_as(self, data: bytes, kind: DataType) -> Any:
        """Returns the value of a column of type `kind`, into which the types of several schemas are
        merged. All calls have the same `kind`."""
        value = self.read(data)
        header = self._header(data)
        if header not in self._converters:
            if len(self._converters) >= MAX_CACHED:
                self._converters.clear()
            self._converters[header] = self._conversion(header, kind)
        convert = self._converters[header]
        return value if convert is None else convert(value)

    def _conversion(self, header: bytes, kind: DataType) -> Convert | None:
        own_type = self.type_of_header(header)
        try:
            is_part = merge_types(kind, own_type) == kind
        except ColumnError:
            is_part = False
        if is_part:
            return _widening(own_type, kind)
        error = f"its schema is incompatible with others of the batch: {own_type.simpleString()}, {kind.simpleString()}"

        def refuse(value: Any) -> Any:
            raise SerializationError(error)

        return refuse

    def _header(self, data: bytes) -> bytes:
        """Returns the bytes that determine the type of the data."""
        framing.schema_id_of(data)
        end = framing.decode_indexes(data, HEADER_BYTES)[1] if self.has_message_types else HEADER_BYTES
        return data[:end]

    def _reader_or_failing(self, schema: Schema) -> Read:
        try:
            self._check(schema)
            return self._reader(schema)
        except (ColumnError, SerializationError) as error:
            return failing(str(error))

    def _reader(self, schema: Schema) -> Read:
        definition = self._parsed(schema)
        if self._reader_schema is not None and self._reader_definition is None:
            self._reader_definition = self._parsed(self._reader_schema)
        if isinstance(definition, JsonValidator):
            return self._json_reader(definition)
        if isinstance(definition, ProtobufFile):
            return self._protobuf_reader(definition)
        return avro.column_reader(definition, self._reader_definition)

    def _json_reader(self, validator: JsonValidator) -> Read:
        convert = json_schema.to_column(self._reader_definition or validator).convert
        read = validator.read_valid if boolean(self._settings, VALIDATE_ON_READ, False) else validator.read
        return lambda data, position: convert(read(data, position))

    def _protobuf_reader(self, file: ProtobufFile) -> Read:
        readers: dict[tuple[int, ...], Read] = {}
        reader_file: ProtobufFile | None = self._reader_definition

        def prepared(indexes: tuple[int, ...]) -> Read:
            message_class = file.message_class(indexes)
            if reader_file is not None:
                own_class = reader_file.message_class(reader_file.indexes_by_name(self._message))
                name, own_name = message_class.DESCRIPTOR.full_name, own_class.DESCRIPTOR.full_name
                if name != own_name:
                    raise SerializationError(f"the data is a {name}, not a {own_name}")
                message_class = own_class
            convert = protobuf.converter(message_class.DESCRIPTOR)
            return lambda data, start: convert(read_message(message_class, data[start:]))

        def read(data: bytes, position: int) -> Any:
            indexes, start = framing.decode_indexes(data, position)
            if indexes not in readers:
                if len(readers) >= MAX_CACHED:
                    readers.clear()
                try:
                    readers[indexes] = prepared(indexes)
                except (ColumnError, SerializationError) as error:
                    readers[indexes] = failing(str(error))
            return readers[indexes](data, start)

        return read


def _widening(source: DataType, target: DataType) -> Convert | None:
    """Returns the conversion of a value to the merged type; None if it needs none. Integers of all
    sizes are the same in Python, and fields that are missing become null."""
    if source == target:
        return None
    match source, target:
        case StructType(), StructType():
            targets = {field.name: field.dataType for field in target.fields}
            inner = {
                field.name: convert
                for field in source.fields
                if (convert := _widening(field.dataType, targets[field.name])) is not None
            }
            return None if not inner else lambda value: _widen_struct(value, inner)
        case ArrayType(), ArrayType():
            item = _widening(source.elementType, target.elementType)
            return None if item is None else lambda value: _widen_list(value, item)
        case MapType(), MapType():
            inner_value = _widening(source.valueType, target.valueType)
            return None if inner_value is None else lambda value: _widen_map(value, inner_value)
        case _, DoubleType() | FloatType():
            return lambda value: None if value is None else float(value)
        case DecimalType(), DecimalType() if source.precision - source.scale > target.precision - target.scale:
            return _fitting(target)
    return None


def _fitting(kind: DecimalType) -> Convert:
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any) -> Any:
        # Python's abs rounds.
        if value is not None and value.copy_abs() >= limit:
            raise SerializationError(f"the decimal {value} has too many digits for {kind.simpleString()}")
        return value

    return convert


def _widen_struct(value: Any, inner: Mapping[str, Convert]) -> Any:
    return None if value is None else {**value, **{name: convert(value[name]) for name, convert in inner.items()}}


def _widen_list(value: Any, item: Convert) -> Any:
    return None if value is None else [item(each) for each in value]


def _widen_map(value: Any, item: Convert) -> Any:
    return None if value is None else {name: item(each) for name, each in value.items()}
