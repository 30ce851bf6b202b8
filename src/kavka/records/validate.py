"""What a leader checks before records enter its log.

`validate_produce` has a fast path for what clients of today send: it reads the header, checks CRC and lengths, and
hands back the caller's own buffer (docs/decisions/0001-produce-validation.md has the figures). Whatever is not
plainly right goes to `kavka.records.normalise`, which finds the error that Kafka would answer with, opens the records
where a rule asks for it (compacted topics, bounds on timestamps), or rewrites them (another compression, magic 0, 1).
"""

from __future__ import annotations

from crc32c import crc32c

from kavka.records.batch import HEADER, HEADER_SIZE, MIN_RECORD_SIZE, assign_offsets
from kavka.records.normalise import normalise_produce, normalise_small
from kavka.records.rules import (
    LATEST_API_VERSION,
    NO_BOUND,
    InvalidRecordError,
    ProduceRules,
    TooLargeToOpenHere,
    ValidatedBatch,
)

__all__ = [
    "LATEST_API_VERSION",
    "NO_BOUND",
    "InvalidRecordError",
    "ProduceRules",
    "TooLargeToOpenHere",
    "ValidatedBatch",
    "assign_offsets",
    "body_holds",
    "validate_produce",
]

# Up to this many records the lengths of all of them are walked over; offset deltas of more take two bytes and are rare
# enough in other data to be searched for.
_WALK_UP_TO = 64
_TAIL = 4096
_NOWHERE = 1 << 40
# How far the next record is, by the first byte of a length of one byte, and of one of two (without the second byte's
# share). Odd numbers are negative lengths: they lead out of any buffer.
_SHORT = tuple(_NOWHERE if byte & 1 else 1 + (byte >> 1) for byte in range(128))
_LONGER = tuple(_NOWHERE if byte & 1 else 2 + ((byte & 127) >> 1) for byte in range(256))
# Attributes with any bit but the codec's, the transactional and the delete horizon's are not for the fast path.
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
    """Check the records of one partition of a Produce request (or, with `from_client` False, a coordinator's).

    `buf` is writable and holds exactly the records field. Raises KafkaError with the code that Kafka answers with,
    InvalidRecordError where single records are at fault; nothing in `buf` has changed then. CORRUPT_MESSAGE: sizes or
    CRC; INVALID_RECORD: counts, offsets, missing keys, control records, more or fewer than one batch;
    MESSAGE_TOO_LARGE (also for what unpacks to too much); INVALID_TIMESTAMP; UNSUPPORTED_COMPRESSION_TYPE.

    With `on_loop`, TooLargeToOpenHere where records have to be opened and that may take more than a few milliseconds.
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
            and (codec or body_holds(buf, size, count))
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


def body_holds(buf: memoryview | bytearray, size: int, count: int) -> bool:
    """Whether the body of an uncompressed magic 2 batch of `size` bytes is cut into exactly `count` records.

    Where there are many, the last one is looked for from the end (its offset delta must be count - 1): that takes a
    microsecond, where the walk over all lengths takes 0.1 per record, and it sees any miscount that is not forged
    inside a record's own bytes. Where it finds nothing, the walk decides.
    """
    if count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        return False
    if count > _WALK_UP_TO and _ends_with_record(buf, size, count - 1):
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
    """Where a record ends whose length takes three bytes or more; far past the end where that cannot be."""
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
    """Whether the last bytes are a record of less than 4 KB with the offset delta `delta` (64 or more).

    A record: length varint, attributes (always 0), timestamp delta, offset delta, …; the length must reach to the end.
    """
    if delta < 8192:
        needle = bytes((delta << 1 & 127 | 128, delta >> 6))
    elif delta < 1 << 20:
        needle = bytes((delta << 1 & 127 | 128, delta >> 6 & 127 | 128, delta >> 13))
    else:
        return False
    tail = bytes(buf[max(HEADER_SIZE, size - _TAIL) :])
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
