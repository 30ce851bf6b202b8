"""Several grouped streams aggregated to one table:
`grouped.cogroup(aggregator).cogroup(other, aggregator)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.aggregates import Aggregation, Aggregator
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.grouped import KGroupedStream, aggregate_table, table_options
from kavka.pipeline.streams.options import Materialized, Named
from kavka.pipeline.streams.processors import Headers, Node
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.tables import Step, TableNode
from kavka.pipeline.streams.windows import SessionWindows, Windowed, Windows

if TYPE_CHECKING:
    from kavka.pipeline.streams.ktable import KTable

_AGGREGATE, _MERGE = "COGROUPKSTREAM-AGGREGATE-", "COGROUPKSTREAM-MERGE-"


class CogroupStep(Step):
    """Merges the changes of the aggregates of all streams, which share a store. They forward every
    change with its old value, and this step caches."""

    def node(self) -> Node:
        return _Merge(self)


class _Merge(TableNode):
    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if self._cache is None:
            old = value.old if self._sends_old_values else None
            self.forward(key, Change(value.new, old, value.latest), timestamp, headers)
            return
        if isinstance(key, Windowed):
            cache_key: Any = (self.store.serialize_key(key.key), key.window.start, key.window.end)
        else:
            cache_key = self.store.serialize_key(key)
        self.forward_change(key, value.new, value.old, timestamp, headers, cache_key)


@dataclass(frozen=True, eq=False)
class _CogroupedStream:
    streams: tuple[tuple[KGroupedStream, Aggregator], ...]
    windows: Windows | None = None

    def aggregate(
        self, initializer: Callable[[], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        return self._table(initializer, None, materialized, named)

    def _table(
        self,
        initializer: Callable[[], Any],
        merger: Callable[[Any, Any, Any], Any] | None,
        materialized: Materialized | None,
        named: Named | None,
    ) -> KTable:
        from kavka.pipeline.streams.ktable import KTable

        materialized, named = table_options(materialized, named)
        first = self.streams[0][0]
        builder = first.stream.builder
        if any(grouped.stream.builder is not builder for grouped, _ in self.streams):
            raise TopologyException("streams that are grouped together must be of one StreamsBuilder")
        store_name = materialized.store_name or builder.new_store_name(_AGGREGATE)
        materialized = materialized.or_serdes(first.key_serde, None)
        parents = [grouped.repartition_if_needed(store_name) for grouped, _ in self.streams]
        builder.topology.copartition(*parents)
        base = None if named is None else named.name
        names = []
        step = CogroupStep(store_name)
        for number, ((_, aggregator), parent) in enumerate(zip(self.streams, parents, strict=True)):
            name = builder.new_name(_AGGREGATE, Named(base and f"{base}-cogroup-agg-{number}"))
            aggregation = Aggregation(initializer, aggregator, merger)
            table = aggregate_table(store_name, materialized, aggregation, self.windows)
            table.step.sends_old_values, table.step.may_cache = True, False
            table.add_to(builder, name, parent)
            names.append(name)
            step.has_history = table.step.has_history
        merge = builder.new_name(_MERGE, Named(base and f"{base}-cogroup-merge"))
        builder.add_processor(merge, step, tuple(names))
        return KTable(builder, merge, step, table.key_serde, table.store.value_serde, table.grace)


class CogroupedKStream(_CogroupedStream):
    def cogroup(self, grouped: KGroupedStream, aggregator: Aggregator) -> CogroupedKStream:
        """Add another stream, whose values `aggregator(key, value, aggregate)` adds."""
        if not isinstance(grouped, KGroupedStream):
            raise TopologyException(f"a stream cannot be grouped together with a {type(grouped).__name__}")
        return CogroupedKStream((*self.streams, (grouped, aggregator)))

    def windowed_by(self, windows: Windows) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        if not isinstance(windows, Windows):
            raise TopologyException(f"a stream cannot be windowed by {windows!r}")
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self.streams, windows)
        return TimeWindowedCogroupedKStream(self.streams, windows)


class TimeWindowedCogroupedKStream(_CogroupedStream):
    """Time windows of grouped streams."""


class SessionWindowedCogroupedKStream(_CogroupedStream):
    def aggregate(  # type: ignore[override]
        self,
        initializer: Callable[[], Any],
        merger: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`merger(key, aggregate, aggregate)` combines the aggregates of two sessions."""
        return self._table(initializer, merger, materialized, named)
