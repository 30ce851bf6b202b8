"""The records that a producer sends, and the metadata that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias

from kavka.client.types import K, V
from kavka.common.errors import KafkaError

Headers: TypeAlias = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]


class RecordMetadata(NamedTuple):
    """The metadata of a stored record. `offset` is -1 with acks=0, and for a duplicate whose offset
    the broker no longer has. Sizes are those of the serialized bytes, -1 for null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


Callback: TypeAlias = Callable[[RecordMetadata | None, KafkaError | None], object]


@dataclass(slots=True)
class ProducerRecord(Generic[K, V]):
    """A record to send. Interceptors may replace it. `timestamp` is in milliseconds; None means the
    current time."""

    topic: str
    value: V | None = None
    key: K | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Headers | None = None
