"""Stores of tables with a history, and of the subscriptions of foreign-key joins. As `stores.py`
says."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.stores import STAMP, Store, StoreBuilder, ValueAndTimestamp


class SubscriptionStore(Store):
    """Who of the left side of a foreign-key join has asked for which foreign key. Keys are the
    length of the foreign key, it, and the left key."""

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        super().__init__(builder, key_serde, value_serde)
        self._data: dict[bytes, dict[bytes, bytes]] = {}

    def restore(self, key: bytes, value: bytes) -> None:
        size = 4 + int.from_bytes(key[:4])
        self._data.setdefault(key[4:size], {})[key[size:]] = value

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for foreign, held in self._data.items():
            for key, value in held.items():
                yield len(foreign).to_bytes(4) + foreign + key, value

    def keep(self, foreign: bytes, subscription: Any, held: ValueAndTimestamp | None) -> None:
        key, new = self._need_key(subscription.key), self._value_bytes(held)
        self.changes[len(foreign).to_bytes(4) + foreign + key] = new
        if new is not None:
            self._data.setdefault(foreign, {})[key] = new
        elif foreign in self._data:
            self._data[foreign].pop(key, None)
            if not self._data[foreign]:
                del self._data[foreign]

    def of(self, foreign: bytes) -> list[ValueAndTimestamp]:
        """Subscriptions with their times, in the order of the left keys' bytes."""
        return [self._value(value) for _, value in sorted(self._data.get(foreign, {}).items())]


class VersionedRecord(NamedTuple):
    """A value, and from when it holds; until when, if there is a later one."""

    value: Any
    timestamp: int
    valid_to: int | None = None


class VersionedStore(Store):
    """Values by key and the time from which they hold. A put that is older than `retention` before
    the latest is not taken; what was replaced that long ago is forgotten. Entries are the key and
    the time (8 bytes); the value is one byte, 1, and the value, or 0 for what was deleted."""

    NOT_PUT = -(2**63)
    LATEST = -1

    def __init__(self, builder: StoreBuilder, key_serde: Serde, value_serde: Serde) -> None:
        super().__init__(builder, key_serde, value_serde)
        self._data: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._replaced: list[tuple[int, bytes]] = []
        self.observed = -1

    def restore(self, key: bytes, value: bytes) -> None:
        self._place(key[:-8], STAMP.unpack(key[-8:])[0], value[1:] if value[0] else None)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for key, versions in self._data.items():
            for timestamp, value in versions:
                yield key + STAMP.pack(timestamp), b"\0" if value is None else b"\1" + value

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        """The time at which the next version begins; LATEST if there is none, NOT_PUT if it came
        too late."""
        data, new = self._need_key(key), self._value_bytes(value)
        if timestamp < self.observed - self.builder.retention:
            return self.NOT_PUT
        self.observed = max(self.observed, timestamp)
        self.changes[data + STAMP.pack(timestamp)] = b"\0" if new is None else b"\1" + new
        after = self._place(data, timestamp, new)
        self._expire()
        return self.LATEST if after is None else after

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        """From `timestamp` on; what held then."""
        found = self.get(key, timestamp)
        self.put(key, None, timestamp)
        return found

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        versions = self._data.get(self._need_key(key))
        if not versions:
            return None
        index = len(versions) - 1
        if as_of is not None and versions[index][0] > as_of:
            if as_of < self.observed - self.builder.retention:
                return None
            index = bisect_left(versions, as_of + 1, key=lambda one: one[0]) - 1
        timestamp, value = versions[index]
        if index < 0 or value is None:
            return None
        until = versions[index + 1][0] if index + 1 < len(versions) else None
        return VersionedRecord(self._value(value), timestamp, until)

    def _place(self, data: bytes, timestamp: int, value: bytes | None) -> int | None:
        """When the version after it begins."""
        versions = self._data.setdefault(data, [])
        at = bisect_left(versions, timestamp, key=lambda one: one[0])
        if at < len(versions) and versions[at][0] == timestamp:
            versions[at] = (timestamp, value)
        else:
            versions.insert(at, (timestamp, value))
        after = versions[at + 1][0] if at + 1 < len(versions) else None
        if at:
            heapq.heappush(self._replaced, (timestamp, data))
        if after is not None or value is None:
            heapq.heappush(self._replaced, (timestamp if after is None else after, data))
        return after

    def _expire(self) -> None:
        limit = self.observed - self.builder.retention
        while self._replaced and self._replaced[0][0] <= limit:
            _, data = heapq.heappop(self._replaced)
            versions = self._data.get(data, [])
            gone = max(0, bisect_left(versions, limit + 1, key=lambda one: one[0]) - 1)
            if gone + 1 == len(versions) and versions[gone][0] <= limit and versions[gone][1] is None:
                gone += 1
            for timestamp, _ in versions[:gone]:
                self.changes[data + STAMP.pack(timestamp)] = None
            del versions[:gone]
            if not versions:
                self._data.pop(data, None)
