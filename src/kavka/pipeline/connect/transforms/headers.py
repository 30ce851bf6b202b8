"""Transformations of headers: InsertHeader, DropHeaders, HeaderFrom. Values are written like
SimpleHeaderConverter does: structs, arrays and maps as JSON, other values as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, TimestampType

from kavka.common.config import ConfigType, Importance, NotEmpty, OneOf
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import HEADERS_TYPE, Records
from kavka.pipeline.connect.transforms.base import Transform, field_of
from kavka.pipeline.connect.transforms.fields import NULLS

HIGH = Importance.HIGH
LIST = ConfigType.LIST


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _appended(headers: list[Column]) -> Column:
    existing = F.coalesce(F.col("headers"), F.array().cast(HEADERS_TYPE))
    return F.concat(existing, F.array(*headers).cast(HEADERS_TYPE))


def header_text(column: Column, kind: DataType) -> Column:
    match kind:
        case StructType() | ArrayType() | MapType():
            return F.to_json(column)
        case BinaryType():
            return F.base64(column)
        case TimestampType():
            return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSX")
    return column.cast("string")


class InsertHeader(Transform):
    """Adds a header with a fixed value."""

    options = (
        Option("header", doc="The name of the header.", importance=HIGH, validator=NotEmpty()),
        Option("value.literal", doc="The value of the header.", importance=HIGH, validator=NotEmpty()),
    )

    def apply(self, records: Records) -> Records:
        value = F.lit(self.config["value.literal"])
        return records.with_columns({"headers": _appended([_header(self.config["header"], value)])})


class DropHeaders(Transform):
    """Removes headers."""

    options = (Option("headers", LIST, doc="The names of the headers.", importance=HIGH, validator=NotEmpty()),)

    def apply(self, records: Records) -> Records:
        names = list(self.config["headers"])
        return records.with_columns({"headers": F.filter("headers", lambda header: ~header["key"].isin(names))})


class HeaderFrom(Transform):
    """Copies or moves fields of the key or value into headers."""

    sided = True
    purpose = "header from fields"
    options = (
        Option("fields", LIST, doc="The fields.", importance=HIGH, validator=NotEmpty()),
        Option("headers", LIST, doc="The headers, one per field.", importance=HIGH, validator=NotEmpty()),
        Option("operation", doc="`copy` or `move`.", importance=HIGH, validator=OneOf(("move", "copy")),
               recommended=("move", "copy")),
        NULLS,
    )  # fmt: skip

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        if len(config["fields"]) != len(config["headers"]):
            return {"headers": "'fields' config must have the same number of elements as 'headers' config."}
        return {}

    def apply(self, records: Records) -> Records:
        kind = self.struct_of(records)
        if kind is None:
            return self.not_a_struct(records)
        headers = []
        for field, header in zip(self.config["fields"], self.config["headers"], strict=True):
            if field in kind.names:
                value = header_text(self.column.getField(field), kind[field].dataType)
            else:
                value = F.lit(None).cast("string")
            headers.append(_header(header, value))
        appended = F.when(self.column.isNotNull(), _appended(headers)).otherwise(F.col("headers"))
        records = records.with_columns({"headers": appended})
        if self.config["operation"] == "copy":
            return records
        remaining = [field for field in kind.fields if field.name not in self.config["fields"]]
        return self.with_fields(records, [(field.name, field_of(self.column, field)) for field in remaining])
