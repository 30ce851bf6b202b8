"""Stores of tables with a history, and of the subscriptions of foreign-key joins. As `stores.py`
says."""

from __future__ import annotations

from typing import Any, NamedTuple

from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.state_map import OpenMap, after_prefix
from kavka.pipeline.streams.stores import STAMP, Store, StoreBuilder, ValueAndTimestamp


class SubscriptionStore(Store):
    """Who of the left side of a foreign-key join has asked for which foreign key. Keys are the
    length of the foreign key, it, and the left key."""

    def keep(self, foreign: bytes, subscription: Any, held: ValueAndTimestamp | None) -> None:
        self._map.put(_prefix(foreign) + self._need_key(subscription.key), self._value_bytes(held))

    def of(self, foreign: bytes) -> list[ValueAndTimestamp]:
        """Subscriptions with their times, in the order of the left keys' bytes."""
        prefix = _prefix(foreign)
        return [self._value(value) for _, value in self._map.scan(prefix, after_prefix(prefix))]


def _prefix(foreign: bytes) -> bytes:
    return len(foreign).to_bytes(4) + foreign


class VersionedRecord(NamedTuple):
    """A value, and from when it holds; until when, if there is a later one."""

    value: Any
    timestamp: int
    valid_to: int | None = None


class VersionedStore(Store):
    """Values by key and the time from which they hold. A put that is older than `retention` before
    the latest is not taken; what was replaced that long ago is forgotten. Entries are the key and
    the time (8 bytes); the value is one byte, 1, and the value, or 0 for what was deleted.

    A second map has the time at which a version of a key was replaced or deleted (8 bytes) and the
    key: what expires next comes first."""

    NOT_PUT = -(2**63)
    LATEST = -1

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde, open_map: OpenMap) -> None:
        super().__init__(builder, key_serde, value_serde, open_map)
        self._replaced = open_map(f"{builder.name} replaced")

    def put_entry(self, key: bytes, value: bytes) -> None:
        super().put_entry(key, value)
        self.observed = max(self.observed, STAMP.unpack(key[-8:])[0])

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        """The time at which the next version begins; LATEST if there is none, NOT_PUT if it came
        too late."""
        data, new = self._need_key(key), self._value_bytes(value)
        if timestamp < self.observed - self.builder.retention:
            return self.NOT_PUT
        self.observed = max(self.observed, timestamp)
        self._map.put(data + STAMP.pack(timestamp), b"\0" if new is None else b"\1" + new)
        next_time, has_previous = self._after(data, timestamp), self._version(data, timestamp - 1) is not None
        if has_previous:
            self._replaced.put(STAMP.pack(timestamp) + data, b"")
        if next_time is not None or new is None:
            self._replaced.put(STAMP.pack(timestamp if next_time is None else next_time) + data, b"")
        self._expire()
        return self.LATEST if next_time is None else next_time

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        """From `timestamp` on; what held then."""
        found = self.get(key, timestamp)
        self.put(key, None, timestamp)
        return found

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        data = self._need_key(key)
        found = self._version(data, self.observed if as_of is None else as_of)
        if found is None or found[1] is None:
            return None
        next_time = None if as_of is None else self._after(data, found[0])
        if next_time is not None and as_of is not None and as_of < self.observed - self.builder.retention:
            return None
        return VersionedRecord(self._value(found[1]), found[0], next_time)

    def _version(self, data: bytes, time: int) -> tuple[int, bytes | None] | None:
        """Time and value of the version that holds at `time`."""
        if time < 0:
            return None
        high = data + STAMP.pack(min(time, self.observed) + 1)
        for entry, value in self._map.scan(data + STAMP.pack(0), high, reverse=True):
            if len(entry) == len(high):
                return STAMP.unpack(entry[-8:])[0], value[1:] if value[0] else None
        return None

    def _after(self, data: bytes, time: int) -> int | None:
        """When the version after the one of this time begins."""
        high = data + STAMP.pack(self.observed + 1)
        for entry, _ in self._map.scan(data + STAMP.pack(time + 1), high):
            if len(entry) == len(high):
                found: int = STAMP.unpack(entry[-8:])[0]
                return found
        return None

    def _expire(self) -> None:
        limit = self.observed - self.builder.retention
        if limit < 0:
            return
        for replaced, _ in self._replaced.scan(high=STAMP.pack(limit + 1)):
            self._replaced.put(replaced, None)
            data = replaced[8:]
            held = self._version(data, limit)
            if held is None:
                continue
            # The version that holds at the limit stays, unless the key is deleted since.
            is_deleted = held[1] is None and self._after(data, held[0]) is None
            high = data + STAMP.pack(held[0] + is_deleted)
            for entry, _ in self._map.scan(data + STAMP.pack(0), high):
                if len(entry) == len(high):
                    self._map.put(entry, None)
