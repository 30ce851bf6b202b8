"""Grouped streams and tables, in windows or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams import aggregates
from kavka.pipeline.streams.aggregates import AggregateStep
from kavka.pipeline.streams.builder import StreamsBuilder, table_store
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.options import Materialized, Named
from kavka.pipeline.streams.serdes import AroundDefault, Serde, Serdes, WindowedSerdes, change_serde
from kavka.pipeline.streams.stores import SESSION, VERSIONED, WINDOW, StoreBuilder
from kavka.pipeline.streams.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows

if TYPE_CHECKING:
    from kavka.pipeline.streams.cogrouped import CogroupedKStream
    from kavka.pipeline.streams.kstream import KStream
    from kavka.pipeline.streams.ktable import KTable

AGGREGATE, REDUCE = "KSTREAM-AGGREGATE-", "KSTREAM-REDUCE-"
TABLE_AGGREGATE, TABLE_REDUCE = "KTABLE-AGGREGATE-", "KTABLE-REDUCE-"

# The store, the step that fills it, the serde of the table's keys, and how long after a window's
# end it may change.
Kept = tuple[StoreBuilder, AggregateStep, Serde | None, int | None]


def either(named: Any, materialized: Any) -> tuple[Named | None, Materialized | None]:
    """Kafka's `count(Named)` beside `count(Materialized)`: what was given by place may be
    either."""
    if isinstance(materialized, Named):
        return materialized, named if isinstance(named, Materialized) else None
    return named, materialized


def resolved(
    builder: StreamsBuilder,
    materialized: Materialized | None,
    prefix: str,
    key_serde: Serde | None,
    value_serde: Serde | None,
) -> tuple[str, Materialized]:
    """The store's name, and how it is kept."""
    kept = materialized or Materialized()
    store = kept.store_name or builder.new_store_name(prefix)
    return store, replace(kept, key_serde=kept.key_serde or key_serde, value_serde=kept.value_serde or value_serde)


def with_key(name: str, kept: Materialized, *functions: Any) -> Kept:
    """An aggregate for each key; `functions` are the initializer and the aggregator."""
    store = table_store(name, kept.key_serde, kept.value_serde, kept)
    step = AggregateStep(name, aggregates.StreamAggregate, *functions)
    step.history = store.kind == VERSIONED
    return store, step, kept.key_serde, None


def in_windows(
    windows: TimeWindows | UnlimitedWindows | SlidingWindows,
    final: bool,
    name: str,
    kept: Materialized,
    *functions: Any,
) -> Kept:
    """An aggregate for each key in a window; `functions` as above."""
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
        kept.for_(WINDOW).key_serde,
        kept.value_serde,
        timestamped=True,
        caching=kept.caching and not final,
        retention=least if kept.retention is None else kept.retention,
        window_size=windows.size,
    )
    factory = aggregates.SlidingAggregate if sliding else aggregates.WindowAggregate
    step = AggregateStep(name, factory, windows, final, *functions)
    windowed = partial(WindowedSerdes.time_windowed_serde_from, window_size=windows.size)
    serde = AroundDefault(windowed) if kept.key_serde is None else windowed(kept.key_serde)
    return store, step, serde, windows.grace


def in_sessions(windows: SessionWindows, final: bool, name: str, kept: Materialized, *functions: Any) -> Kept:
    """An aggregate for each key in a session; `functions` are the initializer, the aggregator and
    the merger."""
    # A session that ends at the last moment that is not too late must be found when it closes.
    least = windows.inactivity_gap + windows.grace + final
    if kept.retention is not None and kept.retention < least:
        raise TopologyException(f"The retention period of the session store {name} must be no smaller than {least}")
    store = StoreBuilder(
        SESSION,
        name,
        kept.for_(SESSION).key_serde,
        kept.value_serde,
        caching=kept.caching and not final,
        retention=least if kept.retention is None else kept.retention,
    )
    step = AggregateStep(name, aggregates.SessionAggregate, windows, final, *functions)
    windowed = WindowedSerdes.session_windowed_serde_from
    serde = AroundDefault(windowed) if kept.key_serde is None else windowed(kept.key_serde)
    return store, step, serde, windows.grace + windows.inactivity_gap


class _Groups:
    """A stream by its keys, and how to put an aggregation behind it."""

    def __init__(self, stream: KStream, key_serde: Serde | None, value_serde: Serde | None, name: str | None) -> None:
        self.stream, self._name = stream, name
        self.key_serde, self.value_serde = key_serde, value_serde

    def by_key(self, store: str) -> str:
        """The node after which all records of a key are together."""
        stream = self.stream
        if stream.rekeyed:
            stream = stream.regrouped(self._name or store, self.key_serde, self.value_serde)
        return stream.name

    def _count_a_name(self, materialized: Materialized | Named | None) -> None:
        """Kafka's `count` uses up a number where a store without a name is given."""
        if isinstance(materialized, Materialized) and materialized.store_name is None:
            self.stream.builder.new_store_name(AGGREGATE)

    def _table(
        self,
        prefix: str,
        materialized: Materialized | None,
        named: Named | None,
        value_serde: Serde | None,
        *functions: Any,
    ) -> KTable:
        from kavka.pipeline.streams.ktable import KTable

        named, materialized = either(named, materialized)
        builder = self.stream.builder
        store_name, kept = resolved(builder, materialized, prefix, self.key_serde, value_serde)
        store, step, key_serde, grace = self._keeping(store_name, kept, *functions)
        name = builder.new_name(prefix, named)
        parent = self.by_key(store_name)
        builder.topology.add_state_store(store)
        builder.add_processor(name, step.node, (parent,), (store_name,))
        return KTable(builder, name, step, key_serde, store.value_serde, grace)

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        """How an aggregate is kept that `functions` make."""
        raise NotImplementedError


class _Aggregations(_Groups):
    """The three ways to aggregate, alike for a key and for a key in a window."""

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        self._count_a_name(materialized)
        return self._table(AGGREGATE, materialized, named, Serdes.Long(), aggregates.zero, aggregates.plus_one)

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        return self._table(REDUCE, materialized, named, self.value_serde, None, aggregates.Reducer(reducer))

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)` gives the new aggregate."""
        return self._table(AGGREGATE, materialized, named, None, initializer, aggregator)


class KGroupedStream(_Aggregations):
    def windowed_by(
        self, windows: TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows
    ) -> TimeWindowedKStream | SessionWindowedKStream:
        groups = self.stream, self.key_serde, self.value_serde, self._name
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(windows, False, *groups)
        if isinstance(windows, TimeWindows | UnlimitedWindows | SlidingWindows):
            return TimeWindowedKStream(windows, False, *groups)
        raise TopologyException(f"a stream cannot be windowed by {windows!r}")

    def cogroup(self, aggregator: Callable[[Any, Any, Any], Any]) -> CogroupedKStream:
        """Together with other streams, to one aggregate: `aggregator(key, value, aggregate)` says
        what this stream's values do to it."""
        from kavka.pipeline.streams.cogrouped import cogrouped

        return cogrouped(self, aggregator)

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        return with_key(name, kept, *functions)


class TimeWindowedKStream(_Aggregations):
    def __init__(self, windows: TimeWindows | UnlimitedWindows | SlidingWindows, final: bool, *groups: Any) -> None:
        super().__init__(*groups)
        self._windows, self._final = windows, final

    def emit_strategy(self, strategy: EmitStrategy) -> TimeWindowedKStream:
        if strategy.final and isinstance(self._windows, UnlimitedWindows):
            raise TopologyException("unlimited windows never close: on_window_close is for the others")
        groups = self.stream, self.key_serde, self.value_serde, self._name
        return TimeWindowedKStream(self._windows, strategy.final, *groups)

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        return in_windows(self._windows, self._final, name, kept, *functions)


class SessionWindowedKStream(_Groups):
    def __init__(self, windows: SessionWindows, final: bool, *groups: Any) -> None:
        super().__init__(*groups)
        self._windows, self._final = windows, final

    def emit_strategy(self, strategy: EmitStrategy) -> SessionWindowedKStream:
        groups = self.stream, self.key_serde, self.value_serde, self._name
        return SessionWindowedKStream(self._windows, strategy.final, *groups)

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        self._count_a_name(materialized)
        functions = aggregates.zero, aggregates.plus_one, aggregates.added
        return self._table(AGGREGATE, materialized, named, Serdes.Long(), *functions)

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        functions = None, aggregates.Reducer(reducer), aggregates.Merger(reducer)
        return self._table(REDUCE, materialized, named, self.value_serde, *functions)

    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`merger(key, one, two)` brings the aggregates of two sessions together."""
        return self._table(AGGREGATE, materialized, named, None, initializer, aggregator, merger)

    def _keeping(self, name: str, kept: Materialized, *functions: Any) -> Kept:
        return in_sessions(self._windows, self._final, name, kept, *functions)


class KGroupedTable:
    """A table by new keys. `parent` is the node that tells old and new values."""

    def __init__(
        self, table: KTable, parent: str, key_serde: Serde | None, value_serde: Serde | None, name: str | None
    ) -> None:
        self._table, self._parent, self._name = table, parent, name
        self._key_serde, self._value_serde = key_serde, value_serde

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
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

        named, materialized = either(named, materialized)
        builder, kept = self._table.builder, materialized or Materialized()
        store = kept.store_name or builder.new_store_name(TABLE_AGGREGATE)
        sink, source = builder.new_name("KSTREAM-SINK-"), builder.new_name("KSTREAM-SOURCE-")
        name = builder.new_name(prefix, named)
        changes = AroundDefault(change_serde) if self._value_serde is None else change_serde(self._value_serde)
        topic = f"{self._name or store}-repartition"
        builder.repartition(self._parent, topic, self._key_serde, changes, (sink, source))
        key_serde, value_serde = kept.key_serde or self._key_serde, kept.value_serde or value_serde
        made = table_store(store, key_serde, value_serde, kept)
        builder.topology.add_state_store(made)
        step = AggregateStep(store, aggregates.TableAggregate, *functions)
        step.history = made.kind == VERSIONED
        builder.add_processor(name, step.node, (source,), (store,))
        return KTable(builder, name, step, key_serde, value_serde)
