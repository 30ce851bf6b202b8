"""Grouped streams and tables brought together to one value by key, or by key and window."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kavka.pipeline.streams.engine import Headers, Node
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.stores import STAMP, ValueAndTimestamp
from kavka.pipeline.streams.tables import Step, TableNode
from kavka.pipeline.streams.windows import SessionWindows, SlidingWindows, TimeWindow, Window, Windowed

Aggregator = Callable[[Any, Any, Any], Any]

_SPAN = struct.Struct(">qq")


def _nothing() -> Any:
    return None


def zero() -> int:
    return 0


def plus_one(key: Any, value: Any, count: Any) -> Any:
    return count + 1


def minus_one(key: Any, value: Any, count: Any) -> Any:
    return count - 1


class Reducer:
    """A reducer as an aggregator: the first value is the result."""

    def __init__(self, reducer: Callable[[Any, Any], Any]) -> None:
        self._reducer = reducer

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else self._reducer(aggregate, value)


class Subtractor:
    def __init__(self, reducer: Callable[[Any, Any], Any]) -> None:
        self._reducer = reducer

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return self._reducer(aggregate, value)


class Merger:
    """A reducer as what brings two sessions together."""

    def __init__(self, reducer: Callable[[Any, Any], Any]) -> None:
        self._reducer = reducer

    def __call__(self, key: Any, one: Any, two: Any) -> Any:
        if one is None or two is None:
            return two if one is None else one
        return self._reducer(one, two)


def added(key: Any, one: Any, two: Any) -> Any:
    return one + two


class AggregateStep(Step):
    """A table that is made by `factory(store, send_old, …)`. With `holds` off, every change is told
    at once."""

    def __init__(self, store: str, factory: Callable[..., TableNode], *arguments: Any) -> None:
        super().__init__(store)
        self._factory, self._arguments = factory, arguments
        self.holds = True

    def node(self) -> Node:
        made = self._factory(self.store, self.send_old, *self._arguments)
        made.holds = self.holds
        return made


class StreamAggregate(TableNode):
    def __init__(
        self, store: str | None, send_old: bool, initializer: Callable[[], Any] | None, aggregator: Aggregator
    ) -> None:
        super().__init__(store, send_old)
        self._initializer, self._aggregator = initializer or _nothing, aggregator

    @property
    def counts(self) -> bool:
        """Whether it does nothing but count, so that `add` may be called."""
        return self._initializer is zero and self._aggregator is plus_one

    def add(self, key: Any, number: int, timestamp: int, headers: Headers) -> None:
        """So many records at once; the time is that of the latest of them."""
        assert self.store is not None
        held = self.store.get(key)
        old = None if held is None else held[0]
        stamp = timestamp if held is None else max(timestamp, held[1])
        self.keep(key, (old or 0) + number, old, stamp, headers)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None or self.store is None:
            return
        held = self.store.get(key)
        if held is None:
            old, new = None, self._aggregator(key, value, self._initializer())
        else:
            old, stamp = held[0], held[1]
            new = self._aggregator(key, value, old)
            timestamp = max(timestamp, stamp)
            if self._send_old and old is new:
                old = self.store.get(key)[0]
        self.keep(key, new, old, timestamp, headers)


class TableAggregate(TableNode):
    """Takes away what a changed key stood for, and adds what it stands for now."""

    def __init__(
        self,
        store: str | None,
        send_old: bool,
        initializer: Callable[[], Any] | None,
        adder: Aggregator,
        subtractor: Aggregator,
    ) -> None:
        super().__init__(store, send_old)
        self._initializer, self._adder, self._subtractor = initializer, adder, subtractor

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None or self.store is None:
            return
        held = self.store.get(key)
        old = new = None
        if held is not None:
            old = new = held[0]
            timestamp = max(timestamp, held[1])
        if value.old is not None and old is not None:
            new = self._subtractor(key, value.old, new)
        if value.new is not None:
            if new is None and self._initializer is not None:
                new = self._initializer()
            new = self._adder(key, value.new, new)
        before = old
        if self._send_old and held is not None and old is new:
            before = self.store.get(key)[0]
        self.keep(key, new, before, timestamp, headers)


class WindowAggregate(TableNode):
    """Tumbling, hopping and unlimited windows. With `final`, a window is told once, when it closes:
    `_due` is a map of the windows that were not told yet (start and key), and they are told before
    anything is put, since the store may forget them with that. No start in it is less than
    `_earliest`."""

    _past_end = 0
    """How long after a window's end time must be for it to be over, without the grace."""

    def __init__(
        self,
        store: str | None,
        send_old: bool,
        windows: Any,
        final: bool,
        initializer: Callable[[], Any] | None,
        aggregator: Aggregator,
    ) -> None:
        super().__init__(store, send_old)
        self._windows, self._initializer, self._aggregator = windows, initializer or _nothing, aggregator
        self._final = final
        self._earliest = 0

    def init(self) -> None:
        super().init()
        if self._final and self.store is not None:
            self._due = self.store.open_map(f"{self.store.name} due")

    def observe(self, timestamp: int, headers: Headers) -> int:
        """Time goes on; the time up to which windows are closed."""
        closed: int = max(self.observed, timestamp) - self._windows.grace
        if self._final and timestamp > self.observed:
            self._tell_closed(closed - self._windows.size - self._past_end, headers)
        self.observed = max(self.observed, timestamp)
        return closed

    def _tell_closed(self, last: int, headers: Headers) -> None:
        """Tell the windows that start at `last` or before."""
        assert self.store is not None
        if last < self._earliest:
            return
        for entry, _ in self._due.scan(high=STAMP.pack(last + 1)):
            self._due.put(entry, None)
            (start,), data = STAMP.unpack_from(entry), entry[STAMP.size :]
            key = self.store._key(data)
            held = self.store.fetch(key, start)
            if held is not None:
                window = TimeWindow(start, start + self._windows.size)
                self.forward(Windowed(key, window), Change(held[0]), held[1], headers)
        self._earliest = last + 1

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return
        closed = self.observe(timestamp, headers)
        for window in self._windows.windows_for(timestamp):
            if window.end > closed:
                self.update(key, value, window, timestamp, headers)

    def update(self, key: Any, value: Any, window: Window, timestamp: int, headers: Headers) -> None:
        assert self.store is not None
        held = self.store.fetch(key, window.start)
        if held is None:
            old, new, stamp = None, self._aggregator(key, value, self._initializer()), timestamp
        else:
            old = held[0]
            new, stamp = self._aggregator(key, value, old), max(timestamp, held[1])
            if self._send_old and old is new:
                old = self.store.fetch(key, window.start)[0]
        self.place(key, window, new, old, stamp, headers)

    def place(self, key: Any, window: Window, new: Any, old: Any, stamp: int, headers: Headers) -> None:
        assert self.store is not None
        self.store.put(key, None if new is None else ValueAndTimestamp(new, stamp), window.start)
        if self._final:
            self._due.put(STAMP.pack(window.start) + self.store._need_key(key), b"")
            self._earliest = min(self._earliest, window.start)
            return
        ident = None if self._held is None else (self.store._need_key(key), window.start)
        self.tell(Windowed(key, window), new, old, stamp, headers, ident)


class SlidingAggregate(WindowAggregate):
    """A window ends at every record, and one begins after it, as long as there is something in
    them."""

    _windows: SlidingWindows
    _past_end = 1

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None or self.store is None:
            return
        span = self._windows.time_difference
        self._closed = self.observe(timestamp, headers)
        if timestamp + 1 + span <= self._closed:
            return
        if timestamp < span:
            self._early(key, value, timestamp, headers)
        else:
            self._backwards(key, value, timestamp, headers)

    def _backwards(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        assert self.store is not None
        span = self._windows.time_difference
        starts = set()
        before: int | None = None
        left: ValueAndTimestamp | None = None
        right: ValueAndTimestamp | None = None
        left_there = right_there = False
        for start, held in list(self.store.backward_fetch(key, max(0, timestamp - 2 * span), timestamp + 1)):
            starts.add(start)
            end = start + span
            if start == timestamp + 1:
                right_there = True
            elif end > timestamp:
                right = right or held
                self._into(key, value, start, held, timestamp, headers)
            elif end == timestamp:
                left_there = True
                self._into(key, value, start, held, timestamp, headers)
                if held[1] >= timestamp:
                    return
                before = held[1]
            else:
                left, before = held, held[1]
                break
        if before is not None and before + 1 not in starts and before + 1 + span >= timestamp:
            self._into(key, value, before + 1, None, timestamp, headers)
        if not left_there:
            kept = left if left is not None and before is not None and timestamp - span <= before else None
            self._into(key, value, timestamp - span, kept, timestamp, headers, fresh=True)
        if not right_there and right is not None and right[1] > timestamp:
            self._copy(key, timestamp + 1, right, headers)

    def _early(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Windows that would begin before time 0 are all the one that begins at 0."""
        assert self.store is not None
        starts = set()
        before: int | None = None
        combined: ValueAndTimestamp | None = None
        right: ValueAndTimestamp | None = None
        right_there = False
        for start, held in list(self.store.fetch(key, 0, timestamp + 1)):
            starts.add(start)
            if start == 0:
                combined = held
                if held[1] < timestamp:
                    before = held[1]
            elif start <= timestamp:
                right = held
                self._into(key, value, start, held, timestamp, headers)
            elif start == timestamp + 1:
                right_there = True
        if right is None and combined is not None:
            right = combined
        if not right_there and right is not None and right[1] > timestamp:
            self._copy(key, timestamp + 1, right, headers)
        if before is not None and before + 1 not in starts:
            self._into(key, value, before + 1, None, timestamp, headers)
        self._into(key, value, 0, combined, timestamp, headers)

    def _into(
        self,
        key: Any,
        value: Any,
        start: int,
        held: ValueAndTimestamp | None,
        timestamp: int,
        headers: Headers,
        fresh: bool = False,
    ) -> None:
        """Add the record to the window. `fresh`: `held` is what another window had, this one was
        not there."""
        window = TimeWindow(start, start + self._windows.time_difference)
        if window.end < self._closed:
            return
        new = self._aggregator(key, value, self._initializer() if held is None else held[0])
        stamp = timestamp if held is None else max(timestamp, held[1])
        self.place(key, window, new, None if held is None or fresh else held[0], stamp, headers)

    def _copy(self, key: Any, start: int, held: ValueAndTimestamp, headers: Headers) -> None:
        window = TimeWindow(start, start + self._windows.time_difference)
        if window.end >= self._closed:
            self.place(key, window, held[0], None, held[1], headers)


class SessionAggregate(TableNode):
    """With `final`, a session is told once, when it closes: `_due` is a map of end, start and key
    of those that may be left."""

    def __init__(
        self,
        store: str | None,
        send_old: bool,
        windows: SessionWindows,
        final: bool,
        initializer: Callable[[], Any] | None,
        aggregator: Aggregator,
        merger: Callable[[Any, Any, Any], Any],
    ) -> None:
        super().__init__(store, send_old)
        self._windows, self._initializer = windows, initializer or _nothing
        self._aggregator, self._merger = aggregator, merger
        self._final = final

    def init(self) -> None:
        super().init()
        if self._final and self.store is not None:
            self._due = self.store.open_map(f"{self.store.name} due")

    def _tell_closed(self, closed: int, headers: Headers) -> None:
        assert self.store is not None
        if closed <= 0:
            return
        for entry, _ in self._due.scan(high=STAMP.pack(closed)):
            self._due.put(entry, None)
            (end, start), data = _SPAN.unpack_from(entry), entry[_SPAN.size :]
            key = self.store._key(data)
            held = self.store.fetch_session(key, start, end)
            if held is not None:
                self.forward(Windowed(key, Window(start, end)), Change(held), end, headers)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or self.store is None:
            return
        gap = self._windows.inactivity_gap
        closed = max(self.observed, timestamp) - self._windows.grace - gap
        if self._final and timestamp > self.observed:
            self._tell_closed(closed, headers)
        self.observed = max(self.observed, timestamp)
        merged: list[tuple[Windowed, Any]] = []
        start = end = timestamp
        aggregate = self._initializer()
        for session, held in list(self.store.find_sessions(key, timestamp - gap, timestamp + gap)):
            merged.append((session, held))
            aggregate = self._merger(key, aggregate, held)
            start, end = min(start, session.window.start), max(end, session.window.end)
        if end < closed:
            return
        if (start, end) != (timestamp, timestamp):
            for session, held in merged:
                self.store.remove(session)
                self._say(session, None, held, session.window.end, headers)
        aggregate = self._aggregator(key, value, aggregate)
        session = Windowed(key, Window(start, end))
        self.store.put(session, aggregate)
        self._say(session, aggregate, None, end, headers)

    def _say(self, session: Windowed, new: Any, old: Any, stamp: int, headers: Headers) -> None:
        assert self.store is not None
        if self._final:
            if new is not None:
                span = _SPAN.pack(session.window.end, session.window.start)
                self._due.put(span + self.store._need_key(session.key), b"")
            return
        ident = None
        if self._held is not None:
            ident = (self.store._need_key(session.key), session.window.start, session.window.end)
        self.tell(session, new, old, stamp, headers, ident)
