"""The types of columns: their limits, and a type for values of several types."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from kavka.pipeline.columns.decimals import MAX_DIGITS
from kavka.pipeline.columns.errors import ColumnError

MAX_DEPTH = 64
"""The nesting limit of types and of JSON: at some hundred levels Spark overflows its stack and
crashes."""
MAX_COLUMNS = 10_000
"""The limit on all columns together, including nested ones."""

MAX_TIME_MS = (2**63 - 1) // 1000
"""Spark stores times as 64-bit microseconds."""

LOGICAL = "org.apache.kafka.connect.data."
"""The prefix of the names of Connect's logical types."""

_NUMBERS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)


@dataclass(frozen=True)
class SchemaName:
    """The schema's name and version. SetSchemaMetadata sets them, converters write them."""

    name: str | None = None
    version: int | None = None


def check_width(kind: DataType) -> None:
    """Raises ColumnError if the type has more than MAX_COLUMNS columns."""
    if _columns(kind) > MAX_COLUMNS:
        raise ColumnError(f"records with more than {MAX_COLUMNS} fields in total")


class ColumnCounter:
    """Counts the columns of a type while it is built. A short schema can name a type of any number
    of columns, because each use of a named type counts: Spark has no named types."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        """Counts a column. Raises ColumnError after MAX_COLUMNS columns."""
        self._count += 1
        if self._count > MAX_COLUMNS:
            raise ColumnError(f"a schema with more than {MAX_COLUMNS} columns")


def _columns(kind: DataType) -> int:
    match kind:
        case StructType():
            return 1 + sum(_columns(field.dataType) for field in kind.fields)
        case ArrayType():
            return 1 + _columns(kind.elementType)
        case MapType():
            return 1 + _columns(kind.valueType)
    return 1


def merge_types(left: DataType, right: DataType) -> DataType:
    """Returns a type that can represent the values of both types. Raises ColumnError if there is
    none."""
    if left == right or isinstance(right, NullType):
        return left
    if isinstance(left, NullType):
        return right
    if isinstance(left, StructType) and isinstance(right, StructType):
        fields = {field.name: field for field in left.fields}
        for field in right.fields:
            existing = fields.get(field.name)
            if existing is None:
                fields[field.name] = StructField(field.name, field.dataType, True)
            else:
                kind = merge_types(existing.dataType, field.dataType)
                fields[field.name] = StructField(field.name, kind, existing.nullable or field.nullable)
        right_names = {field.name for field in right.fields}
        return StructType(
            [f if f.name in right_names else StructField(f.name, f.dataType, True) for f in fields.values()]
        )
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return ArrayType(merge_types(left.elementType, right.elementType))
    if isinstance(left, MapType) and isinstance(right, MapType) and left.keyType == right.keyType:
        return MapType(left.keyType, merge_types(left.valueType, right.valueType))
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        wider = _NUMBERS[max(_NUMBERS.index(type(left)), _NUMBERS.index(type(right)))]
        # A float cannot represent all ints.
        return DoubleType() if wider is FloatType and left != right else wider()
    if isinstance(left, DecimalType) and isinstance(right, DecimalType):
        return DecimalType(MAX_DIGITS, max(left.scale, right.scale))
    raise ColumnError(
        f"the records of a batch have incompatible schemas: {left.simpleString()} and {right.simpleString()}"
    )
