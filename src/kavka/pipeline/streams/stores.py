"""State stores: what a task remembers between records.

A store holds bytes, as Kafka's do, so that a value that is changed after it was put does not change
in the store. Every change is also noted in `changes` (key and value as they would be in Kafka's
changelog topic, None for what is gone); whoever runs the task takes them and keeps them, and gives
them back with `restore` when the task is made anew. Nothing else of a store survives. One thread at
a time uses a store.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kavka.pipeline.streams.errors import StreamsException, TopologyException
from kavka.pipeline.streams.options import check_name
from kavka.pipeline.streams.serdes import Serde, Serdes
from kavka.pipeline.streams.windows import Duration, TimeWindow, Window, Windowed, millis

KEY_VALUE, WINDOW, SESSION, BUFFER = "key-value", "window", "session", "buffer"
VERSIONED, SUBSCRIPTIONS = "versioned", "subscriptions"

STAMP = struct.Struct(">q")
_START = struct.Struct(">qi")
_SPAN = struct.Struct(">qq")


class ValueAndTimestamp(NamedTuple):
    value: Any
    timestamp: int


@dataclass(frozen=True)
class StoreBuilder:
    """What a store will be. `key_serde` and `value_serde` of None stand for the application's
    defaults."""

    kind: str
    name: str
    key_serde: Serde | None = None
    value_serde: Serde | None = None
    timestamped: bool = False
    caching: bool = False
    retention: int = 0
    window_size: int = 0
    duplicates: bool = False

    def with_caching_enabled(self) -> StoreBuilder:
        return replace(self, caching=True)

    def with_caching_disabled(self) -> StoreBuilder:
        return replace(self, caching=False)

    def with_logging_enabled(self, config: Any = None) -> StoreBuilder:
        return self

    def with_logging_disabled(self) -> StoreBuilder:
        """There are no changelog topics here: every store is kept in the checkpoint."""
        return self

    def build(self, key_default: Serde, value_default: Serde) -> Store:
        key_serde, value_serde = self.key_serde or key_default, self.value_serde or value_default
        key_serde = key_serde.resolved(key_default, value_default)
        from kavka.pipeline.streams.kinds import KINDS

        return KINDS[self.kind](self, key_serde, value_serde.resolved(value_default, key_default))


class Stores:
    """Kafka's factory of stores. They are all kept the same way: persistent and in-memory ones do
    not differ."""

    @staticmethod
    def persistent_key_value_store(name: str) -> StoreBuilder:
        return StoreBuilder(KEY_VALUE, check_name(name))

    in_memory_key_value_store = persistent_key_value_store

    @staticmethod
    def persistent_timestamped_key_value_store(name: str) -> StoreBuilder:
        return StoreBuilder(KEY_VALUE, check_name(name), timestamped=True)

    @staticmethod
    def persistent_window_store(
        name: str, retention: Duration, window_size: Duration, retain_duplicates: bool = False
    ) -> StoreBuilder:
        kept, size = millis(retention, "the retention"), millis(window_size, "the size of windows")
        if kept < size:
            raise TopologyException(f"The retention period of the window store {name} must be no smaller than its size")
        return StoreBuilder(WINDOW, check_name(name), retention=kept, window_size=size, duplicates=retain_duplicates)

    in_memory_window_store = persistent_window_store

    @staticmethod
    def persistent_session_store(name: str, retention: Duration) -> StoreBuilder:
        return StoreBuilder(SESSION, check_name(name), retention=millis(retention, "the retention"))

    in_memory_session_store = persistent_session_store

    @staticmethod
    def persistent_versioned_key_value_store(
        name: str, history_retention: Duration, segment_interval: Duration | None = None
    ) -> StoreBuilder:
        """Values with the times from which they hold; those of up to `history_retention` ago can be
        had. Kept version by version: `segment_interval` has no meaning here."""
        kept = millis(history_retention, "the history retention")
        if kept < 0:
            raise TopologyException("historyRetention cannot be negative")
        return StoreBuilder(VERSIONED, check_name(name), retention=kept)

    @staticmethod
    def key_value_store_builder(supplier: StoreBuilder, key_serde: Serde, value_serde: Serde) -> StoreBuilder:
        return replace(supplier, key_serde=key_serde, value_serde=value_serde)

    @staticmethod
    def timestamped_key_value_store_builder(
        supplier: StoreBuilder, key_serde: Serde, value_serde: Serde
    ) -> StoreBuilder:
        return replace(supplier, key_serde=key_serde, value_serde=value_serde, timestamped=True)

    window_store_builder = key_value_store_builder
    session_store_builder = key_value_store_builder
    versioned_key_value_store_builder = key_value_store_builder

    @staticmethod
    def timestamped_window_store_builder(supplier: StoreBuilder, key_serde: Serde, value_serde: Serde) -> StoreBuilder:
        return replace(supplier, key_serde=key_serde, value_serde=value_serde, timestamped=True)


class Store:
    """What all stores have."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        self.builder = builder
        self.name = builder.name
        self.changes: dict[bytes, bytes | None] = {}
        self._key_bytes, self._key = key_serde.serialize, key_serde.deserialize
        self._value_bytes, self._value = value_serde.serialize, value_serde.deserialize
        if builder.timestamped:
            self._plain_bytes, self._plain = self._value_bytes, self._value
            self._value_bytes, self._value = self._stamped_bytes, self._stamped

    def restore(self, key: bytes, value: bytes) -> None:
        raise NotImplementedError

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All that is in it, in the form of its changes."""
        raise NotImplementedError

    def persistent(self) -> bool:
        return True

    def is_open(self) -> bool:
        return True

    def flush(self) -> None:
        """Kafka's stores have it; the task that runs this one keeps its changes."""

    def _stamped_bytes(self, value: ValueAndTimestamp | None) -> bytes | None:
        if value is None or value[0] is None:
            return None
        data = self._plain_bytes(value[0])
        return None if data is None else STAMP.pack(value[1]) + data

    def _stamped(self, data: bytes | None) -> ValueAndTimestamp | None:
        return None if data is None else ValueAndTimestamp(self._plain(data[8:]), STAMP.unpack_from(data)[0])

    def _need_key(self, key: Any) -> bytes:
        data = self._key_bytes(key)
        if data is None:
            raise StreamsException(f"the store {self.name} has no key None")
        return data


class KeyValueStore(Store):
    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        super().__init__(builder, key_serde, value_serde)
        self._data: dict[bytes, bytes] = {}

    def restore(self, key: bytes, value: bytes) -> None:
        self._data[key] = value

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._data.items())

    def get(self, key: Any) -> Any:
        return self._value(self._data.get(self._need_key(key)))

    def put(self, key: Any, value: Any) -> None:
        data, new = self._need_key(key), self._value_bytes(value)
        self.changes[data] = new
        if new is None:
            self._data.pop(data, None)
        else:
            self._data[data] = new

    def put_if_absent(self, key: Any, value: Any) -> Any:
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        found = self.get(key)
        self.put(key, None)
        return found

    def range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        """Both ends belong to it; None is no bound. In the order of the keys' bytes, as in
        Kafka."""
        return self._between(first, last, False)

    def reverse_range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        return self._between(first, last, True)

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._between(None, None, False)

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        return self._between(None, None, True)

    def prefix_scan(self, prefix: Any, serialize: Callable[[Any], bytes | None] | None = None) -> Iterator[Any]:
        start = (serialize or self._key_bytes)(prefix) or b""
        for data in sorted(one for one in self._data if one.startswith(start)):
            yield self._key(data), self._value(self._data[data])

    def approximate_num_entries(self) -> int:
        return len(self._data)

    def _between(self, first: Any, last: Any, backwards: bool) -> Iterator[tuple[Any, Any]]:
        low, high = self._key_bytes(first), self._key_bytes(last)
        keys = [one for one in self._data if (low is None or one >= low) and (high is None or one <= high)]
        for data in sorted(keys, reverse=backwards):
            value = self._data.get(data)
            if value is not None:
                yield self._key(data), self._value(value)


class WindowStore(Store):
    """Values by key and start of a window, kept until stream time is `retention` past the start.
    With duplicates, each put is an entry of its own, and None takes nothing away."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        super().__init__(builder, key_serde, value_serde)
        self._order: dict[bytes, list[tuple[int, int]]] = {}
        self._data: dict[bytes, dict[tuple[int, int], bytes]] = {}
        self._by_time: list[tuple[int, int, bytes]] = []
        self._seq = 0
        self.observed = -1

    def restore(self, key: bytes, value: bytes) -> None:
        at = _START.unpack(key[-12:])
        self._seq = max(self._seq, at[1])
        self._place(key[:-12], at, value)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for key, values in self._data.items():
            for at, value in values.items():
                yield key + _START.pack(*at), value

    def put(self, key: Any, value: Any, window_start: int) -> None:
        data, new = self._need_key(key), self._value_bytes(value)
        self.observed = max(self.observed, window_start)
        self._expire()
        if window_start <= self.observed - self.builder.retention:
            return
        seq = 0
        if self.builder.duplicates:
            if new is None:
                return
            seq = self._seq = (self._seq + 1) & 0x7FFFFFFF
        at = (window_start, seq)
        self.changes[data + _START.pack(*at)] = new
        if new is None:
            self._take(data, at)
        else:
            self._place(data, at, new)

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """The value of the window that starts at `time_from`; with `time_to`, (start, value) of all
        between."""
        data = self._need_key(key)
        if time_to is None:
            if time_from <= self.observed - self.builder.retention:
                return None
            return self._value(self._data.get(data, {}).get((time_from, 0)))
        return self._between(data, time_from, time_to, False)

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        return self._between(self._need_key(key), time_from, time_to, True)

    def fetch_range(self, first: Any, last: Any, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        low, high = self._key_bytes(first), self._key_bytes(last)
        for data in sorted(self._data):
            if (low is None or data >= low) and (high is None or data <= high):
                key = self._key(data)
                for start, value in self._between(data, time_from, time_to, False):
                    yield Windowed(key, TimeWindow(start, start + self.builder.window_size)), value

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None, time_from, time_to)

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None, 0, 2**63 - 1)

    def starts(self) -> Iterator[tuple[int, bytes]]:
        """Start and key of all windows."""
        return ((start, data) for data, order in self._order.items() for start, _ in order)

    def _between(self, data: bytes, time_from: int, time_to: int, backwards: bool) -> Iterator[tuple[int, Any]]:
        order = self._order.get(data)
        if not order:
            return
        first = max(time_from, self.observed - self.builder.retention + 1)
        found = order[bisect_left(order, (first, -1)) : bisect_left(order, (time_to + 1, -1))]
        values = self._data[data]
        for at in reversed(found) if backwards else found:
            value = values.get(at)
            if value is not None:
                yield at[0], self._value(value)

    def _place(self, data: bytes, at: tuple[int, int], value: bytes) -> None:
        values = self._data.setdefault(data, {})
        if at not in values:
            insort(self._order.setdefault(data, []), at)
            heapq.heappush(self._by_time, (*at, data))
        values[at] = value

    def _take(self, data: bytes, at: tuple[int, int]) -> None:
        values = self._data.get(data)
        if values is None or values.pop(at, None) is None:
            return
        order = self._order[data]
        del order[bisect_left(order, at)]
        if not order:
            del self._order[data], self._data[data]

    def _expire(self) -> None:
        limit = self.observed - self.builder.retention
        while self._by_time and self._by_time[0][0] <= limit:
            start, seq, data = heapq.heappop(self._by_time)
            if (start, seq) in self._data.get(data, ()):
                self.changes[data + _START.pack(start, seq)] = None
                self._take(data, (start, seq))


class SessionStore(Store):
    """Values by key and session, kept until stream time is `retention` past the session's end."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        super().__init__(builder, key_serde, value_serde)
        self._data: dict[bytes, dict[tuple[int, int], bytes]] = {}
        self._by_time: list[tuple[int, int, bytes]] = []
        self.observed = -1

    def restore(self, key: bytes, value: bytes) -> None:
        end, start = _SPAN.unpack(key[-16:])
        self._data.setdefault(key[:-16], {})[start, end] = value
        heapq.heappush(self._by_time, (end, start, key[:-16]))

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for key, sessions in self._data.items():
            for (start, end), value in sessions.items():
                yield key + _SPAN.pack(end, start), value

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        data = self._need_key(key)
        limit = self.observed - self.builder.retention
        for (start, end), value in sorted(self._data.get(data, {}).items(), key=lambda one: (one[0][1], one[0][0])):
            if end >= earliest_end and start <= latest_start and end > limit:
                yield Windowed(key, Window(start, end)), self._value(value)

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        return self.find_sessions(key, 0, 2**63 - 1)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._value(self._data.get(self._need_key(key), {}).get((start, end)))

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        for data in sorted(self._data):
            yield from self.fetch(self._key(data))

    def spans(self) -> Iterator[tuple[int, int, bytes]]:
        """End, start and key of all sessions."""
        return ((end, start, data) for data, held in self._data.items() for start, end in held)

    def put(self, session: Windowed, value: Any) -> None:
        data, new = self._need_key(session.key), self._value_bytes(value)
        start, end = session.window.start, session.window.end
        self.observed = max(self.observed, end)
        self._expire()
        if end <= self.observed - self.builder.retention:
            return
        self.changes[data + _SPAN.pack(end, start)] = new
        if new is None:
            self._take(data, start, end)
        else:
            self._data.setdefault(data, {})[start, end] = new
            heapq.heappush(self._by_time, (end, start, data))

    def remove(self, session: Windowed) -> None:
        data, start, end = self._need_key(session.key), session.window.start, session.window.end
        self.changes[data + _SPAN.pack(end, start)] = None
        self._take(data, start, end)

    def _take(self, data: bytes, start: int, end: int) -> None:
        sessions = self._data.get(data)
        if sessions is not None and sessions.pop((start, end), None) is not None and not sessions:
            del self._data[data]

    def _expire(self) -> None:
        limit = self.observed - self.builder.retention
        while self._by_time and self._by_time[0][0] <= limit:
            end, start, data = heapq.heappop(self._by_time)
            if (start, end) in self._data.get(data, ()):
                self.changes[data + _SPAN.pack(end, start)] = None
                self._take(data, start, end)


class BufferStore(KeyValueStore):
    """Entries in the order of a time that begins their key (8 bytes): what `suppress` and outer
    joins hold back."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        super().__init__(builder, Serdes.ByteArray(), Serdes.ByteArray())
        self._by_time: list[bytes] = []
        self.size = 0
        self.observed = -1

    def restore(self, key: bytes, value: bytes) -> None:
        super().restore(key, value)
        heapq.heappush(self._by_time, key)
        self.size += len(key) + len(value)

    def put(self, key: Any, value: Any) -> None:
        old = self._data.get(key)
        if old is not None:
            self.size -= len(key) + len(old)
        if value is not None:
            self.size += len(key) + len(value)
            if old is None:
                heapq.heappush(self._by_time, key)
        super().put(key, value)

    def first(self) -> bytes | None:
        """The key that is first in time."""
        while self._by_time and self._by_time[0] not in self._data:
            heapq.heappop(self._by_time)
        return self._by_time[0] if self._by_time else None
