"""Reads the records of batches, of all formats and codecs.

Malformed data (lengths, counts, overlong varints, nested wrappers) raises CORRUPT_MESSAGE. Data
that decompresses to more than the limit raises MESSAGE_TOO_LARGE. Records are parsed lazily, so the
memory use is limited by the size of the batch and `max_decompressed`, and an error may be raised
after the first records were returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import HEADER_SIZE, LOG_APPEND_TIME, Batch, Buffer, batches, corrupt, legacy_key_value
from kavka.records.compression import MAX_DECOMPRESSED, ZSTD, decompress
from kavka.records.limits import check_count, unpacked_limit
from kavka.records.record import Header, Record
from kavka.records.varint import decode_varint


def read_records(
    buf: Buffer,
    verify_crc: bool = True,
    max_decompressed: int = MAX_DECOMPRESSED,
    *,
    include_control: bool = False,
) -> Iterator[Record]:
    """Yield the records of all complete batches in `buf`, in order. Control batches are skipped
    unless `include_control` is set. The first batch of a fetch may start before the fetch offset;
    the caller must skip the records before the fetch offset."""
    for batch in batches(buf):
        if include_control or not batch.is_control:
            yield from batch_records(batch, verify_crc, max_decompressed)


def batch_records(
    batch: Batch, verify_crc: bool = True, max_decompressed: int = MAX_DECOMPRESSED, *, limited: bool = False
) -> Iterator[Record]:
    """Return an iterator over the records of one batch (magic 2), or of one message or wrapper
    (magic 0, 1). With `limited`, also raises MESSAGE_TOO_LARGE if the batch exceeds
    kavka.records.limits.
    """
    if limited and batch.codec:
        max_decompressed = min(max_decompressed, unpacked_limit(batch.size))
        check_count(batch.count or 0, batch.size)
    if verify_crc:
        batch.ensure_crc()
    if batch.magic == 2:
        body = batch_body(batch, max_decompressed)
        append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
        return parse_body(body, batch.count or 0, batch.base_offset, batch.base_timestamp, append_time)
    if batch.codec:
        return _unwrap(batch, verify_crc, max_decompressed, limited)
    return iter((_message(batch, batch.last_offset, batch.max_timestamp),))


def batch_body(batch: Batch, max_decompressed: int = MAX_DECOMPRESSED) -> bytes:
    """Return the decompressed bytes of the records of a magic 2 batch."""
    body = memoryview(batch.buf)[batch.start + HEADER_SIZE : batch.end]
    return decompress(batch.codec, body, max_decompressed) if batch.codec else bytes(body)


def parse_body(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[Record]:
    """Yield the records in `body`, the decompressed records of a magic 2 batch. Raises
    CORRUPT_MESSAGE if `body` does not have exactly `count` records. The function is long, because a
    call per record would be slow."""
    new = tuple.__new__
    size = len(body)
    pos = 0
    timestamp = append_time
    try:
        for _ in range(count):
            # Varints of one byte, and lengths of two bytes, are decoded inline.
            varint = body[pos]
            if varint < 128:
                pos += 1
                length = varint >> 1 ^ -(varint & 1)
            else:
                second = body[pos + 1]
                if second < 128:
                    pos += 2
                    varint = varint & 127 | second << 7
                    length = varint >> 1 ^ -(varint & 1)
                else:
                    length, pos = decode_varint(body, pos)
            end = pos + length
            if end > size or length < 0:
                raise corrupt(f"a record has a length of {length} bytes, but {size - pos} bytes remain in the batch")

            # The attributes of the record, an unused byte, precede the timestamp delta.
            pos += 1
            varint = body[pos]
            if varint < 128:
                pos += 1
                delta = varint >> 1 ^ -(varint & 1)
            else:
                delta, pos = decode_varint(body, pos, 10)
            if append_time is None:
                timestamp = base_timestamp + delta

            varint = body[pos]
            if varint < 128:
                pos += 1
                delta = varint >> 1 ^ -(varint & 1)
            else:
                second = body[pos + 1]
                if second < 128:
                    pos += 2
                    varint = varint & 127 | second << 7
                    delta = varint >> 1 ^ -(varint & 1)
                else:
                    delta, pos = decode_varint(body, pos)

            varint = body[pos]
            if varint < 128:
                pos += 1
                length = varint >> 1 ^ -(varint & 1)
            else:
                length, pos = decode_varint(body, pos)
            if length >= 0:
                stop = pos + length
                key: bytes | None = body[pos:stop]
                pos = stop
            elif length == -1:
                key = None
            else:
                raise corrupt(f"a record's key has the invalid length {length}")

            varint = body[pos]
            if varint < 128:
                pos += 1
                length = varint >> 1 ^ -(varint & 1)
            else:
                second = body[pos + 1]
                if second < 128:
                    pos += 2
                    varint = varint & 127 | second << 7
                    length = varint >> 1 ^ -(varint & 1)
                else:
                    length, pos = decode_varint(body, pos)
            if length >= 0:
                stop = pos + length
                value: bytes | None = body[pos:stop]
                pos = stop
            elif length == -1:
                value = None
            else:
                raise corrupt(f"a record's value has the invalid length {length}")

            if body[pos] == 0:
                pos += 1
                headers: tuple[Header, ...] = ()
            else:
                headers, pos = _parse_headers(body, pos, end)
            # This also detects fields that extend past the end of the record.
            if pos != end:
                raise corrupt("a record's fields do not end at the end of the record")
            yield new(Record, (base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise corrupt(f"a batch of {count} records ends before the last of them") from None
    if pos != size:
        raise corrupt(f"a batch has {size - pos} bytes after the last of its {count} records")


def _parse_headers(body: bytes, pos: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, pos = decode_varint(body, pos)
    if count < 0 or count * 2 > end - pos:
        raise corrupt(f"a record has the invalid header count {count}")
    headers: list[Header] = []
    for _ in range(count):
        length, pos = decode_varint(body, pos)
        if length < 0 or length > end - pos:
            raise corrupt(
                f"the key of a header has a length of {length} bytes, but {end - pos} bytes remain in the record"
            )
        key = body[pos : pos + length].decode("utf-8", "surrogateescape")
        pos += length
        length, pos = decode_varint(body, pos)
        if length < -1 or length > end - pos:
            raise corrupt(
                f"the value of a header has a length of {length} bytes, but {end - pos} bytes remain in the record"
            )
        if length == -1:
            headers.append((key, None))
        else:
            headers.append((key, body[pos : pos + length]))
            pos += length
    return tuple(headers), pos


def _message(message: Batch, offset: int, timestamp: int) -> Record:
    key, value = legacy_key_value(message.buf, message)
    return Record(offset, timestamp, None if key is None else bytes(key), None if value is None else bytes(value))


def _unwrap(wrapper: Batch, verify_crc: bool, max_decompressed: int, limited: bool) -> Iterator[Record]:
    """Yield the inner messages of a compressed message.

    In magic 0 the inner messages have absolute offsets. In magic 1 the offsets are relative: the
    last message has the offset of the wrapper. Some producers send the offset 0 in the wrapper; the
    inner offsets are then used as they are. With LogAppendTime all inner messages have the
    timestamp of the wrapper.
    """
    if wrapper.codec >= ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"magic {wrapper.magic} does not support compression type {wrapper.codec}",
        )
    _, packed = legacy_key_value(wrapper.buf, wrapper)
    if packed is None:
        raise corrupt("a compressed message has no value")
    data = decompress(wrapper.codec, packed, max_decompressed)
    end = last = 0
    for count, message in enumerate(batches(data), start=1):
        if limited and not count % 1000:
            check_count(count, wrapper.size)
        if message.magic != wrapper.magic:
            raise corrupt(f"a message of magic {message.magic} is inside a message of magic {wrapper.magic}")
        if message.codec:
            raise corrupt("a compressed message is inside a compressed message")
        end = message.end
        last = message.last_offset
    if end == 0:
        raise corrupt("a compressed message has no inner messages")
    if end != len(data):
        raise corrupt("the last message inside a compressed message is incomplete")
    shift = wrapper.last_offset - last if wrapper.magic == 1 and wrapper.last_offset else 0
    append_time = wrapper.max_timestamp if wrapper.magic == 1 and wrapper.timestamp_type == LOG_APPEND_TIME else None
    for message in batches(data):
        if verify_crc:
            message.ensure_crc()
        timestamp = message.max_timestamp if append_time is None else append_time
        yield _message(message, message.last_offset + shift, timestamp)
