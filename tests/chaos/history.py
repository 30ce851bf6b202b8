"""The history of the clients while faults are injected: acknowledgements, reads and commits.

The value of a record is `producer:partition:counter:` and padding that repeats this text. A
producer counts its records per partition from 0 on, so the counters show records that are missing,
duplicated or out of order.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

# Bytes of a value: large enough for real batches, small enough for a long run in memory.
SIZE = 120


class Violation(NamedTuple):
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Id(NamedTuple):
    """The identity of a record in its partition."""

    producer: str
    counter: int

    def __str__(self) -> str:
        return f"{self.producer}#{self.counter}"


def encode(producer: str, partition: int, counter: int) -> bytes:
    head = f"{producer}:{partition}:{counter}:"
    padding = (head * (SIZE // len(head) + 1))[: max(SIZE - len(head), 0)]
    return (head + padding).encode()


def decode(value: bytes | None, partition: int) -> Id | None:
    """Return the identity, or None if no producer sent this value to this partition."""
    if value is None:
        return None
    try:
        producer, partition_text, counter, _ = value.decode().split(":", 3)
        identity = Id(producer, int(counter))
    except ValueError:
        return None
    is_valid = value == encode(producer, partition, identity.counter) and int(partition_text) == partition
    return identity if is_valid else None


# A partition and an offset.
Place = tuple[int, int]


class History:
    """Thread-safe. Times are from `time.monotonic`."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.acked: dict[Place, Id] = {}
        # Records that were acknowledged without an offset, because the broker had their batch
        # already.
        self.acked_somewhere: dict[int, set[Id]] = {p: set() for p in range(partitions)}
        # Records whose producer got an error. They may be stored once, or not at all.
        self.failed: list[tuple[int, Id, str]] = []
        # Records that were acknowledged or read.
        self.shown: dict[Place, Id] = {}
        # Offsets of records that their producer sent again in a new epoch (`replicas.resent`).
        self.resent: set[Place] = set()
        self.group_read: dict[int, set[int]] = {p: set() for p in range(partitions)}
        self.committed: dict[int, int] = {}
        self.violations: list[Violation] = []
        self.rebalances = 0
        self._ack_times: dict[int, list[float]] = {p: [] for p in range(partitions)}
        self._ack_times_by_producer: dict[tuple[str, int], list[float]] = {}
        self._read_times: list[float] = []
        self._floors: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    # --- producers

    def ack(self, partition: int, offset: int, record: Id) -> None:
        with self._lock:
            now = time.monotonic()
            self._ack_times[partition].append(now)
            self._ack_times_by_producer.setdefault((record.producer, partition), []).append(now)
            if offset < 0:
                self.acked_somewhere[partition].add(record)
                return
            earlier = self.acked.setdefault((partition, offset), record)
            if earlier != record:
                self._report(
                    "changed", f"offset {offset} of {partition} was acknowledged for {earlier} and for {record}"
                )
            self._check_unchanged(partition, offset, record, "acknowledged")

    def fail(self, partition: int, record: Id, error: str) -> None:
        with self._lock:
            self.failed.append((partition, record, error))

    # --- consumers

    def read(self, reader: str, partition: int, offset: int, value: bytes | None) -> None:
        with self._lock:
            self._read_times.append(time.monotonic())
            record = decode(value, partition)
            if record is None:
                self._report("foreign", f"offset {offset} of {partition}, read by {reader}, has {value!r:.200}")
                return
            self._check_unchanged(partition, offset, record, f"read by {reader}")
            self.group_read[partition].add(offset)
            floor = self._floors.pop((reader, partition), 0)
            if offset < floor:
                self._report("rewound", f"{reader} started at {offset} of {partition}, below the committed {floor}")

    def assigned(self, reader: str, partitions: Iterable[int]) -> None:
        """The reader must not start below the committed offsets."""
        with self._lock:
            self.rebalances += 1
            for partition in partitions:
                self._floors[reader, partition] = self.committed.get(partition, 0)

    def commit(self, offsets: dict[int, int]) -> None:
        """Record successful commits."""
        with self._lock:
            for partition, offset in offsets.items():
                self.committed[partition] = max(self.committed.get(partition, 0), offset)

    def _check_unchanged(self, partition: int, offset: int, record: Id, event: str) -> None:
        earlier = self.shown.setdefault((partition, offset), record)
        if earlier != record:
            self._report("changed", f"offset {offset} of {partition} was {earlier}, then {event} as {record}")

    def _report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))

    # --- totals

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
        """Return the longest time without an acknowledgement in a partition from `begin` to `end`,
        and the partition."""
        with self._lock:
            waits = [(_longest(times, begin, end), partition) for partition, times in self._ack_times.items()]
        return max(waits)

    def longest_wait_of_producer(self, begin: float, end: float) -> tuple[float, str, int]:
        """Return the longest time in which one producer got no acknowledgement in a partition, the
        producer, and the partition."""
        with self._lock:
            waits = [(_longest(times, begin, end), *key) for key, times in self._ack_times_by_producer.items()]
        return max(waits, default=(end - begin, "no producer", 0))

    def longest_read_wait(self, begin: float, end: float) -> float:
        with self._lock:
            return _longest(self._read_times, begin, end)


def _longest(times: list[float], begin: float, end: float) -> float:
    marks = [begin, *times[bisect_left(times, begin) : bisect_left(times, end)], end]
    return max(second - first for first, second in pairwise(marks))
