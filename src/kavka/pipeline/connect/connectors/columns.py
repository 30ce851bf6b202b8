"""Column expressions that several connectors use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType, VariantType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def is_nested(kind: DataType) -> bool:
    return isinstance(kind, (StructType, MapType, ArrayType, VariantType))


def text_of(records: DataFrame, name: str) -> Column:
    """Returns a column as text: strings unchanged, bytes as UTF-8, structs, lists and maps as JSON.
    Null stays null."""
    kind = records.schema[name].dataType
    column = f.col(name)
    if isinstance(kind, StringType):
        return column
    if is_nested(kind):
        return f.to_json(column)
    if isinstance(kind, BinaryType):
        return f.decode(column, "UTF-8")
    return column.cast("string")
