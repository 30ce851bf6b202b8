"""Versioned stores, and the stores of foreign-key joins. `stores.py` describes stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kavka.pipeline.streams import stores
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.state_map import OpenMap, after_prefix
from kavka.pipeline.streams.stores import STAMP, Store, StoreBuilder, ValueAndTimestamp


class SubscriptionStore(Store):
    """The subscriptions of a foreign-key join. Keys are the length of the foreign key, the foreign
    key, and the left key."""

    def put(self, foreign_key: bytes, key: Any, subscription: ValueAndTimestamp | None) -> None:
        self._map.put(_prefix(foreign_key) + self.serialize_key(key), self.serialize_value(subscription))

    def subscriptions(self, foreign_key: bytes) -> list[ValueAndTimestamp]:
        """The subscriptions with their times, in the order of the left keys' bytes."""
        prefix = _prefix(foreign_key)
        return [self.deserialize_value(value) for _, value in self._map.scan(prefix, after_prefix(prefix))]


def _prefix(foreign_key: bytes) -> bytes:
    return len(foreign_key).to_bytes(4) + foreign_key


class VersionedRecord(NamedTuple):
    """A value that is valid from `timestamp` to `valid_to`, or to now if that is None."""

    value: Any
    timestamp: int
    valid_to: int | None = None


class VersionedStore(Store):
    """Versions of values, by key and the time from which they are valid.

    A put that is more than `retention` before the latest time is dropped. A version that was
    replaced that long ago is removed. An entry's key is the key and the time (8 bytes). Its value
    is a byte, 1, and the value, or the byte 0 for a deletion.

    A second map has the time at which a version of a key was replaced or deleted (8 bytes) and the
    key, so that the next version to expire is first."""

    NOT_PUT = -(2**63)
    LATEST = -1

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde, open_map: OpenMap) -> None:
        super().__init__(builder, key_serde, value_serde, open_map)
        self._replaced = open_map(f"{builder.name} replaced")

    def put_entry(self, key: bytes, value: bytes) -> None:
        super().put_entry(key, value)
        self.observed = max(self.observed, STAMP.unpack(key[-8:])[0])

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        """Return the time at which the next version starts; LATEST if there is none, NOT_PUT if the
        put is too late."""
        data, new = self.serialize_key(key), self.serialize_value(value)
        if timestamp < self.observed - self.builder.retention:
            return self.NOT_PUT
        self.observed = max(self.observed, timestamp)
        self._map.put(data + STAMP.pack(timestamp), b"\0" if new is None else b"\1" + new)
        next_time, has_previous = self._next_time(data, timestamp), self._version(data, timestamp - 1) is not None
        if has_previous:
            self._replaced.put(STAMP.pack(timestamp) + data, b"")
        if next_time is not None or new is None:
            self._replaced.put(STAMP.pack(timestamp if next_time is None else next_time) + data, b"")
        self._expire()
        return self.LATEST if next_time is None else next_time

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        """Delete the value from `timestamp` on, and return the version that was valid then."""
        version = self.get(key, timestamp)
        self.put(key, None, timestamp)
        return version

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        return self.get_at(self.serialize_key(key), as_of)

    def get_at(self, data: bytes, as_of: int | None = None) -> VersionedRecord | None:
        """The version of a serialized key."""
        version = self._version(data, self.observed if as_of is None else as_of)
        if version is None or version[1] is None:
            return None
        next_time = None if as_of is None else self._next_time(data, version[0])
        if next_time is not None and as_of is not None and as_of < self.observed - self.builder.retention:
            return None
        return VersionedRecord(self.deserialize_value(version[1]), version[0], next_time)

    def _version(self, data: bytes, time: int) -> tuple[int, bytes | None] | None:
        """Start and value of the version that is valid at `time`."""
        if time < 0:
            return None
        high = data + STAMP.pack(min(time, self.observed) + 1)
        for entry, value in self._map.scan(data + STAMP.pack(0), high, reverse=True):
            if len(entry) == len(high):
                return STAMP.unpack(entry[-8:])[0], value[1:] if value[0] else None
        return None

    def _next_time(self, data: bytes, time: int) -> int | None:
        """When the version after the version of this time starts."""
        high = data + STAMP.pack(self.observed + 1)
        for entry, _ in self._map.scan(data + STAMP.pack(time + 1), high):
            if len(entry) == len(high):
                next_time: int = STAMP.unpack(entry[-8:])[0]
                return next_time
        return None

    def _expire(self) -> None:
        limit = self.observed - self.builder.retention
        if limit < 0:
            return
        for replaced, _ in self._replaced.scan(high=STAMP.pack(limit + 1)):
            self._replaced.put(replaced, None)
            data = replaced[8:]
            version = self._version(data, limit)
            if version is None:
                continue
            # The version that is valid at the limit stays, unless the key was deleted.
            is_deleted = version[1] is None and self._next_time(data, version[0]) is None
            high = data + STAMP.pack(version[0] + is_deleted)
            for entry, _ in self._map.scan(data + STAMP.pack(0), high):
                if len(entry) == len(high):
                    self._map.put(entry, None)


STORE_CLASSES: dict[str, Callable[[StoreBuilder, Serde, Serde, OpenMap], Store]] = {
    stores.KEY_VALUE: stores.KeyValueStore,
    stores.WINDOW: stores.WindowStore,
    stores.SESSION: stores.SessionStore,
    stores.BUFFER: stores.BufferStore,
    stores.SUBSCRIPTIONS: SubscriptionStore,
    stores.VERSIONED: VersionedStore,
}
