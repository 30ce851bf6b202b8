"""Formatting values as Java does, for scripts that parse the output of Kafka's tools."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any


def double_text(value: float) -> str:
    """Format as Double.toString does: 1.0, 1.5E7, NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{len(text) - 1 + int(exponent)}"


def fixed(value: float, places: int) -> str:
    """Format with a fixed number of decimal places, and NaN and Infinity as Java prints them."""
    return f"{value:.{places}f}" if math.isfinite(value) else double_text(value)


def ratio(numerator: float, denominator: float) -> float:
    """Divide as Java divides doubles: a division by zero returns NaN or an infinity."""
    if denominator:
        return numerator / denominator
    return math.copysign(math.inf, numerator) if numerator else math.nan


def value_text(value: Any) -> str:
    """Format a deserialized value as Java's `toString` does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes_text(bytes(value))
    return str(value)


def bytes_text(data: bytes) -> str:
    """Format as Kafka's class Bytes does: printable characters, and others as \\xNN."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in data)


_FIELDS: dict[str, Callable[[time.struct_time, int, int], str]] = {
    "y": lambda t, ms, n: f"{t.tm_year % 100:02d}" if n == 2 else f"{t.tm_year:0{n}d}",
    "M": lambda t, ms, n: time.strftime("%B" if n > 3 else "%b", t) if n > 2 else f"{t.tm_mon:0{n}d}",
    "d": lambda t, ms, n: f"{t.tm_mday:0{n}d}",
    "D": lambda t, ms, n: f"{t.tm_yday:0{n}d}",
    "E": lambda t, ms, n: time.strftime("%A" if n > 3 else "%a", t),
    "a": lambda t, ms, n: "AM" if t.tm_hour < 12 else "PM",
    "H": lambda t, ms, n: f"{t.tm_hour:0{n}d}",
    "k": lambda t, ms, n: f"{t.tm_hour or 24:0{n}d}",
    "K": lambda t, ms, n: f"{t.tm_hour % 12:0{n}d}",
    "h": lambda t, ms, n: f"{t.tm_hour % 12 or 12:0{n}d}",
    "m": lambda t, ms, n: f"{t.tm_min:0{n}d}",
    "s": lambda t, ms, n: f"{t.tm_sec:0{n}d}",
    "S": lambda t, ms, n: f"{ms:0{n}d}",
    "z": lambda t, ms, n: t.tm_zone,
    "Z": lambda t, ms, n: time.strftime("%z", t),
}


def date_text(pattern: str, milliseconds: int) -> str:
    """Format a time as java.text.SimpleDateFormat does. Raise ValueError for an invalid pattern."""
    local_time = time.localtime(milliseconds // 1000)
    pieces: list[str] = []
    i = 0
    while i < len(pattern):
        letter = pattern[i]
        if letter == "'":
            end = pattern.find("'", i + 1)
            if end < 0:
                raise ValueError("Unterminated quote")
            pieces.append(pattern[i + 1 : end] if end > i + 1 else "'")
            i = end + 1
        elif letter.isascii() and letter.isalpha():
            if letter not in _FIELDS:
                raise ValueError(f"Illegal pattern character '{letter}'")
            count = len(pattern) - i - len(pattern[i:].lstrip(letter))
            pieces.append(_FIELDS[letter](local_time, milliseconds % 1000, count))
            i += count
        else:
            pieces.append(letter)
            i += 1
    return "".join(pieces)
