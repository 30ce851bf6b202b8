"""Avro on fastavro: schemas to Spark's types and back, and what the converter's UDFs do in Spark's Python workers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
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

from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.records import SchemaName

_PRIMITIVE: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}


def parsed(schema: str) -> Any:
    try:
        from fastavro import parse_schema
    except ImportError:
        raise ConnectError("Avro needs fastavro: pip install 'kavka[serializers]'") from None
    try:
        return parse_schema(json.loads(schema))
    except Exception as error:
        raise ConnectError(f"this is no Avro schema: {error}") from None


def to_spark(schema: str) -> DataType:
    parsed(schema)
    return _kind(json.loads(schema), {})[0]


def _kind(schema: Any, named: dict[str, DataType]) -> tuple[DataType, bool]:
    """(type, whether it may be null)."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ConnectError("a union of several types has no column: only with null")
        return _kind(others[0], named)[0], len(others) < len(schema)
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return _PRIMITIVE[schema], False
        if schema in named:
            return named[schema], False
        raise ConnectError(f"the Avro type {schema} has no column")
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(min(int(schema["precision"]), 38), int(schema.get("scale", 0))), False
    if kind == "int" and logical == "date":
        return DateType(), False
    if kind == "long" and logical in ("timestamp-millis", "timestamp-micros"):
        return TimestampType(), False
    if kind == "record":
        fields = []
        for one in schema["fields"]:
            found, null = _kind(one["type"], named)
            fields.append(StructField(one["name"], found, null))
        made: DataType = StructType(fields)
        named[schema["name"]] = made
        return made, False
    if kind == "array":
        found, null = _kind(schema["items"], named)
        return ArrayType(found, null), False
    if kind == "map":
        found, null = _kind(schema["values"], named)
        return MapType(StringType(), found, null), False
    if kind in ("enum", "fixed"):
        made = StringType() if kind == "enum" else BinaryType()
        named[schema["name"]] = made
        return made, False
    return _kind(kind, named)


def from_spark(kind: DataType, name: SchemaName) -> str:
    return json.dumps(_schema(kind, name.name or "ConnectDefault", [0]))


def _schema(kind: DataType, name: str, count: list[int]) -> Any:
    match kind:
        case StructType():
            count[0] += 1
            fields = [_field(one, f"{name}_{one.name}", count) for one in kind.fields]
            return {"type": "record", "name": name, "fields": fields}
        case ArrayType():
            items = _schema(kind.elementType, f"{name}_item", count)
            return {"type": "array", "items": ["null", items] if kind.containsNull else items}
        case MapType():
            values = _schema(kind.valueType, f"{name}_value", count)
            return {"type": "map", "values": ["null", values] if kind.valueContainsNull else values}
        case DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case DateType():
            return {"type": "int", "logicalType": "date"}
        case TimestampType():
            return {"type": "long", "logicalType": "timestamp-millis"}
        case ByteType() | ShortType():
            return "int"
    for avro, spark in _PRIMITIVE.items():
        if spark == kind:
            return avro
    raise ConnectError(f"a column of the type {kind.simpleString()} has no Avro type: cast it")


def _field(one: StructField, name: str, count: list[int]) -> dict[str, Any]:
    kind = _schema(one.dataType, name, count)
    if one.nullable:
        return {"name": one.name, "type": ["null", kind], "default": None}
    return {"name": one.name, "type": kind}


def reader(schema: str, confluent: bool) -> Callable[[Any], Any]:
    state: list[Any] = []

    def read(data: Any) -> Any:
        from fastavro import schemaless_reader

        if data is None:
            return (None, None)
        if not state:
            state.append(parsed(schema))
        data = bytes(data)
        if confluent:
            if len(data) < 5 or data[0] != 0:
                return (None, "Unknown magic byte!")
            data = data[5:]
        source = io.BytesIO(data)
        try:
            found = schemaless_reader(source, state[0], None)
        except Exception as error:
            return (None, f"{type(error).__name__}: {error}")
        if source.read(1):
            return (None, "there are bytes after the datum: it has another schema")
        return (_to_row(found), None)

    return read


def writer(schema: str, prefix: bytes) -> Callable[[Any], Any]:
    state: list[Any] = []

    def write(value: Any) -> Any:
        from fastavro import schemaless_writer

        if value is None:
            return None
        if not state:
            state.append(parsed(schema))
        out = io.BytesIO()
        out.write(prefix)
        schemaless_writer(out, state[0], _from_row(value))
        return out.getvalue()

    return write


def _to_row(value: Any) -> Any:
    """Records are dicts, which Spark takes for structs; times without a zone are what it wants."""
    if isinstance(value, dict):
        return {name: _to_row(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_to_row(one) for one in value]
    return value


def _from_row(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: _from_row(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {name: _from_row(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_from_row(one) for one in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value if not isinstance(value, Decimal) else +value
