"""Ordered maps from bytes to bytes, for the entries of stores.

Spark's tasks use `LocalMap` (`local_state.py`), on disk. `MemoryMap` serves the test driver and
queries.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Protocol

Entry = tuple[bytes, bytes]


class StateMap(Protocol):
    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes | None) -> None:
        """None removes the entry."""

    def scan(self, low: bytes = b"", high: bytes | None = None, reverse: bool = False) -> Iterator[Entry]:
        """The entries from `low` up to, but not including, `high`, in the order of their keys. The
        iterator does not see changes that are made while it is in use."""

    def __len__(self) -> int: ...


# Opens a map by its name.
OpenMap = Callable[[str], StateMap]


def after_prefix(prefix: bytes) -> bytes | None:
    """The end of the range of keys that start with `prefix`; None if there is no end."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


class MemoryMap:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._values = dict(entries)
        self._keys = sorted(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value
        elif self._values.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def scan(self, low: bytes = b"", high: bytes | None = None, reverse: bool = False) -> Iterator[Entry]:
        first = bisect_left(self._keys, low)
        last = len(self._keys) if high is None else bisect_left(self._keys, high)
        entries = [(key, self._values[key]) for key in self._keys[first:last]]
        return reversed(entries) if reverse else iter(entries)

    def __len__(self) -> int:
        return len(self._values)


class MergedMap:
    """The entries of several maps, read-only."""

    def __init__(self, maps: Sequence[StateMap]) -> None:
        self._maps = maps

    def get(self, key: bytes) -> bytes | None:
        return next((value for entries in self._maps if (value := entries.get(key)) is not None), None)

    def put(self, key: bytes, value: bytes | None) -> None:
        raise TypeError("the map is read-only")

    def scan(self, low: bytes = b"", high: bytes | None = None, reverse: bool = False) -> Iterator[Entry]:
        scans = (entries.scan(low, high, reverse) for entries in self._maps)
        return heapq.merge(*scans, key=itemgetter(0), reverse=reverse)

    def __len__(self) -> int:
        return sum(map(len, self._maps))


class MemoryMaps:
    """Opens maps in memory."""

    def __init__(self) -> None:
        self.maps: dict[str, StateMap] = {}

    def __call__(self, name: str) -> StateMap:
        return self.maps.setdefault(name, MemoryMap())
