"""What lies between a connector and the topics: converters, transformations, and what becomes of records that fail.

A source: its columns, transformations, converters, the sink `kavka`. A sink: the source `kavka`, converters,
transformations, its columns.
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
from kavka.pipeline.connect.loading import NOTHING, TRANSFORMS, Declared, load_converter, options_under
from kavka.pipeline.connect.records import ERROR, ERROR_TYPE, HEADERS_TYPE, KEY, RAW, VALUE, Records, complete
from kavka.pipeline.connect.settings import converter_config
from kavka.pipeline.connect.transforms import chain

TIME = "_ms"
FAILURES = "connect"
_STAGES = {KEY: "KEY_CONVERTER", VALUE: "VALUE_CONVERTER"}
_READ = {KEY: "_key_read", VALUE: "_value_read"}
_CONTEXT = "__connect.errors."

# What of a record the transformations change; one's own may change anything.
_ROUTERS = ("RegexRouter", "TimestampRouter")
_HEADERS = ("InsertHeader", "HeaderFrom", "DropHeaders")


def converter(
    given: Mapping[str, str], worker: Mapping[str, str], side: str, declared: Declared = NOTHING
) -> Converter:
    name, among, prefix = converter_config(given, worker, side)
    cls = load_converter(name, f"{side}.converter", declared)
    values, errors = options_under(cls, prefix, among)
    if errors:
        raise ConfigErrors(errors)
    made: Converter = cls(values, side == KEY)
    return made


@dataclass(frozen=True)
class Flow:
    """Of one connector."""

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
        given: Mapping[str, str],
        config: Mapping[str, Any],
        worker: Mapping[str, str],
        keep_raw: bool,
        declared: Declared = NOTHING,
    ) -> Flow:
        steps, errors = chain.compiled(given, declared)
        if errors:
            raise ConfigErrors(errors)
        key, value = (converter(given, worker, side, declared) for side in (KEY, VALUE))
        return cls(name, key, value, steps, config["errors.tolerance"] == "all", keep_raw)

    @property
    def static(self) -> bool:
        return self.key.static and self.value.static

    def _changes(self, names: tuple[str, ...]) -> bool:
        kinds = [type(step.transform) for step in self.steps]
        return any(kind.__name__ in names or kind.__name__ not in TRANSFORMS for kind in kinds)

    # --- sources

    @property
    def keeps_text(self) -> bool:
        """Whether a record that is text, without key, is written as it is."""
        return not self.steps and self.value.keeps_text

    def encoded(self, frame: DataFrame, topic: str | None) -> tuple[DataFrame, str | None]:
        """(rows for the sink `kavka`, the topic of all of them if it is one). `topic`: where the records go, unless
        they say so themselves. Rows that failed have `_error`; columns that would always be null are not there."""
        given = {name.lower() for name in frame.columns}
        records = chain.apply(self.steps, Records(complete(frame, topic)))
        whole = topic if "topic" not in given and not self._changes(_ROUTERS) else None
        columns = []
        for side, one in ((KEY, self.key), (VALUE, self.value)):
            if side == KEY and KEY not in given and not self._changes(("ValueToKey", "HoistField")):
                continue
            columns.append(one.encode(F.col(side), records.type_of(side), records.names[side]).alias(side))
        if whole is None:
            columns.append(F.col("topic"))
        if "partition" in given:
            columns.append(F.col("partition").cast("int").alias("partition"))
        if "headers" in given or self._changes(_HEADERS):
            columns.append(F.col("headers").cast(HEADERS_TYPE).alias("headers"))
        if "timestamp" in given or self._changes(()):
            columns.append(F.unix_millis(F.col("timestamp").cast("timestamp")).alias(TIME))
        if self.steps:
            columns.append(F.col(ERROR))
        return records.frame.select(*columns), whole

    def without_failures(self, frame: DataFrame) -> DataFrame:
        """Rows that failed are left out, or fail the task when they are reached."""
        if ERROR not in frame.columns:
            return frame
        if self.tolerant:
            return frame.filter(F.col(ERROR).isNull()).drop(ERROR)
        return frame.withColumn(VALUE, failing_in(VALUE)).drop(ERROR)

    # --- sinks

    @property
    def text_columns(self) -> list[str]:
        """Which of key and value the source `kavka` is to give as text: its Python processes look whether bytes are
        UTF-8 many times faster than Spark does. What may become a dead letter is needed as it was."""
        return [] if self.keep_raw else [side for side, one in ((KEY, self.key), (VALUE, self.value)) if one.is_text]

    def decoded(self, raw: DataFrame, batch: DataFrame | None) -> Records:
        """`raw` is what the source `kavka` gives; `batch` the same where it may be looked at."""
        frame = raw.withColumns({ERROR: F.lit(None).cast(ERROR_TYPE)})
        if self.keep_raw:
            parts = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
            frame = frame.withColumn(RAW, F.struct(*(F.col(name) for name in parts)))
        records = Records(frame, is_sink=True)
        schemaless = {}
        columns: dict[str, Column] = {}
        for side, one in ((KEY, self.key), (VALUE, self.value)):
            is_text = isinstance(raw.schema[side].dataType, StringType)
            found = Decoded(F.col(side)) if is_text else one.decode(F.col(side), batch)
            schemaless[side] = found.schemaless
            if found.together is not None:
                records = records.with_columns({_READ[side]: found.together})
                read = F.col(_READ[side])
                found = replace(found, value=read["value"], error=read["error"], cause=read["cause"])
            if found.error is not None:
                records = records.failing(
                    found.error.isNotNull(), found.error, _STAGES[side], one.operator, exception=found.exception,
                    cause=found.cause,
                )  # fmt: skip
            columns[side] = found.value
        records = records.with_columns(columns, schemaless=schemaless)
        records = replace(records, frame=records.frame.drop(*_READ.values()))
        return chain.apply(self.steps, records)

    def dead_letters(self, frame: DataFrame, context_headers: bool) -> DataFrame:
        """The records that failed as they were read, for the dead-letter topic."""
        raw, error = F.col(RAW), F.col(ERROR)
        headers = F.coalesce(raw["headers"], F.array().cast(HEADERS_TYPE))
        if context_headers:
            message = error["message"]
            trace = F.concat(error["exception"], F.lit(": "), message)
            trace = F.when(error["cause"].isNull(), trace).otherwise(
                F.concat(trace, F.lit("\nCaused by: "), error["cause"])
            )
            more = {
                "topic": raw["topic"],
                "partition": raw["partition"].cast("string"),
                "offset": raw["offset"].cast("string"),
                "connector.name": F.lit(self.name),
                "task.id": F.lit("0"),
                "stage": error["stage"],
                "class.name": error["operator"],
                "exception.class.name": error["exception"],
                "exception.message": message,
                "exception.stacktrace": trace,
            }
            made = [
                F.struct(F.lit(f"{_CONTEXT}{name}").alias("key"), value.cast("binary").alias("value"))
                for name, value in more.items()
            ]
            headers = F.concat(headers, F.array(*made).cast(HEADERS_TYPE))
        return frame.filter(error.isNotNull()).select(
            raw["key"].alias("key"), raw["value"].alias("value"), headers.alias("headers"),
            F.unix_millis(raw["timestamp"]).alias(TIME),
        )  # fmt: skip


def failing_in(column: str) -> Column:
    """The column, which fails the task where the record has."""
    error = F.col(ERROR)
    text = F.concat(
        F.lit("RECORD FAILED in "), error["stage"], F.lit(" ("), error["operator"], F.lit("): "), error["message"],
        F.when(error["cause"].isNotNull(), F.concat(F.lit(" caused by: "), error["cause"])).otherwise(F.lit("")),
    )  # fmt: skip
    return F.when(error.isNull(), F.col(column)).otherwise(F.raise_error(text))


def observed(frame: DataFrame, observation: Any) -> DataFrame:
    """Counts what failed, with an example, and the topics that are written to."""
    measures = [F.lit(0).alias("failed")]
    if ERROR in frame.columns:
        error = F.col(ERROR)
        example = F.first(F.concat(error["stage"], F.lit(": "), error["message"]), ignorenulls=True)
        measures = [F.count_if(error.isNotNull()).alias("failed"), example.alias("example")]
    if "topic" in frame.columns:
        measures.append(F.collect_set("topic").alias("topics"))
    return frame.observe(observation, *measures)
