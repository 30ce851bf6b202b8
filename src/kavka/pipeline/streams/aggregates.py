"""Aggregations of grouped streams and tables: per key, or per key and window."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

from kavka.pipeline.streams.expressions import INTEGER, Total
from kavka.pipeline.streams.processors import Headers, Node
from kavka.pipeline.streams.serdes import Change, Serde, Serdes
from kavka.pipeline.streams.stores import STAMP, ValueAndTimestamp
from kavka.pipeline.streams.tables import Step, TableNode
from kavka.pipeline.streams.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindow,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
)

Aggregator = Callable[[Any, Any, Any], Any]
Reducer = Callable[[Any, Any], Any]

_SPAN = struct.Struct(">qq")


@dataclass(frozen=True)
class Aggregation:
    """`aggregator(key, value, aggregate)` adds a record, `merger(key, aggregate, aggregate)` merges
    two sessions, and `subtractor(key, value, aggregate)` removes the old value of a table's key.
    With `merge(aggregate, aggregate)`, parts of the records can be aggregated first: by `total`, or
    counted."""

    initializer: Callable[[], Any]
    aggregator: Aggregator
    merger: Callable[[Any, Any, Any], Any] | None = None
    subtractor: Aggregator | None = None
    merge: Callable[[Any, Any], Any] | None = None
    total: Total | None = None
    value_serde: Serde | None = None
    """The serde of its results, if it is fixed."""


def _none() -> Any:
    return None


def _zero() -> int:
    return 0


def _plus_one(key: Any, value: Any, count: Any) -> Any:
    return count + 1


def _minus_one(key: Any, value: Any, count: Any) -> Any:
    return count - 1


def _added(key: Any, left: Any, right: Any) -> Any:
    return left + right


COUNT = Aggregation(_zero, _plus_one, _added, _minus_one, operator.add, value_serde=Serdes.Long())


@dataclass(frozen=True)
class _Reducer:
    """A reducer as an aggregator, whose first value is the aggregate, and as a merger."""

    reducer: Reducer

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else self.reducer(aggregate, value)

    def merge(self, key: Any, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return self.reducer(left, right)

    def subtract(self, key: Any, value: Any, aggregate: Any) -> Any:
        return self.reducer(aggregate, value)


def reduction(value_serde: Serde | None, reducer: Reducer, subtractor: Reducer | None = None) -> Aggregation:
    reduce = _Reducer(reducer)
    subtract = None if subtractor is None else _Reducer(subtractor).subtract
    return Aggregation(_none, reduce, reduce.merge, subtract, value_serde=value_serde)


@dataclass(frozen=True)
class _Totaler:
    total: Total

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return self.total.merge(aggregate, self.total.expression(key, value))

    def merge(self, key: Any, left: Any, right: Any) -> Any:
        return self.total.merge(left, right)


def total_of(total: Total) -> Aggregation:
    totaler = _Totaler(total)
    serde = Serdes.Long() if total.expression.kind == INTEGER else Serdes.Double()
    return Aggregation(_none, totaler, totaler.merge, merge=total.merge, total=total, value_serde=serde)


class AggregateStep(Step):
    """An aggregate per key, per key and window, or of the values of a table by new keys
    (`of_table`). With `final`, a window is forwarded once, when it closes."""

    def __init__(
        self, store: str, aggregation: Aggregation, windows: Any = None, final: bool = False, of_table: bool = False
    ) -> None:
        super().__init__(store)
        self.aggregation, self.windows, self.final, self.of_table = aggregation, windows, final, of_table

    def node(self) -> Node:
        return (_TableAggregate if self.of_table else _NODES[type(self.windows)])(self)


class _AggregateNode(TableNode):
    """With `final`, the map `_pending` has the windows that are not forwarded yet. Its keys begin
    with the time by which they are due."""

    def __init__(self, step: AggregateStep) -> None:
        super().__init__(step)
        self._windows, self._final = step.windows, step.final
        aggregation = self._aggregation = step.aggregation
        self._initializer, self._aggregator = aggregation.initializer, aggregation.aggregator
        self._total = aggregation.total

    def init(self) -> None:
        super().init()
        if self._final:
            self._pending = self.store.open_map(f"{self.store.name} due")

    def is_empty(self, key: Any, value: Any) -> bool:
        """Whether a record does not change the aggregate: the total of None."""
        return self._total is not None and self._total.expression(key, value) is None

    def aggregated(
        self, key: Any, value: Any, timestamp: int, read: Callable[..., ValueAndTimestamp | None], *at: Any
    ) -> tuple[Any, Any, int]:
        """The new aggregate, the old one and the time, after a record is added. `read(*at)` returns
        the stored aggregate."""
        stored = read(*at)
        if stored is None:
            return self._aggregator(key, value, self._initializer()), None, timestamp
        old = stored[0]
        new = self._aggregator(key, value, old)
        # The aggregator may have changed the old value in place.
        if self._sends_old_values and old is new:
            stored = read(*at) or stored
        return new, stored[0], max(timestamp, stored[1])

    def merged(self, stored: ValueAndTimestamp | None, part: Any, timestamp: int) -> tuple[Any, Any, int]:
        """The new aggregate, the old one and the time, after the aggregate of several records is
        added."""
        if stored is None:
            return part, None, timestamp
        assert self._aggregation.merge is not None
        return self._aggregation.merge(stored[0], part), stored[0], max(timestamp, stored[1])


class _StreamAggregate(_AggregateNode):
    def add_part(self, key: Any, start: None, part: Any, timestamp: int, headers: Headers) -> None:
        """Add the aggregate of several records; the time is that of the latest of them."""
        if part is not None:
            data = self.store.serialize_key(key)
            self.put_and_forward(key, *self.merged(self.store.get_at(data), part, timestamp), headers, data)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None or self.is_empty(key, value):
            return
        data = self.store.serialize_key(key)
        self.put_and_forward(key, *self.aggregated(key, value, timestamp, self.store.get_at, data), headers, data)


class _TableAggregate(_AggregateNode):
    """Subtracts the old value of a changed key, and adds the new one."""

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None:
            return
        stored = self.store.get(key)
        old = new = None
        if stored is not None:
            old = new = stored[0]
            timestamp = max(timestamp, stored[1])
        if value.old is not None and old is not None:
            assert self._aggregation.subtractor is not None
            new = self._aggregation.subtractor(key, value.old, new)
        if value.new is not None:
            new = self._aggregator(key, value.new, self._initializer() if new is None else new)
        if self._sends_old_values and stored is not None and old is new:
            old = self.store.get(key)[0]
        self.put_and_forward(key, new, old, timestamp, headers)


class _WindowAggregate(_AggregateNode):
    """Tumbling, hopping and unlimited windows. Keys of `_pending` are a window's start and key; no
    start is less than `_earliest`. Closed windows are forwarded before a put, which may expire
    them."""

    _close_delay = 0
    """How much later than its end and the grace a window closes."""
    _earliest = 0

    def observe(self, timestamp: int, headers: Headers) -> int:
        """Advance stream time, forward closed windows, and return the time up to which windows are
        closed."""
        closed: int = max(self.observed, timestamp) - self._windows.grace
        if self._final and timestamp > self.observed:
            self._forward_closed(closed - self._windows.size - self._close_delay, headers)
        self.observed = max(self.observed, timestamp)
        return closed

    def _forward_closed(self, last: int, headers: Headers) -> None:
        """Forward the windows that start at `last` or before."""
        if last < self._earliest:
            return
        for entry, _ in self._pending.scan(high=STAMP.pack(last + 1)):
            self._pending.put(entry, None)
            (start,), key = STAMP.unpack_from(entry), self.store.deserialize_key(entry[STAMP.size :])
            stored = self.store.fetch(key, start)
            if stored is not None:
                window = TimeWindow(start, start + self._windows.size)
                self.forward(Windowed(key, window), Change(stored[0]), stored[1], headers)
        self._earliest = last + 1

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return
        closed = self.observe(timestamp, headers)
        if self.is_empty(key, value):
            return
        for window in self._windows.windows_for(timestamp):
            if window.end > closed:
                result = self.aggregated(key, value, timestamp, self.store.fetch, key, window.start)
                self.put_window(key, window, *result, headers)

    def add_part(self, key: Any, start: int, part: Any, timestamp: int, headers: Headers) -> None:
        """Add the aggregate of several records of the window that starts at `start`. Parts come in
        the order of their windows, so that no part closes the window of another."""
        window = TimeWindow(start, start + self._windows.size)
        if window.end > self.observe(timestamp, headers) and part is not None:
            self.put_window(key, window, *self.merged(self.store.fetch(key, start), part, timestamp), headers)

    def put_window(self, key: Any, window: Window, new: Any, old: Any, stamp: int, headers: Headers) -> None:
        self.store.put(key, None if new is None else ValueAndTimestamp(new, stamp), window.start)
        if self._final:
            self._pending.put(STAMP.pack(window.start) + self.store.serialize_key(key), b"")
            self._earliest = min(self._earliest, window.start)
            return
        cache_key = None if self._cache is None else (self.store.serialize_key(key), window.start)
        self.forward_change(Windowed(key, window), new, old, stamp, headers, cache_key)


class _SlidingAggregate(_WindowAggregate):
    """As in Kafka, each record has a left window, which ends at its time, and a right window, which
    starts after it. A window exists if it has records. The time of an aggregate is that of its
    latest record."""

    _windows: SlidingWindows
    _close_delay = 1

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return
        span = self._windows.time_difference
        self._closed = self.observe(timestamp, headers)
        if timestamp + 1 + span <= self._closed:
            return
        if timestamp < span:
            self._add_early(key, value, timestamp, headers)
        else:
            self._add_record(key, value, timestamp, headers)

    def _add_record(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        span = self._windows.time_difference
        starts = set()
        previous_time: int | None = None
        left_aggregate: ValueAndTimestamp | None = None
        right_aggregate: ValueAndTimestamp | None = None
        has_left = has_right = False
        for start, stored in list(self.store.backward_fetch(key, max(0, timestamp - 2 * span), timestamp + 1)):
            starts.add(start)
            end = start + span
            if start == timestamp + 1:
                has_right = True
            elif end > timestamp:
                right_aggregate = right_aggregate or stored
                self._add_to(key, value, start, stored, timestamp, headers)
            elif end == timestamp:
                has_left = True
                self._add_to(key, value, start, stored, timestamp, headers)
                if stored[1] >= timestamp:
                    return
                previous_time = stored[1]
            else:
                left_aggregate, previous_time = stored, stored[1]
                break
        if previous_time is not None and previous_time + 1 not in starts and previous_time + 1 + span >= timestamp:
            self._add_to(key, value, previous_time + 1, None, timestamp, headers)
        if not has_left:
            if previous_time is None or timestamp - span > previous_time:
                left_aggregate = None
            self._add_to(key, value, timestamp - span, left_aggregate, timestamp, headers, is_new=True)
        if not has_right and right_aggregate is not None and right_aggregate[1] > timestamp:
            self._copy_to(key, timestamp + 1, right_aggregate, headers)

    def _add_early(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Add a record whose left window would start before time 0: that window starts at 0."""
        starts = set()
        previous_time: int | None = None
        first_aggregate: ValueAndTimestamp | None = None
        right_aggregate: ValueAndTimestamp | None = None
        has_right = False
        for start, stored in list(self.store.fetch(key, 0, timestamp + 1)):
            starts.add(start)
            if start == 0:
                first_aggregate = stored
                if stored[1] < timestamp:
                    previous_time = stored[1]
            elif start <= timestamp:
                right_aggregate = stored
                self._add_to(key, value, start, stored, timestamp, headers)
            elif start == timestamp + 1:
                has_right = True
        right_aggregate = right_aggregate or first_aggregate
        if not has_right and right_aggregate is not None and right_aggregate[1] > timestamp:
            self._copy_to(key, timestamp + 1, right_aggregate, headers)
        if previous_time is not None and previous_time + 1 not in starts:
            self._add_to(key, value, previous_time + 1, None, timestamp, headers)
        self._add_to(key, value, 0, first_aggregate, timestamp, headers)

    def _add_to(
        self,
        key: Any,
        value: Any,
        start: int,
        stored: ValueAndTimestamp | None,
        timestamp: int,
        headers: Headers,
        is_new: bool = False,
    ) -> None:
        """Add the record to the window. If the window `is_new`, `stored` is the aggregate of an
        earlier window with the same records."""
        window = TimeWindow(start, start + self._windows.time_difference)
        if window.end < self._closed:
            return
        new = self._aggregator(key, value, self._initializer() if stored is None else stored[0])
        stamp = timestamp if stored is None else max(timestamp, stored[1])
        self.put_window(key, window, new, None if stored is None or is_new else stored[0], stamp, headers)

    def _copy_to(self, key: Any, start: int, stored: ValueAndTimestamp, headers: Headers) -> None:
        window = TimeWindow(start, start + self._windows.time_difference)
        if window.end >= self._closed:
            self.put_window(key, window, stored[0], None, stored[1], headers)


class _SessionAggregate(_AggregateNode):
    """Keys of `_pending` are a session's end, start and key. A session that was merged into another
    may still be there."""

    def _forward_closed(self, closed: int, headers: Headers) -> None:
        if closed <= 0:
            return
        for entry, _ in self._pending.scan(high=STAMP.pack(closed)):
            self._pending.put(entry, None)
            (end, start), key = _SPAN.unpack_from(entry), self.store.deserialize_key(entry[_SPAN.size :])
            aggregate = self.store.fetch_session(key, start, end)
            if aggregate is not None:
                self.forward(Windowed(key, Window(start, end)), Change(aggregate), end, headers)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return
        gap = self._windows.inactivity_gap
        closed = max(self.observed, timestamp) - self._windows.grace - gap
        if self._final and timestamp > self.observed:
            self._forward_closed(closed, headers)
        self.observed = max(self.observed, timestamp)
        merger = self._aggregation.merger
        assert merger is not None
        start = end = timestamp
        aggregate = self._initializer()
        merged: list[tuple[Windowed, Any]] = list(self.store.find_sessions(key, timestamp - gap, timestamp + gap))
        for session, stored in merged:
            aggregate = merger(key, aggregate, stored)
            start, end = min(start, session.window.start), max(end, session.window.end)
        if end < closed:
            return
        if (start, end) != (timestamp, timestamp):
            for session, stored in merged:
                self.store.remove(session)
                self._forward_session(session, None, stored, session.window.end, headers)
        aggregate = self._aggregator(key, value, aggregate)
        session = Windowed(key, Window(start, end))
        self.store.put(session, aggregate)
        self._forward_session(session, aggregate, None, end, headers)

    def _forward_session(self, session: Windowed, new: Any, old: Any, stamp: int, headers: Headers) -> None:
        start, end = session.window.start, session.window.end
        if not self._final:
            cache_key = None if self._cache is None else (self.store.serialize_key(session.key), start, end)
            self.forward_change(session, new, old, stamp, headers, cache_key)
        elif new is not None:
            self._pending.put(_SPAN.pack(end, start) + self.store.serialize_key(session.key), b"")


_NODES: dict[type, type[_AggregateNode]] = {
    NoneType: _StreamAggregate,
    TimeWindows: _WindowAggregate,
    UnlimitedWindows: _WindowAggregate,
    SlidingWindows: _SlidingAggregate,
    SessionWindows: _SessionAggregate,
}
