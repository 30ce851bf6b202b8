"""Bytes as text, in Arrow."""

from __future__ import annotations

import pyarrow as pa


def as_text(column: pa.Array) -> pa.Array:
    """Without a copy, unless there is invalid UTF-8: it becomes U+FFFD, as in Java."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()]
        return pa.array(texts, pa.string())
