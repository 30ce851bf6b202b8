"""Transformations of the fields of keys and values: InsertField, ReplaceField, MaskField, ValueToKey, HoistField,
ExtractField, Flatten."""

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
    "field.syntax.version", default="V1", doc="V2: dots in a name go into fields of fields.", importance=HIGH,
    validator=OneOf(("V1", "V2"), ignore_case=True), recommended=("V1", "V2"),
)  # fmt: skip
NULLS = Option("replace.null.with.default", BOOLEAN, True, "Has no effect here: columns have no defaults.")


class InsertField(Transform):
    """Adds a field with what is known of the record, or with a value that is given."""

    sided = True
    purpose = "field insertion"
    options = (
        Option("topic.field", default=None, doc="The field for the topic. `!` at the end: it is required, `?`: not."),
        Option("partition.field", default=None, doc="The field for the partition."),
        Option("offset.field", default=None, doc="The field for the offset: only in sinks."),
        Option("timestamp.field", default=None, doc="The field for the record's time."),
        Option("static.field", default=None, doc="The field for `static.value`."),
        Option("static.value", default=None, doc="What is in `static.field`."),
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
        when = F.unix_millis("timestamp") if schemaless else F.col("timestamp")
        wanted = {
            "topic.field": F.col("topic"),
            "partition.field": F.col("partition"),
            "offset.field": F.col("offset") if records.is_sink else F.lit(None).cast("bigint"),
            "timestamp.field": when,
            "static.field": F.lit(self.config["static.value"]),
        }
        fields = {one.name: field_of(self.column, one) for one in kind.fields}
        for option, column in wanted.items():
            given = self.config[option]
            if not given:
                continue
            required = given.endswith("!")
            fields[given.rstrip("!?")] = column
            if required:
                missing = self.column.isNotNull() & column.isNull()
                records = self.fail(records, missing, f"{given} is required, and null")
        if self.config["offset.field"] and not records.is_sink:
            return self.fail(records, F.lit(True), "Sink record expected for [getting offset metadata]")
        return self.with_fields(records, list(fields.items()))


class ReplaceField(Transform):
    """Leaves fields out, or gives them other names."""

    sided = True
    purpose = "field replacement"
    options = (
        Option("exclude", LIST, (), "Fields to leave out; they count more than `include`."),
        Option("include", LIST, (), "The only fields to keep."),
        Option("renames", LIST, (), "`old:new` names."),
        NULLS,
    )
    old_names = {"blacklist": "exclude", "whitelist": "include"}

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        wrong = [one for one in config["renames"] if one.count(":") != 1]
        return {"renames": f"Invalid rename mapping: {wrong[0]}"} if wrong else {}

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        names = dict(one.split(":") for one in self.config["renames"])
        include, exclude = self.config["include"], self.config["exclude"]
        kept = [one for one in kind.fields if one.name not in exclude and (not include or one.name in include)]
        return self.with_fields(records, [(names.get(one.name, one.name), field_of(self.column, one)) for one in kept])


class MaskField(Transform):
    """Puts nothing (0, an empty text), or a replacement, in place of the values of fields."""

    sided = True
    purpose = "mask fields"
    options = (
        Option("fields", LIST, doc="The fields to mask.", importance=HIGH, validator=NotEmpty()),
        Option("replacement", default=None, doc="What to put into fields with numbers and texts.", importance=LOW,
               validator=NotEmpty()),
        NULLS,
    )  # fmt: skip

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        fields = []
        for one in kind.fields:
            column = field_of(self.column, one)
            if one.name in self.config["fields"]:
                masked = self._mask(one.dataType)
                if masked is None:
                    wrong = f"Cannot mask value of type: {one.dataType.simpleString()}"
                    records = self.fail(records, column.isNotNull(), wrong)
                else:
                    column = F.when(column.isNotNull(), masked.cast(one.dataType))
            fields.append((one.name, column))
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
    """Makes a key of fields of the value."""

    purpose = "copying fields from value to key"
    options = (
        Option("fields", LIST, doc="The fields that the key is made of.", importance=HIGH, validator=NotEmpty()),
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
    """Puts the whole key or value into a field."""

    sided = True
    options = (Option("field", doc="The name of the field.", importance=MEDIUM),)

    def apply(self, records: Records) -> Records:
        return records.with_columns({self.side: F.struct(self.column.alias(self.config["field"]))})


class ExtractField(Transform):
    """Takes one field, and leaves everything else out."""

    sided = True
    purpose = "field extraction"
    options = (Option("field", doc="The field to take.", importance=MEDIUM), SYNTAX, NULLS)

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        found = at_path(self.column, kind, path_of(self.config, "field"))
        if found is not None:
            return records.with_columns({self.side: found[0]})
        if not records.schemaless[self.side]:
            wrong = f"Unknown field: {self.config['field']}"
            records = self.fail(records, self.column.isNotNull(), wrong, "java.lang.IllegalArgumentException")
        return records.with_columns({self.side: F.lit(None).cast("string")})


class Flatten(Transform):
    """Makes fields of fields of fields, their names joined."""

    sided = True
    purpose = "flattening"
    options = (Option("delimiter", default=".", doc="Between the names."),)

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        return self.with_fields(records, self._flat(self.column, kind, ""))

    def _flat(self, column: Column, kind: StructType, prefix: str) -> list[tuple[str, Column]]:
        found = []
        for one in kind.fields:
            name, inner = f"{prefix}{one.name}", field_of(column, one)
            if isinstance(one.dataType, StructType):
                found += self._flat(inner, one.dataType, f"{name}{self.config['delimiter']}")
            else:
                found.append((name, inner))
        return found
