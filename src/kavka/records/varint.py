"""Varints of magic 2 records: zigzag integers with 7 bits per byte, least significant first."""

from __future__ import annotations

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import corrupt


def encode_varint(value: int) -> bytes:
    """Encode a signed integer of at most 64 bits. Raises INVALID_RECORD for a larger one."""
    if not -(1 << 63) <= value < 1 << 63:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"cannot encode {value}: it has more than 64 bits")
    zigzag = value << 1 ^ value >> 63
    if zigzag < 0x80:
        return bytes((zigzag,))
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def decode_varint(buf: bytes, pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """Decode a signed integer. Returns the integer and the position after it. Raises
    CORRUPT_MESSAGE if the integer has more than `max_bytes` bytes or more than 32 bits (64 if
    `max_bytes` is 10), and IndexError if `buf` ends within it."""
    zigzag = shift = 0
    for _ in range(max_bytes):
        byte = buf[pos]
        pos += 1
        zigzag |= (byte & 127) << shift
        if byte < 128:
            if zigzag >> (32 if max_bytes == 5 else 64):
                break
            return zigzag >> 1 ^ -(zigzag & 1), pos
        shift += 7
    raise corrupt("a varint is too long")


# The encodings of small integers. Nearly all lengths and offset deltas are small.
SMALL_VARINTS = tuple(encode_varint(value) for value in range(2048))
