"""Joins of a stream with a table, and of two streams in windows."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kavka.pipeline.streams import plain_data
from kavka.pipeline.streams.processors import Headers, Node, RecordOperator
from kavka.pipeline.streams.tables import Step
from kavka.pipeline.streams.topology import Operator
from kavka.pipeline.streams.windows import JoinWindows

_PENDING = struct.Struct(">q?")
_BUFFERED = struct.Struct(">qq")


@dataclass(frozen=True)
class StreamTableJoin(Operator):
    """Joins a record with the table's value for its key; with a versioned table, with the value at
    the record's time. `mapper` returns the key of a global table. With `grace`, records wait that
    long in the store `buffer`."""

    table: Step
    joiner: Callable[..., Any]
    left: bool
    mapper: Callable[[Any, Any], Any] | None = None
    grace: int | None = None
    buffer: str | None = None

    def node(self) -> Node:
        return _StreamTableJoin(self)


class _StreamTableJoin(Node):
    """The keys of the buffer are time and number. Its values are pickled, because the operator
    before may return any objects that no serde fits. `state_folder.py` describes what makes that
    safe."""

    def __init__(self, operator: StreamTableJoin) -> None:
        self._operator, self._is_left = operator, operator.left

    def init(self) -> None:
        table, buffer = self._operator.table, self._operator.buffer
        self._get, self._is_versioned = table.getter(self.task), table.is_versioned()
        self._buffer = None if buffer is None else self.task.store(buffer)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if self._buffer is None:
            self._join(key, value, timestamp, headers)
            return
        if value is None or (key is None and not self._is_left):
            return
        self.observed = max(self.observed, timestamp)
        limit = self.observed - (self._operator.grace or 0)
        if timestamp < limit:
            self._join(key, value, timestamp, headers)
        else:
            self._buffer.put(_BUFFERED.pack(timestamp, self._buffer.number), pickle.dumps((key, value, headers)))
        while (first := self._buffer.first()) is not None and _BUFFERED.unpack(first)[0] <= limit:
            key, value, headers = pickle.loads(self._buffer.get(first))
            self._buffer.put(first, None)
            self._join(key, value, _BUFFERED.unpack(first)[0], headers)

    def _join(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        mapper = self._operator.mapper
        table_key = key if mapper is None else mapper(key, value)
        if value is None or (table_key is None and not self._is_left):
            return
        stored = None
        if table_key is not None:
            stored = self._get(table_key, timestamp) if self._is_versioned else self._get(table_key)
        if stored is not None or self._is_left:
            joined = self._operator.joiner(key, value, None if stored is None else stored[0])
            self.forward(key, joined, timestamp, headers)


@dataclass(frozen=True)
class WindowPut(RecordOperator):
    """Stores a stream's records for the other side of a join."""

    store: str

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        node.forward(key, value, timestamp, headers)
        if key is not None:
            node.task.store(self.store).put(key, value, timestamp)


@dataclass(frozen=True)
class StreamJoin(Operator):
    """One side of a join of two streams. `pending` is a store of records without a match, which are
    forwarded without one when their window has closed. Both sides share it."""

    left: bool
    outer: bool
    windows: JoinWindows
    joiner: Callable[..., Any]
    own_store: str
    other_store: str
    pending: str | None = None

    def node(self) -> Node:
        return _StreamJoin(self)


class _StreamJoin(Node):
    """The keys of `pending` are time, side and the record's key, in bytes. Its values are lists of
    value, in bytes, and headers."""

    def __init__(self, operator: StreamJoin) -> None:
        self._operator = operator
        self._left, self._outer, self._joiner = operator.left, operator.outer, operator.joiner
        self._before, self._after = operator.windows.before_ms, operator.windows.after_ms
        if not operator.left:
            self._before, self._after = self._after, self._before

    def init(self) -> None:
        self._own = self.task.store(self._operator.own_store)
        self._other = self.task.store(self._operator.other_store)
        self._pending = None if self._operator.pending is None else self.task.store(self._operator.pending)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None or (key is None and not self._outer):
            return
        if self._pending is not None:
            self._pending.observed = max(self._pending.observed, timestamp)
            if key is not None and timestamp == self._pending.observed:
                self._forward_unmatched()
        if key is None:
            self.forward(key, self._joined(key, value, None), timestamp, headers)
            return
        is_unmatched = self._outer
        until = timestamp + self._after
        for other_time, other in list(self._other.fetch(key, max(0, timestamp - self._before), max(0, until))):
            is_unmatched = False
            if self._pending is not None:
                self._pending.put(self._pending_key(other_time, not self._left, key), None)
            self.forward(key, self._joined(key, value, other), max(timestamp, other_time), headers)
        if not is_unmatched:
            return
        if self._pending is None or until < self._pending.observed:
            self.forward(key, self._joined(key, value, None), timestamp, headers)
        else:
            entry = self._pending_key(timestamp, self._left, key)
            stored = self._pending.get(entry)
            records = plain_data.loads(stored) if stored else []
            self._pending.put(entry, plain_data.dumps([*records, (self._own.serialize_value(value), headers)]))

    def _pending_key(self, timestamp: int, left: bool, key: Any) -> bytes:
        data: bytes = self._other.serialize_key(key)
        return _PENDING.pack(timestamp, left) + data

    def _joined(self, key: Any, own: Any, other: Any) -> Any:
        return self._joiner(key, own, other) if self._left else self._joiner(key, other, own)

    def _forward_unmatched(self) -> None:
        """Forward the pending records whose window has closed."""
        assert self._pending is not None
        windows, remaining = self._operator.windows, []
        shortest = min(windows.before_ms, windows.after_ms)
        while (entry := self._pending.first()) is not None:
            timestamp, left = _PENDING.unpack_from(entry)
            if timestamp + shortest + windows.grace >= self._pending.observed:
                break
            data = self._pending.get(entry)
            self._pending.put(entry, None)
            if timestamp + (windows.after_ms if left else windows.before_ms) + windows.grace >= self._pending.observed:
                remaining.append((entry, data))
                continue
            store = self._own if left == self._left else self._other
            key = store.deserialize_key(entry[_PENDING.size :])
            for value_data, headers in plain_data.loads(data):
                value = store.deserialize_value(value_data)
                joined = self._joiner(key, value, None) if left else self._joiner(key, None, value)
                self.forward(key, joined, timestamp, headers)
        for entry, data in remaining:
            self._pending.put(entry, data)
