"""State stores.

A store serializes keys and values, as Kafka's stores do, and has them in a `StateMap`: entries in
the order of their keys' bytes. The entries and the store's `position` are all that survives a
micro-batch. One thread at a time uses a store.

Entries of window and session stores begin with the number of a segment of time, as in Kafka, so
that expired entries are removed segment by segment.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from kavka.pipeline.streams.errors import StreamsException, TopologyException
from kavka.pipeline.streams.options import check_name
from kavka.pipeline.streams.serdes import Serde, Serdes, resolved
from kavka.pipeline.streams.state_map import MemoryMaps, OpenMap, StateMap, after_prefix
from kavka.pipeline.streams.windows import Duration, TimeWindow, Window, Windowed, millis

KEY_VALUE, WINDOW, SESSION, BUFFER = "key-value", "window", "session", "buffer"
VERSIONED, SUBSCRIPTIONS = "versioned", "subscriptions"

STAMP = struct.Struct(">q")
_START = struct.Struct(">qi")
_SPAN = struct.Struct(">qq")
_SEGMENT = struct.Struct(">q")
# As Kafka: a segment spans half of the retention, and at least a minute.
_MIN_SEGMENT = 60_000
_END_OF_TIME = 2**63 - 2


class ValueAndTimestamp(NamedTuple):
    value: Any
    timestamp: int


# Faster than a call of the class.
_stamped = partial(tuple.__new__, ValueAndTimestamp)


@dataclass(frozen=True)
class StoreBuilder:
    """The description of a store. A serde of None is the application's default."""

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
        """There are no changelog topics: the checkpoint has the changes of every store."""
        return self

    def build(self, key_default: Serde, value_default: Serde, open_map: OpenMap | None = None) -> Store:
        from kavka.pipeline.streams.versioned import STORE_CLASSES

        key_serde = resolved(self.key_serde, key_default, value_default)
        value_serde = resolved(self.value_serde, value_default, key_default)
        return STORE_CLASSES[self.kind](self, key_serde, value_serde, open_map or MemoryMaps())


class Stores:
    """Kafka's factory of stores. Persistent and in-memory stores do not differ here."""

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
        period, size = millis(retention, "the retention"), millis(window_size, "the size of windows")
        if period < size:
            raise TopologyException(f"The retention period of the window store {name} must be no smaller than its size")
        return StoreBuilder(WINDOW, check_name(name), retention=period, window_size=size, duplicates=retain_duplicates)

    in_memory_window_store = persistent_window_store

    @staticmethod
    def persistent_session_store(name: str, retention: Duration) -> StoreBuilder:
        return StoreBuilder(SESSION, check_name(name), retention=millis(retention, "the retention"))

    in_memory_session_store = persistent_session_store

    @staticmethod
    def persistent_versioned_key_value_store(
        name: str, history_retention: Duration, segment_interval: Duration | None = None
    ) -> StoreBuilder:
        """A store with all versions of the last `history_retention`. `segment_interval` has no
        effect."""
        retention = millis(history_retention, "the history retention")
        if retention < 0:
            raise TopologyException("historyRetention cannot be negative")
        return StoreBuilder(VERSIONED, check_name(name), retention=retention)

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
    timestamped_window_store_builder = timestamped_key_value_store_builder


class Store:
    """`open_map` opens a map of the task's state by its name."""

    SAVED: ClassVar[tuple[str, ...]] = ("observed",)
    """The attributes of `position`."""
    observed = -1
    """The highest time that was put, in stores that have times."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde, open_map: OpenMap) -> None:
        self.builder = builder
        self.name = builder.name
        self.open_map = open_map
        self._map: StateMap = open_map(builder.name)
        self.serialize_bound, self.deserialize_key = key_serde.serialize, key_serde.deserialize
        self.serialize_value, self.deserialize_value = value_serde.serialize, value_serde.deserialize
        if builder.timestamped:
            self._serialize_plain, self._deserialize_plain = value_serde.serialize, value_serde.deserialize
            self.serialize_value, self.deserialize_value = self._serialize_stamped, self._deserialize_stamped

    def position(self) -> tuple[int, ...]:
        """The numbers that are saved with the entries."""
        return tuple(getattr(self, name) for name in self.SAVED)

    def resume(self, position: tuple[int, ...]) -> None:
        for name, number in zip(self.SAVED, position, strict=True):
            setattr(self, name, number)

    def put_entry(self, key: bytes, value: bytes) -> None:
        """Add an entry in the form of `entries`."""
        self._map.put(key, value)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._map.scan()

    def persistent(self) -> bool:
        return True

    def is_open(self) -> bool:
        return True

    def flush(self) -> None:
        """Kafka's stores have this method. The task commits the changes of its stores."""

    def _serialize_stamped(self, value: tuple[Any, int] | None) -> bytes | None:
        if value is None or value[0] is None:
            return None
        data = self._serialize_plain(value[0])
        return None if data is None else STAMP.pack(value[1]) + data

    def _deserialize_stamped(self, data: bytes | None) -> ValueAndTimestamp | None:
        if data is None:
            return None
        stamped: ValueAndTimestamp = _stamped((self._deserialize_plain(data[8:]), STAMP.unpack_from(data)[0]))
        return stamped

    def without_timestamps(self) -> Self:
        """A view of this store whose values have no timestamps."""
        if not self.builder.timestamped:
            return self
        view = copy.copy(self)
        view.deserialize_value = lambda data: None if data is None else self._deserialize_plain(data[STAMP.size :])
        return view

    def serialize_key(self, key: Any) -> bytes:
        data = self.serialize_bound(key)
        if data is None:
            raise StreamsException(f"a key of the store {self.name} cannot be None")
        return data


class KeyValueStore(Store):
    def get(self, key: Any) -> Any:
        return self.get_at(self.serialize_key(key))

    def put(self, key: Any, value: Any) -> None:
        self.put_at(self.serialize_key(key), value)

    def get_at(self, data: bytes) -> Any:
        """The value of a serialized key."""
        return self.deserialize_value(self._map.get(data))

    def put_at(self, data: bytes, value: Any) -> None:
        self._map.put(data, self.serialize_value(value))

    def put_if_absent(self, key: Any, value: Any) -> Any:
        stored = self.get(key)
        if stored is None:
            self.put(key, value)
        return stored

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        stored = self.get(key)
        self.put(key, None)
        return stored

    def range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        """Both bounds are inclusive; None is no bound. The order is that of the keys' bytes, as in
        Kafka."""
        return self._between(first, last, False)

    def reverse_range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        return self._between(first, last, True)

    def all(self) -> Iterator[tuple[Any, Any]]:
        return self._between(None, None, False)

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        return self._between(None, None, True)

    def prefix_scan(self, prefix: Any, serialize: Callable[[Any], bytes | None] | None = None) -> Iterator[Any]:
        start = (serialize or self.serialize_bound)(prefix) or b""
        for data, value in self._map.scan(start, after_prefix(start)):
            yield self.deserialize_key(data), self.deserialize_value(value)

    def approximate_num_entries(self) -> int:
        return len(self._map)

    def _between(self, first: Any, last: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
        low, high = self.serialize_bound(first), self.serialize_bound(last)
        for data, value in self._map.scan(low or b"", None if high is None else high + b"\0", reverse):
            yield self.deserialize_key(data), self.deserialize_value(value)


class SegmentedStore(Store):
    """Entries by key and time, in segments of time. They expire when stream time is `retention`
    past their time, and are removed with their segment.

    An entry's key is the segment, the key, and `SUFFIX`, which begins with the time."""

    SUFFIX: struct.Struct

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde, open_map: OpenMap) -> None:
        super().__init__(builder, key_serde, value_serde, open_map)
        self._span = max(builder.retention // 2, _MIN_SEGMENT)
        self._first_segment = 0

    def put_entry(self, key: bytes, value: bytes) -> None:
        super().put_entry(key, value)
        self.observed = max(self.observed, self._times(key)[0])

    def _observe(self, time: int) -> bool:
        """Advance the store's time, and remove expired segments. False if `time` has expired."""
        self.observed = max(self.observed, time)
        expired = self.observed - self.builder.retention
        segment = max(0, expired) // self._span
        if segment > self._first_segment:
            for key, _ in self._map.scan(high=_SEGMENT.pack(segment)):
                self._map.put(key, None)
            self._first_segment = segment
        return time > expired

    def _entry_key(self, key: bytes, *times: int) -> bytes:
        return _SEGMENT.pack(times[0] // self._span) + key + self.SUFFIX.pack(*times)

    def _times(self, entry: bytes) -> tuple[int, int]:
        first, second = self.SUFFIX.unpack(entry[-self.SUFFIX.size :])
        return first, second

    def _entries_of(self, key: bytes, first: int, last: int, reverse: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """Times and values of a key's entries that have not expired, by time."""
        first = max(first, self.observed - self.builder.retention + 1, 0)
        last = min(last, self.observed)
        numbers = range(first // self._span, last // self._span + 1)
        size = _SEGMENT.size + len(key) + self.SUFFIX.size
        lowest = self.SUFFIX.pack(first, 0)
        highest = self.SUFFIX.pack(last + 1, 0)
        for number in reversed(numbers) if reverse else numbers:
            prefix = _SEGMENT.pack(number) + key
            for entry, value in self._map.scan(prefix + lowest, prefix + highest, reverse):
                # Entries of longer keys may lie between.
                if len(entry) == size:
                    yield *self._times(entry), value

    def _live_entries(self, first: Any, last: Any) -> list[tuple[bytes, int, int, bytes]]:
        """Key, times and value of all entries that have not expired, from the first to the last
        key, by key and time."""
        low, high = self.serialize_bound(first), self.serialize_bound(last)
        expired = self.observed - self.builder.retention
        entries = []
        for entry, value in self._map.scan():
            key, times = entry[_SEGMENT.size : -self.SUFFIX.size], self._times(entry)
            if times[0] > expired and (low is None or key >= low) and (high is None or key <= high):
                entries.append((key, *times, value))
        return sorted(entries)


class WindowStore(SegmentedStore):
    """Values by key and start of a window. With duplicates, each put is an entry with another
    sequence number, and None removes nothing."""

    SUFFIX = _START
    SAVED = ("observed", "_sequence")

    _sequence = 0

    def put(self, key: Any, value: Any, window_start: int) -> None:
        data, new = self.serialize_key(key), self.serialize_value(value)
        if not self._observe(window_start):
            return
        sequence = 0
        if self.builder.duplicates:
            if new is None:
                return
            sequence = self._sequence = (self._sequence + 1) & 0x7FFFFFFF
        self._map.put(self._entry_key(data, window_start, sequence), new)

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """The value of the window that starts at `time_from`; with `time_to`, (start, value) of the
        windows that start from `time_from` to `time_to`."""
        data = self.serialize_key(key)
        if time_to is None:
            if time_from <= self.observed - self.builder.retention:
                return None
            return self.deserialize_value(self._map.get(self._entry_key(data, time_from, 0)))
        return self._between(data, time_from, time_to, False)

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        return self._between(self.serialize_key(key), time_from, time_to, True)

    def fetch_range(self, first: Any, last: Any, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        size = self.builder.window_size
        for data, start, _, value in self._live_entries(first, last):
            if time_from <= start <= time_to:
                window = TimeWindow(start, start + size)
                yield Windowed(self.deserialize_key(data), window), self.deserialize_value(value)

    def backward_fetch_range(
        self, first: Any, last: Any, time_from: int, time_to: int
    ) -> Iterator[tuple[Windowed, Any]]:
        return iter(list(self.fetch_range(first, last, time_from, time_to))[::-1])

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None, time_from, time_to)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        return self.backward_fetch_range(None, None, time_from, time_to)

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None, 0, _END_OF_TIME)

    def backward_all(self) -> Iterator[tuple[Windowed, Any]]:
        return self.backward_fetch_range(None, None, 0, _END_OF_TIME)

    def _between(self, data: bytes, time_from: int, time_to: int, reverse: bool) -> Iterator[tuple[int, Any]]:
        for start, _, value in self._entries_of(data, time_from, time_to, reverse):
            yield start, self.deserialize_value(value)


class SessionStore(SegmentedStore):
    """Values by key and session. A session's time is its end."""

    SUFFIX = _SPAN

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        for end, start, value in self._entries_of(self.serialize_key(key), earliest_end, _END_OF_TIME):
            if start <= latest_start:
                yield Windowed(key, Window(start, end)), self.deserialize_value(value)

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        return self.find_sessions(key, 0, _END_OF_TIME)

    def backward_fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        return iter(list(self.fetch(key))[::-1])

    def fetch_range(self, first: Any, last: Any) -> Iterator[tuple[Windowed, Any]]:
        for data, end, start, value in self._live_entries(first, last):
            yield Windowed(self.deserialize_key(data), Window(start, end)), self.deserialize_value(value)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self.deserialize_value(self._map.get(self._entry_key(self.serialize_key(key), end, start)))

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        return self.fetch_range(None, None)

    def put(self, session: Windowed, value: Any) -> None:
        data, new = self.serialize_key(session.key), self.serialize_value(value)
        start, end = session.window.start, session.window.end
        if self._observe(end):
            self._map.put(self._entry_key(data, end, start), new)

    def remove(self, session: Windowed) -> None:
        self._map.put(self._entry_key(self.serialize_key(session.key), session.window.end, session.window.start), None)


class BufferStore(KeyValueStore):
    """The buffer of `suppress` and of joins. Its keys begin with a time (8 bytes)."""

    SAVED = ("observed", "size", "number")
    size = 0
    """Of all entries, in bytes."""
    number = 0
    """How many entries were put: a unique number for the next entry."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde, open_map: OpenMap) -> None:
        super().__init__(builder, Serdes.ByteArray(), Serdes.ByteArray(), open_map)

    def put(self, key: Any, value: Any) -> None:
        old = self._map.get(key)
        if old is not None:
            self.size -= len(key) + len(old)
        if value is not None:
            self.size += len(key) + len(value)
            self.number += 1
        super().put(key, value)

    def first(self) -> bytes | None:
        """The key with the earliest time."""
        return next((key for key, _ in self._map.scan()), None)
