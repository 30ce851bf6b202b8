"""The layout of record batches, and iteration over the batches in a buffer by their headers.

Magic 2 (big-endian; everything from `attributes` on is covered by the CRC-32C):

    0   base_offset      i64      17  crc               u32      43  producer_id     i64
    8   batch_length     i32      21  attributes        i16      51  producer_epoch  i16
    12  leader_epoch     i32      23  last_offset_delta i32      53  base_sequence   i32
    16  magic            i8       27  base_timestamp    i64      57  record_count    i32
                                  35  max_timestamp     i64      61  the records

Magic 0 and 1, one message each (the CRC-32 covers everything from `magic` on):

    0   offset           i64      16  magic             i8       18  timestamp   i64 (magic 1 only)
    8   message_size     i32      17  attributes        i8       ..  key         i32 length, bytes
    12  crc              u32                                     ..  value       i32 length, bytes

A compressed message of magic 0 or 1 is a wrapper: its value is a compressed message set, and its
offset is that of the last inner message. In all formats the length field does not count the 12
bytes of offset and length (`LOG_OVERHEAD`), and the CRC does not cover the base offset and the
leader epoch.

The attributes are: bits 0-2 codec, 3 timestamp type (1: LogAppendTime), 4 transactional, 5 control,
6 base_timestamp is a delete horizon (4 to 6 only in magic 2).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from kavka.common.errors import ErrorCode, KafkaError

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE = 61
# The bytes of offset and length, which the length field does not count, in every magic.
LOG_OVERHEAD = 12
# The bytes up to and including the magic.
MIN_HEADER_TO_MAGIC = 17

MAGIC_POSITION = 16
CRC_POSITION = 17
# The CRC of magic 2 covers the batch from this position to its end.
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35
LEGACY_CRC_POSITION = 12
# The size of a message of magic 0 or 1 with null key and null value, including offset and size.
LEGACY_SIZE_V0 = 26
LEGACY_SIZE_V1 = 34

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1

# The minimum size of a magic 2 record: one byte each for its length, attributes, two deltas, key
# length, value length and header count.
MIN_RECORD_SIZE = 7

# The 13 fields of a magic 2 header, in the order of `BatchHeader`.
HEADER = Struct(">qiibIhiqqqhii")
# The 17 bytes that all magics share: offset, length, leader epoch or CRC, magic.
LENGTH_AND_MAGIC = Struct(">qiIb")
U32 = Struct(">I")
I32 = Struct(">i")
I64 = Struct(">q")
_LEGACY_V0 = Struct(">qiIbb")
_LEGACY_V1 = Struct(">qiIbbq")
_OFFSET_LENGTH_EPOCH = Struct(">qii")
_LEGACY_HEADER_SIZE = (LEGACY_SIZE_V0 - 8, LEGACY_SIZE_V1 - 8)


def corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


class BatchHeader(NamedTuple):
    """The header of one magic 2 batch. Its fields have not been checked."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """The size of the batch, header included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return (self.attributes & TIMESTAMP_TYPE_MASK) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1. Sequence numbers wrap after 2**31 - 1."""
        return last_sequence(self.base_sequence, self.last_offset_delta)


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    if base_sequence < 0:
        return -1
    return (base_sequence + last_offset_delta) & 0x7FFFFFFF


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Return the magic 2 header at `pos`. Does not check the magic. Raises CORRUPT_MESSAGE if the
    header is incomplete."""
    if pos < 0 or len(buf) - pos < HEADER_SIZE:
        raise corrupt(f"a batch header needs {HEADER_SIZE} bytes, but only {max(0, len(buf) - pos)} bytes remain")
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buf, pos))


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """The header fields of one batch (magic 2) or one message (magic 0, 1) in `buf[start:end]`.

    For a compressed message of magic 0 or 1, `count` is None, and `base_offset` is the offset of
    the last inner message, because the first offset is only known after decompression. In magic 1
    both timestamps are the timestamp of the message; in magic 0 both are -1.
    """

    buf: Buffer
    start: int
    end: int
    magic: int
    base_offset: int
    last_offset: int
    count: int | None
    attributes: int
    crc: int
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = -1

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return (self.attributes & TIMESTAMP_TYPE_MASK) >> 3 if self.magic else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.magic == 2 and self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and self.attributes & CONTROL_MASK != 0

    @property
    def delete_horizon(self) -> int | None:
        """The time (ms) from which the cleaner may remove the tombstones of this batch, or None."""
        if self.magic == 2 and self.attributes & DELETE_HORIZON_MASK:
            return self.base_timestamp
        return None

    @property
    def last_sequence(self) -> int:
        return last_sequence(self.base_sequence, self.last_offset - self.base_offset)

    @property
    def data(self) -> memoryview:
        """A view of the bytes of the batch."""
        return memoryview(self.buf)[self.start : self.end]

    def has_valid_crc(self) -> bool:
        """Whether the CRC matches the bytes of the batch."""
        view = memoryview(self.buf)
        if self.magic == 2:
            return crc32c(view[self.start + ATTRIBUTES_POSITION : self.end]) == self.crc
        return zlib.crc32(view[self.start + MAGIC_POSITION : self.end]) == self.crc

    def ensure_crc(self) -> None:
        """Raise CORRUPT_MESSAGE if the CRC does not match."""
        if not self.has_valid_crc():
            raise corrupt(f"the CRC of the batch at offset {self.base_offset} does not match its bytes")

    def __repr__(self) -> str:
        return (
            f"Batch(magic={self.magic}, offsets={self.base_offset}..{self.last_offset}, count={self.count}, "
            f"bytes={self.start}..{self.end}, attributes={self.attributes:#x})"
        )


def batches(buf: Buffer, start: int = 0, end: int | None = None) -> Iterator[Batch]:
    """Yield the batches in `buf[start:end]`, of any magic. Only their headers are read.

    The iteration ends at the first incomplete batch: the last batch of a fetch, or the end of a
    file after a crash. Raises CORRUPT_MESSAGE for an invalid length or magic.
    """
    if end is None:
        end = len(buf)
    pos = start
    while (batch := batch_at(buf, pos, end)) is not None:
        yield batch
        pos = batch.end


def batch_at(buf: Buffer, pos: int, end: int) -> Batch | None:
    """Return the batch at `pos`, or None if `buf[pos:end]` ends before its end. Raises
    CORRUPT_MESSAGE for an invalid length or magic."""
    if end - pos < MIN_HEADER_TO_MAGIC:
        return None
    offset, length, _, magic = LENGTH_AND_MAGIC.unpack_from(buf, pos)
    stop = pos + LOG_OVERHEAD + length
    if magic == 2:
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise corrupt(f"the batch length {length} is less than the length of a batch header")
        if stop > end:
            return None
        (_, _, epoch, _, crc, attributes, delta, base_ts, max_ts, pid, pepoch, sequence, count) = HEADER.unpack_from(
            buf, pos
        )
        return Batch(
            buf, pos, stop, 2, offset, offset + delta, count, attributes, crc,
            base_ts, max_ts, pid, pepoch, sequence, epoch,
        )  # fmt: skip
    if magic not in (0, 1):
        raise corrupt(f"unknown magic {magic}")
    if length < (LEGACY_SIZE_V1 if magic else LEGACY_SIZE_V0) - LOG_OVERHEAD:
        raise corrupt(f"the message size {length} is less than the size of an empty message of magic {magic}")
    if stop > end:
        return None
    if magic:
        _, _, crc, _, attributes, timestamp = _LEGACY_V1.unpack_from(buf, pos)
    else:
        _, _, crc, _, attributes = _LEGACY_V0.unpack_from(buf, pos)
        timestamp = -1
    count = None if attributes & CODEC_MASK else 1
    return Batch(buf, pos, stop, magic, offset, offset, count, attributes, crc, timestamp, timestamp)


def legacy_key_value(buf: Buffer, batch: Batch) -> tuple[memoryview | None, memoryview | None]:
    """Return views of the key and the value of a message of magic 0 or 1. Raises CORRUPT_MESSAGE if
    the message does not end exactly after the value."""
    view = memoryview(buf)
    pos = batch.start + _LEGACY_HEADER_SIZE[batch.magic]
    end = batch.end
    fields: list[memoryview | None] = []
    for name in ("key", "value"):
        if end - pos < 4:
            raise corrupt(f"a message ends before the length of its {name}")
        (length,) = I32.unpack_from(view, pos)
        pos += 4
        if length < -1 or length > end - pos:
            raise corrupt(f"a message has a {name} of {length} bytes, but {end - pos} bytes remain")
        if length < 0:
            fields.append(None)
        else:
            fields.append(view[pos : pos + length])
            pos += length
    if pos != end:
        raise corrupt(f"a message has {end - pos} bytes after its value")
    return fields[0], fields[1]


def assign_offsets(
    buf: bytearray | memoryview, base_offset: int, leader_epoch: int, log_append_time: int | None = None
) -> None:
    """Set the base offset and the leader epoch of the magic 2 batch that fills `buf`, in place.

    The CRC does not cover these fields. With `log_append_time` (ms) the batch also gets the
    timestamp type LogAppendTime and the max timestamp `log_append_time`, and the CRC is recomputed.
    """
    _OFFSET_LENGTH_EPOCH.pack_into(buf, 0, base_offset, len(buf) - LOG_OVERHEAD, leader_epoch)
    if log_append_time is not None:
        buf[22] |= TIMESTAMP_TYPE_MASK
        I64.pack_into(buf, MAX_TIMESTAMP_POSITION, log_append_time)
        rewrite_crc(buf)


def rewrite_crc(buf: bytearray | memoryview) -> None:
    """Recompute the CRC of the magic 2 batch that fills `buf`."""
    U32.pack_into(buf, CRC_POSITION, crc32c(memoryview(buf)[ATTRIBUTES_POSITION:]))
