"""Connect's schemas as JSON, as JsonConverter writes them beside the data, and Spark's types.

The logical types: `org.apache.kafka.connect.data.Timestamp` (int64, ms) is a timestamp, `…Date` (int32, days) a date,
`…Decimal` (bytes; its scale is a parameter) a decimal, `…Time` (int32, ms of the day) an int.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
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
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.records import SchemaName

MAX_DEPTH = 64
"""Of types, and of JSON, inside of each other: with some hundreds Spark runs over the end of its stack, and ends."""
MAX_COLUMNS = 10_000
"""In all, those of structs and what is in them included."""

LOGICAL = "org.apache.kafka.connect.data."
# Spark has no wider decimals. Connect's schema tells the scale alone.
_PRECISION = 38

_TO_SPARK: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int8": ByteType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
}
_FROM_SPARK = {kind.typeName(): name for name, kind in _TO_SPARK.items()}
_NUMBERS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)


def to_spark(schema: Any, depth: int = 0) -> DataType:
    """ConnectError where the JSON is no schema."""
    if depth > MAX_DEPTH:
        raise ConnectError(f"a schema with more than {MAX_DEPTH} types inside of each other")
    if not isinstance(schema, dict) or "type" not in schema:
        raise ConnectError("Schema must contain 'type' field")
    kind, name = schema["type"], str(schema.get("name") or "")
    if name == f"{LOGICAL}Timestamp":
        return TimestampType()
    if name == f"{LOGICAL}Date":
        return DateType()
    if name == f"{LOGICAL}Decimal":
        try:
            parameters = schema["parameters"]
            # What Confluent's connectors add.
            precision, scale = int(parameters.get("connect.decimal.precision", _PRECISION)), int(parameters["scale"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConnectError("Invalid Decimal schema: scale parameter not found.") from None
        if not 0 <= scale <= precision <= _PRECISION:
            raise ConnectError(f"a decimal of {precision} digits, {scale} of them after the point, has no column")
        return DecimalType(precision, scale)
    if not isinstance(kind, str):
        raise ConnectError(f"Unknown schema type: {kind}")
    if kind in _TO_SPARK:
        return _TO_SPARK[kind]
    if kind == "array":
        if "items" not in schema:
            raise ConnectError("Array schema did not specify the element type")
        return ArrayType(to_spark(schema["items"], depth + 1))
    if kind == "map":
        if "keys" not in schema or "values" not in schema:
            raise ConnectError("Map schema did not specify the key and value types")
        return MapType(to_spark(schema["keys"], depth + 1), to_spark(schema["values"], depth + 1))
    if kind == "struct":
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise ConnectError('Struct schema\'s "fields" argument is not an array.')
        return StructType([_field(one, depth + 1) for one in fields])
    raise ConnectError(f"Unknown schema type: {kind}")


def check_width(kind: DataType) -> None:
    if _columns(kind) > MAX_COLUMNS:
        raise ConnectError(f"records with more than {MAX_COLUMNS} fields in all")


def _columns(kind: DataType) -> int:
    match kind:
        case StructType():
            return 1 + sum(_columns(one.dataType) for one in kind.fields)
        case ArrayType():
            return 1 + _columns(kind.elementType)
        case MapType():
            return 1 + _columns(kind.valueType)
    return 1


def is_shallow(described: Column) -> Column:
    """Whether JSON has no more than MAX_DEPTH lists and objects inside of each other, by `schema_of_variant` of it.
    Most descriptions are too short for more (a level is `ARRAY<` and `>` at least), or do not have as many."""
    size = F.octet_length(described)
    short = size <= MAX_DEPTH * len("ARRAY<>")
    few = size - F.octet_length(F.replace(described, F.lit("<"))) <= MAX_DEPTH
    brackets = F.regexp_replace(F.regexp_replace(described, "`[^`]*`", ""), "[^<>]+", "")

    def step(seen: Column, one: Column) -> Column:
        now = seen["now"] + F.when(one == "<", 1).when(one == ">", -1).otherwise(0)
        return F.struct(now.alias("now"), F.greatest(seen["most"], now).alias("most"))

    start = F.struct(F.lit(0).alias("now"), F.lit(0).alias("most"))
    depth = F.aggregate(F.split(brackets, ""), start, step, lambda seen: seen["most"])
    return F.coalesce(F.when(short | few, F.lit(True)).otherwise(depth <= MAX_DEPTH), F.lit(True))


def _field(one: Any, depth: int) -> StructField:
    if not isinstance(one, dict) or not isinstance(one.get("field"), str):
        raise ConnectError("Struct schema's field name not specified properly")
    return StructField(one["field"], to_spark(one, depth), bool(one.get("optional", False)))


def from_spark(kind: DataType, optional: bool, named: SchemaName | None = None) -> dict[str, Any]:
    """The parts in Kafka's order: what is in it, then optional, name, version, parameters."""
    name, version = (named.name, named.version) if named else (None, None)
    parameters = None
    match kind:
        case StructType():
            fields = [{**from_spark(one.dataType, one.nullable), "field": one.name} for one in kind.fields]
            found: dict[str, Any] = {"type": "struct", "fields": fields}
        case ArrayType():
            found = {"type": "array", "items": from_spark(kind.elementType, kind.containsNull)}
        case MapType():
            found = {
                "type": "map",
                "keys": from_spark(kind.keyType, False),
                "values": from_spark(kind.valueType, kind.valueContainsNull),
            }
        case TimestampType() | TimestampNTZType():
            found, name, version = {"type": "int64"}, f"{LOGICAL}Timestamp", 1
        case DateType():
            found, name, version = {"type": "int32"}, f"{LOGICAL}Date", 1
        case DecimalType():
            found, name, version = {"type": "bytes"}, f"{LOGICAL}Decimal", 1
            parameters = {"scale": str(kind.scale)}
        case VariantType() | NullType():
            found = {"type": "string"}
        case _:
            if kind.typeName() not in _FROM_SPARK:
                raise ConnectError(f"a column of the type {kind.simpleString()} has no place in a record: cast it")
            found = {"type": _FROM_SPARK[kind.typeName()]}
    found["optional"] = optional
    if name is not None:
        found["name"] = name
    if version is not None:
        found["version"] = version
    if parameters is not None:
        found["parameters"] = parameters
    return found


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def merged(one: DataType, two: DataType) -> DataType:
    """A type that holds both; ConnectError where there is none."""
    if one == two or isinstance(two, NullType):
        return one
    if isinstance(one, NullType):
        return two
    if isinstance(one, StructType) and isinstance(two, StructType):
        fields = {field.name: field for field in one.fields}
        for field in two.fields:
            mine = fields.get(field.name)
            if mine is None:
                fields[field.name] = StructField(field.name, field.dataType, True)
            else:
                kind = merged(mine.dataType, field.dataType)
                fields[field.name] = StructField(field.name, kind, mine.nullable or field.nullable)
        there = {field.name for field in two.fields}
        return StructType([f if f.name in there else StructField(f.name, f.dataType, True) for f in fields.values()])
    if isinstance(one, ArrayType) and isinstance(two, ArrayType):
        return ArrayType(merged(one.elementType, two.elementType))
    if isinstance(one, MapType) and isinstance(two, MapType) and one.keyType == two.keyType:
        return MapType(one.keyType, merged(one.valueType, two.valueType))
    if isinstance(one, _NUMBERS) and isinstance(two, _NUMBERS):
        wider = _NUMBERS[max(_NUMBERS.index(type(one)), _NUMBERS.index(type(two)))]
        # A float does not have all ints.
        return DoubleType() if wider is FloatType and one != two else wider()
    if isinstance(one, DecimalType) and isinstance(two, DecimalType):
        return DecimalType(_PRECISION, max(one.scale, two.scale))
    raise ConnectError(
        f"records of one batch have schemas that do not fit together: {one.simpleString()} and {two.simpleString()}"
    )


INSIDE = "[]"
"""In a path: what is inside of an array or a map."""


def scales(kind: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Of all decimals in there, by the path of fields to them."""
    match kind:
        case DecimalType():
            yield path, kind.scale
        case StructType():
            for one in kind.fields:
                yield from scales(one.dataType, (*path, one.name))
        case ArrayType():
            yield from scales(kind.elementType, (*path, INSIDE))
        case MapType():
            yield from scales(kind.valueType, (*path, INSIDE))


def struct_fields(kind: DataType) -> list[StructField]:
    return kind.fields if isinstance(kind, StructType) else []


def schema_of_variants(description: str) -> DataType:
    """The type that JSON texts have in common, from what Spark's `schema_of_variant_agg` says of them: whole numbers
    are long, others double, as in Connect; what differs from record to record is text."""
    return _Reader(description).read()


class _Reader:
    """`OBJECT<a: BIGINT, b: ARRAY<STRING>>`; names in backticks where they have to be."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> DataType:
        word = self._word()
        if word == "OBJECT":
            return self._object()
        if word == "ARRAY":
            self._expect("<")
            found = ArrayType(self.read())
            self._expect(">")
            return found
        if word == "DECIMAL":
            self._skip_arguments()
            return DoubleType()
        known = {"BIGINT": LongType(), "DOUBLE": DoubleType(), "FLOAT": DoubleType(), "BOOLEAN": BooleanType()}
        return known.get(word, StringType())

    def _object(self) -> StructType:
        self._expect("<")
        fields: list[StructField] = []
        while not self._take(">"):
            if fields:
                self._expect(",")
            name = self._name()
            self._expect(":")
            fields.append(StructField(name, self.read()))
        return StructType(fields)

    def _blanks(self) -> None:
        while self._at < len(self._text) and self._text[self._at] == " ":
            self._at += 1

    def _take(self, mark: str) -> bool:
        self._blanks()
        if self._text.startswith(mark, self._at):
            self._at += len(mark)
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise ConnectError(f"Spark's description of JSON cannot be read at {self._at}: {self._text[:200]}")

    def _word(self) -> str:
        self._blanks()
        start = self._at
        while self._at < len(self._text) and (self._text[self._at].isalnum() or self._text[self._at] == "_"):
            self._at += 1
        return self._text[start : self._at].upper()

    def _name(self) -> str:
        self._blanks()
        if not self._take("`"):
            start = self._at
            while self._text[self._at] != ":":
                self._at += 1
            return self._text[start : self._at].strip()
        out = []
        while True:
            end = self._text.index("`", self._at)
            out.append(self._text[self._at : end])
            self._at = end + 1
            if not self._text.startswith("`", self._at):
                return "`".join(out)
            self._at += 1

    def _skip_arguments(self) -> None:
        if self._take("("):
            self._at = self._text.index(")", self._at) + 1
