"""The cleaner's table of the last offset of every key in the dirty part of a log.

`log.cleaner.dedupe.buffer.size` limits the memory of the table, whatever the keys are. Keys are
stored as fingerprints: the key itself if it is shorter than 16 bytes, else its BLAKE2b hash of 16
bytes. There are two implementations: a dict with up to 192 bytes per key, and a packed table with
25 bytes per key. The dict is three times as fast and is used if the buffer has room for all
possible keys (docs/decisions/0002-compaction-map.md has the figures).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

SLOTS_PER_BUCKET = 64
BYTES_PER_SLOT = 25
# The maximum, reached while the dict grows, including the objects for the key and the offset.
BYTES_PER_DICT_ENTRY = 192

_FINGERPRINT_BYTES = 16
_PADDING_BY_LENGTH = tuple(bytes(_FINGERPRINT_BYTES - 1 - n) + bytes((n,)) for n in range(_FINGERPRINT_BYTES))


class OffsetMap:
    """The highest offset of each key, for use by one thread.

    `latest_offset` is the last offset that the map covers: the cleaner must retain later records.
    `limit` is the maximum number of keys.
    """

    __slots__ = ("latest_offset", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.latest_offset = -1

    @property
    def size(self) -> int:
        raise NotImplementedError

    def put_all(self, entries: Iterable[tuple[bytes, int]]) -> bool:
        """Add entries in ascending order of offsets. Returns False if the map is full. The map then
        has only some of the entries. This is harmless while `latest_offset` stays below them."""
        raise NotImplementedError

    def get(self, key: bytes) -> int:
        """Return the highest offset of `key`, or -1."""
        raise NotImplementedError


def make_offset_map(buffer_bytes: int, load_factor: float = 0.9, expected: int | None = None) -> OffsetMap:
    """Create a map of at most `buffer_bytes`. `expected` is an upper bound for the number of keys,
    or None."""
    if expected is not None and expected * BYTES_PER_DICT_ENTRY <= buffer_bytes:
        return DictMap(max(1, expected))
    return PackedMap(buffer_bytes, load_factor, expected)


class DictMap(OffsetMap):
    """A dict from fingerprints to offsets."""

    __slots__ = ("_offsets",)

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._offsets: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        return len(self._offsets)

    def put_all(self, entries: Iterable[tuple[bytes, int]]) -> bool:
        offsets = self._offsets
        digest = hashlib.blake2b
        for key, offset in entries:
            offsets[key if len(key) < _FINGERPRINT_BYTES else digest(key, digest_size=_FINGERPRINT_BYTES).digest()] = (
                offset
            )
            if len(offsets) > self.limit:
                return False
        return True

    def get(self, key: bytes) -> int:
        if len(key) >= _FINGERPRINT_BYTES:
            key = hashlib.blake2b(key, digest_size=_FINGERPRINT_BYTES).digest()
        return self._offsets.get(key, -1)


class PackedMap(OffsetMap):
    """A hash table in three flat buffers:

        tags          1 byte per slot    0: free; else a byte of the hash, found with memchr
        fingerprints  16 bytes per slot  short keys are padded and end with their length
        offsets       8 bytes per slot

    Slots form buckets of 64, which are filled from the front. A key is in the bucket of its hash
    or, if that bucket is full, in the next bucket with a free slot. No key is ever removed, so a
    search ends at a bucket whose last slot is free.
    """

    __slots__ = ("_buckets", "_fingerprints", "_offsets", "_size", "_tags", "slots")

    def __init__(self, buffer_bytes: int, load_factor: float = 0.9, expected: int | None = None) -> None:
        slots = max(SLOTS_PER_BUCKET, buffer_bytes // BYTES_PER_SLOT)
        if expected is not None:
            slots = min(slots, int(max(1, expected) / load_factor) + SLOTS_PER_BUCKET)
        self._buckets = max(1, slots // SLOTS_PER_BUCKET)
        self.slots = self._buckets * SLOTS_PER_BUCKET
        super().__init__(max(1, min(int(self.slots * load_factor), self.slots - 1)))
        self._size = 0
        self._tags = bytearray(self.slots)
        self._fingerprints = bytearray(self.slots * _FINGERPRINT_BYTES)
        self._offsets = array("q", bytes(8)) * self.slots

    @property
    def size(self) -> int:
        return self._size

    def put_all(self, entries: Iterable[tuple[bytes, int]]) -> bool:
        tags, fingerprints, offsets, buckets = self._tags, self._fingerprints, self._offsets, self._buckets
        find = tags.find
        has_at = fingerprints.startswith
        digest = hashlib.blake2b
        size, limit = self._size, self.limit
        for key, offset in entries:
            n = len(key)
            fingerprint = (
                key + _PADDING_BY_LENGTH[n]
                if n < _FINGERPRINT_BYTES
                else digest(key, digest_size=_FINGERPRINT_BYTES).digest()
            )
            code = hash(fingerprint)
            tag = (code & 0xFF) or 1
            bucket = (code >> 8) % buckets
            while True:
                start = bucket * SLOTS_PER_BUCKET
                end = start + SLOTS_PER_BUCKET
                slot = find(tag, start, end)
                while slot >= 0 and not has_at(fingerprint, slot * _FINGERPRINT_BYTES):
                    slot = find(tag, slot + 1, end)
                if slot >= 0:
                    offsets[slot] = offset
                    break
                slot = find(0, start, end)
                if slot >= 0:
                    if size >= limit:
                        self._size = size
                        return False
                    tags[slot] = tag
                    fingerprints[slot * _FINGERPRINT_BYTES : (slot + 1) * _FINGERPRINT_BYTES] = fingerprint
                    offsets[slot] = offset
                    size += 1
                    break
                bucket = (bucket + 1) % buckets
        self._size = size
        return True

    def get(self, key: bytes) -> int:
        n = len(key)
        fingerprint = (
            key + _PADDING_BY_LENGTH[n]
            if n < _FINGERPRINT_BYTES
            else hashlib.blake2b(key, digest_size=_FINGERPRINT_BYTES).digest()
        )
        code = hash(fingerprint)
        tag = (code & 0xFF) or 1
        bucket = (code >> 8) % self._buckets
        tags = self._tags
        has_at = self._fingerprints.startswith
        while True:
            start = bucket * SLOTS_PER_BUCKET
            end = start + SLOTS_PER_BUCKET
            slot = tags.find(tag, start, end)
            while slot >= 0:
                if has_at(fingerprint, slot * _FINGERPRINT_BYTES):
                    return self._offsets[slot]
                slot = tags.find(tag, slot + 1, end)
            if not tags[end - 1]:
                return -1
            bucket = (bucket + 1) % self._buckets
