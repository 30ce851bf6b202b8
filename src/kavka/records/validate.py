"""Validates produced records before a leader appends them.

`validate_produce` has a fast path for the batches of current clients: it checks the header, the CRC
and the record lengths, and returns the buffer of the caller
(docs/decisions/0001-produce-validation.md has the figures). `kavka.records.normalise` validates all
other batches. It raises the error that Kafka would return, checks the records if a rule requires
this (compacted topics, bounds on timestamps), or rewrites them (another compression type, magic 0
or 1).
"""

from __future__ import annotations

from crc32c import crc32c

from kavka.records.batch import HEADER, HEADER_SIZE, MIN_RECORD_SIZE
from kavka.records.normalise import normalise_produce, normalise_small
from kavka.records.rules import LATEST_API_VERSION, ProduceRules, ValidatedBatch

# Up to this many records, all record lengths are checked. For more records, the last offset delta
# has two bytes or more. Such a pattern is rare in other data, so it can be searched for.
_MAX_WALKED_RECORDS = 64
_MAX_TAIL_BYTES = 4096
_NOWHERE = 1 << 40
# The distance to the next record, by the first byte of a length of one byte (_SHORT) or two bytes
# (_LONGER, without the second byte). Odd bytes are negative lengths: their distance leads past the
# end of any buffer.
_SHORT = tuple(_NOWHERE if byte & 1 else 1 + (byte >> 1) for byte in range(128))
_LONGER = tuple(_NOWHERE if byte & 1 else 2 + ((byte & 127) >> 1) for byte in range(256))
# The fast path accepts only the attribute bits of codec, transactional and delete horizon.
_UNUSUAL_ATTRIBUTES = ~0x57
_ZSTD = 4


def validate_produce(
    buf: memoryview | bytearray,
    rules: ProduceRules,
    now_ms: int,
    api_version: int = LATEST_API_VERSION,
    from_client: bool = True,
    on_loop: bool = False,
) -> ValidatedBatch:
    """Validate the records of one partition of a Produce request or, if `from_client` is False, of
    a coordinator. Returns the batch to append.

    `buf` must be writable and contain exactly the records field. These errors leave it unchanged:

    - CORRUPT_MESSAGE: wrong sizes or CRC;
    - INVALID_RECORD: wrong counts or offsets, missing keys, control records, not exactly one batch
      (InvalidRecordError if some records are invalid);
    - MESSAGE_TOO_LARGE, also for the decompressed size;
    - INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.

    With `on_loop`, raises MustDecompressInWorker if the batch must be decompressed and that may
    take more than a few milliseconds.
    """
    size = len(buf)
    if size >= HEADER_SIZE:
        (
            base_offset, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp,
            producer_id, producer_epoch, sequence, count,
        ) = HEADER.unpack_from(buf)  # fmt: skip
        codec = attributes & 7
        if (
            magic == 2
            and length == size - 12
            and size <= rules.max_message_bytes
            and (rules.header_suffices or not from_client)
            and not attributes & _UNUSUAL_ATTRIBUTES
            and (codec == rules.codec or rules.codec is None)
            and (codec < _ZSTD or (codec == _ZSTD and api_version >= 7))
            and base_offset == 0
            and count == delta + 1
            and count > 0
            and (producer_id < 0 or sequence >= 0)
            and (
                rules.timestamp_type
                or (base_timestamp >= -1 and max_timestamp >= -1 and max_timestamp - now_ms <= rules.after_max_ms)
            )
            and crc32c(buf[21:]) == crc
            and (codec or has_record_count(buf, size, count))
        ):
            if rules.timestamp_type:
                max_timestamp = append_time = now_ms
            else:
                append_time = None
            return tuple.__new__(
                ValidatedBatch,
                (
                    buf, size, count, delta, max_timestamp, append_time, attributes, producer_id, producer_epoch,
                    sequence, attributes & 16 != 0, False, False,
                ),
            )  # fmt: skip
    normalise = normalise_small if on_loop else normalise_produce
    return normalise(buf, rules, now_ms, api_version, from_client)


def has_record_count(buf: memoryview | bytearray, size: int, count: int) -> bool:
    """Whether the body of an uncompressed magic 2 batch of `size` bytes has exactly `count`
    records.

    If there are many records, the last record is searched from the end of the body: its offset
    delta must be count - 1. The search takes a microsecond, a scan of all lengths 0.1 microseconds
    per record. The search detects a wrong count unless the bytes of a record imitate a last record.
    If the search fails, the lengths are scanned.
    """
    if count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        return False
    if count > _MAX_WALKED_RECORDS and _ends_with_record(buf, size, count - 1):
        return True
    pos = HEADER_SIZE
    short, longer = _SHORT, _LONGER
    try:
        for _ in range(count):
            low = buf[pos]
            if low < 128:
                pos += short[low]
            else:
                high = buf[pos + 1]
                if high < 128:
                    pos += (high << 6) + longer[low]
                else:
                    pos = _skip_long_record(buf, pos)
    except IndexError:
        return False
    return pos == size


def _skip_long_record(buf: memoryview | bytearray, pos: int) -> int:
    """Return the end of a record whose length has three bytes or more. For an invalid length,
    return a position past the end of any buffer."""
    length = shift = 0
    for _ in range(5):
        byte = buf[pos]
        pos += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return _NOWHERE if length & 1 else pos + (length >> 1)
    return _NOWHERE


def _ends_with_record(buf: memoryview | bytearray, size: int, delta: int) -> bool:
    """Whether the buffer ends with a record of less than 4 KB whose offset delta is `delta`, which
    must be 64 or more.

    A record begins with its length (a varint), attributes (always 0), the timestamp delta and the
    offset delta. The record must end exactly at the end of the buffer.
    """
    if delta < 8192:
        needle = bytes((delta << 1 & 127 | 128, delta >> 6))
    elif delta < 1 << 20:
        needle = bytes((delta << 1 & 127 | 128, delta >> 6 & 127 | 128, delta >> 13))
    else:
        return False
    tail = bytes(buf[max(HEADER_SIZE, size - _MAX_TAIL_BYTES) :])
    end = len(tail)
    at = end
    for _ in range(4):
        at = tail.rfind(needle, 0, at)
        if at < 4:
            return False
        start = at - 1
        if tail[start] > 127:
            continue
        while start > 3 and tail[start - 1] > 127:
            start -= 1
        start -= 1
        if tail[start]:
            continue
        length = end - start
        if length < 64:
            if tail[start - 1] == length << 1:
                return True
        elif tail[start - 1] == length >> 6 and tail[start - 2] == length << 1 & 127 | 128:
            return True
    return False
