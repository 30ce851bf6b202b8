"""Zigzag variable-length integers, as the records of magic 2 use them: 7 bits a byte, the least significant first."""

from __future__ import annotations

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import corrupt


def encode_varint(value: int) -> bytes:
    """`value` (a signed number of at most 64 bits) as a zigzag varint."""
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
    """(value, position after it). CORRUPT_MESSAGE for one longer than `max_bytes` or of more than 32 bits (64 for 10).

    Raises IndexError at the end of `buf`, which callers turn into an error of their own.
    """
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


SMALL_VARINTS = tuple(encode_varint(value) for value in range(2048))
"""Encodings of the numbers that nearly all lengths and offset deltas are."""
