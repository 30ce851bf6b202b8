"""Records between converters and transformations: a DataFrame and the properties that its columns
do not express.

In addition to the columns of `api.py` the frame has `_error`, the first error of a record (null if
there is none), and in a sink `_raw`, the record as it was read, for the dead-letter topic. A column
expression cannot raise an exception for a single record. A record with an error therefore passes
through all later steps and is removed at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from kavka.pipeline.columns.types import SchemaName

KEY, VALUE = "key", "value"
ERROR, RAW = "_error", "_raw"

DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
CONNECT_EXCEPTION = "org.apache.kafka.connect.errors.ConnectException"

ERROR_TYPE = StructType(
    [StructField(name, StringType()) for name in ("stage", "operator", "exception", "message", "cause")]
)
HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

# The columns of a record, and the type of a column that a source omits.
_DEFAULT_TYPES: dict[str, DataType | str] = {
    KEY: "string",
    VALUE: "string",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
    "headers": HEADERS_TYPE,
}
RECORD_COLUMNS = tuple(_DEFAULT_TYPES)


@dataclass(frozen=True)
class Records:
    """A frame of records, and properties of its keys and values. A side is `key` or `value`."""

    frame: DataFrame
    schemaless: dict[str, bool] = field(default_factory=lambda: {KEY: False, VALUE: False})
    """By side: whether the records have no type information, like JSON without schemas. Times are
    then numbers."""
    names: dict[str, SchemaName] = field(default_factory=lambda: {KEY: SchemaName(), VALUE: SchemaName()})
    is_sink: bool = False

    def type_of(self, column: str) -> DataType:
        return self.frame.schema[column].dataType

    def with_columns(self, columns: dict[str, Column], **changes: Any) -> Records:
        return replace(self, frame=self.frame.withColumns(columns), **changes)

    def failing(self, condition: Column, message: Column | str, stage: str, operator: str, **more: Any) -> Records:
        """Returns the records, with those that meet the condition marked as failed unless they
        failed before."""
        text = F.lit(message) if isinstance(message, str) else message
        error = error_struct(stage, operator, text, **more)
        return self.with_columns({ERROR: F.coalesce(F.col(ERROR), F.when(condition, error))})


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
    """Returns the records of a source's frame: adds missing columns and drops unknown ones. `topic`
    is the topic of a frame without that column."""
    source_columns = {name.lower(): name for name in frame.columns}
    columns = []
    for name, default_type in _DEFAULT_TYPES.items():
        if name in source_columns:
            column = F.col(f"`{source_columns[name]}`")
        else:
            column = F.lit(topic if name == "topic" else None).cast(default_type)
        columns.append(column.alias(name))
    return frame.select(*columns, F.lit(None).cast(ERROR_TYPE).alias(ERROR))
