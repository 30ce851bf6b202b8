"""Zigzag variable-length integers of magic 2 records: 7 bits per byte, least significant first."""

from __future__ import annotations

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import corrupt


def encode_varint(value: int) -> bytes:
    """Encode a signed number of at most 64 bits."""
    if not -(1 << 63) <= value < 1 << 63:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{value} does not fit in 64 bits")
    number = value << 1 ^ value >> 63
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(buf: bytes, pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """Decode a signed number. Returns the number and the position after it. Raises CORRUPT_MESSAGE
    for a number of more than `max_bytes` bytes or of more than 32 bits (64 if `max_bytes` is 10),
    and IndexError at the end of `buf`."""
    number = shift = 0
    for _ in range(max_bytes):
        byte = buf[pos]
        pos += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number >> (32 if max_bytes == 5 else 64):
                break
            return number >> 1 ^ -(number & 1), pos
        shift += 7
    raise corrupt("a variable-length number is too long")


# Nearly all lengths and offset deltas are small numbers.
SMALL_VARINTS = tuple(encode_varint(value) for value in range(2048))
