"""Joins of streams: with tables, and with one another in windows."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from kavka.pipeline.streams import plain_data
from kavka.pipeline.streams.engine import Headers, Node
from kavka.pipeline.streams.tables import Step
from kavka.pipeline.streams.windows import JoinWindows

_PENDING = struct.Struct(">q?")
_WAITING = struct.Struct(">qq")


class StreamTableJoin(Node):
    """A record, and what the table has for its key; of a versioned table, what it had at the
    record's time. `mapper` gives the table's key, for global tables. With a `grace`, records wait
    that long in `buffer`, a store with time and number in its keys. They are pickled there: the
    step before may have made them of any objects, which no serde need fit. `state_folder.py` has
    what makes that safe."""

    def __init__(
        self,
        table: Step,
        joiner: Callable[..., Any],
        left: bool,
        mapper: Callable[[Any, Any], Any] | None = None,
        grace: int | None = None,
        buffer: str | None = None,
    ) -> None:
        self._table, self._joiner, self._left, self._mapper = table, joiner, left, mapper
        self._grace, self._buffer_name = grace, buffer

    def init(self) -> None:
        self._get = self._table.getter(self.task)
        self._versioned = self._table.is_versioned()
        self._buffer = None if self._buffer_name is None else self.task.store(self._buffer_name)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if self._buffer is None:
            self._match(key, value, timestamp, headers)
            return
        if value is None or (key is None and not self._left):
            return
        assert self._grace is not None
        self.observed = max(self.observed, timestamp)
        limit = self.observed - self._grace
        if timestamp < limit:
            self._match(key, value, timestamp, headers)
        else:
            self._buffer.put(_WAITING.pack(timestamp, self._buffer.number), pickle.dumps((key, value, headers)))
        while (first := self._buffer.first()) is not None and _WAITING.unpack(first)[0] <= limit:
            key, value, headers = pickle.loads(self._buffer.get(first))
            self._buffer.put(first, None)
            self._match(key, value, _WAITING.unpack(first)[0], headers)

    def _match(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        at = key if self._mapper is None else self._mapper(key, value)
        if value is None or (at is None and not self._left):
            return
        found = None
        if at is not None:
            found = self._get(at, timestamp) if self._versioned else self._get(at)
        if found is not None or self._left:
            self.forward(key, self._joiner(key, value, None if found is None else found[0]), timestamp, headers)


class WindowPut(Node):
    """Remembers a stream's records for the other side of a join."""

    def __init__(self, store: str) -> None:
        self._store_name = store

    def init(self) -> None:
        self._store = self.task.store(self._store_name)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(key, value, timestamp, headers)
        if key is not None:
            self._store.put(key, value, timestamp)


class StreamJoin(Node):
    """One side of a join of two streams. `pending` is a store of records that have found nothing
    yet and are told alone when their window has closed; both sides share it. Its keys are time,
    side and the record's key, in bytes; its values are lists of value, in bytes, and headers."""

    def __init__(
        self,
        left: bool,
        outer: bool,
        windows: JoinWindows,
        joiner: Callable[..., Any],
        own_store: str,
        other_store: str,
        pending: str | None,
    ) -> None:
        self._left, self._outer, self._joiner = left, outer, joiner
        self._windows = windows
        self._back, self._on = windows.before_ms, windows.after_ms
        if not left:
            self._back, self._on = self._on, self._back
        self._own_name, self._other_name, self._pending_name = own_store, other_store, pending

    def init(self) -> None:
        self._own = self.task.store(self._own_name)
        self._other = self.task.store(self._other_name)
        self._pending = None if self._pending_name is None else self.task.store(self._pending_name)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None or (key is None and not self._outer):
            return
        if self._pending is not None:
            self._pending.observed = max(self._pending.observed, timestamp)
            if key is not None and timestamp == self._pending.observed:
                self._tell_closed()
        if key is None:
            self.forward(key, self._joined(key, value, None), timestamp, headers)
            return
        alone = self._outer
        until = timestamp + self._on
        for at, other in list(self._other.fetch(key, max(0, timestamp - self._back), max(0, until))):
            alone = False
            if self._pending is not None:
                self._pending.put(self._pending_key(at, not self._left, key), None)
            self.forward(key, self._joined(key, value, other), max(timestamp, at), headers)
        if not alone:
            return
        if self._pending is None or until < self._pending.observed:
            self.forward(key, self._joined(key, value, None), timestamp, headers)
        else:
            entry = self._pending_key(timestamp, self._left, key)
            held = self._pending.get(entry)
            records = self._records(held, self._left) if held else []
            stored = [(self._own._value_bytes(one), some) for one, some in (*records, (value, headers))]
            self._pending.put(entry, plain_data.dumps(stored))

    def _pending_key(self, timestamp: int, left: bool, key: Any) -> bytes:
        data: bytes = self._other._need_key(key)
        return _PENDING.pack(timestamp, left) + data

    def _records(self, data: bytes, left: bool) -> list[tuple[Any, Headers]]:
        """Values and headers of pending records of a side."""
        store = self._own if left == self._left else self._other
        return [(store._value(value), headers) for value, headers in plain_data.loads(data)]

    def _joined(self, key: Any, own: Any, other: Any) -> Any:
        return self._joiner(key, own, other) if self._left else self._joiner(key, other, own)

    def _tell_closed(self) -> None:
        """Records whose window is over, with nothing on the other side."""
        assert self._pending is not None
        windows, kept = self._windows, []
        shortest = min(windows.before_ms, windows.after_ms)
        while (entry := self._pending.first()) is not None:
            timestamp, left = _PENDING.unpack_from(entry)
            if timestamp + shortest + windows.grace >= self._pending.observed:
                break
            data = self._pending.get(entry)
            self._pending.put(entry, None)
            if timestamp + (windows.after_ms if left else windows.before_ms) + windows.grace >= self._pending.observed:
                kept.append((entry, data))
                continue
            key = self._other._key(entry[_PENDING.size :])
            for value, headers in self._records(data, left):
                joined = self._joiner(key, value, None) if left else self._joiner(key, None, value)
                self.forward(key, joined, timestamp, headers)
        for entry, data in kept:
            self._pending.put(entry, data)
