"""Builds record batches and message sets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError

from crc32c import crc32c

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import (
    ATTRIBUTES_POSITION,
    CONTROL_MASK,
    CRC_POSITION,
    CREATE_TIME,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LEGACY_CRC_POSITION,
    LEGACY_SIZE_V0,
    LEGACY_SIZE_V1,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TRANSACTIONAL_MASK,
    U32,
)
from kavka.records.compression import NONE, ZSTD, compress
from kavka.records.record import Header, Record
from kavka.records.varint import SMALL_VARINTS, encode_varint

_MESSAGE_V0 = Struct(">qiIbb")
_MESSAGE_V1 = Struct(">qiIbbq")
_LENGTH = Struct(">i")
_SMALL = len(SMALL_VARINTS)


class BatchBuilder:
    """Collects records and builds one batch (magic 2) or a message set (magic 0, 1).

    In magic 0 and 1 without compression, each record is one message; with compression, one wrapper
    contains all records. `append_time` is the timestamp of all records under LOG_APPEND_TIME. The
    cleaner sets `delete_horizon` (magic 2) for batches with tombstones. `build` may be called once.
    """

    def __init__(
        self,
        magic: int = 2,
        codec: int = 0,
        base_offset: int = 0,
        timestamp_type: int = CREATE_TIME,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        *,
        leader_epoch: int = -1,
        transactional: bool = False,
        control: bool = False,
        level: int | None = None,
        append_time: int = -1,
        delete_horizon: int | None = None,
    ) -> None:
        if magic not in (0, 1, 2):
            raise ValueError(f"unknown magic {magic}")
        if magic < 2 and (producer_id >= 0 or transactional or control or delete_horizon is not None):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                f"magic {magic} does not support producer ids, transactions, control records or delete horizons",
            )
        if magic < 2 and codec >= ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"magic {magic} does not support zstd")
        self.magic = magic
        self._codec = codec
        self._base_offset = base_offset
        self._timestamp_type = timestamp_type if magic else CREATE_TIME
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._leader_epoch = leader_epoch
        self._attributes = codec | self._timestamp_type << 3
        if transactional:
            self._attributes |= TRANSACTIONAL_MASK
        if control:
            self._attributes |= CONTROL_MASK
        if delete_horizon is not None:
            self._attributes |= DELETE_HORIZON_MASK
        self._level = level
        self._append_time = append_time
        self._delete_horizon = delete_horizon
        self._base_timestamp: int | None = delete_horizon
        self._max_timestamp = -1
        self._next_offset = base_offset
        self._count = 0
        self._body = bytearray()

    @property
    def count(self) -> int:
        return self._count

    @property
    def next_offset(self) -> int:
        """The offset of the next record that is appended without an offset."""
        return self._next_offset

    @property
    def size(self) -> int:
        """The current size of the batch, without compression."""
        return len(self._body) + (HEADER_SIZE if self.magic == 2 else 0)

    def append(self, record: Record) -> int:
        """Add a record. Returns its offset. Offsets must increase, with or without gaps. Raises
        INVALID_RECORD if the offset does not increase."""
        offset, timestamp, key, value, headers = record
        if offset < 0:
            offset = self._next_offset
        elif offset < self._next_offset:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"offset {offset} is not after the previous offset {self._next_offset - 1}"
            )
        if self.magic == 2:
            base_timestamp = self._base_timestamp
            if base_timestamp is None:
                base_timestamp = self._base_timestamp = timestamp
            delta = offset - self._base_offset
            time_delta = timestamp - base_timestamp
            # The record is its length, then attributes, timestamp delta, offset delta, key, value
            # and headers.
            parts = [
                b"\x00",
                SMALL_VARINTS[time_delta] if 0 <= time_delta < _SMALL else encode_varint(time_delta),
                SMALL_VARINTS[delta] if delta < _SMALL else encode_varint(delta),
            ]
            for field in (key, value):
                if field is None:
                    parts.append(b"\x01")
                else:
                    length = len(field)
                    parts.append(SMALL_VARINTS[length] if length < _SMALL else encode_varint(length))
                    parts.append(field)
            parts.append(encode_headers(headers) if headers else b"\x00")
            data = b"".join(parts)
            length = len(data)
            body = self._body
            body += SMALL_VARINTS[length] if length < _SMALL else encode_varint(length)
            body += data
        else:
            self._append_message(offset, timestamp, key, value)
        self._next_offset = offset + 1
        self._count += 1
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        return offset

    def _append_message(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> None:
        if self._codec:
            attributes = 0 if self.magic == 0 else self._timestamp_type << 3
            if self.magic == 1:
                offset -= self._base_offset
        else:
            attributes = self._attributes
        if self._timestamp_type == LOG_APPEND_TIME:
            timestamp = self._append_time
        self._body += legacy_message(self.magic, offset, attributes, timestamp, key, value)

    def build(self, last_offset: int | None = None, max_timestamp: int | None = None) -> bytearray:
        """Return the bytes of the batch. As after compaction, `last_offset` (magic 2) may be past
        the last record. The batch may then have no records, and `max_timestamp` sets its max
        timestamp. Raises INVALID_RECORD if an offset or timestamp does not fit."""
        if self.magic < 2:
            return self._build_messages()
        if last_offset is None:
            last_offset = self._next_offset - 1
        if max_timestamp is None:
            max_timestamp = self._append_time if self._timestamp_type == LOG_APPEND_TIME else self._max_timestamp
        base_timestamp = max_timestamp if self._base_timestamp is None else self._base_timestamp
        out = bytearray(HEADER_SIZE)
        out += compress(self._codec, self._body, self._level) if self._codec else self._body
        try:
            HEADER.pack_into(
                out, 0, self._base_offset, len(out) - LOG_OVERHEAD, self._leader_epoch, 2, 0, self._attributes,
                last_offset - self._base_offset, base_timestamp, max_timestamp, self._producer_id, self._producer_epoch,
                self._base_sequence, self._count,
            )  # fmt: skip
        except StructError as error:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"the offsets or timestamps of a batch are out of range: {error}"
            ) from None
        U32.pack_into(out, CRC_POSITION, crc32c(memoryview(out)[ATTRIBUTES_POSITION:]))
        return out

    def _build_messages(self) -> bytearray:
        if not self._codec or not self._count:
            return self._body
        timestamp = self._append_time if self._timestamp_type == LOG_APPEND_TIME else self._max_timestamp
        packed = compress(self._codec, self._body, self._level, broken_lz4=self.magic == 0)
        return legacy_message(self.magic, self._next_offset - 1, self._attributes, timestamp, None, packed)


def plain_batch(records: Sequence[tuple[bytes | None, bytes | None]], timestamp: int, codec: int = NONE) -> bytearray:
    """Return a magic 2 batch of keys and values with the same timestamp. Faster than
    BatchBuilder."""
    body = bytearray()
    for delta, (key, value) in enumerate(records):
        if key is None:
            key_size, key = b"\x01", b""
        else:
            length = len(key)
            key_size = SMALL_VARINTS[length] if length < _SMALL else encode_varint(length)
        if value is None:
            value_size, value = b"\x01", b""
        else:
            length = len(value)
            value_size = SMALL_VARINTS[length] if length < _SMALL else encode_varint(length)
        offset_delta = SMALL_VARINTS[delta] if delta < _SMALL else encode_varint(delta)
        data = b"".join((b"\x00\x00", offset_delta, key_size, key, value_size, value, b"\x00"))
        length = len(data)
        body += SMALL_VARINTS[length] if length < _SMALL else encode_varint(length)
        body += data
    count = len(records)
    out = bytearray(HEADER_SIZE)
    out += compress(codec, body) if codec else body
    HEADER.pack_into(
        out, 0, 0, len(out) - LOG_OVERHEAD, -1, 2, 0, codec, count - 1, timestamp, timestamp, -1, -1, -1, count
    )
    U32.pack_into(out, CRC_POSITION, crc32c(memoryview(out)[ATTRIBUTES_POSITION:]))
    return out


def legacy_message(
    magic: int, offset: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytearray:
    """Return one message of magic 0 or 1. Magic 0 has no timestamp. Raises INVALID_RECORD if the
    offset or timestamp is out of range."""
    size = LEGACY_SIZE_V1 if magic else LEGACY_SIZE_V0
    size += (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    try:
        if magic:
            head = _MESSAGE_V1.pack(offset, size - LOG_OVERHEAD, 0, 1, attributes, timestamp)
        else:
            head = _MESSAGE_V0.pack(offset, size - LOG_OVERHEAD, 0, 0, attributes)
    except StructError as error:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the offset or timestamp of a message is out of range: {error}"
        ) from None
    out = bytearray(head)
    for field in (key, value):
        if field is None:
            out += b"\xff\xff\xff\xff"
        else:
            out += _LENGTH.pack(len(field))
            out += field
    U32.pack_into(out, LEGACY_CRC_POSITION, zlib.crc32(memoryview(out)[MAGIC_POSITION:]))
    return out


def encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        key = name.encode("utf-8", "surrogateescape")
        parts.append(encode_varint(len(key)))
        parts.append(key)
        if value is None:
            parts.append(b"\x01")
        else:
            parts.append(encode_varint(len(value)))
            parts.append(value)
    return b"".join(parts)
