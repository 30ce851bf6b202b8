"""Finding the records of a magic 2 batch without opening them, and without holding all of them in memory: a batch of
some kilobytes may have tens of millions of records, or one of hundreds of megabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from kavka.records.batch import CODEC_MASK, HEADER_SIZE, Batch, corrupt
from kavka.records.varint import decode_varint, encode_varint
from kavka.storage.unpacked import CHUNK, Unpacked

MOST_ENTRIES = 50_000
"""So many records are in memory at a time: some 250 bytes each, besides the body."""
LARGE_RECORD = CHUNK
"""A longer record is never held in memory."""
LARGE_KEY = 64 * 1024
"""A hash stands for a longer key."""
LONGEST_LENGTH = 5
LONGEST_HEAD = LONGEST_LENGTH + 1 + 10 + LONGEST_LENGTH
"""The most bytes of a record's length, attributes and both deltas."""


class Entry(NamedTuple):
    """One record of a magic 2 batch, found but not opened: it is `body[start:end]`."""

    start: int
    end: int
    offset_delta: int
    key: bytes | None
    tombstone: bool


class RecordSlice(NamedTuple):
    """Some records of a batch: all that lie whole in a piece of its body."""

    body: bytes
    entries: list[Entry]


class LargeRecord:
    """A record that is not held in memory. `examine` or `rewritten` reads it, once; what they leave is passed over."""

    __slots__ = ("_body", "_head", "_left", "offset_delta", "timestamp_delta")

    def __init__(self, body: _Body) -> None:
        """It begins in `body.buffer`, which must have its first LONGEST_HEAD bytes."""
        length, start = decode_varint(body.buffer, 0)
        self.timestamp_delta, pos = decode_varint(body.buffer, start + 1, 10)
        self.offset_delta, end = decode_varint(body.buffer, pos)
        self._head = body.buffer[start : start + 1], body.buffer[pos:end]
        self._body = body
        self._left = length - (end - start)
        body.buffer = body.buffer[end:]

    def _take(self, at_most: int) -> bytes:
        if not self._left:
            raise corrupt("a large record does not end where it says")
        data = self._body.take(min(at_most, self._left))
        self._left -= len(data)
        return data

    def _length(self) -> int:
        """A length that is part of the record."""
        data = bytearray()
        while not data or data[-1] > 127:
            data += self._take(1)
            if len(data) > LONGEST_LENGTH:
                break
        return decode_varint(bytes(data), 0)[0]

    def examine(self) -> tuple[bytes | None, bool]:
        """Its key, or what stands for a large one, and whether it is a tombstone."""
        size = self._length()
        key: bytes | None = None
        if size > LARGE_KEY:
            digest = hashlib.blake2b()
            while size > 0:
                piece = self._take(min(size, CHUNK))
                digest.update(piece)
                size -= len(piece)
            key = digest.digest()
        elif size >= 0:
            key = b""
            while len(key) < size:
                key += self._take(size - len(key))
        return key, self._length() == -1

    def rewritten(self, shift: int) -> Iterator[bytes]:
        """The record with `shift` added to its timestamp delta."""
        attributes, offset_delta = self._head
        head = attributes + encode_varint(self.timestamp_delta + shift) + offset_delta
        yield encode_varint(len(head) + self._left) + head
        while self._left:
            yield self._take(CHUNK)

    def pass_over(self) -> None:
        while self._left:
            self._take(CHUNK)


class _Body:
    """The unpacked records of a batch as they come, with what was read of them and is not used yet."""

    __slots__ = ("_chunks", "buffer")

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.buffer = b""

    def fill(self) -> bool:
        """Read on. False at the end."""
        chunk = next(self._chunks, b"")
        self.buffer = self.buffer + chunk if self.buffer else chunk
        return bool(chunk)

    def take(self, at_most: int) -> bytes:
        """At least one byte."""
        if not self.buffer and not self.fill():
            raise corrupt("the last record ends too early")
        data = self.buffer[:at_most]
        self.buffer = self.buffer[at_most:]
        return data


def record_parts(chunks: Iterator[bytes], count: int) -> Iterator[RecordSlice | LargeRecord]:
    """The records of an unpacked magic 2 body, in order. CORRUPT_MESSAGE where they do not fill it exactly."""
    body = _Body(chunks)
    left = count
    while left > 0:
        entries, end = whole_records(body.buffer, min(left, MOST_ENTRIES))
        if entries:
            yield RecordSlice(body.buffer, entries)
            left -= len(entries)
            body.buffer = body.buffer[end:]
        elif len(body.buffer) >= LONGEST_HEAD and decode_varint(body.buffer, 0)[0] > LARGE_RECORD:
            large = LargeRecord(body)
            yield large
            large.pass_over()
            left -= 1
        elif not body.fill():
            raise corrupt(f"the records end too early: {count - left} of {count} are there")
    if body.buffer or body.fill():
        raise corrupt(f"{len(body.buffer)} bytes follow the last record")


def whole_records(body: bytes, count: int) -> tuple[list[Entry], int]:
    """The first records of `body`, up to `count`, and where they end: with the last that is whole."""
    found: list[Entry] = []
    add = found.append
    new = tuple.__new__
    pos = start = end = 0
    size = len(body)
    try:
        for _ in range(count):
            # Numbers of one byte are read here, lengths and deltas of two as well, others by decode_varint.
            start = pos
            n = body[pos]
            if n < 128:
                end = pos + 1 + (n >> 1 ^ -(n & 1))
                pos += 2
            elif (m := body[pos + 1]) < 128:
                n = n & 127 | m << 7
                end = pos + 2 + (n >> 1 ^ -(n & 1))
                pos += 3
            else:
                n, pos = decode_varint(body, pos)
                end = pos + n
                pos += 1
            if not start < end <= size:
                if end <= start:
                    raise corrupt(f"a record at byte {start} has no length")
                break
            while body[pos] > 127:
                pos += 1
            n = body[pos + 1]
            if n < 128:
                delta = n >> 1 ^ -(n & 1)
                pos += 2
            elif (m := body[pos + 2]) < 128:
                n = n & 127 | m << 7
                delta = n >> 1 ^ -(n & 1)
                pos += 3
            else:
                delta, pos = decode_varint(body, pos + 1)
            n = body[pos]
            if n < 128:
                pos += 1
                n = n >> 1 ^ -(n & 1)
            else:
                n, pos = decode_varint(body, pos)
            if n < 0:
                key = None
            else:
                key = body[pos : pos + n]
                pos += n
                if n > LARGE_KEY:
                    key = hashlib.blake2b(key).digest()
            # A null value is length -1, which zigzag makes 1.
            tombstone = body[pos] == 1
            if not pos < end:
                raise corrupt(f"a record at byte {start} does not end where it says")
            add(new(Entry, (start, end, delta, key, tombstone)))
            pos = start = end
    except IndexError:
        # Only the length may end with the piece: the next one has more of it.
        if end > start:
            raise corrupt(f"a record at byte {start} does not end where it says") from None
    return found, start


def timestamp_delta(body: bytes, entry: Entry) -> tuple[int, int, int]:
    """A record's timestamp delta, and where it starts and ends in `body`."""
    pos = entry.start
    while body[pos] > 127:
        pos += 1
    pos += 2
    delta, end = decode_varint(body, pos, 10)
    return delta, pos, end


class BatchRecords:
    """The records of a magic 2 batch, its CRC checked, to be walked over as often as needed. Those of an ordinary batch
    are unpacked and found once; of one that unpacks to much, only some are in memory at a time."""

    __slots__ = ("_count", "_only", "_unpacked")

    def __init__(self, batch: Batch, folder: str) -> None:
        batch.ensure_crc()
        self._count = batch.count or 0
        self._unpacked = Unpacked(batch.attributes & CODEC_MASK, batch.data[HEADER_SIZE:], folder)
        self._only: RecordSlice | None = None

    def parts(self) -> Iterator[RecordSlice | LargeRecord]:
        if self._only is not None:
            yield self._only
            return
        body = self._unpacked.body
        is_only = body is not None and len(body) <= CHUNK
        for part in record_parts(self._unpacked.chunks(), self._count):
            if is_only and isinstance(part, RecordSlice) and len(part.entries) == self._count:
                self._only = part
            yield part

    def __enter__(self) -> BatchRecords:
        return self

    def __exit__(self, *_: object) -> None:
        self._unpacked.close()
