"""The index of the aborted transactions whose abort marker is in a segment. Consumers with
isolation level read_committed skip the records of these transactions.

One entry is 34 bytes, big-endian: version, always 0 (2), producer id (8), first offset of the
transaction (8), offset of its abort marker (8), last stable offset when the marker was written (8).
Entries are in the order of their markers. The file exists only if there is an entry.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from struct import Struct
from typing import NamedTuple

from kavka.storage.files import sync_file, write_all
from kavka.storage.index_file import CorruptIndexError

_ENTRY = Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0


class AbortedTxn(NamedTuple):
    """One entry. `last_offset` is the offset of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The `.txnindex` file of one segment. The first use reads the entries into memory. An append
    is written to the file at once. After a crash, recovery rebuilds the file of an unflushed
    segment. Only the thread that owns the log may call the methods, except for `sync`."""

    __slots__ = ("_entries", "_exists", "base_offset", "path")

    def __init__(self, path: str, base_offset: int, exists: bool = False) -> None:
        self.path = path
        self.base_offset = base_offset
        self._exists = exists
        self._entries: list[AbortedTxn] | None = None if exists else []

    @property
    def entries(self) -> list[AbortedTxn]:
        entries = self._entries
        if entries is None:
            entries = self._entries = self._load()
        return entries

    def _load(self) -> list[AbortedTxn]:
        with open(self.path, "rb") as file:
            data = file.read()
        if len(data) % ENTRY_SIZE:
            raise CorruptIndexError(f"{self.path}: the size {len(data)} is not a multiple of {ENTRY_SIZE}")
        entries = []
        for version, *fields in _ENTRY.iter_unpack(data):
            if version > _VERSION:
                raise CorruptIndexError(f"{self.path}: entries of version {version} are not supported")
            entries.append(AbortedTxn(*fields))
        return entries

    def append(self, *txns: AbortedTxn) -> None:
        """Append the transactions. If it raises OSError, none of them is appended."""
        entries = self.entries
        data = b"".join(_ENTRY.pack(_VERSION, *txn) for txn in txns)
        position = len(entries) * ENTRY_SIZE
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._exists = True
            try:
                write_all(fd, data, position)
            except OSError:
                os.ftruncate(fd, position)
                raise
        finally:
            os.close(fd)
        entries.extend(txns)

    def aborted_between(self, from_offset: int, to_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions that overlap [from_offset, to_offset), and whether later segments
        have no such transactions."""
        entries = self.entries
        overlapping = []
        for n in range(bisect_left(entries, from_offset, key=_last_offset), len(entries)):
            txn = entries[n]
            if txn.first_offset < to_offset:
                overlapping.append(txn)
            if txn.last_stable_offset >= to_offset:
                return overlapping, True
        return overlapping, False

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at or after `offset`."""
        if self._exists:
            self.restore(bisect_left(self.entries, offset, key=_last_offset))

    def restore(self, count: int) -> None:
        """Remove all but the first `count` entries."""
        entries = self.entries
        if len(entries) > count:
            os.truncate(self.path, count * ENTRY_SIZE)
            del entries[count:]

    def reset(self) -> None:
        """Remove all entries."""
        self._entries = []
        if self._exists:
            os.truncate(self.path, 0)

    def check(self) -> None:
        """Raise CorruptIndexError if the file is malformed."""
        for txn in self.entries:
            if txn.last_offset < self.base_offset:
                raise CorruptIndexError(
                    f"{self.path}: the marker at offset {txn.last_offset} is before the base offset of the segment"
                )

    def sync(self) -> None:
        """fsync the file, if it exists. Blocks; any thread may call it."""
        if self._exists:
            sync_file(self.path)


def _last_offset(txn: AbortedTxn) -> int:
    return txn.last_offset
