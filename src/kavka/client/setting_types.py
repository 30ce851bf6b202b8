"""Types of settings whose values may be classes, objects or functions. Only type checkers need this
module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from kavka.client.metadata import TopicMetadata
from kavka.client.serializers import Data, Deserializer, Input, Output, Serializer

T = TypeVar("T")


class SerializerWithHeaders(Protocol[Input]):
    def serialize(self, topic: str, value: Input, headers: Any, /) -> Data | None: ...


class DeserializerWithHeaders(Protocol[Output]):
    def deserialize(self, topic: str, data: bytes | None, headers: Any, /) -> Output: ...


class Partitioner(Protocol):
    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        metadata: TopicMetadata,
        /,
    ) -> int: ...


SerializerSetting: TypeAlias = (
    str
    | Serializer[T]
    | type[Serializer[T]]
    | SerializerWithHeaders[T]
    | type[SerializerWithHeaders[T]]
    | Callable[[T], Data | None]
)
DeserializerSetting: TypeAlias = (
    str
    | Deserializer[T]
    | type[Deserializer[T]]
    | DeserializerWithHeaders[T]
    | type[DeserializerWithHeaders[T]]
    | Callable[[bytes], T]
)
PartitionerSetting: TypeAlias = (
    str | Partitioner | type[Partitioner] | Callable[[bytes | None, list[int], list[int]], int]
)
StringList: TypeAlias = str | list[str] | tuple[str, ...] | set[str] | frozenset[str]
"""In a string, commas separate the items."""
ObjectList: TypeAlias = str | list[Any] | tuple[Any, ...]
"""Dotted names, classes or objects."""
Token: TypeAlias = str | tuple[str, float]
"""The text of a token, and the time of its expiry in seconds since the epoch."""
TokenCallback: TypeAlias = str | Callable[[], Token | Awaitable[Token]]
