"""Decimals as base64 in columns, without Python code: the unscaled number in big-endian two's
complement, as in `decimals.py` for single values.

Columns have up to 38 digits, which take 127 bits. The conversion goes through 32 hexadecimal digits
of the magnitude, in parts that fit Spark's integers.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

_WHOLE = DecimalType(38, 0)
_DIGITS = 32
_UP, _DOWN = "0123456789ABCDEF", "FEDCBA9876543210"


def once(value: Column, compute: Callable[[Column], Column]) -> Column:
    """The result of `compute`, which evaluates the value only once even for repeated uses."""
    return F.transform(F.array(value), compute)[0]


def from_base64(text: Column, scale: Column, kind: DecimalType) -> Column:
    """Null if the text is not base64, is empty, or does not fit. `scale` is that of the record and
    not larger than the scale of `kind`."""

    def number(full: Column, negative: Column) -> Column:
        size = F.when(negative, F.lit(1)).otherwise(F.lit(0)).cast(_WHOLE)
        for place in range(4):
            part = F.conv(F.substring(full, 1 + 8 * place, 8), 16, 10).cast(DecimalType(10, 0))
            size = F.try_add(size, F.try_multiply(part, F.lit(Decimal(2 ** (96 - 32 * place)))))
        sign = F.when(negative, F.lit("-")).otherwise(F.lit(""))
        return F.concat(sign, size.cast("string"), F.lit("E-"), scale.cast("string")).try_cast(kind)

    def positive(digits: Column) -> Column:
        return once(F.regexp_replace(digits, "^(00)+", ""), lambda digits: F.when(
            (F.length(digits) < _DIGITS) | ((F.length(digits) == _DIGITS) & (F.substring(digits, 1, 1) < "8")),
            once(F.lpad(digits, _DIGITS, "0"), lambda full: number(full, F.lit(False))),
        ))  # fmt: skip

    def negative(digits: Column) -> Column:
        # Inverting the bits gives the magnitude minus one.
        return once(F.regexp_replace(digits, "^(FF)+", ""), lambda digits: F.when(
            (F.length(digits) < _DIGITS) | ((F.length(digits) == _DIGITS) & (F.substring(digits, 1, 1) >= "8")),
            once(F.translate(F.lpad(digits, _DIGITS, "F"), _UP, _DOWN), lambda full: number(full, F.lit(True))),
        ))  # fmt: skip

    def short(digits: Column) -> Column:
        full = F.when(digits < "8", F.lpad(digits, 16, "0")).otherwise(F.lpad(digits, 16, "F"))
        return F.concat(F.conv(full, 16, -10), F.lit("E-"), scale.cast("string")).try_cast(kind)

    def of(digits: Column) -> Column:
        long = F.when(digits < "8", positive(digits)).otherwise(negative(digits))
        return F.when(F.length(digits).between(1, 16), short(digits)).when(F.length(digits) > 16, long)

    return F.when(F.length(text) % 4 == 0, once(F.hex(F.try_to_binary(text, F.lit("base64"))), of))


def from_json(value: Column, scale: Column, kind: DecimalType) -> Column:
    """The value of a variant: base64 or a number. Null if it is neither or does not fit."""

    def of(value: Column) -> Column:
        described = F.schema_of_variant(value)
        number = F.try_variant_get(value, "$", kind.simpleString())
        text = once(F.try_variant_get(value, "$", "string"), lambda text: from_base64(text, scale, kind))
        return F.when(described == "STRING", text).when(described.rlike("^(BIGINT|DECIMAL|DOUBLE|FLOAT)"), number)

    return once(value, of)


def to_base64(column: Column) -> Column:
    """With the column's scale, in the minimal number of bytes."""
    half = F.lit(Decimal(2**64))

    def digits(size: Column) -> Column:
        high, low = F.call_function("div", size, half), size % half
        return F.concat(*(F.lpad(F.conv(part.cast("string"), 10, 16), 16, "0") for part in (high, low)))

    def of(text: Column) -> Column:
        # The text has all digits, also with an exponent. Spark's abs and < 0 round.
        whole = F.regexp_replace(text, "E.*|[-.]", "").cast(_WHOLE)
        inverted = F.translate(once((whole - 1).cast(_WHOLE), digits), _UP, _DOWN)
        return F.when(text.startswith("-"), F.regexp_replace(inverted, "^(FF)+(?=[89A-F])", "")).otherwise(
            F.regexp_replace(once(whole, digits), "^(00)+(?=[0-7])", "")
        )

    return F.base64(F.unhex(once(column.cast("string"), of)))
