"""Records as they pass through converters and transformations: a DataFrame and what its columns cannot say.

Beside the columns of `api.py` the frame has `_error`, what went wrong with a record first (null: nothing), and in a
sink `_raw`, the record as it was read, for the dead-letter topic. A record with an error passes through what follows,
and is taken out at the end: columns have no exceptions.
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
    """What SetSchemaMetadata sets and JsonConverter writes."""

    name: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class Records:
    frame: DataFrame
    schemaless: dict[str, bool] = field(default_factory=lambda: {KEY: False, VALUE: False})
    """By side: whether the records say nothing of types, as JSON without schemas. A time is a number there."""
    names: dict[str, SchemaName] = field(default_factory=lambda: {KEY: SchemaName(), VALUE: SchemaName()})
    is_sink: bool = False

    def type_of(self, column: str) -> DataType:
        return self.frame.schema[column].dataType

    def with_columns(self, columns: dict[str, Column], **changes: Any) -> Records:
        return replace(self, frame=self.frame.withColumns(columns), **changes)

    def failing(self, when: Column, message: Column | str, stage: str, operator: str, **more: Any) -> Records:
        """Records for which `when` holds have failed, unless they had before."""
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
    """What a source gave, with all columns of records and nothing else."""
    there = {name.lower(): name for name in frame.columns}
    columns = []
    for name in PARTS:
        if name == "topic" and name not in there and topic is not None:
            columns.append(F.lit(topic).alias(name))
        elif name in there:
            columns.append(F.col(f"`{there[name]}`").alias(name))
        elif name == VALUE:
            columns.append(F.lit(None).cast("string").alias(name))
        else:
            columns.append(F.expr(_DEFAULTS[name]).alias(name))
    return frame.select(*columns, F.lit(None).cast(ERROR_TYPE).alias(ERROR))
