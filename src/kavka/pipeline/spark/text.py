"""Converts Arrow columns of bytes to text."""

from __future__ import annotations

import pyarrow as pa


def as_text(column: pa.Array) -> pa.Array:
    """Return the column as text. Valid UTF-8 is not copied. Invalid UTF-8 is replaced by U+FFFD, as
    in Java."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()]
        return pa.array(texts, pa.string())
