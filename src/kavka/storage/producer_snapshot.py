"""Producer snapshots: `<offset>.snapshot` has the states of all producers at that offset.

Layout (big-endian, sizes in bytes): version, always 1 (2), CRC-32C of all following bytes (4),
number of entries (4), then for each producer: id (8), epoch (2), last sequence (4), last offset
(8), offset delta of its last batch (4), timestamp (8), coordinator epoch (4), first offset of its
open transaction or -1 (8).

A snapshot is written at every roll, named after the base offset of the new segment, and at a clean
shutdown. Opening the log then reads only the batches after the last snapshot. A crash may leave an
incomplete snapshot with a wrong CRC; opening the log then uses the previous snapshot.
"""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from kavka.storage.files import SNAPSHOT_SUFFIX, file_name, read_file, remove_if_exists, write_all
from kavka.storage.producer_state import BatchMeta, ProducerEntry

_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
VERSION = 1


class CorruptSnapshotError(Exception):
    """A malformed snapshot file. Opening the log uses an earlier snapshot."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    body = bytearray(_COUNT.size)
    count = 0
    for entry in entries:
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        count += 1
    _COUNT.pack_into(body, 0, count)
    return _HEAD.pack(VERSION, crc32c(bytes(body))) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Return the entries of a snapshot file. Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshotError(f"a snapshot of {len(data)} bytes is too short")
    version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"snapshot version {version} is not supported")
    if crc32c(data[_HEAD.size :]) != crc:
        raise CorruptSnapshotError("the CRC does not match the bytes")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    start = _HEAD.size + _COUNT.size
    if count < 0 or start + count * _ENTRY.size > len(data):
        raise CorruptSnapshotError(f"a snapshot of {len(data)} bytes cannot have {count} entries")
    entries = []
    packed_entries = data[start : start + count * _ENTRY.size]
    for pid, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn in _ENTRY.iter_unpack(packed_entries):
        first = (sequence - delta) & 0x7FFFFFFF if sequence >= 0 else -1
        batches = (BatchMeta(first, sequence, offset, delta, timestamp),) if offset >= 0 else ()
        entries.append(ProducerEntry(pid, epoch, batches, timestamp, coordinator_epoch, txn))
    return entries


class SnapshotFiles:
    """The snapshot files of one log, by their offsets. Only the thread that owns the log may call
    the methods."""

    __slots__ = ("dir", "offsets")

    def __init__(self, dir: str, offsets: Iterable[int] = ()) -> None:
        self.dir = dir
        self.offsets = sorted(offsets)

    def add(self, offset: int) -> None:
        """Register an existing snapshot file."""
        insort(self.offsets, offset)

    def path(self, offset: int) -> str:
        return f"{self.dir}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def write(self, offset: int, entries: Iterable[ProducerEntry], *, sync: bool = False) -> None:
        """Write a snapshot, unless one exists at this or a later offset. Raises OSError."""
        if self.offsets and offset <= self.offsets[-1]:
            return
        path = self.path(offset)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, encode_snapshot(entries), 0)
            if sync:
                os.fsync(fd)
        except OSError:
            remove_if_exists(path)
            raise
        finally:
            os.close(fd)
        self.offsets.append(offset)

    def read(self, offset: int) -> list[ProducerEntry]:
        """Return the entries of a snapshot. Raises OSError, and CorruptSnapshotError."""
        return decode_snapshot(read_file(self.path(offset)))

    def read_latest(self) -> tuple[int, list[ProducerEntry]] | None:
        """Return the offset and the entries of the last valid snapshot, or None. Removes invalid
        snapshots after it. Raises OSError."""
        while self.offsets:
            offset = self.offsets[-1]
            try:
                return offset, self.read(offset)
            except (CorruptSnapshotError, FileNotFoundError):
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
            remove_if_exists(self.path(offset))

    def between(self, start_offset: int, end_offset: int) -> SnapshotFiles:
        """Return the snapshots in [start_offset, end_offset]."""
        return SnapshotFiles(self.dir, [offset for offset in self.offsets if start_offset <= offset <= end_offset])

    def remove_outside(self, start_offset: int, end_offset: int) -> None:
        """Remove the snapshots outside of [start_offset, end_offset]."""
        for offset in [o for o in self.offsets if not start_offset <= o <= end_offset]:
            self.remove(offset)

    def remove_strays(self, base_offsets: Iterable[int]) -> None:
        """Remove the snapshots that are not at the base offset of a segment, except the last one if
        it is after all base offsets. A clean shutdown writes that snapshot."""
        bases = set(base_offsets)
        strays = [offset for offset in self.offsets if offset not in bases]
        if strays and bases and strays[-1] > max(bases):
            strays.pop()
        for offset in strays:
            self.remove(offset)
