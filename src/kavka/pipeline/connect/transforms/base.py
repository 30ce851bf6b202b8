"""The base class of transformations, which map records to records with column expressions.

A custom transformation is a subclass of `Transform`, named by `module.Class`. A transformation with
a side is named `…$Key` or `…$Value`; `self.side` is its column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import DATA_EXCEPTION, KEY, VALUE, Records

STAGE = "TRANSFORMATION"
PACKAGE = "org.apache.kafka.connect.transforms"


class Transform:
    """The base class of transformations. A task creates one object of each configured step."""

    options: ClassVar[tuple[Option, ...]] = ()
    old_names: ClassVar[Mapping[str, str]] = {}
    """Deprecated option names: old to new."""
    sided: ClassVar[bool] = False
    """Whether it applies to keys or values: `$Key`, `$Value`."""
    purpose: ClassVar[str] = ""
    """Part of error messages, in Kafka's words: `field insertion`."""

    def __init__(self, config: Mapping[str, Any], side: str = "") -> None:
        self.config = config
        self.side = KEY if side == "Key" else VALUE
        self.name = f"{PACKAGE}.{type(self).__name__}" + (f"${side}" if side else "")
        if type(self).__module__.partition(".")[0] != "kavka":
            self.name = f"{type(self).__module__}.{type(self).__qualname__}"

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """Rules between options: messages by name."""
        return {}

    def apply(self, records: Records) -> Records:
        raise NotImplementedError

    # --- for transformations of fields

    @property
    def column(self) -> Column:
        return F.col(self.side)

    def fail(self, records: Records, when: Column, message: Column | str, exception: str = DATA_EXCEPTION) -> Records:
        return records.failing(when, message, STAGE, self.name, exception=exception)

    def struct_of(self, records: Records) -> StructType | None:
        kind = records.type_of(self.side)
        return kind if isinstance(kind, StructType) else None

    def not_a_struct(self, records: Records) -> Records:
        """Fails all records whose side is not null."""
        kind = records.type_of(self.side).simpleString()
        schemaless = records.schemaless[self.side]
        supported = "Map objects supported in absence of schema" if schemaless else "Struct objects supported"
        return self.fail(records, self.column.isNotNull(), f"Only {supported} for [{self.purpose}], found: {kind}")

    def with_fields(self, records: Records, fields: Sequence[tuple[str, Column]]) -> Records:
        """Replaces the side by a struct of these fields; null stays null."""
        struct = F.struct(*(column.alias(name) for name, column in fields)) if fields else F.expr("named_struct()")
        return records.with_columns({self.side: F.when(self.column.isNotNull(), struct)})


def field_of(column: Column, field: StructField | str) -> Column:
    return column.getField(field if isinstance(field, str) else field.name)


def at_path(column: Column, kind: DataType, path: Sequence[str]) -> tuple[Column, DataType] | None:
    """The column and type of a nested field; None if it does not exist."""
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.names:
            return None
        column, kind = column.getField(name), kind[name].dataType
    return column, kind


def path_of(config: Mapping[str, Any], name: str) -> list[str]:
    """With `field.syntax.version=V2` dots separate nested fields, and backticks quote names with
    dots."""
    text = str(config[name])
    if str(config.get("field.syntax.version") or "V1").upper() != "V2":
        return [text]
    out, current, quoted = [], "", False
    for char in text:
        if char == "`":
            quoted = not quoted
        elif char == "." and not quoted:
            out.append(current)
            current = ""
        else:
            current += char
    if quoted:
        raise ConnectError(f"Incomplete backtick pair in path: [{text}]")
    return [*out, current]


def replaced(column: Column, kind: DataType, path: Sequence[str], change: Callable[[], Column]) -> Column:
    """The struct with the value at the path changed."""
    if not path:
        return change()
    if not isinstance(kind, StructType) or path[0] not in kind.names:
        return column
    fields = []
    for field in kind.fields:
        inner = field_of(column, field)
        value = replaced(inner, field.dataType, path[1:], change) if field.name == path[0] else inner
        fields.append(value.alias(field.name))
    return F.when(column.isNotNull(), F.struct(*fields))
