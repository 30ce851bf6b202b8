"""Everything that Spark can read or write, as a source or a sink: parquet, csv, json, orc, text, delta, iceberg …"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka.common.config import BOOLEAN, HIGH, LIST, NotEmpty, OneOf
from kavka.pipeline.connect.api import Context, Sink, Source, query_id
from kavka.pipeline.connect.connectors.moving import move_into
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro", "xml")
_STREAM, _BATCH = "stream", "batch"
_PREFIX = ("spark.option.", "Any option of the format: `spark.option.header=true`.")
_FORMAT = Option(
    "spark.format", doc="A format of Spark's: `parquet`, `csv`, `json`, `orc`, `text`, `iceberg` …", importance=HIGH,
    validator=NotEmpty(), recommended=FILE_FORMATS,
)  # fmt: skip


def _path(doc: str) -> Option:
    return Option("spark.path", default="", doc=doc, importance=HIGH)


class SparkSource(Source):
    """What Spark can read, in any of its formats, as records.

    The value is a struct of all columns, or the column itself where it is called `value` and is the only one (text).
    Files of a folder are a stream: new ones follow, each is read once."""

    prefixes = (_PREFIX,)
    options = (
        _FORMAT,
        _path("The folder or file, or what else the format calls its path (for iceberg, the table)."),
        Option("topic", doc="The topic that the rows go to.", importance=HIGH, validator=NotEmpty()),
        Option(
            "spark.mode",
            default=_STREAM,
            doc="`stream`: what is new follows; `batch`: what is there now is read, and the task is done "
            "(or reads all again every `trigger.interval`).",
            validator=OneOf((_STREAM, _BATCH)),
            recommended=(_STREAM, _BATCH),
        ),
        Option(
            "spark.schema",
            default="",
            doc="The columns, as in `id BIGINT, name STRING`. Without it they are found by a look at what is there.",
        ),
        Option("key.columns", LIST, (), "Columns that make up the key: one as it is, several as a struct."),
    )

    @classmethod
    def opens_files(cls, given: Mapping[str, str]) -> bool:
        return True

    def read(self, context: Context) -> DataFrame:
        from pyspark.sql import functions as f

        rows = self._rows(context)
        missing = [name for name in context["key.columns"] if name not in rows.columns]
        if missing:
            raise ConnectError(f"key.columns has {', '.join(missing)}, and the rows have {', '.join(rows.columns)}")
        whole = f.col("value") if rows.columns == ["value"] else f.struct(*[f.col(f"`{one}`") for one in rows.columns])
        columns = [whole.alias("value")]
        keys = [f.col(f"`{name}`") for name in context["key.columns"]]
        if keys:
            columns.append((keys[0] if len(keys) == 1 else f.struct(*keys)).alias("key"))
        return rows.select(*columns)

    def _rows(self, context: Context) -> DataFrame:
        spark, form, path = context.spark, context["spark.format"], context["spark.path"] or None
        options = context.with_prefix(_PREFIX[0])
        schema = context["spark.schema"] or None
        try:
            if context["spark.mode"] == _BATCH:
                reader = spark.read.format(form).options(**options)
                return (reader.schema(schema) if schema else reader).load(path)
            if schema is None and form in FILE_FORMATS and path:
                # A stream of files does not look by itself.
                schema = spark.read.format(form).options(**options).load(path).schema
            stream = spark.readStream.format(form).options(**options)
            return (stream.schema(schema) if schema else stream).load(path)
        except Exception as error:
            if not hasattr(error, "getCondition") and not hasattr(error, "desc"):
                raise
            raise ConnectError(f"spark.format={form} cannot be read: {_first_line(error)}") from None


class SparkSink(Sink):
    """Records to what Spark can write, in any of its formats.

    The fields of the value become columns; a value without fields becomes the column `value`. Files (parquet, orc,
    json, csv, text, avro, xml) have each record once with `exactly.once=true`. Other formats take care of that
    themselves, or do not."""

    exactly_once = True
    prefixes = (_PREFIX,)
    options = (
        _FORMAT,
        _path("The folder, or what else the format calls its path (for iceberg, the table)."),
        Option("partition.columns", LIST, (), "Columns by which files are put into folders: `day=2024-05-01/…`."),
        Option(
            "record.columns",
            BOOLEAN,
            False,
            "Whether key, value, topic, partition, offset, timestamp and headers are the columns, instead of the "
            "fields of the value.",
        ),
    )

    @classmethod
    def opens_files(cls, given: Mapping[str, str]) -> bool:
        return True

    @classmethod
    def check(cls, config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
        if config["spark.format"] in FILE_FORMATS and not config["spark.path"]:
            return {"spark.path": f"spark.format={config['spark.format']} needs a folder to write to"}
        return {}

    def writer(self, context: Context, records: DataFrame) -> DataStreamWriter | None:
        form = context["spark.format"]
        rows = self._rows(context, records)
        found = rows.writeStream.format(form).options(**context.with_prefix(_PREFIX[0])).outputMode("append")
        if context["partition.columns"]:
            found = found.partitionBy(*context["partition.columns"])
        return found.option("path", context["spark.path"]) if context["spark.path"] else found

    def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        """A batch whose columns were not known before. Files of it are made aside, and moved under names that belong to
        the batch: when it is written again they take the place of those that were."""
        rows = self._rows(context, records)
        form, path = context["spark.format"], context["spark.path"]
        files = form in FILE_FORMATS
        if context.exactly_once and not files:
            raise ConnectError(f"exactly.once with spark.format={form} needs records whose types are known before")
        aside = f"{context.checkpoint}/batch" if files else path
        found = rows.write.format(form).options(**context.with_prefix(_PREFIX[0]))
        if context["partition.columns"]:
            found = found.partitionBy(*context["partition.columns"])
        found = found.mode("overwrite" if files else "append")
        if aside:
            found.save(aside)
        else:
            found.save()
        if files:
            move_into(context.spark, aside, path, f"kavka-{query_id(context)[:8] or 'batch'}-{batch_id}")

    def _rows(self, context: Context, records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        wanted = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
        if context["record.columns"]:
            rows = records.select(*[name for name in wanted if name in records.columns])
        else:
            kind = records.schema["value"].dataType
            rows = records.select("value.*") if isinstance(kind, StructType) else records.select("value")
        missing = [name for name in context["partition.columns"] if name not in rows.columns]
        if missing:
            raise ConnectError(f"partition.columns has {', '.join(missing)}; there are {', '.join(rows.columns)}")
        if context["spark.format"] == "text":
            from kavka.pipeline.connect.connectors.columns import text_of

            rest = [f.col(name) for name in context["partition.columns"]]
            return records.select(text_of(records, "value").alias("value")) if not rest else rows
        return rows


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:500]
