"""Transformations of values: Cast, TimestampConverter, SetSchemaMetadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kavka.common.config import ConfigType, Importance, NotEmpty, OneOf
from kavka.pipeline.columns.types import MAX_TIME_MS, SchemaName
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import Records
from kavka.pipeline.connect.transforms.base import Transform, at_path, field_of, path_of, replaced
from kavka.pipeline.connect.transforms.fields import NULLS, SYNTAX

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

_TYPES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
}
_INTEGERS = ("int8", "int16", "int32", "int64")
_TIMES = (TimestampType, TimestampNTZType)


class Cast(Transform):
    """Changes the types of fields, or of the whole key or value."""

    sided = True
    purpose = "cast types"
    options = (
        Option("spec", ConfigType.LIST, doc="`field:type` pairs, or a single type for the whole key or value: int8, "
               "int16, int32, int64, float32, float64, boolean, string.", importance=HIGH, validator=NotEmpty()),
        NULLS,
    )  # fmt: skip

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        spec = config["spec"]
        for cast in spec:
            field, colon, kind = cast.rpartition(":")
            if kind not in _TYPES or cast.count(":") > 1 or (colon and not field):
                return {"spec": f"Invalid value {','.join(spec)} for configuration spec: Invalid cast: {cast}"}
        if len(spec) > 1 and any(":" not in cast for cast in spec):
            message = (
                "Cast transformations that specify a type to cast the entire value to may ony specify a single cast"
            )
            return {"spec": f"Invalid value {','.join(spec)} for configuration spec: {message} in their spec"}
        return {}

    def apply(self, records: Records) -> Records:
        spec = self.config["spec"]
        if len(spec) == 1 and ":" not in spec[0]:
            column, is_invalid = _cast(self.column, records.type_of(self.side), spec[0])
            records = self._check(records, self.column, is_invalid)
            return records.with_columns({self.side: column})
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        types = dict(cast.split(":") for cast in spec)
        fields = []
        for field in kind.fields:
            column = field_of(self.column, field)
            if field.name in types:
                if isinstance(field.dataType, (ArrayType, MapType, StructType)):
                    message = f"Cast transformation does not support casting from {field.dataType.typeName().upper()}"
                    records = self.fail(records, column.isNotNull(), message)
                    continue
                new_column, is_invalid = _cast(column, field.dataType, types[field.name])
                records = self._check(records, column, is_invalid)
                column = new_column
            fields.append((field.name, column))
        return self.with_fields(records, fields)

    def _check(self, records: Records, column: Column, is_invalid: Column | None) -> Records:
        if is_invalid is None:
            return records
        reason = F.lit(") was out of range for requested data type")
        return self.fail(records, is_invalid, F.concat(F.lit("Value ("), column.cast("string"), reason))


def _cast(column: Column, kind: DataType, target: str) -> tuple[Column, Column | None]:
    """Returns (the cast column, a column that is true for records whose cast fails). The second is
    None if no cast can fail."""
    if isinstance(kind, _TIMES):
        if target == "string":
            return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSX"), None
        return _checked(F.unix_millis(column.cast("timestamp")), target)
    if isinstance(kind, DateType) and target != "string":
        return _checked(F.unix_date(column), target)
    if target == "string":
        return (F.base64(column) if isinstance(kind, BinaryType) else column.cast("string")), None
    if target == "boolean" and isinstance(kind, StringType):
        return F.when(column.isNotNull(), F.lower(column) == "true"), None
    if target in _INTEGERS and isinstance(kind, NumericType):
        # Truncate fractions, as Java does.
        column = F.when(column >= 0, F.floor(column)).otherwise(F.ceil(column))
    if isinstance(kind, BooleanType):
        return column.cast("int").cast(_TYPES[target]), None
    cast = column.try_cast(_TYPES[target])
    if target in _INTEGERS and isinstance(kind, StringType):
        # Spark would cast 1.5 to 1.
        cast = F.when(column.rlike(r"^\s*[+-]?\d+\s*$"), cast)
    return cast, column.isNotNull() & cast.isNull()


def _checked(column: Column, target: str) -> tuple[Column, Column]:
    cast = column.try_cast(_TYPES[target])
    return cast, column.isNotNull() & cast.isNull()


class SetSchemaMetadata(Transform):
    """Sets the name and version of the schema, which JsonConverter writes."""

    sided = True
    options = (
        Option("schema.name", default=None, doc="The name.", importance=HIGH),
        Option("schema.version", ConfigType.INT, None, "The version.", HIGH),
        NULLS,
    )

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        if config["schema.name"] is None and config["schema.version"] is None:
            return {"schema.name": "Neither schema name nor version configured"}
        return {}

    def apply(self, records: Records) -> Records:
        current, version = records.names[self.side], self.config["schema.version"]
        name = SchemaName(self.config["schema.name"] or current.name, current.version if version is None else version)
        return records.with_columns({}, names={**records.names, self.side: name})


# (multiplier, divisor) from each unit to milliseconds.
_TO_MILLIS = {"seconds": (1000, 1), "milliseconds": (1, 1), "microseconds": (1, 1000), "nanoseconds": (1, 1_000_000)}


class TimestampConverter(Transform):
    """Converts times between text, numbers, dates and timestamps."""

    sided = True
    purpose = "converting timestamp formats"
    options = (
        Option("target.type", doc="string, unix, Date, Time or Timestamp.", importance=HIGH,
               validator=OneOf(("string", "unix", "Date", "Time", "Timestamp")),
               recommended=("string", "unix", "Date", "Time", "Timestamp")),
        Option("field", default="", doc="The field with the time; empty: the whole key or value.", importance=HIGH),
        SYNTAX,
        Option("format", default="", doc="The format of text, a pattern of Java's SimpleDateFormat."),
        Option("unix.precision", default="milliseconds", importance=LOW, doc="The unit of numbers.",
               validator=OneOf(tuple(_TO_MILLIS)), recommended=tuple(_TO_MILLIS)),
        NULLS,
    )  # fmt: skip

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        if config["target.type"] == "string" and not config["format"].strip():
            message = "TimestampConverter requires format option to be specified when using string timestamps"
            return {"format": message}
        return {}

    def apply(self, records: Records) -> Records:
        kind = records.type_of(self.side)
        path = path_of(self.config, "field") if self.config["field"] else []
        if path and self.struct_of(records) is None:
            return self.not_a_struct(records)
        target = at_path(self.column, kind, path)
        if target is None:
            return records
        column, inner = target
        time = self._read(column, inner)
        if time is None:
            reason = f"Schema {inner.simpleString()} does not correspond to a known timestamp type format"
            return self.fail(records, column.isNotNull(), reason)
        message = F.concat(F.lit("Could not parse timestamp: value ("), column.cast("string"),
                           F.lit(f") does not match pattern ({self.config['format']})"))  # fmt: skip
        records = self.fail(records, column.isNotNull() & time.isNull(), message)
        new_column = replaced(self.column, kind, path, lambda: self._write(time))
        return records.with_columns({self.side: new_column})

    def _read(self, column: Column, kind: DataType) -> Column | None:
        match kind:
            case StringType():
                return F.try_to_timestamp(column, F.lit(self.config["format"])) if self.config["format"] else None
            case TimestampType() | TimestampNTZType() | DateType():
                return column.cast("timestamp")
            case LongType() | NumericType():
                multiplier, divisor = _TO_MILLIS[self.config["unix.precision"]]
                # A number that is too large has no time.
                number = F.try_multiply(column.try_cast("bigint"), F.lit(multiplier))
                millis = F.floor(number / divisor).cast("bigint")
                return F.timestamp_millis(F.when(millis.between(-MAX_TIME_MS, MAX_TIME_MS), millis))
        return None

    def _write(self, time: Column) -> Column:
        match self.config["target.type"]:
            case "string":
                return F.date_format(time, self.config["format"])
            case "Timestamp":
                return time
            case "Date":
                return time.cast("date")
            case "Time":
                return (F.unix_millis(time) % 86_400_000).cast("int")
        multiplier, divisor = _TO_MILLIS[self.config["unix.precision"]]
        return F.floor(F.unix_millis(time) * divisor / multiplier).cast("bigint")
