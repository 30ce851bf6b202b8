"""Protobuf: conversion between message types and Spark's types, and of values."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kavka.client.schemas.registry import Schema
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import MAX_DEPTH, ColumnCounter, SchemaName

Convert = Callable[[Any], Any]

_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_LONG = (1 << 63) - 1
# The types of FieldDescriptor, with the columns of Confluent's ProtobufConverter: uint64 is a long.
_KINDS: dict[int, DataType] = {
    1: DoubleType(), 2: FloatType(), 3: LongType(), 4: LongType(), 5: IntegerType(), 6: LongType(), 7: LongType(),
    8: BooleanType(), 9: StringType(), 12: BinaryType(), 13: LongType(), 14: StringType(), 15: IntegerType(),
    16: LongType(), 17: IntegerType(), 18: LongType(),
}  # fmt: skip
_ENUM, _MESSAGE, _UNSIGNED = 14, (10, 11), (4, 6)


def column_type(descriptor: Any) -> DataType:
    """Returns the type of a message type. Raises ColumnError if it contains itself or has too many
    columns."""
    return _struct(descriptor, 0, ColumnCounter())


def _struct(descriptor: Any, depth: int, counter: ColumnCounter) -> StructType:
    if depth > MAX_DEPTH:
        raise ColumnError(f"a Protobuf type with more than {MAX_DEPTH} nested types, or one that contains itself")
    return StructType([_field(field, depth + 1, counter) for field in descriptor.fields])


def _field(field: Any, depth: int, counter: ColumnCounter) -> StructField:
    if _is_map(field):
        counter.add()
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        kind = MapType(_KINDS[key.type], _kind(value, depth, counter), False)
        return StructField(field.name, kind, False)
    if is_repeated(field):
        counter.add()
        return StructField(field.name, ArrayType(_kind(field, depth, counter), False), False)
    return StructField(field.name, _kind(field, depth, counter), field.has_presence)


def _kind(field: Any, depth: int, counter: ColumnCounter) -> DataType:
    counter.add()
    if field.type not in _MESSAGE:
        return _KINDS[field.type]
    message = field.message_type
    if message.full_name == _TIMESTAMP:
        return TimestampType()
    if message.full_name in _WRAPPERS:
        return _KINDS[message.fields_by_name["value"].type]
    return _struct(message, depth, counter)


def is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if repeated is None else bool(repeated)


def _is_map(field: Any) -> bool:
    return is_repeated(field) and field.type in _MESSAGE and field.message_type.GetOptions().map_entry


def converter(descriptor: Any) -> Convert:
    """Returns a function from a message to the value of its column. Raises ColumnError if the
    message type has no column type."""
    column_type(descriptor)
    return _converter(descriptor)


def _converter(descriptor: Any) -> Convert:
    fields = [(field.name, field.has_presence, _field_converter(field)) for field in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else convert_field(getattr(message, name))
            for name, has_presence, convert_field in fields
        }

    return convert


def _field_converter(field: Any) -> Convert:
    if _is_map(field):
        key_field, value_field = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        convert_key, convert = _value_converter(key_field), _value_converter(value_field)
        return lambda entries: {convert_key(key): convert(entries[key]) for key in entries}
    convert = _value_converter(field)
    return (lambda items: [convert(item) for item in items]) if is_repeated(field) else convert


def _value_converter(field: Any) -> Convert:
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type in _UNSIGNED:
        return _unsigned
    if field.type not in _MESSAGE:
        return _same
    message = field.message_type
    if message.full_name == _TIMESTAMP:
        return lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if message.full_name in _WRAPPERS:
        inner = _value_converter(message.fields_by_name["value"])
        return lambda value: inner(value.value)
    return _converter(message)


def _same(value: Any) -> Any:
    return value


def _unsigned(value: int) -> int:
    if value > _MAX_LONG:
        raise ValueError(f"{value} is not an integer of 64 bits with a sign")
    return value


# --- writing


def from_spark(kind: DataType, name: SchemaName) -> Schema:
    """Returns a schema with one message type. Raises ColumnError if the column is not a struct, or
    a type in it has no Protobuf type."""
    from google.protobuf import descriptor_pb2

    if not isinstance(kind, StructType):
        raise ColumnError(f"ProtobufConverter writes structs, not a column of type {kind.simpleString()}")
    package, _, message_name = (name.name or "ConnectDefault1").rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name=f"{message_name}.proto", package=package, syntax="proto3")
    _add_fields(file, file.message_type.add(name=message_name), kind, f"{package}.{message_name}".lstrip("."))
    return Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")


def _add_fields(file: Any, message: Any, kind: StructType, full_name: str) -> None:
    for number, field in enumerate(kind.fields, 1):
        _add_field(file, message, field.name, number, field.dataType, field.nullable, full_name)


def _add_field(file: Any, message: Any, name: str, number: int, kind: DataType, nullable: bool, path: str) -> None:
    from google.protobuf import descriptor_pb2

    types = descriptor_pb2.FieldDescriptorProto
    added = message.field.add(name=name, number=number, label=types.LABEL_OPTIONAL)
    match kind:
        case ArrayType() if not isinstance(kind.elementType, (ArrayType, MapType)):
            added.label = types.LABEL_REPEATED
            _set_type(file, message, added, kind.elementType, path)
        case MapType() if isinstance(kind.keyType, StringType) and not isinstance(kind.valueType, (ArrayType, MapType)):
            added.label = types.LABEL_REPEATED
            entry = message.nested_type.add(name=f"{''.join(part.capitalize() for part in name.split('_'))}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=types.LABEL_OPTIONAL, type=types.TYPE_STRING)
            value = entry.field.add(name="value", number=2, label=types.LABEL_OPTIONAL)
            _set_type(file, message, value, kind.valueType, path)
            added.type, added.type_name = types.TYPE_MESSAGE, f".{path}.{entry.name}"
        case _:
            _set_type(file, message, added, kind, path)
            if nullable and not isinstance(kind, (StructType, TimestampType)):
                added.proto3_optional = True
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")


def _set_type(file: Any, message: Any, field: Any, kind: DataType, path: str) -> None:
    match kind:
        case StructType():
            nested = message.nested_type.add(name=f"{field.name}_struct")
            _add_fields(file, nested, kind, f"{path}.{nested.name}")
            field.type, field.type_name = 11, f".{path}.{nested.name}"
        case TimestampType():
            if "google/protobuf/timestamp.proto" not in file.dependency:
                file.dependency.append("google/protobuf/timestamp.proto")
            field.type, field.type_name = 11, f".{_TIMESTAMP}"
        case _:
            field.type = _number(kind)


def _number(kind: DataType) -> int:
    match kind:
        case ByteType() | ShortType() | IntegerType():
            return 5
        case LongType():
            return 3
        case DoubleType():
            return 1
        case FloatType():
            return 2
        case BooleanType():
            return 8
        case StringType():
            return 9
        case BinaryType():
            return 12
    raise ColumnError(f"a column of type {kind.simpleString()} has no Protobuf type: cast it")


def fill(message: Any, row: Any) -> Any:
    """Sets the fields of a message from a row, and returns the message. Raises an exception if a
    value does not fit."""
    for name, value in row.asDict().items():
        if value is None:
            continue
        if isinstance(value, list):
            for item in value:
                if hasattr(item, "asDict"):
                    fill(getattr(message, name).add(), item)
                elif isinstance(item, datetime):
                    getattr(message, name).add().FromDatetime(item.astimezone(UTC))
                else:
                    getattr(message, name).append(_plain(item))
        elif isinstance(value, dict):
            _fill_map(getattr(message, name), value)
        elif hasattr(value, "asDict"):
            getattr(message, name).SetInParent()
            fill(getattr(message, name), value)
        elif isinstance(value, datetime):
            getattr(message, name).FromDatetime(value.astimezone(UTC))
        else:
            setattr(message, name, _plain(value))
    return message


def _fill_map(entries: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if value is None:
            raise ValueError("a Protobuf map has no null values")
        if hasattr(value, "asDict"):
            fill(entries[key], value)
        elif isinstance(value, datetime):
            entries[key].FromDatetime(value.astimezone(UTC))
        else:
            entries[key] = _plain(value)


def _plain(value: Any) -> Any:
    if value is None:
        raise ValueError("a repeated Protobuf field has no null items")
    return bytes(value) if isinstance(value, bytearray) else value
