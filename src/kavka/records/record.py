"""One record, independent of the format it is stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]


class Record(NamedTuple):
    """A record. `timestamp` is -1 if the record has no timestamp (magic 0). In a record for a
    builder, `offset` -1 means the next offset.

    Header keys that are not UTF-8 are decoded with surrogate escapes, so that encoding them
    restores their bytes.
    """

    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
