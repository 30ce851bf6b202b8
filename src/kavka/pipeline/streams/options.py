"""What a user says about a step of a stream beside what it does: names, serdes, stores. Immutable.
No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.windows import Duration, millis

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Named:
    name: str | None = None

    @staticmethod
    def as_(name: str) -> Named:
        return Named(check_name(name))


def check_name(name: str) -> str:
    legal = "".join(one for one in name if one.isascii() and (one.isalnum() or one in "._-"))
    if not name or name != legal or len(name) > 249 or name in (".", ".."):
        raise TopologyException(f"Name '{name}' is illegal: it may hold letters, digits, '.', '_' and '-', up to 249")
    return name


@dataclass(frozen=True)
class Consumed:
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    timestamp_extractor: Callable[..., int] | None = None
    reset_policy: str | None = None
    name: str | None = None

    @staticmethod
    def with_(
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        timestamp_extractor: Callable[..., int] | None = None,
        reset_policy: str | None = None,
    ) -> Consumed:
        return Consumed(key_serde, value_serde, timestamp_extractor)._reset(reset_policy)

    @staticmethod
    def as_(name: str) -> Consumed:
        return Consumed(name=check_name(name))

    def with_key_serde(self, serde: Serde) -> Consumed:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde) -> Consumed:
        return replace(self, value_serde=serde)

    def with_timestamp_extractor(self, extractor: Callable[..., int]) -> Consumed:
        """`extractor(record, partition_time)` gives the time of a record in ms."""
        return replace(self, timestamp_extractor=extractor)

    def with_offset_reset_policy(self, policy: str) -> Consumed:
        return self._reset(policy)

    def with_name(self, name: str) -> Consumed:
        return replace(self, name=check_name(name))

    def _reset(self, policy: str | None) -> Consumed:
        if policy not in (None, EARLIEST, LATEST):
            raise TopologyException(f"the offset reset policy is earliest or latest, not {policy!r}")
        return replace(self, reset_policy=policy)


@dataclass(frozen=True)
class Produced:
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    partitioner: Callable[..., int | None] | None = None
    name: str | None = None

    @staticmethod
    def with_(
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        partitioner: Callable[..., int | None] | None = None,
    ) -> Produced:
        """`partitioner(topic, key, value, partitions)` gives a partition, or None for the
        default."""
        return Produced(key_serde, value_serde, partitioner)

    @staticmethod
    def as_(name: str) -> Produced:
        return Produced(name=check_name(name))

    def with_key_serde(self, serde: Serde) -> Produced:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde) -> Produced:
        return replace(self, value_serde=serde)

    def with_stream_partitioner(self, partitioner: Callable[..., int | None]) -> Produced:
        return replace(self, partitioner=partitioner)

    def with_name(self, name: str) -> Produced:
        return replace(self, name=check_name(name))


@dataclass(frozen=True)
class Repartitioned:
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    partitions: int | None = None
    partitioner: Callable[..., int | None] | None = None
    name: str | None = None

    @staticmethod
    def with_(key_serde: Serde | None = None, value_serde: Serde | None = None) -> Repartitioned:
        return Repartitioned(key_serde, value_serde)

    @staticmethod
    def as_(name: str) -> Repartitioned:
        return Repartitioned(name=check_name(name))

    @staticmethod
    def number_of_partitions(count: int) -> Repartitioned:
        return Repartitioned().with_number_of_partitions(count)

    def with_number_of_partitions(self, count: int) -> Repartitioned:
        if count < 1:
            raise TopologyException(f"a topic has at least one partition, not {count}")
        return replace(self, partitions=count)

    def with_key_serde(self, serde: Serde) -> Repartitioned:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde) -> Repartitioned:
        return replace(self, value_serde=serde)

    def with_name(self, name: str) -> Repartitioned:
        return replace(self, name=check_name(name))

    def with_stream_partitioner(self, partitioner: Callable[..., int | None]) -> Repartitioned:
        return replace(self, partitioner=partitioner)


@dataclass(frozen=True)
class Grouped:
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    name: str | None = None

    @staticmethod
    def with_(key_serde: Serde | None = None, value_serde: Serde | None = None, name: str | None = None) -> Grouped:
        return Grouped(key_serde, value_serde, name)

    @staticmethod
    def as_(name: str) -> Grouped:
        return Grouped(name=check_name(name))

    def with_key_serde(self, serde: Serde) -> Grouped:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde) -> Grouped:
        return replace(self, value_serde=serde)

    def with_name(self, name: str) -> Grouped:
        return replace(self, name=check_name(name))


@dataclass(frozen=True)
class Materialized:
    store_name: str | None = None
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    caching: bool = True
    retention: int | None = None
    kind: str | None = None
    """The kind of the store that was given, where one was."""

    @staticmethod
    def as_(store: Any) -> Materialized:
        """A store by its name, or one of `Stores`."""
        if isinstance(store, str):
            return Materialized(check_name(store))
        return Materialized(check_name(store.name), retention=store.retention or None, kind=store.kind)

    def for_(self, *kinds: str) -> Materialized:
        """Itself, if its store is one of these kinds or none was given."""
        if self.kind is not None and self.kind not in kinds:
            wanted = " or ".join(kinds)
            raise TopologyException(f"the store {self.store_name} is a {self.kind} store: {wanted} is needed")
        return self

    @staticmethod
    def with_(key_serde: Serde | None = None, value_serde: Serde | None = None) -> Materialized:
        return Materialized(None, key_serde, value_serde)

    def with_key_serde(self, serde: Serde) -> Materialized:
        return replace(self, key_serde=serde)

    def with_value_serde(self, serde: Serde) -> Materialized:
        return replace(self, value_serde=serde)

    def with_caching_enabled(self) -> Materialized:
        return replace(self, caching=True)

    def with_caching_disabled(self) -> Materialized:
        return replace(self, caching=False)

    def with_retention(self, retention: Duration) -> Materialized:
        return replace(self, retention=millis(retention, "the retention"))


@dataclass(frozen=True)
class TableJoined:
    """Of joins by a foreign key: their name, and who chooses the partitions of the two sides'
    topics: `partitioner(topic, key, None, partitions)`."""

    partitioner: Callable[..., int | None] | None = None
    other_partitioner: Callable[..., int | None] | None = None
    name: str | None = None

    @staticmethod
    def with_(
        partitioner: Callable[..., int | None] | None = None, other_partitioner: Callable[..., int | None] | None = None
    ) -> TableJoined:
        return TableJoined(partitioner, other_partitioner)

    @staticmethod
    def as_(name: str) -> TableJoined:
        return TableJoined(name=check_name(name))

    def with_partitioner(self, partitioner: Callable[..., int | None]) -> TableJoined:
        return replace(self, partitioner=partitioner)

    def with_other_partitioner(self, partitioner: Callable[..., int | None]) -> TableJoined:
        return replace(self, other_partitioner=partitioner)

    def with_name(self, name: str) -> TableJoined:
        return replace(self, name=check_name(name))


@dataclass(frozen=True)
class Joined:
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    other_value_serde: Serde | None = None
    name: str | None = None
    grace: int | None = None

    @staticmethod
    def with_(
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
        other_value_serde: Serde | None = None,
        name: str | None = None,
        grace_period: Duration | None = None,
    ) -> Joined:
        made = Joined(key_serde, value_serde, other_value_serde, name)
        return made if grace_period is None else made.with_grace_period(grace_period)

    def with_grace_period(self, grace: Duration) -> Joined:
        """How long a record waits for late values of a versioned table."""
        return replace(self, grace=millis(grace, "the grace period"))

    @staticmethod
    def as_(name: str) -> Joined:
        return Joined(name=check_name(name))

    def with_name(self, name: str) -> Joined:
        return replace(self, name=check_name(name))


@dataclass(frozen=True)
class StreamJoined:
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    other_value_serde: Serde | None = None
    name: str | None = None
    store_name: str | None = None

    @staticmethod
    def with_(
        key_serde: Serde | None = None, value_serde: Serde | None = None, other_value_serde: Serde | None = None
    ) -> StreamJoined:
        return StreamJoined(key_serde, value_serde, other_value_serde)

    @staticmethod
    def as_(store_name: str) -> StreamJoined:
        return StreamJoined(store_name=check_name(store_name))

    def with_name(self, name: str) -> StreamJoined:
        return replace(self, name=check_name(name))

    def with_store_name(self, name: str) -> StreamJoined:
        return replace(self, store_name=check_name(name))


@dataclass(frozen=True)
class Branched:
    """What becomes of a branch: its name, and a function or a consumer of its stream."""

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
