"""Avro on fastavro: schemas to Spark's types and back, and what the converter's UDFs do in Spark's Python workers."""

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
from kavka.pipeline.connect import decimals, schemas
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.records import SchemaName

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
    """With full names, as fastavro takes it."""
    try:
        from fastavro import parse_schema
    except ImportError:
        raise ConnectError("Avro needs fastavro: pip install 'kavka[serializers]'") from None
    try:
        given = json.loads(schema)
        check_schema(given, schemas.MAX_DEPTH)
        return parse_schema(given)
    except OutOfBounds as error:
        raise ConnectError(str(error)) from None
    except Exception as error:
        raise ConnectError(f"this is no Avro schema: {str(error) or type(error).__name__}") from None


def to_spark(schema: str) -> DataType:
    return _typed(parsed(schema)).kind


class Misfit(ValueError):
    """A value that the bytes may hold and the type may not."""


@dataclass(frozen=True)
class _Type:
    kind: DataType
    fit: Fit | None = None
    """From what fastavro reads to what the column takes; None: nothing is to be done."""
    columns: int = 1
    """In all, those of structs and what is in them included: Spark has no types by name, each mention counts."""
    empty: bool = False
    """Whether its data may take no bytes at all."""


def _typed(schema: Any) -> _Type:
    try:
        return _Types().of(schema)[0]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConnectError(f"this is no Avro schema: {type(error).__name__} at {error}") from None


class _Types:
    """From a schema whose names are full. fastavro's reader is in C and believes the data: it runs over the end of the
    stack where data is nested too deep, and makes as many items as an array says that it has. So no schema gets that
    far in which the data could say how deep it is (types inside of themselves, which no column can have) or have
    items without bytes."""

    def __init__(self) -> None:
        self._named: dict[str, _Type] = {}

    def of(self, schema: Any) -> tuple[_Type, bool]:
        """(type, whether it may be null)."""
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1:
                raise ConnectError("a union of several types has no column: only with null")
            found, _ = self.of(others[0])
            if len(others) == len(schema):
                return replace(found, empty=False), False
            return replace(found, fit=_or_null(found.fit), empty=False), True
        if isinstance(schema, str):
            known = _SIMPLE.get(schema) or self._named.get(schema)
            if known is None:
                raise ConnectError(f"the Avro type {schema} has no column")
            return known, False
        made = self._made(schema, schema["type"])
        if made.columns > schemas.MAX_COLUMNS:
            raise ConnectError(f"an Avro schema of more than {schemas.MAX_COLUMNS} columns")
        if schema["type"] in ("record", "error", "enum", "fixed"):
            self._named[schema["name"]] = made
        return made, False

    def _made(self, schema: dict[str, Any], kind: str) -> _Type:
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
            found, null = self.of(schema["items"])
            if found.empty:
                raise ConnectError("an array whose items take no bytes: a few of them could say that it has any number")
            return _Type(ArrayType(found.kind, null), _of_list(found.fit), found.columns + 1)
        if kind == "map":
            found, null = self.of(schema["values"])
            return _Type(MapType(StringType(), found.kind, null), _of_map(found.fit), found.columns + 1)
        if kind == "enum":
            return _Type(StringType())
        return self.of(kind)[0]

    def _record(self, schema: dict[str, Any]) -> _Type:
        fields, fits, columns, empty = [], {}, 1, True
        for one in schema["fields"]:
            found, null = self.of(one["type"])
            fields.append(StructField(one["name"], found.kind, null))
            if found.fit is not None:
                fits[one["name"]] = found.fit
            columns += found.columns
            empty = empty and found.empty
        if len({one.name for one in fields}) < len(fields):
            raise ConnectError(f"the Avro record {schema['name']} has two fields of one name")
        return _Type(StructType(fields), _of_record(fits), columns, empty)


def _size(schema: dict[str, Any]) -> int:
    size = schema["size"]
    if not isinstance(size, int) or size < 0:
        raise ConnectError(f"an Avro type of {size} bytes")
    return size


# --- what fastavro does not look at, or does not turn into what a column takes


def _int(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise Misfit(f"{value} is no int of 32 bits")
    return value


def _decimal(schema: dict[str, Any]) -> _Type:
    scale = schema.get("scale", 0)
    precision = min(schema["precision"], decimals.MAX_DIGITS)
    if not 0 <= scale <= precision:
        raise ConnectError(f"a decimal of {precision} digits, {scale} of them after the point, has no column")

    def fit(data: bytes) -> Decimal:
        value = decimals.decoded(data, precision, scale)
        if value is None:
            raise Misfit(f"a decimal of more than {precision} digits")
        return value

    return _Type(DecimalType(precision, scale), fit)


def _or_null(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: None if value is None else fit(value)


def _of_list(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: [fit(one) for one in value]


def _of_map(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: {name: fit(one) for name, one in value.items()}


def _of_record(fits: dict[str, Fit]) -> Fit | None:
    if not fits:
        return None
    parts = tuple(fits.items())

    def fit(value: dict[str, Any]) -> dict[str, Any]:
        for name, one in parts:
            value[name] = one(value[name])
        return value

    return fit


_SIMPLE = {name: _Type(kind, _int if name == "int" else None) for name, kind in _PRIMITIVE.items()}
# Those that fastavro's reader is left to turn into something else than their plain types.
_READ_AS_TIMES = ("date", "timestamp-millis", "timestamp-micros")


def _for_reading(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_for_reading(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _for_reading(value)
        for name, value in schema.items()
        if not name.startswith("__") and (name != "logicalType" or value in _READ_AS_TIMES)
    }


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
        from fastavro import parse_schema, schemaless_reader

        if data is None:
            return (None, None)
        if not state:
            known = parsed(schema)
            state.extend((parse_schema(_for_reading(known)), _typed(known).fit))
        data = bytes(data)
        if confluent:
            if len(data) < 5 or data[0] != 0:
                return (None, "Unknown magic byte!")
            data = data[5:]
        source = io.BytesIO(data)
        compiled, fit = state
        try:
            found = schemaless_reader(source, compiled, None)
            if fit is not None and found is not None:
                found = fit(found)
        except Exception as error:
            return (None, f"{type(error).__name__}: {error}")
        if source.read(1):
            return (None, "there are bytes after the datum: it has another schema")
        return (found, None)

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


def _from_row(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: _from_row(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {name: _from_row(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_from_row(one) for one in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value
