"""The clients' view while faults are injected: every acknowledgement, every record read, every
commit.

A record says who it is: its value is `producer:partition:counter:` and a filling that follows from
those. A producer counts per partition from 0 on, so what is missing, doubled or out of order shows
in the counters.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

SIZE = 120
"""Bytes of a value: large enough for real batches, small enough for a long run in memory."""


class Violation(NamedTuple):
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class Id(NamedTuple):
    """Which record it is, in its partition."""

    producer: str
    counter: int

    def __str__(self) -> str:
        return f"{self.producer}#{self.counter}"


def encode(producer: str, partition: int, counter: int) -> bytes:
    head = f"{producer}:{partition}:{counter}:"
    filling = (head * (SIZE // len(head) + 1))[: max(SIZE - len(head), 0)]
    return (head + filling).encode()


def decode(value: bytes | None, partition: int) -> Id | None:
    """None where the value is not one that a producer of ours sent to this partition."""
    if value is None:
        return None
    try:
        producer, where, counter, _ = value.decode().split(":", 3)
        identity = Id(producer, int(counter))
    except ValueError:
        return None
    return identity if value == encode(producer, partition, identity.counter) and int(where) == partition else None


Place = tuple[int, int]
"""A partition and an offset."""


class History:
    """Safe for threads. Times are of `time.monotonic`."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.acked: dict[Place, Id] = {}
        self.acked_somewhere: dict[int, set[Id]] = {p: set() for p in range(partitions)}
        """Acknowledged with no offset: the broker had the batch already and does not say where."""
        self.failed: list[tuple[int, Id, str]] = []
        """The producer gave up: the record may be there once, or not."""
        self.shown: dict[Place, Id] = {}
        self.resent: set[Place] = set()
        """Offsets of records that their producer sent again in a new epoch (`replicas.resent`)."""
        self.group_read: dict[int, set[int]] = {p: set() for p in range(partitions)}
        self.committed: dict[int, int] = {}
        self.violations: list[Violation] = []
        self.rebalances = 0
        self._ack_times: dict[int, list[float]] = {p: [] for p in range(partitions)}
        self._ack_times_of: dict[tuple[str, int], list[float]] = {}
        self._read_times: list[float] = []
        self._floors: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    # --- what producers hear

    def ack(self, partition: int, offset: int, record: Id) -> None:
        with self._lock:
            now = time.monotonic()
            self._ack_times[partition].append(now)
            self._ack_times_of.setdefault((record.producer, partition), []).append(now)
            if offset < 0:
                self.acked_somewhere[partition].add(record)
                return
            before = self.acked.setdefault((partition, offset), record)
            if before != record:
                self._report(
                    "changed", f"offset {offset} of {partition} was acknowledged for {before} and for {record}"
                )
            self._same_as_before(partition, offset, record, "acknowledged")

    def fail(self, partition: int, record: Id, error: str) -> None:
        with self._lock:
            self.failed.append((partition, record, error))

    # --- what consumers see

    def read(self, reader: str, partition: int, offset: int, value: bytes | None) -> None:
        with self._lock:
            self._read_times.append(time.monotonic())
            record = decode(value, partition)
            if record is None:
                self._report("foreign", f"offset {offset} of {partition}, read by {reader}, has {value!r:.200}")
                return
            self._same_as_before(partition, offset, record, f"read by {reader}")
            self.group_read[partition].add(offset)
            floor = self._floors.pop((reader, partition), 0)
            if offset < floor:
                self._report("rewound", f"{reader} began at {offset} of {partition}, though {floor} was committed")

    def assigned(self, reader: str, partitions: Iterable[int]) -> None:
        """From here on the reader may not begin below what was committed before."""
        with self._lock:
            self.rebalances += 1
            for partition in partitions:
                self._floors[reader, partition] = self.committed.get(partition, 0)

    def commit(self, offsets: dict[int, int]) -> None:
        """These commits succeeded."""
        with self._lock:
            for partition, offset in offsets.items():
                self.committed[partition] = max(self.committed.get(partition, 0), offset)

    def _same_as_before(self, partition: int, offset: int, record: Id, how: str) -> None:
        before = self.shown.setdefault((partition, offset), record)
        if before != record:
            self._report("changed", f"offset {offset} of {partition} was shown as {before}, then {how} as {record}")

    def _report(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    # --- sums

    @property
    def acks(self) -> int:
        with self._lock:
            return len(self.acked) + sum(map(len, self.acked_somewhere.values()))

    @property
    def reads(self) -> int:
        with self._lock:
            return sum(map(len, self.group_read.values()))

    def read_up_to(self) -> dict[int, int]:
        with self._lock:
            return {partition: max(offsets, default=-1) + 1 for partition, offsets in self.group_read.items()}

    def longest_wait(self, begin: float, end: float) -> tuple[float, int]:
        """The longest time without an acknowledgement in any partition from `begin` to `end`, and
        that partition."""
        with self._lock:
            waits = [(_longest(times, begin, end), partition) for partition, times in self._ack_times.items()]
        return max(waits)

    def longest_wait_of_one(self, begin: float, end: float) -> tuple[float, str, int]:
        """The same for each producer alone: the longest, whose it was, and the partition."""
        with self._lock:
            waits = [(_longest(times, begin, end), *whose) for whose, times in self._ack_times_of.items()]
        return max(waits, default=(end - begin, "nobody", 0))

    def longest_read_wait(self, begin: float, end: float) -> float:
        with self._lock:
            return _longest(self._read_times, begin, end)


def _longest(times: list[float], begin: float, end: float) -> float:
    inside = times[bisect_left(times, begin) : bisect_left(times, end)]
    marks = [begin, *inside, end]
    return max(after - before for before, after in pairwise(marks))
