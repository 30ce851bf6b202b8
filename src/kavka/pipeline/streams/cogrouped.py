"""Several grouped streams brought together to one table:
`grouped.cogroup(aggregator).cogroup(other, aggregator)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.engine import Headers, Node
from kavka.pipeline.streams.errors import TopologyException
from kavka.pipeline.streams.grouped import Kept, KGroupedStream, either, in_sessions, in_windows, resolved, with_key
from kavka.pipeline.streams.options import Materialized, Named
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.tables import Step, TableNode
from kavka.pipeline.streams.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windowed

if TYPE_CHECKING:
    from kavka.pipeline.streams.ktable import KTable

_AGGREGATE, _MERGE = "COGROUPKSTREAM-AGGREGATE-", "COGROUPKSTREAM-MERGE-"

Aggregator = Callable[[Any, Any, Any], Any]
Pair = tuple[KGroupedStream, Aggregator]


class CogroupStep(Step):
    """The table that several aggregations make together, in one store. They tell every change with
    its old value; what is held back is held back here, once for all."""

    def node(self) -> Node:
        return _Merge(self.store, self.send_old)


class _Merge(TableNode):
    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if self._held is None:
            old = value.old if self._send_old else None
            self.forward(key, Change(value.new, old, value.latest), timestamp, headers)
            return
        assert self.store is not None
        if isinstance(key, Windowed):
            ident: Any = (self.store._need_key(key.key), key.window.start, key.window.end)
        else:
            ident = self.store._need_key(key)
        self.tell(key, value.new, value.old, timestamp, headers, ident)


class _Cogrouped:
    def __init__(self, pairs: tuple[Pair, ...]) -> None:
        self._pairs = pairs

    def _table(
        self,
        materialized: Materialized | None,
        named: Named | None,
        keeping: Callable[[str, Materialized, Aggregator], Kept],
    ) -> KTable:
        from kavka.pipeline.streams.ktable import KTable

        named, materialized = either(named, materialized)
        first = self._pairs[0][0]
        builder = first.stream.builder
        if any(grouped.stream.builder is not builder for grouped, _ in self._pairs):
            raise TopologyException("streams that are grouped together must be of one StreamsBuilder")
        store_name, kept = resolved(builder, materialized, _AGGREGATE, first.key_serde, None)
        parents = [grouped.by_key(store_name) for grouped, _ in self._pairs]
        builder.topology.copartition(*parents)
        base = None if named is None else named.name
        names = []
        step = CogroupStep(store_name)
        for number, ((_, aggregator), parent) in enumerate(zip(self._pairs, parents, strict=True)):
            name = builder.new_name(_AGGREGATE, Named(base and f"{base}-cogroup-agg-{number}"))
            store, part, key_serde, grace = keeping(store_name, kept, aggregator)
            part.send_old, part.holds = True, False
            builder.topology.add_state_store(store)
            builder.add_processor(name, part.node, (parent,), (store_name,))
            names.append(name)
            step.history = part.history
        merge = builder.new_name(_MERGE, Named(base and f"{base}-cogroup-merge"))
        builder.add_processor(merge, step.node, tuple(names))
        return KTable(builder, merge, step, key_serde, store.value_serde, grace)


class CogroupedKStream(_Cogrouped):
    def cogroup(self, grouped: KGroupedStream, aggregator: Aggregator) -> CogroupedKStream:
        """Another stream, with how its values go into the same aggregate."""
        if not isinstance(grouped, KGroupedStream):
            raise TopologyException(f"a stream cannot be grouped together with a {type(grouped).__name__}")
        return CogroupedKStream((*self._pairs, (grouped, aggregator)))

    def aggregate(
        self, initializer: Callable[[], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        return self._table(materialized, named, lambda name, kept, one: with_key(name, kept, initializer, one))

    def windowed_by(
        self, windows: TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._pairs, windows)
        if isinstance(windows, TimeWindows | UnlimitedWindows | SlidingWindows):
            return TimeWindowedCogroupedKStream(self._pairs, windows)
        raise TopologyException(f"a stream cannot be windowed by {windows!r}")


class TimeWindowedCogroupedKStream(_Cogrouped):
    def __init__(self, pairs: tuple[Pair, ...], windows: TimeWindows | UnlimitedWindows | SlidingWindows) -> None:
        super().__init__(pairs)
        self._windows = windows

    def aggregate(
        self, initializer: Callable[[], Any], materialized: Materialized | None = None, named: Named | None = None
    ) -> KTable:
        windows = self._windows
        return self._table(
            materialized, named, lambda name, kept, one: in_windows(windows, False, name, kept, initializer, one)
        )


class SessionWindowedCogroupedKStream(_Cogrouped):
    def __init__(self, pairs: tuple[Pair, ...], windows: SessionWindows) -> None:
        super().__init__(pairs)
        self._windows = windows

    def aggregate(
        self,
        initializer: Callable[[], Any],
        merger: Callable[[Any, Any, Any], Any],
        materialized: Materialized | None = None,
        named: Named | None = None,
    ) -> KTable:
        """`merger(key, one, two)` brings the aggregates of two sessions together."""

        def keeping(name: str, kept: Materialized, aggregator: Aggregator) -> Kept:
            return in_sessions(self._windows, False, name, kept, initializer, aggregator, merger)

        return self._table(materialized, named, keeping)


def cogrouped(grouped: KGroupedStream, aggregator: Aggregator) -> CogroupedKStream:
    return CogroupedKStream(((grouped, aggregator),))
