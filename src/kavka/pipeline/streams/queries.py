"""Interactive queries of the stores of a running application.

A query sees the state of the last completed micro-batch.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kavka.pipeline.spark.files import AnyPath, spark_uri
from kavka.pipeline.streams.errors import InvalidStateStoreException
from kavka.pipeline.streams.progress import last_batch
from kavka.pipeline.streams.serdes import constant
from kavka.pipeline.streams.state_map import Entry, MemoryMaps, MergedMap, OpenMap
from kavka.pipeline.streams.stores import KEY_VALUE, SESSION, VERSIONED, WINDOW, Store
from kavka.pipeline.streams.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kavka.pipeline.streams.local_state import StateVersion
    from kavka.pipeline.streams.workers import Job


class QueryableStoreType(NamedTuple):
    kind: str
    stamped: bool


class QueryableStoreTypes:
    """The types of `KafkaStreams.store`. Values of timestamped stores are ValueAndTimestamp."""

    key_value_store = constant(QueryableStoreType(KEY_VALUE, False))
    timestamped_key_value_store = constant(QueryableStoreType(KEY_VALUE, True))
    window_store = constant(QueryableStoreType(WINDOW, False))
    timestamped_window_store = constant(QueryableStoreType(WINDOW, True))
    session_store = constant(QueryableStoreType(SESSION, False))
    versioned_key_value_store = constant(QueryableStoreType(VERSIONED, False))


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
        """Read only the task of this partition."""
        return replace(self, partition=partition)

    def enable_stale_stores(self) -> StoreQueryParameters:
        """Read the last state also while the application does not run."""
        return replace(self, stale=True)


class StateReader:
    """Reads the stores of one application as the last completed micro-batch left them: from the
    files of its tasks where they are on this machine, otherwise from Spark's copy."""

    def __init__(self, spark: SparkSession, folder: AnyPath, job: Job) -> None:
        self._spark, self._checkpoint, self._job = spark, folder / "checkpoint", job
        self._copies: dict[tuple[str, int | None], tuple[int, Store]] = {}

    def check(self, name: str, partition: int | None) -> None:
        self._tasks(name, partition)

    def read(self, name: str, partition: int | None) -> Store:
        from kavka.pipeline.streams.local_state import StateFile

        tasks = self._tasks(name, partition)
        batch = last_batch(self._checkpoint)
        if batch is None:
            return self._store(name, MemoryMaps())
        folders = [self._job.task_folder(key) for key in tasks]
        # On a cluster this machine may have files that another machine has continued.
        if self._job.is_local and all(map(StateFile.exists, folders)):
            return self._store_in_files(name, [StateFile.open(folder).version(batch) for folder in folders])
        return self._copy(name, partition, batch)

    def _store(self, name: str, open_map: OpenMap) -> Store:
        settings = self._job.settings
        builder = replace(self._job.topology.stores[name], caching=False)
        return builder.build(settings.key_serde, settings.value_serde, open_map)

    def _store_in_files(self, name: str, versions: list[StateVersion]) -> Store:
        store = self._store(name, lambda name: MergedMap([version.map(name) for version in versions]))
        store.observed = max(
            (version.meta["stores"].get(name, (-1,))[0] for version in versions if version.meta), default=-1
        )
        return store

    def _copy(self, name: str, partition: int | None, batch: int) -> Store:
        """The store with entries from Spark's copy. It is used until the next micro-batch."""
        copy = self._copies.get((name, partition))
        if copy is None or copy[0] != batch:
            store = self._store(name, MemoryMaps())
            for key, value in self._logged(name, self._tasks(name, partition), batch):
                store.put_entry(key, value)
            copy = self._copies[name, partition] = (batch, store)
        return copy[1]

    def _logged(self, name: str, tasks: list[int], batch: int) -> Iterable[Entry]:
        reader = self._spark.read.format("statestore").options(path=spark_uri(self._checkpoint), batchId=batch)
        columns = "key.task AS task", "user_map_key.number AS number", "user_map_value.changes AS changes"
        frame = reader.option("stateVarName", "log").load().selectExpr(*columns)
        values: dict[bytes, bytes | None] = {}
        for segment in frame.where(frame.task.isin(tasks)).orderBy("task", "number").toLocalIterator():
            values.update(marshal.loads(segment.changes).get(name, {}))
        return [(key, value) for key, value in values.items() if value is not None]

    def _tasks(self, name: str, partition: int | None) -> list[int]:
        """The keys of the tasks that have the store. Every task has all global stores."""
        plan = self._job.plan
        if name in self._job.topology.global_stores:
            return [plan.tasks[0].key]
        sub = next(sub for sub in plan.stateful if name in sub.stores)
        keys = [slot.key for slot in plan.tasks if slot.sub == sub.id and partition in (None, slot.partition)]
        if not keys:
            raise InvalidStateStoreException(f"The partition {partition} of the store {name} does not exist")
        return keys


class _ReadOnly:
    """The methods `METHODS` of a store. `read` returns its current state."""

    METHODS: ClassVar[frozenset[str]]

    def __init__(self, name: str, read: Callable[[], Store]) -> None:
        self.name, self._read = name, read

    def __getattr__(self, method: str) -> Any:
        if method not in self.METHODS:
            raise AttributeError(f"{type(self).__name__} has no method {method}")
        return getattr(self._read(), method)


class ReadOnlyKeyValueStore(_ReadOnly):
    """Keys are in the order of their bytes. The methods are those of `KeyValueStore`."""

    METHODS = frozenset(
        {"get", "range", "reverse_range", "all", "reverse_all", "prefix_scan", "approximate_num_entries"}
    )


class ReadOnlyWindowStore(_ReadOnly):
    """Times are those of the starts of windows, in ms. The methods are those of `WindowStore`."""

    METHODS = frozenset({
        "fetch", "fetch_range", "fetch_all", "all",
        "backward_fetch", "backward_fetch_range", "backward_fetch_all", "backward_all",
    })  # fmt: skip


class ReadOnlySessionStore(_ReadOnly):
    """The methods are those of `SessionStore`."""

    METHODS = frozenset({"fetch", "backward_fetch", "fetch_range", "find_sessions", "fetch_session"})


class ReadOnlyVersionedStore(_ReadOnly):
    """The method is that of `VersionedStore`."""

    METHODS = frozenset({"get"})


_READERS: Mapping[str, type[_ReadOnly]] = {
    KEY_VALUE: ReadOnlyKeyValueStore,
    WINDOW: ReadOnlyWindowStore,
    SESSION: ReadOnlySessionStore,
    VERSIONED: ReadOnlyVersionedStore,
}


def check_type(topology: Topology, name: str, store_type: QueryableStoreType) -> None:
    """Check that the store exists and is of this type."""
    builder = topology.stores.get(name)
    if builder is None:
        raise InvalidStateStoreException(
            f"Cannot get state store {name} because no such store is registered in the topology."
        )
    if builder.kind != store_type.kind or (store_type.stamped and not builder.timestamped):
        raise InvalidStateStoreException(
            f"Cannot get state store {name} because the queryable store type {store_type.kind}"
            f"{' with timestamps' if store_type.stamped else ''} does not accept the actual store type {builder.kind}."
        )


def read_only(name: str, store_type: QueryableStoreType, read: Callable[[], Store]) -> Any:
    """A view of the store that `read` returns, with timestamps only if the type has them."""
    return _READERS[store_type.kind](name, read if store_type.stamped else lambda: read().without_timestamps())
