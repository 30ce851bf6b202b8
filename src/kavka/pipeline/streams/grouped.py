"""Grouped streams and tables, with and without windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kavka.pipeline.streams.aggregates import (
    COUNT,
    AggregateStep,
    Aggregation,
    Aggregator,
    Reducer,
    reduction,
    total_of,
)
from kavka.pipeline.streams.builder import StreamsBuilder, table_store
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.expressions import Total
from kavka.pipeline.streams.options import Materialized, Named, first_of
from kavka.pipeline.streams.serdes import Serde, WindowedSerdes, change_serde, wrapped
from kavka.pipeline.streams.stores import SESSION, VERSIONED, WINDOW, StoreBuilder
from kavka.pipeline.streams.topology import RepartitionTopic
from kavka.pipeline.streams.windows import EmitStrategy, SessionWindows, SlidingWindows, UnlimitedWindows, Windows

if TYPE_CHECKING:
    from kavka.pipeline.streams.cogrouped import CogroupedKStream
    from kavka.pipeline.streams.kstream import KStream
    from kavka.pipeline.streams.ktable import KTable

AGGREGATE, REDUCE = "KSTREAM-AGGREGATE-", "KSTREAM-REDUCE-"
TABLE_AGGREGATE, TABLE_REDUCE = "KTABLE-AGGREGATE-", "KTABLE-REDUCE-"


class AggregateTable(NamedTuple):
    """A table of aggregates to add to a topology. `key_serde` is the serde of the table's keys.
    `grace` is the time after the end of a window in which the window may change, or None without
    windows."""

    store: StoreBuilder
    step: AggregateStep
    key_serde: Serde | None
    grace: int | None

    def add_to(self, builder: StreamsBuilder, name: str, parent: str) -> KTable:
        """Add the node `name` after the node `parent`."""
        from kavka.pipeline.streams.ktable import KTable

        builder.topology.add_state_store(self.store)
        builder.add_processor(name, self.step, (parent,), (self.store.name,))
        return KTable(builder, name, self.step, self.key_serde, self.store.value_serde, self.grace)


def table_options(*options: Materialized | Named | None) -> tuple[Materialized, Named | None]:
    """Return the options of a table, which may be in any order."""
    return first_of(Materialized, *options) or Materialized(), first_of(Named, *options)


def aggregate_table(
    name: str,
    materialized: Materialized,
    aggregation: Aggregation,
    windows: Windows | None = None,
    final: bool = False,
    of_table: bool = False,
) -> AggregateTable:
    """Return the table with the store `name`. With `final`, a window is forwarded once, when it
    closes. With `of_table`, the values of a table are aggregated instead of the records of a
    stream."""
    key_serde = materialized.key_serde
    step = AggregateStep(name, aggregation, windows, final, of_table)
    if windows is None:
        store = table_store(name, materialized)
        step.has_history = store.kind == VERSIONED
        return AggregateTable(store, step, key_serde, None)
    is_session = isinstance(windows, SessionWindows)
    store = StoreBuilder(
        SESSION if is_session else WINDOW,
        name,
        key_serde,
        materialized.value_serde,
        timestamped=not is_session,
        caching=materialized.caching and not final,
        retention=_retention(name, materialized.retention, windows, final),
        window_size=0 if isinstance(windows, SessionWindows) else windows.size,
    )
    materialized.check_kind(store.kind)
    if isinstance(windows, SessionWindows):
        serde = wrapped(WindowedSerdes.session_windowed_serde_from, key_serde)
        return AggregateTable(store, step, serde, windows.grace + windows.inactivity_gap)
    serde = wrapped(partial(WindowedSerdes.time_windowed_serde_from, window_size=windows.size), key_serde)
    return AggregateTable(store, step, serde, windows.grace)


def _retention(name: str, retention: int | None, windows: Windows, final: bool) -> int:
    """Return the retention of a window or session store: `retention`, or the default if it is None.
    Raises TopologyException if `retention` is too short."""
    if isinstance(windows, SessionWindows):
        # A session that ended gap + grace ago is still open. With `final`, the store must contain
        # it until it closes, one millisecond later.
        default = windows.inactivity_gap + windows.grace + final
        if retention is not None and retention < default:
            raise TopologyException(
                f"The retention period of the session store {name} must be no smaller than {default}"
            )
    else:
        default = windows.grace + windows.size * (2 if isinstance(windows, SlidingWindows) else 1)
        if retention is not None and retention < windows.size + windows.grace:
            raise TopologyException(
                f"The retention period of the window store {name} must be no smaller than its window size plus the "
                f"grace period. Got size=[{windows.size}], grace=[{windows.grace}], retention=[{retention}]"
            )
    return default if retention is None else retention


def aggregation_of(
    initializer: Callable[[], Any] | Total, aggregator: Callable[..., Any] | None, merger: Any = None
) -> Aggregation:
    """Return the aggregation for the arguments of `aggregate`."""
    if isinstance(initializer, Total):
        return total_of(initializer)
    if not callable(initializer) or not callable(aggregator):
        raise TopologyException("aggregate needs an initializer and an aggregator, or sum_of, min_of or max_of")
    return Aggregation(initializer, aggregator, merger)


@dataclass(frozen=True, eq=False)
class _GroupedStream:
    """A stream grouped by key. `name` is the name in `Grouped`, for the repartition topic."""

    stream: KStream
    key_serde: Serde | None
    value_serde: Serde | None
    name: str | None
    windows: Any = None
    final: bool = False

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        # Kafka's `count` with a Materialized without a store name generates an unused name. This
        # does the same, so that later nodes have the same names as in Kafka.
        if isinstance(materialized, Materialized) and materialized.store_name is None:
            self.stream.builder.new_store_name(AGGREGATE)
        return self._table(AGGREGATE, COUNT, materialized, named)

    def reduce(self, reducer: Reducer, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        return self._table(REDUCE, reduction(self.value_serde, reducer), materialized, named)

    def aggregate(
        self,
        initializer: Callable[[], Any] | Total,
        aggregator: Aggregator | None = None,
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`aggregator(key, value, aggregate)` returns the new aggregate. Instead of both functions,
        the caller may pass `sum_of`, `min_of` or `max_of` of an expression."""
        return self._table(AGGREGATE, aggregation_of(initializer, aggregator), materialized, named)

    def repartition_if_needed(self, store: str) -> str:
        """Return the name of the node after which all records of a key are in the same task. Adds a
        repartition topic if the keys may have changed."""
        if not self.stream.needs_repartition:
            return self.stream.name
        return self.stream.repartitioned(self.name or store, self.key_serde, self.value_serde).name

    def _table(
        self, prefix: str, aggregation: Aggregation, materialized: Materialized | None, named: Named | None
    ) -> KTable:
        materialized, named = table_options(materialized, named)
        builder = self.stream.builder
        store_name = materialized.store_name or builder.new_store_name(prefix)
        materialized = materialized.or_serdes(self.key_serde, aggregation.value_serde)
        table = aggregate_table(store_name, materialized, aggregation, self.windows, self.final)
        name = builder.new_name(prefix, named)
        return table.add_to(builder, name, self.repartition_if_needed(store_name))


class KGroupedStream(_GroupedStream):
    def windowed_by(self, windows: Windows) -> TimeWindowedKStream | SessionWindowedKStream:
        if not isinstance(windows, Windows):
            raise TopologyException(f"a stream cannot be windowed by {windows!r}")
        stream_class = SessionWindowedKStream if isinstance(windows, SessionWindows) else TimeWindowedKStream
        return stream_class(self.stream, self.key_serde, self.value_serde, self.name, windows)

    def cogroup(self, aggregator: Aggregator) -> CogroupedKStream:
        """Aggregate this stream with others: `aggregator(key, value, aggregate)` adds the values of
        this stream."""
        from kavka.pipeline.streams.cogrouped import CogroupedKStream

        return CogroupedKStream(((self, aggregator),))


class TimeWindowedKStream(_GroupedStream):
    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        if strategy.final and isinstance(self.windows, UnlimitedWindows):
            raise TopologyException("unlimited windows never close: use on_window_update")
        return replace(self, final=strategy.final)


class SessionWindowedKStream(_GroupedStream):
    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        return replace(self, final=strategy.final)

    def aggregate(  # type: ignore[override]
        self,
        initializer: Callable[[], Any] | Total,
        aggregator: Aggregator | None = None,
        merger: Callable[[Any, Any, Any], Any] | None = None,
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`merger(key, first, second)` combines the aggregates of two sessions."""
        aggregation = aggregation_of(initializer, aggregator, merger)
        if aggregation.merger is None:
            raise TopologyException("an aggregate of sessions needs a merger")
        return self._table(AGGREGATE, aggregation, materialized, named)


@dataclass(frozen=True, eq=False)
class KGroupedTable:
    """A table grouped by new keys. The node `parent` forwards old and new values."""

    table: KTable
    parent: str
    key_serde: Serde | None
    value_serde: Serde | None
    name: str | None

    def count(self, materialized: Materialized | None = None, named: Named | None = None) -> KTable:
        return self._table(TABLE_AGGREGATE, COUNT, materialized, named)

    def reduce(
        self, adder: Reducer, subtractor: Reducer, materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        return self._table(TABLE_REDUCE, reduction(self.value_serde, adder, subtractor), materialized, named)

    def aggregate(
        self,
        initializer: Callable[[], Any],
        adder: Aggregator,
        subtractor: Aggregator,
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        aggregation = Aggregation(initializer, adder, subtractor=subtractor)
        return self._table(TABLE_AGGREGATE, aggregation, materialized, named)

    def _table(
        self, prefix: str, aggregation: Aggregation, materialized: Materialized | None, named: Named | None
    ) -> KTable:
        materialized, named = table_options(materialized, named)
        builder = self.table.builder
        store_name = materialized.store_name or builder.new_store_name(TABLE_AGGREGATE)
        sink, source = builder.new_name("KSTREAM-SINK-"), builder.new_name("KSTREAM-SOURCE-")
        name = builder.new_name(prefix, named)
        topic = RepartitionTopic(f"{self.name or store_name}-repartition")
        serdes = self.key_serde, wrapped(change_serde, self.value_serde)
        builder.repartition((self.parent,), topic, serdes, (sink, source))
        materialized = materialized.or_serdes(self.key_serde, aggregation.value_serde)
        return aggregate_table(store_name, materialized, aggregation, of_table=True).add_to(builder, name, source)
