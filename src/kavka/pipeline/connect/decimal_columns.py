"""Decimals as base64 in columns, without Python code: the unscaled number in big-endian two's
complement, as in `decimals.py` for single values.

Columns have up to 38 digits, which take 127 bits. The conversion uses 32 hexadecimal digits of the
magnitude, in groups that fit Spark's integers.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

_INTEGER = DecimalType(38, 0)
_DIGITS = 32
_UP, _DOWN = "0123456789ABCDEF", "FEDCBA9876543210"


def once(value: Column, compute: Callable[[Column], Column]) -> Column:
    """Returns the result of `compute`. The value is evaluated once, even if `compute` uses it
    repeatedly."""
    return F.transform(F.array(value), compute)[0]


def from_base64(text: Column, scale: Column, kind: DecimalType) -> Column:
    """Returns the decimals; null if the text is not base64, is empty, or does not fit `kind`.
    `scale` is the scale of the record, at most the scale of `kind`."""

    def number(digits: Column, is_negative: Column) -> Column:
        magnitude = F.when(is_negative, F.lit(1)).otherwise(F.lit(0)).cast(_INTEGER)
        for index in range(4):
            group = F.conv(F.substring(digits, 1 + 8 * index, 8), 16, 10).cast(DecimalType(10, 0))
            magnitude = F.try_add(magnitude, F.try_multiply(group, F.lit(Decimal(2 ** (96 - 32 * index)))))
        sign = F.when(is_negative, F.lit("-")).otherwise(F.lit(""))
        return F.concat(sign, magnitude.cast("string"), F.lit("E-"), scale.cast("string")).try_cast(kind)

    def positive(digits: Column) -> Column:
        return once(F.regexp_replace(digits, "^(00)+", ""), lambda digits: F.when(
            (F.length(digits) < _DIGITS) | ((F.length(digits) == _DIGITS) & (F.substring(digits, 1, 1) < "8")),
            once(F.lpad(digits, _DIGITS, "0"), lambda padded: number(padded, F.lit(False))),
        ))  # fmt: skip

    def negative(digits: Column) -> Column:
        # Inverting the bits gives the magnitude minus one.
        return once(F.regexp_replace(digits, "^(FF)+", ""), lambda digits: F.when(
            (F.length(digits) < _DIGITS) | ((F.length(digits) == _DIGITS) & (F.substring(digits, 1, 1) >= "8")),
            once(F.translate(F.lpad(digits, _DIGITS, "F"), _UP, _DOWN), lambda padded: number(padded, F.lit(True))),
        ))  # fmt: skip

    def short(digits: Column) -> Column:
        padded = F.when(digits < "8", F.lpad(digits, 16, "0")).otherwise(F.lpad(digits, 16, "F"))
        return F.concat(F.conv(padded, 16, -10), F.lit("E-"), scale.cast("string")).try_cast(kind)

    def decoded(digits: Column) -> Column:
        long = F.when(digits < "8", positive(digits)).otherwise(negative(digits))
        return F.when(F.length(digits).between(1, 16), short(digits)).when(F.length(digits) > 16, long)

    return F.when(F.length(text) % 4 == 0, once(F.hex(F.try_to_binary(text, F.lit("base64"))), decoded))


def from_json(value: Column, scale: Column, kind: DecimalType) -> Column:
    """Returns the decimals in variants of base64 or numbers; null if a value is neither or does not
    fit."""

    def decoded(value: Column) -> Column:
        described = F.schema_of_variant(value)
        number = F.try_variant_get(value, "$", kind.simpleString())
        text = once(F.try_variant_get(value, "$", "string"), lambda text: from_base64(text, scale, kind))
        return F.when(described == "STRING", text).when(described.rlike("^(BIGINT|DECIMAL|DOUBLE|FLOAT)"), number)

    return once(value, decoded)


def to_base64(column: Column) -> Column:
    """Returns the base64 of decimals with the column's scale, in the minimal number of bytes."""
    half = F.lit(Decimal(2**64))

    def digits(magnitude: Column) -> Column:
        halves = F.call_function("div", magnitude, half), magnitude % half
        return F.concat(*(F.lpad(F.conv(number.cast("string"), 10, 16), 16, "0") for number in halves))

    def encoded(text: Column) -> Column:
        # The text has all digits, also with an exponent. Spark's abs and < 0 round.
        magnitude = F.regexp_replace(text, "E.*|[-.]", "").cast(_INTEGER)
        inverted = F.translate(once((magnitude - 1).cast(_INTEGER), digits), _UP, _DOWN)
        return F.when(text.startswith("-"), F.regexp_replace(inverted, "^(FF)+(?=[89A-F])", "")).otherwise(
            F.regexp_replace(once(magnitude, digits), "^(00)+(?=[0-7])", "")
        )

    return F.base64(F.unhex(once(column.cast("string"), encoded)))
