"""The stages between a connector and the topics: converters, transformations, and the handling of
failed records.

The order for a source: its columns, transformations, converters, the Spark sink `kavka`. For a
sink: the Spark source `kavka`, converters, transformations, its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from kavka.pipeline.connect.converters import Converter, Decoded
from kavka.pipeline.connect.errors import ConfigErrors
from kavka.pipeline.connect.loading import NO_PLUGINS, TRANSFORMS, Declared, load_converter, options_under
from kavka.pipeline.connect.records import ERROR, ERROR_TYPE, HEADERS_TYPE, KEY, RAW, VALUE, Records, complete
from kavka.pipeline.connect.settings import converter_config
from kavka.pipeline.connect.transforms import chain

TIME = "_ms"
OBSERVATION = "connect"
"""The name of Spark's observation of failed records and topics in a streaming query."""
_STAGES = {KEY: "KEY_CONVERTER", VALUE: "VALUE_CONVERTER"}
_DECODED = {KEY: "_key_decoded", VALUE: "_value_decoded"}
_HEADER_PREFIX = "__connect.errors."

# Transformations by the part of a record that they change. Custom transformations may change any
# part.
_ROUTERS = ("RegexRouter", "TimestampRouter")
_HEADERS = ("InsertHeader", "HeaderFrom", "DropHeaders")


def _converter(
    originals: Mapping[str, str], worker: Mapping[str, str], side: str, declared: Declared = NO_PLUGINS
) -> Converter:
    name, settings, prefix = converter_config(originals, worker, side)
    cls = load_converter(name, f"{side}.converter", declared)
    values, errors = options_under(cls, prefix, settings)
    if errors:
        raise ConfigErrors(errors)
    instance: Converter = cls(values, side == KEY)
    return instance


@dataclass(frozen=True)
class Flow:
    """The converters and transformations of one connector."""

    name: str
    key: Converter
    value: Converter
    steps: list[chain.Step]
    tolerant: bool
    keep_raw: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        originals: Mapping[str, str],
        config: Mapping[str, Any],
        worker: Mapping[str, str],
        keep_raw: bool,
        declared: Declared = NO_PLUGINS,
    ) -> Flow:
        steps, errors = chain.compile_steps(originals, declared)
        if errors:
            raise ConfigErrors(errors)
        key, value = (_converter(originals, worker, side, declared) for side in (KEY, VALUE))
        return cls(name, key, value, steps, config["errors.tolerance"] == "all", keep_raw)

    @property
    def is_static(self) -> bool:
        return self.key.is_static and self.value.is_static

    def _changes(self, names: tuple[str, ...]) -> bool:
        """Whether one of these transformations, or a custom one, is configured."""
        kinds = [type(step.transform) for step in self.steps]
        return any(kind.__name__ in names or kind.__name__ not in TRANSFORMS for kind in kinds)

    # --- sources

    @property
    def keeps_text(self) -> bool:
        """Whether a text record without a key is written unchanged."""
        return not self.steps and self.value.keeps_text

    def encode(self, frame: DataFrame, topic: str | None) -> tuple[DataFrame, str | None]:
        """Returns (rows for the Spark sink `kavka`, the topic of all rows if they share a topic).
        `topic` is the topic of records without a column `topic`. Failed rows have `_error`. Columns
        that would always be null are omitted."""
        source_columns = {name.lower() for name in frame.columns}
        records = chain.apply(self.steps, Records(complete(frame, topic)))
        shared_topic = topic if "topic" not in source_columns and not self._changes(_ROUTERS) else None
        columns = []
        for side, converter in ((KEY, self.key), (VALUE, self.value)):
            if side == KEY and KEY not in source_columns and not self._changes(("ValueToKey", "HoistField")):
                continue
            columns.append(converter.encode(F.col(side), records.type_of(side), records.names[side]).alias(side))
        if shared_topic is None:
            columns.append(F.col("topic"))
        if "partition" in source_columns:
            columns.append(F.col("partition").cast("int").alias("partition"))
        if "headers" in source_columns or self._changes(_HEADERS):
            columns.append(F.col("headers").cast(HEADERS_TYPE).alias("headers"))
        if "timestamp" in source_columns or self._changes(()):
            columns.append(F.unix_millis(F.col("timestamp").cast("timestamp")).alias(TIME))
        if self.steps:
            columns.append(F.col(ERROR))
        return records.frame.select(*columns), shared_topic

    def without_failures(self, frame: DataFrame) -> DataFrame:
        """Drops failed rows. If errors are not tolerated, a failed row fails the task instead."""
        if ERROR not in frame.columns:
            return frame
        if self.tolerant:
            return frame.filter(F.col(ERROR).isNull()).drop(ERROR)
        return frame.withColumn(VALUE, failing_in(VALUE, "offset" in frame.columns)).drop(ERROR)

    # --- sinks

    @property
    def text_columns(self) -> list[str]:
        """The sides that the Spark source `kavka` decodes to text: its Python processes check UTF-8
        many times faster than Spark does. Records that may become dead letters stay bytes."""
        if self.keep_raw:
            return []
        return [side for side, converter in ((KEY, self.key), (VALUE, self.value)) if converter.is_text]

    def decode(self, raw: DataFrame, batch: DataFrame | None) -> Records:
        """Decodes and transforms rows of the Spark source `kavka`. `batch` is the same rows if they
        are a micro-batch, which converters may inspect; None for a stream."""
        frame = raw.withColumns({ERROR: F.lit(None).cast(ERROR_TYPE)})
        if self.keep_raw:
            names = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
            frame = frame.withColumn(RAW, F.struct(*names))
        records = Records(frame, is_sink=True)
        schemaless = {}
        columns: dict[str, Column] = {}
        for side, converter in ((KEY, self.key), (VALUE, self.value)):
            is_text = isinstance(raw.schema[side].dataType, StringType)
            decoded = Decoded(F.col(side)) if is_text else converter.decode(F.col(side), batch)
            schemaless[side] = decoded.schemaless
            if decoded.combined is not None:
                records = records.with_columns({_DECODED[side]: decoded.combined})
                result = F.col(_DECODED[side])
                decoded = replace(decoded, value=result["value"], error=result["error"], cause=result["cause"])
            if decoded.error is not None:
                records = records.failing(
                    decoded.error.isNotNull(), decoded.error, _STAGES[side], converter.operator,
                    exception=decoded.exception, cause=decoded.cause,
                )  # fmt: skip
            columns[side] = decoded.value
        records = records.with_columns(columns, schemaless=schemaless)
        records = replace(records, frame=records.frame.drop(*_DECODED.values()))
        return chain.apply(self.steps, records)

    def dead_letters(self, frame: DataFrame, context_headers: bool) -> DataFrame:
        """Returns the failed records as they were read, for the dead-letter topic."""
        raw, error = F.col(RAW), F.col(ERROR)
        headers = F.coalesce(raw["headers"], F.array().cast(HEADERS_TYPE))
        if context_headers:
            message = error["message"]
            trace = F.concat(error["exception"], F.lit(": "), message)
            trace = F.when(error["cause"].isNull(), trace).otherwise(
                F.concat(trace, F.lit("\nCaused by: "), error["cause"])
            )
            context_values = {
                "topic": raw["topic"],
                "partition": raw["partition"].cast("string"),
                "offset": raw["offset"].cast("string"),
                "connector.name": F.lit(self.name),
                # The Spark partitions of a micro-batch are the tasks.
                "task.id": F.spark_partition_id().cast("string"),
                "stage": error["stage"],
                "class.name": error["operator"],
                "exception.class.name": error["exception"],
                "exception.message": message,
                "exception.stacktrace": trace,
            }
            context = [
                F.struct(F.lit(f"{_HEADER_PREFIX}{name}").alias("key"), value.cast("binary").alias("value"))
                for name, value in context_values.items()
            ]
            headers = F.concat(headers, F.array(*context).cast(HEADERS_TYPE))
        return frame.filter(error.isNotNull()).select(
            raw["key"].alias("key"), raw["value"].alias("value"), headers.alias("headers"),
            F.unix_millis(raw["timestamp"]).alias(TIME),
        )  # fmt: skip


def failing_in(column: str, has_offset: bool) -> Column:
    """Returns the column with an expression that fails the task on a failed record. A record of a
    topic has an offset."""
    error = F.col(ERROR)
    place = F.lit("")
    if has_offset:
        topic, partition, offset = (F.col(name).cast("string") for name in ("topic", "partition", "offset"))
        place = F.concat(F.lit(" for "), topic, F.lit("-"), partition, F.lit(" at offset "), offset)
    text = F.concat(
        F.lit("RECORD FAILED in "), error["stage"], place,
        F.lit(" ("), error["operator"], F.lit("): "), error["message"],
        F.when(error["cause"].isNotNull(), F.concat(F.lit(" caused by: "), error["cause"])).otherwise(F.lit("")),
    )  # fmt: skip
    return F.when(error.isNull(), F.col(column)).otherwise(F.raise_error(text))


def observe(frame: DataFrame, observation: Any) -> DataFrame:
    """Returns the frame with metrics: the number of failed rows, an example of an error, and the
    topics."""
    measures = [F.lit(0).alias("failed")]
    if ERROR in frame.columns:
        error = F.col(ERROR)
        example = F.first(F.concat(error["stage"], F.lit(": "), error["message"]), ignorenulls=True)
        measures = [F.count_if(error.isNotNull()).alias("failed"), example.alias("example")]
    if "topic" in frame.columns:
        measures.append(F.collect_set("topic").alias("topics"))
    return frame.observe(observation, *measures)
