"""What goes into a producer and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Headers: TypeAlias = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 when the broker was not asked (acks=0), or answered that it had the record
    already and no longer knows where. Sizes are in bytes after serialisation, -1 for null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


Callback: TypeAlias = Callable[[RecordMetadata | None, BaseException | None], object]


@dataclass(slots=True)
class ProducerRecord:
    """A record to be sent; what interceptors see and may replace. `timestamp` is in milliseconds, None for now."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Headers | None = None
