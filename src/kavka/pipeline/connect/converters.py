"""Converters between columns and the bytes of keys and values.

`key.converter` and `value.converter` name a converter by Kafka's class name or its last part. Its
options have the prefix `key.converter.` or `value.converter.`. A custom converter is a subclass of
`Converter`, named by `module.Class`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from kavka.common.config import Importance
from kavka.pipeline.columns.types import SchemaName
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.records import DATA_EXCEPTION


@dataclass(frozen=True)
class Decoded:
    """A decoded key or value."""

    value: Column
    error: Column | None = None
    """The error message of each record, null if it has no error. None if decoding cannot fail."""
    cause: Column | None = None
    schemaless: bool = False
    exception: str = DATA_EXCEPTION
    combined: Column | None = None
    """A struct of value, error and cause, for converters in which they share expensive work."""


class Converter:
    """The base class of converters. A task creates one object for keys and one for values."""

    java_names: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()

    recorded: DataType | None = None
    """The type of the records of earlier micro-batches, if `is_static` is False. The framework sets
    it when a task starts. `decode` replaces it by a type that extends it, which the framework
    stores before the micro-batch is written."""

    def __init__(self, config: Mapping[str, Any], is_key: bool) -> None:
        self.config = config
        self.is_key = is_key

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """Validates combinations of options. Returns error messages by option."""
        return {}

    @property
    def is_static(self) -> bool:
        """Whether the decoded type does not depend on the records."""
        return True

    @property
    def is_text(self) -> bool:
        """Whether decoding consists of UTF-8 decoding alone. Then the Spark source `kavka` may do
        it instead of `decode`."""
        return False

    @property
    def keeps_text(self) -> bool:
        """Whether `encode` writes text unchanged, as UTF-8."""
        return self.is_text

    @property
    def operator(self) -> str:
        """The name of the converter in errors."""
        return self.java_names[0] if self.java_names else f"{type(self).__module__}.{type(self).__qualname__}"

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        """Returns the decoded column. `batch` is the micro-batch to inspect if `is_static` is
        False, otherwise it may be None."""
        raise NotImplementedError

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        """Returns a binary column. Null stays null."""
        raise NotImplementedError


# --- bytes and text


class ByteArrayConverter(Converter):
    """The bytes unchanged, as a binary column."""

    java_names = ("org.apache.kafka.connect.converters.ByteArrayConverter",)

    @property
    def keeps_text(self) -> bool:
        return True

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        return Decoded(column)

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        if not isinstance(kind, (BinaryType, StringType)):
            raise ConnectError(f"Invalid schema type for ByteArrayConverter: {kind.simpleString()}")
        return column.cast("binary")


class StringConverter(Converter):
    """Text, as a string column. Values of other types are written as by Java's toString()."""

    java_names = ("org.apache.kafka.connect.storage.StringConverter",)
    options = (Option("converter.encoding", default="UTF-8", doc="The character set.", importance=Importance.HIGH),)

    @property
    def is_text(self) -> bool:
        return self._encoding == "UTF-8"

    @property
    def _encoding(self) -> str:
        return str(self.config["converter.encoding"]).upper().replace("UTF8", "UTF-8")

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        if self.is_text:
            return Decoded(F.make_valid_utf8(column.cast("string")))
        return Decoded(F.decode(column, self._encoding))

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        text = to_text(column, kind)
        return text.cast("binary") if self.is_text else F.encode(text, self._encoding)


def to_text(column: Column, kind: DataType) -> Column:
    """Returns the text of Java's toString() on Connect's type: `Struct{a=1,b=x}`, `[1, 2]`,
    `{a=1}`."""
    if isinstance(kind, StructType):
        parts = [
            F.concat(F.lit(f"{field.name}="), to_text(column.getField(field.name), field.dataType))
            for field in kind.fields
        ]
        inside = F.concat_ws(",", *parts) if parts else F.lit("")
        return F.when(column.isNotNull(), F.concat(F.lit("Struct{"), inside, F.lit("}")))
    if isinstance(kind, ArrayType):
        items = F.transform(column, lambda item: F.coalesce(to_text(item, kind.elementType), F.lit("null")))
        return F.when(column.isNotNull(), F.concat(F.lit("["), F.array_join(items, ", "), F.lit("]")))
    if isinstance(kind, MapType):
        pairs = F.transform(
            F.map_entries(column),
            lambda item: F.concat(
                to_text(item["key"], kind.keyType),
                F.lit("="),
                F.coalesce(to_text(item["value"], kind.valueType), F.lit("null")),
            ),
        )
        return F.when(column.isNotNull(), F.concat(F.lit("{"), F.array_join(pairs, ", "), F.lit("}")))
    return column.cast("string")


# --- numbers


class _NumberConverter(Converter):
    """A big-endian number with a fixed number of bytes."""

    code: ClassVar[str]
    """The format of Python's `struct`."""
    spark: ClassVar[str]
    """The Spark type."""
    noun: ClassVar[str]
    """The prefix of the name of Kafka's deserializer."""

    def decode(self, column: Column, batch: DataFrame | None) -> Decoded:
        code, size = self.code, struct.calcsize(self.code)
        unpack = F.udf(lambda data: struct.unpack(code, data)[0] if data and len(data) == size else None, self.spark)
        is_invalid = column.isNotNull() & (F.octet_length(column) != size)
        cause = f"Size of data received by {self.noun}Deserializer is not {size}"
        message = f"Failed to deserialize {self.noun.lower()}: "
        return Decoded(unpack(column), F.when(is_invalid, F.lit(message)), F.when(is_invalid, F.lit(cause)))

    def encode(self, column: Column, kind: DataType, name: SchemaName) -> Column:
        code = self.code
        if kind.typeName() not in ("byte", "short", "integer", "long", "float", "double", "boolean"):
            raise ConnectError(f"{type(self).__name__} cannot write a {kind.simpleString()}")
        pack = F.udf(lambda value: None if value is None else struct.pack(code, value), "binary")
        return pack(column.cast(self.spark))


class ShortConverter(_NumberConverter):
    """A 2-byte integer."""

    java_names = ("org.apache.kafka.connect.converters.ShortConverter",)
    code, spark, noun = ">h", "smallint", "Short"


class IntegerConverter(_NumberConverter):
    """A 4-byte integer."""

    java_names = ("org.apache.kafka.connect.converters.IntegerConverter",)
    code, spark, noun = ">i", "int", "Integer"


class LongConverter(_NumberConverter):
    """An 8-byte integer."""

    java_names = ("org.apache.kafka.connect.converters.LongConverter",)
    code, spark, noun = ">q", "bigint", "Long"


class FloatConverter(_NumberConverter):
    """A 4-byte IEEE 754 number."""

    java_names = ("org.apache.kafka.connect.converters.FloatConverter",)
    code, spark, noun = ">f", "float", "Float"


class DoubleConverter(_NumberConverter):
    """An 8-byte IEEE 754 number."""

    java_names = ("org.apache.kafka.connect.converters.DoubleConverter",)
    code, spark, noun = ">d", "double", "Double"


class BooleanConverter(_NumberConverter):
    """One byte, 0 or 1."""

    java_names = ("org.apache.kafka.connect.converters.BooleanConverter",)
    code, spark, noun = ">?", "boolean", "Boolean"
