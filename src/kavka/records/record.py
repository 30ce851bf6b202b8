"""One record, as a client sees it, whatever format it was stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]


class Record(NamedTuple):
    """`timestamp` is -1 where there is none (magic 0). For a builder, `offset` -1 means the one after the last.

    Keys of headers that are not UTF-8 are kept with surrogate escapes, so that they are written back as they were read.
    """

    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
