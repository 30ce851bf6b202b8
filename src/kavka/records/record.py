"""One record, independent of the format it is stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]


class Record(NamedTuple):
    """`timestamp` is -1 if the record has none (magic 0). For a builder, `offset` -1 means the next
    offset.

    Header keys that are not UTF-8 are decoded with surrogate escapes, so that they are written
    unchanged.
    """

    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
