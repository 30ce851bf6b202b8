"""Transformations of the fields of keys and values: InsertField, ReplaceField, MaskField,
ValueToKey, HoistField, ExtractField, Flatten."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from kavka.common.config import ConfigType, Importance, NotEmpty, OneOf
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import KEY, VALUE, Records
from kavka.pipeline.connect.transforms.base import Transform, at_path, field_of, path_of

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
LIST, BOOLEAN = ConfigType.LIST, ConfigType.BOOLEAN
SYNTAX = Option(
    "field.syntax.version", default="V1", doc="V2: dots in a name separate nested fields.", importance=HIGH,
    validator=OneOf(("V1", "V2"), ignore_case=True), recommended=("V1", "V2"),
)  # fmt: skip
NULLS = Option("replace.null.with.default", BOOLEAN, True, "Has no effect: columns have no defaults.")


class InsertField(Transform):
    """Adds a field with metadata of the record, or with a fixed value."""

    sided = True
    purpose = "field insertion"
    options = (
        Option("topic.field", default=None, doc="The field for the topic. Suffixes: `!` required, `?` optional."),
        Option("partition.field", default=None, doc="The field for the partition."),
        Option("offset.field", default=None, doc="The field for the offset: only in sinks."),
        Option("timestamp.field", default=None, doc="The field for the record's timestamp."),
        Option("static.field", default=None, doc="The field for `static.value`."),
        Option("static.value", default=None, doc="The value of `static.field`."),
        NULLS,
    )

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        if not any(config[option.name] for option in cls.options if option.name.endswith(".field")):
            return {"topic.field": "No field insertion configured"}
        if config["static.field"] and config["static.value"] is None:
            return {"static.value": "No value specified for static field: static.value"}
        return {}

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        schemaless = records.schemaless[self.side]
        timestamp = F.unix_millis("timestamp") if schemaless else F.col("timestamp")
        columns = {
            "topic.field": F.col("topic"),
            "partition.field": F.col("partition"),
            "offset.field": F.col("offset") if records.is_sink else F.lit(None).cast("bigint"),
            "timestamp.field": timestamp,
            "static.field": F.lit(self.config["static.value"]),
        }
        fields = {field.name: field_of(self.column, field) for field in kind.fields}
        for option, column in columns.items():
            name = self.config[option]
            if not name:
                continue
            fields[name.rstrip("!?")] = column
            if name.endswith("!"):
                missing = self.column.isNotNull() & column.isNull()
                records = self.fail(records, missing, f"{name} is required, but null")
        if self.config["offset.field"] and not records.is_sink:
            return self.fail(records, F.lit(True), "Sink record expected for [getting offset metadata]")
        return self.with_fields(records, list(fields.items()))


class ReplaceField(Transform):
    """Drops or renames fields."""

    sided = True
    purpose = "field replacement"
    options = (
        Option("exclude", LIST, (), "Fields to drop; takes precedence over `include`."),
        Option("include", LIST, (), "The only fields to keep."),
        Option("renames", LIST, (), "`old:new` names."),
        NULLS,
    )
    old_names = {"blacklist": "exclude", "whitelist": "include"}

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        invalid = [rename for rename in config["renames"] if rename.count(":") != 1]
        return {"renames": f"Invalid rename mapping: {invalid[0]}"} if invalid else {}

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        names = dict(rename.split(":") for rename in self.config["renames"])
        include, exclude = self.config["include"], self.config["exclude"]
        remaining = [
            field for field in kind.fields if field.name not in exclude and (not include or field.name in include)
        ]
        return self.with_fields(
            records, [(names.get(field.name, field.name), field_of(self.column, field)) for field in remaining]
        )


class MaskField(Transform):
    """Replaces the values of fields by an empty value (0, an empty string) or by `replacement`."""

    sided = True
    purpose = "mask fields"
    options = (
        Option("fields", LIST, doc="The fields to mask.", importance=HIGH, validator=NotEmpty()),
        Option("replacement", default=None, doc="The replacement for numbers and strings.", importance=LOW,
               validator=NotEmpty()),
        NULLS,
    )  # fmt: skip

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        fields = []
        for field in kind.fields:
            column = field_of(self.column, field)
            if field.name in self.config["fields"]:
                masked = self._mask(field.dataType)
                if masked is None:
                    message = f"Cannot mask value of type: {field.dataType.simpleString()}"
                    records = self.fail(records, column.isNotNull(), message)
                else:
                    column = F.when(column.isNotNull(), masked.cast(field.dataType))
            fields.append((field.name, column))
        return self.with_fields(records, fields)

    def _mask(self, kind: DataType) -> Column | None:
        replacement = self.config["replacement"]
        if replacement is not None:
            if isinstance(kind, StringType):
                return F.lit(replacement)
            if isinstance(kind, NumericType):
                try:
                    return F.lit(str(Decimal(replacement)))
                except InvalidOperation:
                    return None
            return None
        match kind:
            case StringType():
                return F.lit("")
            case NumericType():
                return F.lit(0)
            case BooleanType():
                return F.lit(False)
            case ArrayType():
                return F.array()
            case MapType():
                return F.create_map()
            case TimestampType():
                return F.timestamp_millis(F.lit(0))
            case DateType():
                return F.date_from_unix_date(F.lit(0))
        return None


class ValueToKey(Transform):
    """Builds the key from fields of the value."""

    purpose = "copying fields from value to key"
    options = (
        Option("fields", LIST, doc="The fields of the key.", importance=HIGH, validator=NotEmpty()),
        NULLS,
    )

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        value = F.col(VALUE)
        fields = []
        for name in self.config["fields"]:
            if name in kind.names:
                fields.append(value.getField(name).alias(name))
            elif records.schemaless[VALUE]:
                fields.append(F.lit(None).cast("string").alias(name))
            else:
                return self.fail(records, value.isNotNull(), f"Field does not exist: {name}")
        schemaless = {**records.schemaless, KEY: records.schemaless[VALUE]}
        return records.with_columns({KEY: F.struct(*fields)}, schemaless=schemaless)


class HoistField(Transform):
    """Wraps the whole key or value in a field."""

    sided = True
    options = (Option("field", doc="The name of the field.", importance=MEDIUM),)

    def apply(self, records: Records) -> Records:
        return records.with_columns({self.side: F.struct(self.column.alias(self.config["field"]))})


class ExtractField(Transform):
    """Replaces the key or value by one of its fields."""

    sided = True
    purpose = "field extraction"
    options = (Option("field", doc="The field to extract.", importance=MEDIUM), SYNTAX, NULLS)

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        target = at_path(self.column, kind, path_of(self.config, "field"))
        if target is not None:
            return records.with_columns({self.side: target[0]})
        if not records.schemaless[self.side]:
            message = f"Unknown field: {self.config['field']}"
            records = self.fail(records, self.column.isNotNull(), message, "java.lang.IllegalArgumentException")
        return records.with_columns({self.side: F.lit(None).cast("string")})


class Flatten(Transform):
    """Flattens nested fields and joins their names."""

    sided = True
    purpose = "flattening"
    options = (Option("delimiter", default=".", doc="The separator between names."),)

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        return self.with_fields(records, self._flat(self.column, kind, ""))

    def _flat(self, column: Column, kind: StructType, prefix: str) -> list[tuple[str, Column]]:
        fields = []
        for field in kind.fields:
            name, inner = f"{prefix}{field.name}", field_of(column, field)
            if isinstance(field.dataType, StructType):
                fields += self._flat(inner, field.dataType, f"{name}{self.config['delimiter']}")
            else:
                fields.append((name, inner))
        return fields
