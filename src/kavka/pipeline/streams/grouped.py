"""Grouped streams and tables, in windows or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import aggregates
from kavka.pipeline.streams.aggregates import AggregateStep
from kavka.pipeline.streams.builder import table_store
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.options import Materialized, Named
from kavka.pipeline.streams.serdes import AroundDefault, Serde, Serdes, WindowedSerdes, change_serde
from kavka.pipeline.streams.stores import SESSION, WINDOW, StoreBuilder
from kavka.pipeline.streams.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows

if TYPE_CHECKING:
    from kavka.pipeline.streams.kstream import KStream
    from kavka.pipeline.streams.ktable import KTable

AGGREGATE, REDUCE = "KSTREAM-AGGREGATE-", "KSTREAM-REDUCE-"
TABLE_AGGREGATE, TABLE_REDUCE = "KTABLE-AGGREGATE-", "KTABLE-REDUCE-"

# The store, the step that fills it, the serde of the table's keys, and how long after a window's end it may change.
Kept = tuple[StoreBuilder, AggregateStep, Serde | None, int | None]


class _Groups:
    """A stream by its keys, and how to put an aggregation behind it."""

    def __init__(self, stream: KStream, key_serde: Serde | None, value_serde: Serde | None, name: str | None) -> None:
        self._stream, self._name = stream, name
        self._key_serde, self._value_serde = key_serde, value_serde

    def _materialized(
        self, materialized: Materialized | None, prefix: str, value_serde: Serde | None
    ) -> tuple[str, Materialized]:
        kept = materialized or Materialized()
        store = kept.store_name or self._stream.builder.new_store_name(prefix)
        return store, replace(
            kept, key_serde=kept.key_serde or self._key_serde, value_serde=kept.value_serde or value_serde
        )

    def _aggregated(
        self,
        prefix: str,
        named: Named | None,
        store: StoreBuilder,
        step: AggregateStep,
        key_serde: Serde | None,
        grace: int | None = None,
    ) -> KTable:
        from kavka.pipeline.streams.ktable import KTable

        builder = self._stream.builder
        name = builder.new_name(prefix, named)
        stream = self._stream
        if stream.rekeyed:
            stream = stream.regrouped(self._name or store.name, self._key_serde, self._value_serde)
        builder.topology.add_state_store(store)
        builder.add_processor(name, step.node, (stream.name,), (store.name,))
        return KTable(builder, name, step, key_serde, store.value_serde, grace)


class _Aggregations(_Groups):
    """The three ways to aggregate, alike for a key and for a key in a window."""

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        named, materialized = _either(named, materialized)
        return self._kept_in_a_table(
            AGGREGATE, aggregates.zero, aggregates.plus_one, materialized, named, Serdes.Long()
        )

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        return self._kept_in_a_table(
            REDUCE, None, aggregates.Reducer(reducer), materialized, named, self._value_serde
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)` gives the new aggregate."""
        return self._kept_in_a_table(AGGREGATE, initializer, aggregator, materialized, named, None)

    def _kept_in_a_table(
        self,
        prefix: str,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None,
        named: Named | None,
        value_serde: Serde | None,
    ) -> KTable:
        name, kept = self._materialized(materialized, prefix, value_serde)
        return self._aggregated(prefix, named, *self._keeping(name, kept, initializer, aggregator))

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        """How an aggregate is kept; `functions` are the initializer and the aggregator."""
        raise NotImplementedError


class KGroupedStream(_Aggregations):
    def windowed_by(
        self, windows: TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows
    ) -> TimeWindowedKStream | SessionWindowedKStream:
        groups = self._stream, self._key_serde, self._value_serde, self._name
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(windows, *groups)
        if isinstance(windows, TimeWindows | UnlimitedWindows | SlidingWindows):
            return TimeWindowedKStream(windows, *groups)
        raise TopologyException(f"a stream cannot be windowed by {windows!r}")

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        store = table_store(name, kept.key_serde, kept.value_serde, kept.caching)
        return store, AggregateStep(name, aggregates.StreamAggregate, *functions), kept.key_serde, None


def _either(named: Any, materialized: Any) -> tuple[Named | None, Materialized | None]:
    """Kafka's `count(Named)` beside `count(Materialized)`."""
    if isinstance(materialized, Named):
        return materialized, named if isinstance(named, Materialized) else None
    return named, materialized


class TimeWindowedKStream(_Aggregations):
    def __init__(self, windows: TimeWindows | UnlimitedWindows | SlidingWindows, *groups: Any) -> None:
        super().__init__(*groups)
        self._windows = windows

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        windows = self._windows
        sliding = isinstance(windows, SlidingWindows)
        least = windows.grace + windows.size * (2 if sliding else 1)
        if kept.retention is not None and kept.retention < windows.size + windows.grace:
            raise TopologyException(
                f"The retention period of the window store {name} must be no smaller than its window size plus the "
                f"grace period. Got size=[{windows.size}], grace=[{windows.grace}], retention=[{kept.retention}]"
            )
        store = StoreBuilder(
            WINDOW,
            name,
            kept.key_serde,
            kept.value_serde,
            timestamped=True,
            caching=kept.caching,
            retention=least if kept.retention is None else kept.retention,
            window_size=windows.size,
        )
        factory = aggregates.SlidingAggregate if sliding else aggregates.WindowAggregate
        step = AggregateStep(name, factory, windows, *functions)
        windowed = partial(WindowedSerdes.time_windowed_serde_from, window_size=windows.size)
        serde = AroundDefault(windowed) if kept.key_serde is None else windowed(kept.key_serde)
        return store, step, serde, windows.grace


class SessionWindowedKStream(_Groups):
    def __init__(self, windows: SessionWindows, *groups: Any) -> None:
        super().__init__(*groups)
        self._windows = windows

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        named, materialized = _either(named, materialized)
        return self._in_sessions(
            AGGREGATE, aggregates.zero, aggregates.plus_one, aggregates.added, materialized, named, Serdes.Long()
        )

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        return self._in_sessions(
            REDUCE,
            None,
            aggregates.Reducer(reducer),
            aggregates.Merger(reducer),
            materialized,
            named,
            self._value_serde,
        )

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`merger(key, one, two)` brings the aggregates of two sessions together."""
        return self._in_sessions(AGGREGATE, initializer, aggregator, merger, materialized, named, None)

    def _in_sessions(
        self,
        prefix: str,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None,
        named: Named | None,
        value_serde: Serde | None,
    ) -> KTable:
        windows = self._windows
        name, kept = self._materialized(materialized, prefix, value_serde)
        least = windows.inactivity_gap + windows.grace
        if kept.retention is not None and kept.retention < least:
            raise TopologyException(f"The retention period of the session store {name} must be no smaller than {least}")
        store = StoreBuilder(
            SESSION,
            name,
            kept.key_serde,
            kept.value_serde,
            caching=kept.caching,
            retention=least if kept.retention is None else kept.retention,
        )
        step = AggregateStep(name, aggregates.SessionAggregate, windows, initializer, aggregator, merger)
        windowed = WindowedSerdes.session_windowed_serde_from
        serde = AroundDefault(windowed) if kept.key_serde is None else windowed(kept.key_serde)
        return self._aggregated(prefix, named, store, step, serde, windows.grace + windows.inactivity_gap)


class KGroupedTable:
    """A table by new keys. `parent` is the node that tells old and new values."""

    def __init__(
        self, table: KTable, parent: str, key_serde: Serde | None, value_serde: Serde | None, name: str | None
    ) -> None:
        self._table, self._parent, self._name = table, parent, name
        self._key_serde, self._value_serde = key_serde, value_serde

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        named, materialized = _either(named, materialized)
        functions = aggregates.zero, aggregates.plus_one, aggregates.minus_one
        return self._aggregated(TABLE_AGGREGATE, functions, materialized, named, Serdes.Long())

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        functions = None, aggregates.Reducer(adder), aggregates.Subtractor(subtractor)
        return self._aggregated(TABLE_REDUCE, functions, materialized, named, self._value_serde)

    def aggregate(
        self,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        return self._aggregated(TABLE_AGGREGATE, (initializer, adder, subtractor), materialized, named, None)

    def _aggregated(
        self,
        prefix: str,
        functions: tuple[Any, Any, Any],
        materialized: Materialized | None,
        named: Named | None,
        value_serde: Serde | None,
    ) -> KTable:
        from kavka.pipeline.streams.ktable import KTable

        builder, kept = self._table.builder, materialized or Materialized()
        store = kept.store_name or builder.new_store_name(TABLE_AGGREGATE)
        sink, source = builder.new_name("KSTREAM-SINK-"), builder.new_name("KSTREAM-SOURCE-")
        name = builder.new_name(prefix, named)
        changes = AroundDefault(change_serde) if self._value_serde is None else change_serde(self._value_serde)
        topic = f"{self._name or store}-repartition"
        builder.repartition(self._parent, topic, self._key_serde, changes, (sink, source))
        key_serde, value_serde = kept.key_serde or self._key_serde, kept.value_serde or value_serde
        builder.topology.add_state_store(table_store(store, key_serde, value_serde, kept.caching))
        step = AggregateStep(store, aggregates.TableAggregate, *functions)
        builder.add_processor(name, step.node, (source,), (store,))
        return KTable(builder, name, step, key_serde, value_serde)
