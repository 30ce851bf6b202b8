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
    """The base class of transformations. A task creates one object for each configured step."""

    options: ClassVar[tuple[Option, ...]] = ()
    old_names: ClassVar[Mapping[str, str]] = {}
    """The current name of each deprecated option."""
    sided: ClassVar[bool] = False
    """Whether the transformation applies to keys or values: `$Key`, `$Value`."""
    purpose: ClassVar[str] = ""
    """The purpose in Kafka's error messages: `field insertion`."""

    def __init__(self, config: Mapping[str, Any], side: str = "") -> None:
        self.config = config
        self.side = KEY if side == "Key" else VALUE
        self.name = f"{PACKAGE}.{type(self).__name__}" + (f"${side}" if side else "")
        if type(self).__module__.partition(".")[0] != "kavka":
            self.name = f"{type(self).__module__}.{type(self).__qualname__}"

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """Validates combinations of options. Returns error messages by option."""
        return {}

    def apply(self, records: Records) -> Records:
        raise NotImplementedError

    # --- for transformations of fields

    @property
    def column(self) -> Column:
        return F.col(self.side)

    def fail(
        self, records: Records, condition: Column, message: Column | str, exception: str = DATA_EXCEPTION
    ) -> Records:
        """Returns the records, with those that meet the condition marked as failed."""
        return records.failing(condition, message, STAGE, self.name, exception=exception)

    def struct_of(self, records: Records) -> StructType | None:
        kind = records.type_of(self.side)
        return kind if isinstance(kind, StructType) else None

    def not_a_struct(self, records: Records) -> Records:
        """Returns the records, with those whose key or value (`self.side`) is not null marked as
        failed."""
        kind = records.type_of(self.side).simpleString()
        schemaless = records.schemaless[self.side]
        supported = "Map objects supported in absence of schema" if schemaless else "Struct objects supported"
        return self.fail(records, self.column.isNotNull(), f"Only {supported} for [{self.purpose}], found: {kind}")

    def with_fields(self, records: Records, fields: Sequence[tuple[str, Column]]) -> Records:
        """Returns the records with a struct of these fields as key or value. Null stays null."""
        struct = F.struct(*(column.alias(name) for name, column in fields)) if fields else F.expr("named_struct()")
        return records.with_columns({self.side: F.when(self.column.isNotNull(), struct)})


def field_of(column: Column, field: StructField | str) -> Column:
    return column.getField(field if isinstance(field, str) else field.name)


def at_path(column: Column, kind: DataType, path: Sequence[str]) -> tuple[Column, DataType] | None:
    """Returns the column and type of a nested field; None if it does not exist."""
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.names:
            return None
        column, kind = column.getField(name), kind[name].dataType
    return column, kind


def path_of(config: Mapping[str, Any], option: str) -> list[str]:
    """Returns the path in an option. With `field.syntax.version=V2` dots separate nested fields,
    and backticks quote names with dots. Raises ConnectError if a backtick is not closed."""
    text = str(config[option])
    if str(config.get("field.syntax.version") or "V1").upper() != "V2":
        return [text]
    names, name, is_quoted = [], "", False
    for char in text:
        if char == "`":
            is_quoted = not is_quoted
        elif char == "." and not is_quoted:
            names.append(name)
            name = ""
        else:
            name += char
    if is_quoted:
        raise ConnectError(f"Incomplete backtick pair in path: [{text}]")
    return [*names, name]


def replaced(column: Column, kind: DataType, path: Sequence[str], change: Callable[[], Column]) -> Column:
    """Returns the struct with the value at the path changed."""
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
