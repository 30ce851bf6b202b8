"""Avro with fastavro: conversion between schemas and Spark's types, and the code of the converter's
UDFs, which runs in Spark's Python workers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
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

from kavka.client.avro_bounds import OutOfBounds, check_schema
from kavka.pipeline.columns import decimals
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import MAX_COLUMNS, MAX_DEPTH, SchemaName

Fit = Callable[[Any], Any]

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
    """Returns the schema with full names, in fastavro's form. Raises ColumnError if it is
    invalid."""
    try:
        from fastavro import parse_schema
    except ImportError:
        raise ColumnError("Avro needs fastavro: pip install 'kavka[serializers]'") from None
    try:
        document = json.loads(schema)
        check_schema(document, MAX_DEPTH)
        return parse_schema(document)
    except OutOfBounds as error:
        raise ColumnError(str(error)) from None
    except Exception as error:
        raise ColumnError(f"not an Avro schema: {str(error) or type(error).__name__}") from None


def to_spark(schema: str) -> DataType:
    return _typed(parsed(schema)).kind


class Misfit(ValueError):
    """The encoding allows a value that its type does not."""


@dataclass(frozen=True)
class _Type:
    """The column type of an Avro schema, and the conversion of its values."""

    kind: DataType
    fit: Fit | None = None
    """Converts a value that fastavro reads to the column's type; None: no conversion is needed."""
    columns: int = 1
    """The number of columns, including nested ones. Each use of a named type counts: Spark has no
    named types."""
    depth: int = 0
    """The number of nested types."""
    empty: bool = False
    """Whether a datum may have zero bytes."""


def _typed(schema: Any) -> _Type:
    try:
        return _Types().of(schema)[0]
    except (KeyError, TypeError, AttributeError) as error:
        raise ColumnError(f"not an Avro schema: {type(error).__name__} at {error}") from None
    except RecursionError:
        raise ColumnError(f"an Avro schema with more than {MAX_DEPTH} nested types") from None


class _Types:
    """Derives types from a schema with full names. fastavro's reader is written in C and trusts the
    data: it overflows the stack on deeply nested data, and allocates as many items as an array
    claims to have. Schemas in which the data controls the depth (recursive types, which no column
    can have) or with items of zero bytes are therefore rejected."""

    def __init__(self) -> None:
        self._named: dict[str, _Type] = {}

    def of(self, schema: Any) -> tuple[_Type, bool]:
        """Returns (type, whether it may be null)."""
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            if len(others) != 1:
                raise ColumnError("a union of several types has no column type: only a union with null")
            branch_type, _ = self.of(others[0])
            if len(others) == len(schema):
                return replace(branch_type, empty=False), False
            return replace(branch_type, fit=_or_null(branch_type.fit), empty=False), True
        if isinstance(schema, str):
            named = _SIMPLE.get(schema) or self._named.get(schema)
            if named is None:
                raise ColumnError(f"the Avro type {schema} has no column type")
            return named, False
        built = self._build(schema, schema["type"])
        if built.columns > MAX_COLUMNS:
            raise ColumnError(f"an Avro schema with more than {MAX_COLUMNS} columns")
        if built.depth > MAX_DEPTH:
            raise ColumnError(f"an Avro schema with more than {MAX_DEPTH} nested types")
        if schema["type"] in ("record", "error", "enum", "fixed"):
            self._named[schema["name"]] = built
        return built, False

    def _build(self, schema: dict[str, Any], kind: str) -> _Type:
        logical = schema.get("logicalType")
        if kind in ("bytes", "fixed"):
            size = _size(schema) if kind == "fixed" else 1
            if logical == "decimal" and "precision" in schema:
                return replace(_decimal(schema), empty=size == 0)
            return _Type(BinaryType(), empty=size == 0)
        if kind == "int" and logical == "date":
            return _Type(DateType())
        if kind == "long" and logical in ("timestamp-millis", "timestamp-micros"):
            return _Type(TimestampType())
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            item, is_nullable = self.of(schema["items"])
            if item.empty:
                raise ColumnError("an array with items of zero bytes: a few bytes could claim any number of items")
            return _Type(ArrayType(item.kind, is_nullable), _of_list(item.fit), item.columns + 1, item.depth + 1)
        if kind == "map":
            item, is_nullable = self.of(schema["values"])
            kind_of_map = MapType(StringType(), item.kind, is_nullable)
            return _Type(kind_of_map, _of_map(item.fit), item.columns + 1, item.depth + 1)
        if kind == "enum":
            return _Type(StringType())
        return self.of(kind)[0]

    def _record(self, schema: dict[str, Any]) -> _Type:
        fields, fits, columns, depth, empty = [], {}, 1, 0, True
        for field in schema["fields"]:
            field_type, is_nullable = self.of(field["type"])
            fields.append(StructField(field["name"], field_type.kind, is_nullable))
            if field_type.fit is not None:
                fits[field["name"]] = field_type.fit
            columns += field_type.columns
            depth = max(depth, field_type.depth)
            empty = empty and field_type.empty
        if len({field.name for field in fields}) < len(fields):
            raise ColumnError(f"the Avro record {schema['name']} has two fields with the same name")
        return _Type(StructType(fields), _of_record(fits), columns, depth + 1, empty)


def _size(schema: dict[str, Any]) -> int:
    size = schema["size"]
    if not isinstance(size, int) or size < 0:
        raise ColumnError(f"an Avro type with a size of {size} bytes")
    return size


# --- checks and conversions that fastavro does not do


def _int(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise Misfit(f"{value} is not a 32-bit int")
    return value


def _decimal(schema: dict[str, Any]) -> _Type:
    scale = schema.get("scale", 0)
    precision = min(schema["precision"], decimals.MAX_DIGITS)
    if not 0 <= scale <= precision:
        raise ColumnError(f"a decimal with {precision} digits and scale {scale} has no column type")

    def fit(data: bytes) -> Decimal:
        value = decimals.decode(data, precision, scale)
        if value is None:
            raise Misfit(f"a decimal with more than {precision} digits")
        return value

    return _Type(DecimalType(precision, scale), fit)


def _or_null(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: None if value is None else fit(value)


def _of_list(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: [fit(item) for item in value]


def _of_map(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: {name: fit(item) for name, item in value.items()}


def _of_record(fits: dict[str, Fit]) -> Fit | None:
    if not fits:
        return None

    def fit(value: dict[str, Any]) -> dict[str, Any]:
        for name, fit_field in fits.items():
            value[name] = fit_field(value[name])
        return value

    return fit


_SIMPLE = {name: _Type(kind, _int if name == "int" else None) for name, kind in _PRIMITIVE.items()}
# The logical types that fastavro's reader converts.
_READ_AS_TIMES = ("date", "timestamp-millis", "timestamp-micros")


def _for_reading(schema: Any) -> Any:
    """Returns the schema without fastavro's own fields, and without logical types that the reader
    must not convert."""
    if isinstance(schema, list):
        return [_for_reading(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _for_reading(value)
        for name, value in schema.items()
        if not name.startswith("__") and (name != "logicalType" or value in _READ_AS_TIMES)
    }


def from_spark(kind: DataType, name: SchemaName) -> str:
    return json.dumps(_schema(kind, name.name or "ConnectDefault"))


def _schema(kind: DataType, name: str) -> Any:
    match kind:
        case StructType():
            fields = [_field(field, f"{name}_{field.name}") for field in kind.fields]
            return {"type": "record", "name": name, "fields": fields}
        case ArrayType():
            items = _schema(kind.elementType, f"{name}_item")
            return {"type": "array", "items": ["null", items] if kind.containsNull else items}
        case MapType():
            values = _schema(kind.valueType, f"{name}_value")
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
    raise ColumnError(f"a column of type {kind.simpleString()} has no Avro type: cast it")


def _field(field: StructField, name: str) -> dict[str, Any]:
    kind = _schema(field.dataType, name)
    if field.nullable:
        return {"name": field.name, "type": ["null", kind], "default": None}
    return {"name": field.name, "type": kind}


def column_type(definition: Any) -> DataType:
    """Returns the column type of a schema in fastavro's form."""
    return _typed(definition).kind


def column_reader(definition: Any, reader_definition: Any = None) -> Callable[[bytes, int], Any]:
    """Returns a function of (data, position of the datum). It returns a value for the column of the
    reader's schema, by default the schema itself, and raises an exception for other data."""
    from fastavro import parse_schema, schemaless_reader

    _typed(definition)
    compiled = parse_schema(_for_reading(definition))
    resolved = None if reader_definition is None else parse_schema(_for_reading(reader_definition))
    fit = _typed(definition if reader_definition is None else reader_definition).fit

    def read(data: bytes, position: int) -> Any:
        source = io.BytesIO(data)
        source.seek(position)
        datum = schemaless_reader(source, compiled, resolved)
        if fit is not None and datum is not None:
            datum = fit(datum)
        if source.tell() != len(data):
            raise Misfit("there are bytes after the datum: it has a different schema")
        return datum

    return read


# Parts of a schema that do not change the encoding of a value.
_ANNOTATIONS = ("doc", "default", "aliases", "order")


def has_same_data(left: Any, right: Any) -> bool:
    """Whether data of one schema in fastavro's form is data of the other one."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(has_same_data, left, right))
    if not isinstance(left, dict) or not isinstance(right, dict):
        return bool(left == right)
    names = [{name for name in schema if name not in _ANNOTATIONS and not name.startswith("__")}
             for schema in (left, right)]  # fmt: skip
    return names[0] == names[1] and all(has_same_data(left[name], right[name]) for name in names[0])


def reader(schema: str, confluent: bool) -> Callable[[Any], Any]:
    """Returns a function for a UDF, which converts bytes to (value, error message)."""
    state: list[Callable[[bytes, int], Any]] = []

    def read(data: Any) -> Any:
        if data is None:
            return (None, None)
        if not state:
            state.append(column_reader(parsed(schema)))
        data = bytes(data)
        if confluent and (len(data) < 5 or data[0] != 0):
            return (None, "Unknown magic byte!")
        try:
            return (state[0](data, 5 if confluent else 0), None)
        except Misfit as error:
            return (None, str(error))
        except Exception as error:
            return (None, f"{type(error).__name__}: {error}")

    return read


def writer(schema: str, prefix: bytes) -> Callable[[Any], Any]:
    """Returns a function for a UDF, which converts a value to bytes that start with the prefix."""
    state: list[Any] = []

    def write(value: Any) -> Any:
        from fastavro import schemaless_writer

        if value is None:
            return None
        if not state:
            state.append(parsed(schema))
        output = io.BytesIO()
        output.write(prefix)
        schemaless_writer(output, state[0], from_row(value))
        return output.getvalue()

    return write


def from_row(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: from_row(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return {name: from_row(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_row(item) for item in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value
