"""JSON Schema: conversion between schemas and Spark's types, and of values. The annotations
`connect.type` and the titles of logical types are those of Confluent's JsonSchemaConverter."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import LOGICAL, MAX_DEPTH, ColumnCounter, SchemaName

Convert = Callable[[Any], Any]

_INTEGERS: dict[str, tuple[DataType, int]] = {
    "int8": (ByteType(), 8),
    "int16": (ShortType(), 16),
    "int32": (IntegerType(), 32),
    "int64": (LongType(), 64),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Typed:
    """The column type of a schema, and the conversion of its JSON values."""

    kind: DataType
    convert: Convert
    nullable: bool = False


def to_column(validator: Any) -> Typed:
    """Returns the type of a schema, from the `JsonValidator` that resolves its references. Raises
    ColumnError if it has none, or too many columns."""
    try:
        return _Types().of(validator.document, validator.resolver, 0)
    except ColumnError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        raise ColumnError(f"a JSON schema without a column type: {reason}") from None


class _Types:
    """Derives the types of one schema."""

    def __init__(self) -> None:
        self._counter = ColumnCounter()

    def of(self, schema: Any, resolver: Any, depth: int) -> Typed:
        if depth > MAX_DEPTH:
            raise ColumnError(f"a JSON schema with more than {MAX_DEPTH} nested types, or one that contains itself")
        if not isinstance(schema, dict):
            raise ColumnError("a JSON schema that allows any value has no column type")
        if "$ref" in schema:
            referenced = resolver.lookup(schema["$ref"])
            return self.of(referenced.contents, referenced.resolver, depth + 1)
        for union in ("oneOf", "anyOf", "allOf"):
            if union in schema:
                return self._union(schema[union], union, resolver, depth)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            others = [kind for kind in kinds if kind != "null"]
            if len(others) != 1:
                raise ColumnError(f"a JSON schema of the types {', '.join(map(str, kinds))} has no column type")
            return _nullable(self.of({**schema, "type": others[0]}, resolver, depth), len(others) < len(kinds))
        if kinds is None and all(isinstance(symbol, str) for symbol in schema.get("enum", (None,))):
            kinds = "string"
        return self._simple(schema, kinds, resolver, depth)

    def _union(self, branches: Any, union: str, resolver: Any, depth: int) -> Typed:
        others = [branch for branch in branches if not isinstance(branch, dict) or branch.get("type") != "null"]
        if len(others) != 1:
            raise ColumnError(f"{union} of several types has no column type: only of a type and null")
        return _nullable(self.of(others[0], resolver, depth + 1), len(others) < len(branches))

    def _simple(self, schema: dict[str, Any], kind: Any, resolver: Any, depth: int) -> Typed:
        self._counter.add()
        hint, title = schema.get("connect.type"), str(schema.get("title", ""))
        match kind:
            case "boolean":
                return Typed(BooleanType(), _of(bool, "a boolean"))
            case "integer":
                if title == f"{LOGICAL}Timestamp":
                    return Typed(TimestampType(), lambda value: _EPOCH + _integer(64)(value) * _MILLISECOND)
                if title == f"{LOGICAL}Date":
                    return Typed(DateType(), lambda value: _EPOCH_DAY + timedelta(days=_integer(32)(value)))
                spark, bits = _INTEGERS.get(str(hint), _INTEGERS["int64"])
                return Typed(spark, _integer(bits))
            case "number":
                return Typed(FloatType() if hint == "float32" else DoubleType(), _number)
            case "string":
                return Typed(BinaryType(), _bytes) if hint == "bytes" else Typed(StringType(), _of(str, "text"))
            case "array":
                if not isinstance(schema.get("items"), dict):
                    raise ColumnError("a JSON schema of an array without items has no column type")
                item = self.of(schema["items"], resolver, depth + 1)
                return Typed(
                    ArrayType(item.kind, item.nullable), lambda value: [item.convert(each) for each in _list(value)]
                )
            case "object":
                return self._object(schema, resolver, depth)
        raise ColumnError(f"a JSON schema of type {kind} has no column type")

    def _object(self, schema: dict[str, Any], resolver: Any, depth: int) -> Typed:
        others = schema.get("additionalProperties")
        if "properties" not in schema:
            if not isinstance(others, dict):
                raise ColumnError("a JSON schema of an object without properties has no column type")
            item = self.of(others, resolver, depth + 1)
            return Typed(
                MapType(StringType(), item.kind, item.nullable),
                lambda value: {name: item.convert(each) for name, each in _mapping(value).items()},
            )
        required = schema.get("required", ())
        properties = schema["properties"]
        # Confluent's converter numbers the fields, because an object has no order.
        names = sorted(properties, key=lambda name: (properties[name].get("connect.index", len(properties))
                                                     if isinstance(properties[name], dict) else 0))  # fmt: skip
        typed = {name: self.of(properties[name], resolver, depth + 1) for name in names}
        fields = [StructField(name, each.kind, each.nullable or name not in required) for name, each in typed.items()]

        # Data of another version of the schema may lack a field. It becomes null only if it may.
        def convert(value: Any) -> dict[str, Any]:
            present = _mapping(value)
            for name in required:
                if name in typed and name not in present:
                    raise ValueError(f"the field {name} is missing")
            return {name: each.convert(present[name]) if name in present else None for name, each in typed.items()}

        return Typed(StructType(fields), convert)


def _nullable(typed: Typed, nullable: bool) -> Typed:
    if not nullable:
        return typed
    return Typed(typed.kind, lambda value: None if value is None else typed.convert(value), True)


def _of(expected: type, noun: str) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, expected):
            raise ValueError(f"{value!r} is not {noun}")
        return value

    return convert


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_of(str, "text")(value), validate=True)


_list, _mapping = _of(list, "an array"), _of(dict, "an object")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _integer(bits: int) -> Convert:
    def convert(value: Any) -> int:
        number = int(_number(value)) if isinstance(value, float) else value
        if isinstance(number, bool) or not isinstance(number, int) or number != value:
            raise ValueError(f"{value!r} is not an integer")
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(f"{number} is not an integer of {bits} bits")
        return number

    return convert


# --- writing


def from_spark(kind: DataType, name: SchemaName) -> str:
    """Returns the schema of a column. Raises ColumnError if its type has none."""
    schema = _schema(kind)
    return json.dumps({**schema, "title": name.name} if name.name else schema)


def _schema(kind: DataType) -> dict[str, Any]:
    match kind:
        case StructType():
            properties = {
                field.name: {**_optional(field.dataType, field.nullable), "connect.index": index}
                for index, field in enumerate(kind.fields)
            }
            return {"type": "object", "properties": properties}
        case ArrayType():
            return {"type": "array", "items": _optional(kind.elementType, kind.containsNull)}
        case MapType() if isinstance(kind.keyType, StringType):
            values = _optional(kind.valueType, kind.valueContainsNull)
            return {"type": "object", "connect.type": "map", "additionalProperties": values}
        case TimestampType() | TimestampNTZType():
            return {"type": "integer", "title": f"{LOGICAL}Timestamp", "connect.type": "int64"}
        case DateType():
            return {"type": "integer", "title": f"{LOGICAL}Date", "connect.type": "int32"}
        case BooleanType():
            return {"type": "boolean"}
        case FloatType():
            return {"type": "number", "connect.type": "float32"}
        case DoubleType():
            return {"type": "number", "connect.type": "float64"}
        case StringType():
            return {"type": "string"}
        case BinaryType():
            return {"type": "string", "connect.type": "bytes"}
    for hint, (spark, _) in _INTEGERS.items():
        if spark == kind:
            return {"type": "integer", "connect.type": hint}
    raise ColumnError(f"a column of type {kind.simpleString()} has no JSON schema: cast it")


def _optional(kind: DataType, nullable: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _schema(kind)]} if nullable else _schema(kind)


def to_json(value: Any, kind: DataType) -> Any:
    """Returns the JSON value of a column's value. Raises ValueError for numbers that JSON lacks."""
    if value is None:
        return None
    match kind:
        case StructType():
            return {field.name: to_json(value[field.name], field.dataType) for field in kind.fields}
        case MapType():
            return {name: to_json(each, kind.valueType) for name, each in value.items()}
        case ArrayType():
            return [to_json(each, kind.elementType) for each in value]
        case BinaryType():
            return base64.b64encode(value).decode()
        case TimestampType():
            # Spark's UDFs have such a timestamp as local time without a time zone.
            return (value.astimezone(UTC) - _EPOCH) // _MILLISECOND
        case TimestampNTZType():
            return (value.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
        case DateType():
            return (value - _EPOCH_DAY).days
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form")
    return value
