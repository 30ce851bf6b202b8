"""Records between converters and transformations: a DataFrame and the properties that its columns
do not express.

Beside the columns of `api.py` the frame has `_error`, the first error of a record (null: none), and
in a sink `_raw`, the record as it was read, for the dead-letter topic. Columns have no exceptions:
a
record with an error passes through all later steps and is removed at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

KEY, VALUE = "key", "value"
ERROR, RAW = "_error", "_raw"
PARTS = (KEY, VALUE, "topic", "partition", "timestamp", "headers")

DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
CONNECT_EXCEPTION = "org.apache.kafka.connect.errors.ConnectException"

ERROR_TYPE = StructType(
    [StructField(name, StringType()) for name in ("stage", "operator", "exception", "message", "cause")]
)
HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_DEFAULTS = {
    "key": "CAST(NULL AS STRING)",
    "topic": "CAST(NULL AS STRING)",
    "partition": "CAST(NULL AS INT)",
    "timestamp": "CAST(NULL AS TIMESTAMP)",
    "headers": "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)",
}


@dataclass(frozen=True)
class SchemaName:
    """The schema's name and version. SetSchemaMetadata sets them, JsonConverter writes them."""

    name: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class Records:
    """A frame of records with the properties of keys and values, by side."""

    frame: DataFrame
    schemaless: dict[str, bool] = field(default_factory=lambda: {KEY: False, VALUE: False})
    """By side: whether the records have no type information, like JSON without schemas. Times are
    numbers then."""
    names: dict[str, SchemaName] = field(default_factory=lambda: {KEY: SchemaName(), VALUE: SchemaName()})
    is_sink: bool = False

    def type_of(self, column: str) -> DataType:
        return self.frame.schema[column].dataType

    def with_columns(self, columns: dict[str, Column], **changes: Any) -> Records:
        return replace(self, frame=self.frame.withColumns(columns), **changes)

    def failing(self, when: Column, message: Column | str, stage: str, operator: str, **more: Any) -> Records:
        """Marks records for which `when` holds as failed, unless they failed before."""
        text = F.lit(message) if isinstance(message, str) else message
        error = error_struct(stage, operator, text, **more)
        return self.with_columns({ERROR: F.coalesce(F.col(ERROR), F.when(when, error))})


def error_struct(
    stage: str, operator: str, message: Column, exception: str = DATA_EXCEPTION, cause: Column | None = None
) -> Column:
    return F.struct(
        F.lit(stage).alias("stage"),
        F.lit(operator).alias("operator"),
        F.lit(exception).alias("exception"),
        message.alias("message"),
        (F.lit(None).cast("string") if cause is None else cause).alias("cause"),
    )


def complete(frame: DataFrame, topic: str | None) -> DataFrame:
    """A source's frame with all columns of records and no others."""
    source_columns = {name.lower(): name for name in frame.columns}
    columns = []
    for name in PARTS:
        if name == "topic" and name not in source_columns and topic is not None:
            columns.append(F.lit(topic).alias(name))
        elif name in source_columns:
            columns.append(F.col(f"`{source_columns[name]}`").alias(name))
        elif name == VALUE:
            columns.append(F.lit(None).cast("string").alias(name))
        else:
            columns.append(F.expr(_DEFAULTS[name]).alias(name))
    return frame.select(*columns, F.lit(None).cast(ERROR_TYPE).alias(ERROR))
