"""A source and a sink for all formats that Spark reads and writes: parquet, csv, json, orc, text,
delta, iceberg …"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka.common.config import BOOLEAN, HIGH, LIST, NotEmpty, OneOf
from kavka.pipeline.connect.api import Context, Sink, Source, query_id
from kavka.pipeline.connect.connectors.batch_files import move_into
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger(__name__)

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro", "xml")
_STREAM, _BATCH = "stream", "batch"
_PREFIX = ("spark.option.", "Any option of the format: `spark.option.header=true`.")
_FORMAT = Option(
    "spark.format", doc="A Spark format: `parquet`, `csv`, `json`, `orc`, `text`, `iceberg` …", importance=HIGH,
    validator=NotEmpty(), recommended=FILE_FORMATS,
)  # fmt: skip


def _path(doc: str) -> Option:
    return Option("spark.path", default="", doc=doc, importance=HIGH)


class SparkSource(Source):
    """Reads any Spark format as records.

    The value is a struct of all columns, or the column itself if it is the only one and named
    `value` (text). The files of a folder are a stream: new files are followed, and each file is
    read once.
    """

    prefixes = (_PREFIX,)
    options = (
        _FORMAT,
        _path("The folder or file, or the format's equivalent of a path (for iceberg, the table)."),
        Option("topic", doc="The topic to write the rows to.", importance=HIGH, validator=NotEmpty()),
        Option(
            "spark.mode",
            default=_STREAM,
            doc="`stream`: follow new data; `batch`: read the current data, then end the task "
            "(or read it again every `trigger.interval`).",
            validator=OneOf((_STREAM, _BATCH)),
            recommended=(_STREAM, _BATCH),
        ),
        Option(
            "spark.schema",
            default="",
            doc="The columns, like `id BIGINT, name STRING`. Without this option they are inferred from the data.",
        ),
        Option(
            "key.columns",
            LIST,
            (),
            "The columns of the key. A single column becomes the key itself, several become a struct.",
        ),
    )

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        return True

    def read(self, context: Context) -> DataFrame:
        from pyspark.sql import functions as f

        rows = self._rows(context)
        missing = [name for name in context["key.columns"] if name not in rows.columns]
        if missing:
            raise ConnectError(f"key.columns has {', '.join(missing)}, but the rows have {', '.join(rows.columns)}")
        is_text = rows.columns == ["value"]
        value = f.col("value") if is_text else f.struct(*[f.col(f"`{name}`") for name in rows.columns])
        columns = [value.alias("value")]
        keys = [f.col(f"`{name}`") for name in context["key.columns"]]
        if keys:
            columns.append((keys[0] if len(keys) == 1 else f.struct(*keys)).alias("key"))
        return rows.select(*columns)

    def _rows(self, context: Context) -> DataFrame:
        spark, format_, path = context.spark, context["spark.format"], context["spark.path"] or None
        options = context.with_prefix(_PREFIX[0])
        schema = context["spark.schema"] or None
        try:
            if context["spark.mode"] == _BATCH:
                reader = spark.read.format(format_).options(**options)
                return (reader.schema(schema) if schema else reader).load(path)
            if schema is None and format_ in FILE_FORMATS and path:
                # Spark does not infer the schema of a stream of files.
                schema = spark.read.format(format_).options(**options).load(path).schema
            stream = spark.readStream.format(format_).options(**options)
            return (stream.schema(schema) if schema else stream).load(path)
        except Exception as error:
            if not hasattr(error, "getCondition") and not hasattr(error, "desc"):
                raise
            raise ConnectError(f"cannot read spark.format={format_}: {_first_line(error)}") from None


class SparkSink(Sink):
    """Writes records in any Spark format.

    The fields of the value become columns; a value without fields becomes the column `value`. File
    formats (parquet, orc, json, csv, text, avro, xml) contain each record once with
    `exactly.once=true`. For other formats this depends on the format."""

    exactly_once = True
    prefixes = (_PREFIX,)
    options = (
        _FORMAT,
        _path("The folder, or the format's equivalent of a path (for iceberg, the table)."),
        Option("partition.columns", LIST, (), "Columns that partition the files into folders: `day=2024-05-01/…`."),
        Option(
            "record.columns",
            BOOLEAN,
            False,
            "Whether the columns are key, value, topic, partition, offset, timestamp and headers instead of the "
            "fields of the value.",
        ),
    )

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        return True

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        if config["spark.format"] in FILE_FORMATS and not config["spark.path"]:
            return {"spark.path": f"spark.format={config['spark.format']} requires a folder to write to"}
        return {}

    def writer(self, context: Context, records: DataFrame) -> DataStreamWriter | None:
        rows = self._rows(context, records)
        writer = (
            rows.writeStream.format(context["spark.format"])
            .options(**context.with_prefix(_PREFIX[0]))
            .outputMode("append")
        )
        if context["partition.columns"]:
            writer = writer.partitionBy(*context["partition.columns"])
        return writer.option("path", context["spark.path"]) if context["spark.path"] else writer

    def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        """Writes a batch whose columns were not known in advance. Its files are written to a
        temporary folder and then renamed to names with the batch number. The files of a repeated
        batch replace the previous files."""
        rows = self._rows(context, records)
        format_, path = context["spark.format"], context["spark.path"]
        is_file_format = format_ in FILE_FORMATS
        if context.exactly_once and not is_file_format:
            raise ConnectError(f"exactly.once with spark.format={format_} requires records with types known in advance")
        target = f"{context.checkpoint}/batch" if is_file_format else path
        writer = rows.write.format(format_).options(**context.with_prefix(_PREFIX[0]))
        if context["partition.columns"]:
            writer = writer.partitionBy(*context["partition.columns"])
        writer.mode("overwrite" if is_file_format else "append").save(target or None)
        if is_file_format:
            move_into(context.spark, target, path, f"kavka-{query_id(context)[:8] or 'batch'}-{batch_id}")

    def _rows(self, context: Context, records: DataFrame) -> DataFrame:
        from pyspark.sql.types import StructType

        names = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
        if context["record.columns"]:
            rows = records.select(*[name for name in names if name in records.columns])
        else:
            kind = records.schema["value"].dataType
            rows = records.select("value.*") if isinstance(kind, StructType) else records.select("value")
        missing = [name for name in context["partition.columns"] if name not in rows.columns]
        if missing:
            raise ConnectError(
                f"partition.columns has {', '.join(missing)}, but the rows have {', '.join(rows.columns)}"
            )
        if context["spark.format"] == "text" and not context["partition.columns"]:
            from kavka.pipeline.connect.connectors.columns import text_of

            return records.select(text_of(records, "value").alias("value"))
        return rows


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:500]
