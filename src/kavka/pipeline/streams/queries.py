"""Interactive queries: what a running application's stores hold, read from Spark's state.

A query sees the state as the last finished micro-batch left it. Spark's state reader finds it in
the checkpoint: a key or a range of keys is looked for there, in all of the store's tasks at once.
What was read of a whole store is kept and used until the next micro-batch is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kavka.pipeline.streams.errors import InvalidStateStoreException
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.progress import last_batch
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.stores import KEY_VALUE, SESSION, VERSIONED, WINDOW, Store, ValueAndTimestamp
from kavka.pipeline.streams.topology import Topology
from kavka.pipeline.streams.windows import Windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How many bytes after the key an entry of a store has: `stores.py`.
_AFTER_KEY = {KEY_VALUE: 0, WINDOW: 12, SESSION: 16, VERSIONED: 8}


class QueryableStoreType(NamedTuple):
    kind: str
    stamped: bool


class QueryableStoreTypes:
    """What `KafkaStreams.store` may be asked for."""

    @staticmethod
    def key_value_store() -> QueryableStoreType:
        return QueryableStoreType(KEY_VALUE, False)

    @staticmethod
    def timestamped_key_value_store() -> QueryableStoreType:
        """Values are ValueAndTimestamp."""
        return QueryableStoreType(KEY_VALUE, True)

    @staticmethod
    def window_store() -> QueryableStoreType:
        return QueryableStoreType(WINDOW, False)

    @staticmethod
    def timestamped_window_store() -> QueryableStoreType:
        return QueryableStoreType(WINDOW, True)

    @staticmethod
    def session_store() -> QueryableStoreType:
        return QueryableStoreType(SESSION, False)

    @staticmethod
    def versioned_key_value_store() -> QueryableStoreType:
        return QueryableStoreType(VERSIONED, False)


@dataclass(frozen=True)
class StoreQueryParameters:
    name: str
    type: QueryableStoreType
    partition: int | None = None
    stale: bool = False

    @staticmethod
    def from_name_and_type(name: str, type: QueryableStoreType) -> StoreQueryParameters:
        return StoreQueryParameters(name, type)

    def with_partition(self, partition: int) -> StoreQueryParameters:
        """Only what the task of this partition has."""
        return replace(self, partition=partition)

    def enable_stale_stores(self) -> StoreQueryParameters:
        """Also while the application does not run: what it left."""
        return replace(self, stale=True)


# Bounds of an entry's key, in bytes: from the first on, up to the second, which belongs to it; None
# is no bound.
Bounds = tuple[bytes | None, bytes | None]
ALL: Bounds = (None, None)


class StateReader:
    """Reads stores of one application from its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, topology: Topology, plan: Plan, settings: Settings) -> None:
        self._spark, self._checkpoint = spark, folder / "checkpoint"
        self._topology, self._plan, self._settings = topology, plan, settings
        self._whole: dict[tuple[str, int | None], tuple[int, Store]] = {}

    def empty(self, name: str) -> Store:
        builder = replace(self._topology.stores[name], caching=False)
        return builder.build(self._settings.key_serde, self._settings.value_serde)

    def check(self, name: str, partition: int | None) -> None:
        self._place(name, partition)

    def read(self, name: str, partition: int | None, bounds: Bounds) -> Store:
        """A store with its entries between the bounds, or with more."""
        batch = last_batch(self._checkpoint)
        kept = self._whole.get((name, partition))
        if kept is not None and kept[0] == batch:
            return kept[1]
        store = self.empty(name)
        if batch is not None:
            frame = self._frame(name, partition, bounds, batch)
            for key, value in self._counts(frame, store) if self._plan.summed else self._entries(frame):
                store.restore(key, value)
            if bounds == ALL:
                self._whole[name, partition] = (batch, store)
        return store

    def count(self, name: str, partition: int | None) -> int:
        batch = last_batch(self._checkpoint)
        return 0 if batch is None else self._frame(name, partition, ALL, batch).count()

    def _frame(self, name: str, partition: int | None, bounds: Bounds, batch: int) -> DataFrame:
        from pyspark.sql.functions import lit

        number, tasks = self._place(name, partition)
        low, high = bounds
        state = self._spark.read.format("statestore").option("path", str(self._checkpoint)).option("batchId", batch)
        if self._plan.summed:
            from kavka.pipeline.streams.summing import state_columns

            frame = state_columns(state.load())
            frame = frame.where(frame.task.isin(tasks)).where(frame.key >= lit(low or b""))
            return frame if high is None else frame.where(frame.key <= lit(high))
        prefix = number.to_bytes(2)
        frame = (
            state.option("stateVarName", "stores")
            .load()
            .selectExpr("key.task as task", "user_map_key.key as key", "user_map_value.value as value")
        )
        first = prefix + (low or b"")
        frame = frame.where(frame.task.isin(tasks)).where(frame.key >= lit(first))
        if high is None:
            return frame.where(frame.key < lit((number + 1).to_bytes(2)))
        return frame.where(frame.key <= lit(prefix + high))

    @staticmethod
    def _entries(frame: DataFrame) -> Iterator[tuple[bytes, bytes]]:
        found = frame.select("key", "value").toArrow()
        keys = (key[2:] for key in found.column(0).to_pylist())
        yield from zip(keys, found.column(1).to_pylist(), strict=True)

    @staticmethod
    def _counts(frame: DataFrame, store: Store) -> Iterator[tuple[bytes, bytes]]:
        found = frame.select("key", "number", "time").toArrow()
        for key, number, time in zip(*(column.to_pylist() for column in found.columns), strict=True):
            value = store._value_bytes(ValueAndTimestamp(number, time))
            assert value is not None, "a count is never None"
            yield key, value

    def _place(self, name: str, partition: int | None) -> tuple[int, list[int]]:
        """A store's number in its tasks, and their keys. Every task has all global stores."""
        plan = self._plan
        if name in self._topology.global_stores:
            sub = plan.stateful[0]
            return plan.layout[sub.id].index(name), [slot.key for slot in plan.tasks if slot.sub == sub.id][:1]
        sub = next(one for one in plan.stateful if name in one.stores)
        keys = [slot.key for slot in plan.tasks if slot.sub == sub.id and partition in (None, slot.partition)]
        if not keys:
            raise InvalidStateStoreException(f"The partition {partition} of the store {name} does not exist")
        return plan.layout[sub.id].index(name), keys


Reading = Callable[[Bounds], Store]


class _ReadOnly:
    """`read` gives a store with what is between bounds. `empty` is one without entries, for its
    serdes."""

    def __init__(self, name: str, empty: Store, read: Reading, count: Callable[[], int], stamped: bool) -> None:
        self.name = name
        self._empty, self._read, self._count = empty, read, count
        self._plain = empty.builder.timestamped and not stamped
        self._after_key = _AFTER_KEY[empty.builder.kind]

    def _of(self, key: Any) -> Any:
        """The store with all entries of a key."""
        data = self._empty._need_key(key)
        return self._read((data, data + b"\xff" * self._after_key))

    def _between(self, first: Any, last: Any) -> Any:
        low, high = self._empty._key_bytes(first), self._empty._key_bytes(last)
        return self._read((low, None if high is None else high + b"\xff" * self._after_key))

    def _value(self, value: Any) -> Any:
        return value[0] if self._plain and isinstance(value, ValueAndTimestamp) else value

    def _values(self, found: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        return ((key, self._value(value)) for key, value in found)

    def _backwards(self, found: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._values(found))[::-1])


class ReadOnlyKeyValueStore(_ReadOnly):
    """Keys are in the order of their bytes."""

    def get(self, key: Any) -> Any:
        return self._value(self._of(key).get(key))

    def range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        """Both ends belong to it; None is no bound."""
        return self._values(self._between(first, last).range(first, last))

    def reverse_range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        return self._values(self._between(first, last).reverse_range(first, last))

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._values(self._between(None, None).all())

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        return self._values(self._between(None, None).reverse_all())

    def prefix_scan(self, prefix: Any, serialize: Callable[[Any], bytes | None] | None = None) -> Iterator[Any]:
        start = (serialize or self._empty._key_bytes)(prefix) or b""
        store: Any = self._read((start, _after(start)))
        return self._values(store.prefix_scan(prefix, serialize))

    def approximate_num_entries(self) -> int:
        return self._count()


class ReadOnlyWindowStore(_ReadOnly):
    """Times are those of windows' starts, in ms."""

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """The value of the window that starts at `time_from`; with `time_to`, (start, value) of all
        between."""
        found = self._of(key).fetch(key, time_from, time_to)
        return self._value(found) if time_to is None else self._values(found)

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        return self._values(self._of(key).backward_fetch(key, time_from, time_to))

    def fetch_range(self, first: Any, last: Any, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        return self._values(self._between(first, last).fetch_range(first, last, time_from, time_to))

    def backward_fetch_range(
        self, first: Any, last: Any, time_from: int, time_to: int
    ) -> Iterator[tuple[Windowed, Any]]:
        return self._backwards(self._between(first, last).fetch_range(first, last, time_from, time_to))

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None, time_from, time_to)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        return self.backward_fetch_range(None, None, time_from, time_to)

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None, 0, 2**63 - 1)

    def backward_all(self) -> Iterator[tuple[Windowed, Any]]:
        return self.backward_fetch_range(None, None, 0, 2**63 - 1)


class ReadOnlySessionStore(_ReadOnly):
    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        return self._values(self._of(key).fetch(key))

    def backward_fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        return self._backwards(self._of(key).fetch(key))

    def fetch_range(self, first: Any, last: Any) -> Iterator[tuple[Windowed, Any]]:
        low, high = self._empty._key_bytes(first), self._empty._key_bytes(last)
        for session, value in self._between(first, last).all():
            data = self._empty._need_key(session.key)
            if (low is None or data >= low) and (high is None or data <= high):
                yield session, self._value(value)

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        return self._values(self._of(key).find_sessions(key, earliest_end, latest_start))

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._value(self._of(key).fetch_session(key, start, end))


class ReadOnlyVersionedStore(_ReadOnly):
    def get(self, key: Any, as_of: int | None = None) -> Any:
        return self._of(key).get(key, as_of)


_READERS: Mapping[str, type[_ReadOnly]] = {
    KEY_VALUE: ReadOnlyKeyValueStore,
    WINDOW: ReadOnlyWindowStore,
    SESSION: ReadOnlySessionStore,
    VERSIONED: ReadOnlyVersionedStore,
}


def _after(prefix: bytes) -> bytes | None:
    """The least bytes after all that begin with these."""
    short = prefix.rstrip(b"\xff")
    return None if not short else short[:-1] + bytes([short[-1] + 1])


def check_type(topology: Topology, name: str, wanted: QueryableStoreType) -> None:
    """That there is such a store, and that it is of this type."""
    builder = topology.stores.get(name)
    if builder is None:
        raise InvalidStateStoreException(
            f"Cannot get state store {name} because no such store is registered in the topology."
        )
    if builder.kind != wanted.kind or (wanted.stamped and not builder.timestamped):
        raise InvalidStateStoreException(
            f"Cannot get state store {name} because the queryable store type {wanted.kind}"
            f"{' with timestamps' if wanted.stamped else ''} does not accept the actual store type {builder.kind}."
        )


def read_only(name: str, wanted: QueryableStoreType, empty: Store, read: Reading, count: Callable[[], int]) -> Any:
    return _READERS[wanted.kind](name, empty, read, count, wanted.stamped)
