"""Down-conversion of stored batches for old consumers (Fetch v0-1: magic 0, v2-3: magic 1)."""

from __future__ import annotations

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import LOG_APPEND_TIME, Batch, Buffer, batches
from kavka.records.builder import BatchBuilder
from kavka.records.compression import MAX_DECOMPRESSED, ZSTD
from kavka.records.reader import batch_records


def down_convert(buf: Buffer, to_magic: int, first_offset: int = 0, max_decompressed: int = MAX_DECOMPRESSED) -> bytes:
    """Return the complete batches in `buf` as a message set of magic 0 or 1 with the same offsets.

    Record headers and control batches are omitted, because the old formats do not have them, so the
    result may be empty. Records before `first_offset` are omitted, except in compressed batches,
    where the consumer skips them. Batches of magic `to_magic` or less are copied unchanged. Raises
    UNSUPPORTED_COMPRESSION_TYPE for zstd, and MESSAGE_TOO_LARGE for batches that exceed
    kavka.records.limits.
    """
    out = bytearray()
    for batch in batches(buf):
        if batch.is_control:
            continue
        if batch.magic <= to_magic:
            out += batch.data
        else:
            out += _convert(batch, to_magic, first_offset, max_decompressed)
    return bytes(out)


def _convert(batch: Batch, to_magic: int, first_offset: int, max_decompressed: int) -> bytes | bytearray:
    codec = batch.codec
    if codec >= ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "records compressed with zstd cannot be converted to older formats"
        )
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else -1
    builder: BatchBuilder | None = None
    for record in batch_records(batch, max_decompressed=max_decompressed, limited=True):
        if not codec and record.offset < first_offset:
            continue
        if builder is None:
            builder = BatchBuilder(to_magic, codec, record.offset, batch.timestamp_type, append_time=append_time)
        builder.append(record)
    return b"" if builder is None else builder.build()
