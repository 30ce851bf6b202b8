"""The table with which the cleaner remembers the last offset of every key of the dirty part of a log.

It takes 25 bytes a slot whatever the keys are, in three flat buffers, so that `log.cleaner.dedupe.buffer.size` is what
it really takes; a dict takes 130 bytes an entry and more (docs/decisions/0002-compaction-map.md has the figures).

    tags     1 byte a slot    0: free; else a byte of the hash, by which a bucket is searched with one memchr
    prints   16 bytes a slot  the key's fingerprint: the key itself and its length up to 15 bytes, else its BLAKE2b hash
    offsets  8 bytes a slot   the highest offset seen

Slots are in buckets of 64, filled from the front. A key lives in the bucket its hash names, or, when that is full, in
the next that has room; nothing is ever removed, so a bucket whose last slot is free ends a search.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

BUCKET = 64
BYTES_PER_SLOT = 25

_SHORT = 16
_PAD = tuple(bytes(_SHORT - 1 - n) + bytes((n,)) for n in range(_SHORT))


def fingerprint(key: bytes) -> bytes:
    n = len(key)
    return key + _PAD[n] if n < _SHORT else hashlib.blake2b(key, digest_size=_SHORT).digest()


class OffsetMap:
    """Key -> highest offset. Used by one thread.

    `latest_offset` is the last offset that the map speaks for: a record past it was not seen and must be kept.
    """

    __slots__ = ("_buckets", "_offsets", "_prints", "_tags", "latest_offset", "limit", "size", "slots")

    def __init__(self, buffer_bytes: int, load_factor: float = 0.9, expected: int | None = None) -> None:
        """`expected`: an upper bound of the keys to come, where one is known: a small log gets a small table."""
        slots = max(BUCKET, buffer_bytes // BYTES_PER_SLOT)
        if expected is not None:
            slots = min(slots, int(max(1, expected) / load_factor) + BUCKET)
        self._buckets = max(1, slots // BUCKET)
        self.slots = self._buckets * BUCKET
        self.limit = max(1, min(int(self.slots * load_factor), self.slots - 1))
        self.size = 0
        self.latest_offset = -1
        self._tags = bytearray(self.slots)
        self._prints = bytearray(self.slots * _SHORT)
        self._offsets = array("q", bytes(8)) * self.slots

    @property
    def full(self) -> bool:
        return self.size >= self.limit

    def put_all(self, entries: Iterable[tuple[bytes, int]]) -> bool:
        """Offsets must come in ascending order. False when the map became full: the entries up to there are in it,
        which does no harm as long as `latest_offset` stays below them."""
        tags, prints, offsets, buckets = self._tags, self._prints, self._offsets, self._buckets
        find = tags.find
        same = prints.startswith
        digest = hashlib.blake2b
        size, limit = self.size, self.limit
        for key, offset in entries:
            n = len(key)
            mark = key + _PAD[n] if n < _SHORT else digest(key, digest_size=_SHORT).digest()
            code = hash(mark)
            tag = (code & 0xFF) or 1
            bucket = (code >> 8) % buckets
            while True:
                start = bucket * BUCKET
                end = start + BUCKET
                slot = find(tag, start, end)
                while slot >= 0 and not same(mark, slot * _SHORT):
                    slot = find(tag, slot + 1, end)
                if slot >= 0:
                    offsets[slot] = offset
                    break
                slot = find(0, start, end)
                if slot >= 0:
                    if size >= limit:
                        self.size = size
                        return False
                    tags[slot] = tag
                    prints[slot * _SHORT : (slot + 1) * _SHORT] = mark
                    offsets[slot] = offset
                    size += 1
                    break
                bucket = (bucket + 1) % buckets
        self.size = size
        return True

    def put(self, key: bytes, offset: int) -> bool:
        return self.put_all(((key, offset),))

    def get(self, key: bytes) -> int:
        """The highest offset put for `key`, or -1."""
        n = len(key)
        mark = key + _PAD[n] if n < _SHORT else hashlib.blake2b(key, digest_size=_SHORT).digest()
        code = hash(mark)
        tag = (code & 0xFF) or 1
        bucket = (code >> 8) % self._buckets
        tags = self._tags
        same = self._prints.startswith
        while True:
            start = bucket * BUCKET
            end = start + BUCKET
            slot = tags.find(tag, start, end)
            while slot >= 0:
                if same(mark, slot * _SHORT):
                    return self._offsets[slot]
                slot = tags.find(tag, slot + 1, end)
            if not tags[end - 1]:
                return -1
            bucket = (bucket + 1) % self._buckets
