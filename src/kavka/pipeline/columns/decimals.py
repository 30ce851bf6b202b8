"""Decimals as bytes: the unscaled number in big-endian two's complement. The conversion is exact:
Python's `decimal` rounds to 28 digits by default, and columns have up to 38."""

from __future__ import annotations

from decimal import Context, Decimal

MAX_DIGITS = 38

_EXACT = Context(prec=4 * MAX_DIGITS)


def decode(data: bytes, precision: int, scale: int) -> Decimal | None:
    """Returns the decimal; None if it has more digits than `precision`."""
    number = int.from_bytes(data, "big", signed=True)
    if not -(10**precision) < number < 10**precision:
        return None
    return Decimal(number).scaleb(-scale, _EXACT)


def encode(value: Decimal, scale: int) -> bytes:
    number = int(value.scaleb(scale, _EXACT))
    size = (number.bit_length() if number >= 0 else (-number - 1).bit_length()) // 8 + 1
    return number.to_bytes(size, "big", signed=True)
