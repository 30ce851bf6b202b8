"""Options of an operator beside its function: names, serdes, stores. Immutable. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.windows import Duration, millis

EARLIEST, LATEST, NONE = "earliest", "latest", "none"

# `partitioner(topic, key, value, partitions)` returns a partition, or None for the default.
Partitioner = Callable[..., int | None]
T = TypeVar("T")


def first_of(kind: type[T], *options: Any) -> T | None:
    """The first option of a class. Kafka's overloads allow several orders of options."""
    return next((option for option in options if isinstance(option, kind)), None)


def check_name(name: str) -> str:
    is_legal = all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in name)
    if not name or not is_legal or len(name) > 249 or name in (".", ".."):
        raise TopologyException(f"Name '{name}' is illegal: use up to 249 letters, digits, '.', '_' and '-'")
    return name


class _ByName:
    @classmethod
    def as_(cls, name: str) -> Self:
        return cls(name=check_name(name))  # type: ignore[call-arg]


@dataclass(frozen=True)
class Named(_ByName):
    name: str | None = None


@dataclass(frozen=True)
class _NamedOptions(_ByName):
    name: str | None = field(default=None, kw_only=True)

    def with_name(self, name: str) -> Self:
        return replace(self, name=check_name(name))


@dataclass(frozen=True)
class _SerdeOptions:
    key_serde: Serde | None = None
    value_serde: Serde | None = None

    @classmethod
    def with_(
        cls, key_serde: Serde | None = None, value_serde: Serde | None = None, *others: Any, **options: Any
    ) -> Self:
        """`others` are the fields of the class, in their order."""
        return cls(key_serde, value_serde, *others, **options)

    def with_key_serde(self, serde: Serde) -> Self:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde) -> Self:
        return replace(self, value_serde=serde)


@dataclass(frozen=True)
class Consumed(_SerdeOptions, _NamedOptions):
    timestamp_extractor: Callable[..., int] | None = None
    reset_policy: str | None = None

    def __post_init__(self) -> None:
        if self.reset_policy not in (None, EARLIEST, LATEST, NONE):
            raise TopologyException(f"the offset reset policy is earliest, latest or none, not {self.reset_policy!r}")

    def with_timestamp_extractor(self, extractor: Callable[..., int]) -> Consumed:
        """`extractor(record, partition_time)` returns the time of a record in ms."""
        return replace(self, timestamp_extractor=extractor)

    def with_offset_reset_policy(self, policy: str) -> Consumed:
        return replace(self, reset_policy=policy)

    def for_source(self) -> dict[str, Any]:
        """The arguments of a source node."""
        return {
            "key_serde": self.key_serde,
            "value_serde": self.value_serde,
            "timestamp_extractor": self.timestamp_extractor,
        }


@dataclass(frozen=True)
class Produced(_SerdeOptions, _NamedOptions):
    partitioner: Partitioner | None = None

    def with_stream_partitioner(self, partitioner: Partitioner) -> Produced:
        return replace(self, partitioner=partitioner)


@dataclass(frozen=True)
class Repartitioned(_SerdeOptions, _NamedOptions):
    partitions: int | None = None
    partitioner: Partitioner | None = None

    @staticmethod
    def number_of_partitions(count: int) -> Repartitioned:
        return Repartitioned().with_number_of_partitions(count)

    def with_number_of_partitions(self, count: int) -> Repartitioned:
        if count < 1:
            raise TopologyException(f"a topic has at least one partition, not {count}")
        return replace(self, partitions=count)

    def with_stream_partitioner(self, partitioner: Partitioner) -> Repartitioned:
        return replace(self, partitioner=partitioner)


@dataclass(frozen=True)
class Grouped(_SerdeOptions, _NamedOptions):
    @classmethod
    def with_(cls, key_serde: Serde | None = None, value_serde: Serde | None = None, name: str | None = None) -> Self:
        return cls(key_serde, value_serde, name=name)


@dataclass(frozen=True)
class Materialized(_SerdeOptions):
    store_name: str | None = None
    caching: bool = True
    retention: int | None = None
    kind: str | None = None
    """The kind of the store, if the user passes a store."""

    @staticmethod
    def as_(store: Any) -> Materialized:
        """A store by its name, or one of `Stores`."""
        if isinstance(store, str):
            return Materialized(store_name=check_name(store))
        return Materialized(store_name=check_name(store.name), retention=store.retention or None, kind=store.kind)

    def check_kind(self, *kinds: str) -> Materialized:
        if self.kind is not None and self.kind not in kinds:
            raise TopologyException(
                f"the store {self.store_name} is a {self.kind} store: use a {' or '.join(kinds)} store"
            )
        return self

    def or_serdes(self, key_serde: Serde | None, value_serde: Serde | None) -> Materialized:
        """Use these serdes where none is set."""
        return replace(self, key_serde=self.key_serde or key_serde, value_serde=self.value_serde or value_serde)

    def with_caching_enabled(self) -> Materialized:
        return replace(self, caching=True)

    def with_caching_disabled(self) -> Materialized:
        return replace(self, caching=False)

    def with_retention(self, retention: Duration) -> Materialized:
        return replace(self, retention=millis(retention, "the retention"))


@dataclass(frozen=True)
class TableJoined(_NamedOptions):
    """Options of a foreign-key join. The partitioners choose the partitions of the topics of
    responses and of subscriptions, without a value."""

    partitioner: Partitioner | None = None
    other_partitioner: Partitioner | None = None

    @staticmethod
    def with_(partitioner: Partitioner | None = None, other_partitioner: Partitioner | None = None) -> TableJoined:
        return TableJoined(partitioner, other_partitioner)

    def with_partitioner(self, partitioner: Partitioner) -> TableJoined:
        return replace(self, partitioner=partitioner)

    def with_other_partitioner(self, partitioner: Partitioner) -> TableJoined:
        return replace(self, other_partitioner=partitioner)


@dataclass(frozen=True)
class Joined(_SerdeOptions, _NamedOptions):
    other_value_serde: Serde | None = None
    grace: int | None = None

    @classmethod
    def with_(
        cls,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        other_value_serde: Serde | None = None,
        name: str | None = None,
        grace_period: Duration | None = None,
    ) -> Self:
        joined = cls(key_serde, value_serde, other_value_serde, name=name)
        return joined if grace_period is None else joined.with_grace_period(grace_period)

    def with_grace_period(self, grace: Duration) -> Self:
        """How long a record waits for late values of a versioned table."""
        return replace(self, grace=millis(grace, "the grace period"))


@dataclass(frozen=True)
class StreamJoined(_SerdeOptions):
    other_value_serde: Serde | None = None
    name: str | None = None
    store_name: str | None = None

    @staticmethod
    def as_(store_name: str) -> StreamJoined:
        return StreamJoined(store_name=check_name(store_name))

    def with_name(self, name: str) -> StreamJoined:
        return replace(self, name=check_name(name))

    def with_store_name(self, name: str) -> StreamJoined:
        return replace(self, store_name=check_name(name))


@dataclass(frozen=True)
class Branched:
    """The name of a branch, and a function or a consumer of its stream."""

    name: str | None = None
    chain: Callable[[Any], Any] | None = None
    consumer: Callable[[Any], None] | None = None

    @staticmethod
    def as_(name: str) -> Branched:
        return Branched(name)

    @staticmethod
    def with_function(chain: Callable[[Any], Any], name: str | None = None) -> Branched:
        return Branched(name, chain=chain)

    @staticmethod
    def with_consumer(consumer: Callable[[Any], None], name: str | None = None) -> Branched:
        return Branched(name, consumer=consumer)
