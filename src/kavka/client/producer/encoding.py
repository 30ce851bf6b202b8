"""Encodes a closed batch for a Produce request, and decodes it for a split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from crc32c import crc32c

from kavka.client.errors import SerializationError
from kavka.client.producer._append import Batch
from kavka.records.batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL_MASK,
    U32,
)
from kavka.records.builder import encode_headers
from kavka.records.compression import compress
from kavka.records.reader import read_records
from kavka.records.record import Record

NO_HEADERS = b"\x00"


def encode_batch(batch: Batch, codec: int, level: int | None, transactional: bool) -> memoryview:
    """Return the bytes of the batch with its current producer id, epoch and sequence, and set
    `batch.data`. Later calls encode the header again only if one of these three values has
    changed."""
    identity = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    if batch.data is not None and batch.encoded_identity == identity:
        encoded: memoryview = batch.data
        return encoded
    if batch.data is None:
        if codec:
            compressed = compress(codec, memoryview(batch.body)[HEADER_SIZE : batch.size], level)
            out = bytearray(HEADER_SIZE + len(compressed))
            out[HEADER_SIZE:] = compressed
            batch.data = memoryview(out)
        else:
            batch.data = memoryview(batch.body)[: batch.size]
    data: memoryview = batch.data
    if batch.codec >= 0:
        codec = batch.codec
    attributes = codec | (TRANSACTIONAL_MASK if transactional else 0)
    HEADER.pack_into(
        data, 0, 0, len(data) - LOG_OVERHEAD, -1, 2, 0, attributes, batch.count - 1, batch.base_timestamp,
        batch.max_timestamp, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count,
    )  # fmt: skip
    U32.pack_into(data, CRC_POSITION, crc32c(data[ATTRIBUTES_POSITION:]))
    batch.encoded_identity = identity
    return data


def records_of(batch: Batch) -> list[Record]:
    """Return the records of an encoded batch."""
    return list(read_records(batch.data, verify_crc=False))


def encoded_headers(headers: Iterable[tuple[str, Any]] | Mapping[str, Any] | None) -> bytes:
    """Encode the headers of a record. Raises SerializationError if they are invalid."""
    if not headers:
        return NO_HEADERS
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)):
            raise SerializationError(f"a header must be a pair of a string and bytes, not {pair!r}")
        if pair[1] is not None and not isinstance(pair[1], (bytes, bytearray, memoryview)):
            raise SerializationError(f"the value of header {pair[0]} must be bytes, not {type(pair[1]).__name__}")
    return encode_headers([(name, value) for name, value in pairs])
