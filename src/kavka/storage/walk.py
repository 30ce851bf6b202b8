"""Iteration over the batch headers of a .log file with small reads."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from kavka.records.batch import (
    HEADER,
    HEADER_SIZE,
    LEGACY_SIZE_V0,
    LEGACY_SIZE_V1,
    LENGTH_AND_MAGIC,
    LOG_OVERHEAD,
    MIN_HEADER_TO_MAGIC,
    BatchHeader,
    Buffer,
    corrupt,
)
from kavka.storage.file_slice import LogFile

# The read size of a walk over an index interval, and of a walk over a whole segment.
INTERVAL_CHUNK_BYTES = 4096
SEGMENT_CHUNK_BYTES = 64 * 1024

_LEGACY_V0 = Struct(">qiIbb")
_LEGACY_V1 = Struct(">qiIbbq")
_MIN_SIZE = {0: LEGACY_SIZE_V0, 1: LEGACY_SIZE_V1, 2: HEADER_SIZE}


def header_at(buf: Buffer, pos: int) -> BatchHeader | None:
    """Return the header at `pos`, or None if `buf` ends within the header.

    A message of magic 0 or 1 gets the header of a batch with one record. Raises CORRUPT_MESSAGE for
    an invalid length, magic or last offset delta.
    """
    available = len(buf) - pos
    if available >= HEADER_SIZE:
        header: BatchHeader = tuple.__new__(BatchHeader, HEADER.unpack_from(buf, pos))
        if header[3] == 2 and header[1] >= HEADER_SIZE - LOG_OVERHEAD and header[6] >= 0:
            return header
    elif available < MIN_HEADER_TO_MAGIC:
        return None
    offset, length, crc, magic = LENGTH_AND_MAGIC.unpack_from(buf, pos)
    minimum = _MIN_SIZE.get(magic)
    if minimum is None:
        raise corrupt(f"unknown magic {magic}")
    if length < minimum - LOG_OVERHEAD:
        raise corrupt(f"the length {length} is too small for a batch of magic {magic}")
    if magic == 2:
        if available >= HEADER_SIZE:
            raise corrupt(f"the batch at offset {offset} has a negative last offset delta")
        return None
    if available < minimum:
        return None
    timestamp = -1
    if magic == 1:
        *_, attributes, timestamp = _LEGACY_V1.unpack_from(buf, pos)
    else:
        *_, attributes = _LEGACY_V0.unpack_from(buf, pos)
    return BatchHeader(offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1)


def walk(
    file: LogFile, position: int, end: int, *, chunk: int = INTERVAL_CHUNK_BYTES, nowait: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every batch in [position, end) of the file, up to the first
    incomplete batch. Raises CORRUPT_MESSAGE for an invalid header. With `nowait`, raises
    BlockingIOError instead of waiting for the disk."""
    read = file.read_nowait if nowait else file.read
    buf = b""
    start = position
    while end - position >= MIN_HEADER_TO_MAGIC:
        pos = position - start
        header = header_at(buf, pos) if 0 <= pos < len(buf) else None
        if header is None:
            buf, start = read(position, min(chunk, end - position)), position
            header = header_at(buf, 0)
            if header is None:
                return
        batch_end = position + header[1] + LOG_OVERHEAD
        if batch_end > end:
            return
        yield position, header
        position = batch_end
