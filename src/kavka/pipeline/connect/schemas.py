"""Conversion between Connect's schemas in JSON, as JsonConverter writes them, and Spark's types.

Logical types: `org.apache.kafka.connect.data.Timestamp` (int64, ms) is a timestamp, `…Date` (int32,
days) a date, `…Decimal` (bytes; the scale is a parameter of the schema) a decimal, and `…Time`
(int32, ms of the day) an int.
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

from kavka.pipeline.columns.decimals import MAX_DIGITS
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.types import LOGICAL, MAX_DEPTH, SchemaName

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


def to_spark(schema: Any, depth: int = 0) -> DataType:
    """Returns the Spark type of a schema in JSON. Raises ColumnError if the JSON is not a
    schema."""
    if depth > MAX_DEPTH:
        raise ColumnError(f"a schema with more than {MAX_DEPTH} nested types")
    if not isinstance(schema, dict) or "type" not in schema:
        raise ColumnError("Schema must contain 'type' field")
    kind, name = schema["type"], str(schema.get("name") or "")
    if name == f"{LOGICAL}Timestamp":
        return TimestampType()
    if name == f"{LOGICAL}Date":
        return DateType()
    if name == f"{LOGICAL}Decimal":
        try:
            parameters = schema["parameters"]
            # Confluent's connectors add the precision.
            precision, scale = int(parameters.get("connect.decimal.precision", MAX_DIGITS)), int(parameters["scale"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ColumnError("Invalid Decimal schema: scale parameter not found.") from None
        if not 0 <= scale <= precision <= MAX_DIGITS:
            raise ColumnError(f"a decimal with {precision} digits and scale {scale} has no column type")
        return DecimalType(precision, scale)
    if not isinstance(kind, str):
        raise ColumnError(f"Unknown schema type: {kind}")
    if kind in _TO_SPARK:
        return _TO_SPARK[kind]
    if kind == "array":
        if "items" not in schema:
            raise ColumnError("Array schema did not specify the element type")
        return ArrayType(to_spark(schema["items"], depth + 1))
    if kind == "map":
        if "keys" not in schema or "values" not in schema:
            raise ColumnError("Map schema did not specify the key and value types")
        return MapType(to_spark(schema["keys"], depth + 1), to_spark(schema["values"], depth + 1))
    if kind == "struct":
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise ColumnError('Struct schema\'s "fields" argument is not an array.')
        return StructType([_field(field, depth + 1) for field in fields])
    raise ColumnError(f"Unknown schema type: {kind}")


def is_shallow(described: Column) -> Column:
    """Whether JSON has at most MAX_DEPTH nested lists and objects, from its `schema_of_variant`.
    The depth is computed only if the description is long enough for more levels (each has at least
    `ARRAY<>`) and has enough brackets."""
    size = F.octet_length(described)
    is_short = size <= MAX_DEPTH * len("ARRAY<>")
    has_few_brackets = size - F.octet_length(F.replace(described, F.lit("<"))) <= MAX_DEPTH
    brackets = F.regexp_replace(F.regexp_replace(described, "`[^`]*`", ""), "[^<>]+", "")

    def step(state: Column, mark: Column) -> Column:
        depth = state["depth"] + F.when(mark == "<", 1).when(mark == ">", -1).otherwise(0)
        return F.struct(depth.alias("depth"), F.greatest(state["max"], depth).alias("max"))

    start = F.struct(F.lit(0).alias("depth"), F.lit(0).alias("max"))
    depth = F.aggregate(F.split(brackets, ""), start, step, lambda state: state["max"])
    return F.coalesce(F.when(is_short | has_few_brackets, F.lit(True)).otherwise(depth <= MAX_DEPTH), F.lit(True))


def _field(field: Any, depth: int) -> StructField:
    if not isinstance(field, dict) or not isinstance(field.get("field"), str):
        raise ColumnError("Struct schema's field name not specified properly")
    # A value that is missing should become the default, but columns have no defaults.
    is_nullable = bool(field.get("optional", False)) or field.get("default") is not None
    return StructField(field["field"], to_spark(field, depth), is_nullable)


def from_spark(kind: DataType, optional: bool, named: SchemaName | None = None) -> dict[str, Any]:
    """Returns the schema of a Spark type. Its fields are in Kafka's order: content, then optional,
    name, version, parameters. Raises ColumnError if the type has no schema."""
    name, version = (named.name, named.version) if named else (None, None)
    parameters = None
    match kind:
        case StructType():
            fields = [{**from_spark(field.dataType, field.nullable), "field": field.name} for field in kind.fields]
            schema: dict[str, Any] = {"type": "struct", "fields": fields}
        case ArrayType():
            schema = {"type": "array", "items": from_spark(kind.elementType, kind.containsNull)}
        case MapType():
            schema = {
                "type": "map",
                "keys": from_spark(kind.keyType, False),
                "values": from_spark(kind.valueType, kind.valueContainsNull),
            }
        case TimestampType() | TimestampNTZType():
            schema, name, version = {"type": "int64"}, f"{LOGICAL}Timestamp", 1
        case DateType():
            schema, name, version = {"type": "int32"}, f"{LOGICAL}Date", 1
        case DecimalType():
            schema, name, version = {"type": "bytes"}, f"{LOGICAL}Decimal", 1
            parameters = {"scale": str(kind.scale)}
        case VariantType() | NullType():
            schema = {"type": "string"}
        case _:
            if kind.typeName() not in _FROM_SPARK:
                raise ColumnError(f"a record cannot contain a column of type {kind.simpleString()}: cast it")
            schema = {"type": _FROM_SPARK[kind.typeName()]}
    schema["optional"] = optional
    if name is not None:
        schema["name"] = name
    if version is not None:
        schema["version"] = version
    if parameters is not None:
        schema["parameters"] = parameters
    return schema


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


ELEMENT = "[]"
"""The path element of array items and map values."""


def scales(kind: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yields (path, scale) of all decimals in the type."""
    match kind:
        case DecimalType():
            yield path, kind.scale
        case StructType():
            for field in kind.fields:
                yield from scales(field.dataType, (*path, field.name))
        case ArrayType():
            yield from scales(kind.elementType, (*path, ELEMENT))
        case MapType():
            yield from scales(kind.valueType, (*path, ELEMENT))


def schema_of_variants(description: str) -> DataType | None:
    """Returns the common type of JSON texts, from Spark's `schema_of_variant_agg`. Integers are
    long and other numbers double, as in Connect. A value whose type differs between records is a
    string. Null, {} and [] have no type: fields without other values are not in the result, which
    is None if nothing has a type."""
    return _with_values(_DescriptionParser(description).parse())


def _with_values(kind: DataType) -> DataType | None:
    match kind:
        case NullType():
            return None
        case StructType():
            kinds = {field.name: _with_values(field.dataType) for field in kind.fields}
            fields = [StructField(name, kind) for name, kind in kinds.items() if kind is not None]
            return StructType(fields) if fields else None
        case ArrayType():
            element = _with_values(kind.elementType)
            return None if element is None else ArrayType(element)
    return kind


def extended(recorded: DataType, inferred: DataType | None) -> DataType:
    """Returns the recorded type of JSON without schemas with the fields that only the inferred type
    has. The type of a recorded field never changes."""
    if isinstance(recorded, StructType) and isinstance(inferred, StructType):
        new_fields = {field.name: field for field in inferred.fields}
        fields = []
        for field in recorded.fields:
            new_field = new_fields.pop(field.name, None)
            kind = extended(field.dataType, None if new_field is None else new_field.dataType)
            fields.append(StructField(field.name, kind, field.nullable))
        return StructType([*fields, *new_fields.values()])
    if isinstance(recorded, ArrayType) and isinstance(inferred, ArrayType):
        return ArrayType(extended(recorded.elementType, inferred.elementType), recorded.containsNull)
    return recorded


def hides_fields(recorded: DataType, inferred: DataType) -> bool:
    """Whether the inferred type may lack fields of records that fit the recorded type: where
    structs or lists are mixed with other values, it is a string."""
    if isinstance(recorded, StructType) and isinstance(inferred, StructType):
        kinds = {field.name: field.dataType for field in inferred.fields}
        return any(field.name in kinds and hides_fields(field.dataType, kinds[field.name]) for field in recorded.fields)
    if isinstance(recorded, ArrayType) and isinstance(inferred, ArrayType):
        return hides_fields(recorded.elementType, inferred.elementType)
    return isinstance(recorded, (StructType, ArrayType)) and isinstance(inferred, StringType)


_VARIANTS: dict[str, DataType] = {
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "FLOAT": DoubleType(),
    "BOOLEAN": BooleanType(),
    "VOID": NullType(),
}


class _DescriptionParser:
    """Parses `OBJECT<a: BIGINT, b: ARRAY<STRING>>`, with names in backticks where necessary."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def parse(self) -> DataType:
        word = self._word()
        if word == "OBJECT":
            return self._object()
        if word == "ARRAY":
            self._expect("<")
            array = ArrayType(self.parse())
            self._expect(">")
            return array
        if word == "DECIMAL":
            self._skip_arguments()
            return DoubleType()
        return _VARIANTS.get(word, StringType())

    def _object(self) -> StructType:
        self._expect("<")
        fields: list[StructField] = []
        while not self._skip(">"):
            if fields:
                self._expect(",")
            name = self._name()
            self._expect(":")
            fields.append(StructField(name, self.parse()))
        return StructType(fields)

    def _skip_spaces(self) -> None:
        while self._position < len(self._text) and self._text[self._position] == " ":
            self._position += 1

    def _skip(self, mark: str) -> bool:
        """Skips the mark. Returns whether it was there."""
        self._skip_spaces()
        if self._text.startswith(mark, self._position):
            self._position += len(mark)
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise ColumnError(f"Spark's description of JSON is invalid at {self._position}: {self._text[:200]}")

    def _word(self) -> str:
        self._skip_spaces()
        start = self._position
        while self._position < len(self._text) and (
            self._text[self._position].isalnum() or self._text[self._position] == "_"
        ):
            self._position += 1
        return self._text[start : self._position].upper()

    def _name(self) -> str:
        self._skip_spaces()
        if not self._skip("`"):
            start = self._position
            while self._text[self._position] != ":":
                self._position += 1
            return self._text[start : self._position].strip()
        pieces = []
        while True:
            end = self._text.index("`", self._position)
            pieces.append(self._text[self._position : end])
            self._position = end + 1
            if not self._text.startswith("`", self._position):
                return "`".join(pieces)
            self._position += 1

    def _skip_arguments(self) -> None:
        if self._skip("("):
            self._position = self._text.index(")", self._position) + 1
