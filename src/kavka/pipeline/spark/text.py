"""Bytes as text, in Arrow."""

from __future__ import annotations

import pyarrow as pa


def as_text(column: pa.Array) -> pa.Array:
    """Without a copy, unless something is no UTF-8: that becomes U+FFFD, as in Java."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()]
        return pa.array(found, pa.string())
