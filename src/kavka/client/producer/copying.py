"""Copies records between batches in pure Python. The compiled form uses `write_records` in
`_append.pxd` instead."""

from __future__ import annotations

from kavka.records.varint import SMALL_VARINTS, decode_varint, encode_varint

SMALL_VARINT_LIMIT = len(SMALL_VARINTS)


def copied_records(
    body: bytes,
    count: int,
    base_offset: int,
    first: int,
    end: int,
    base_timestamp: int,
    append_time: int,
    index: int,
    base: int,
    newest: int,
) -> tuple[bytes, int, int, int]:
    """Like `Batch.append_records`, for a batch with `index` records, base timestamp `base` and
    maximum timestamp `newest`. Returns (bytes of the copied records, their count, base timestamp,
    maximum timestamp). Raises ValueError if `body` is invalid."""
    pos = 0
    size = len(body)
    initial_count = index
    parts: list[bytes] = []
    try:
        for _ in range(count):
            length, pos = decode_varint(body, pos)
            stop = pos + length
            if length < 0 or stop > size:
                raise ValueError(f"a record has a length of {length} bytes, but {size - pos} bytes remain in the batch")
            delta, at = decode_varint(body, pos + 1, 10)
            offset, at = decode_varint(body, at)
            pos = stop
            if at > stop:
                raise ValueError("a record's fields extend past its end")
            if base_offset + offset < first:
                continue
            if base_offset + offset >= end:
                break
            timestamp = base_timestamp + delta if append_time < 0 else append_time
            if index == 0:
                base = timestamp
            if timestamp > newest:
                newest = timestamp
            delta = timestamp - base
            fields = (
                b"\x00",
                SMALL_VARINTS[delta] if 0 <= delta < SMALL_VARINT_LIMIT else encode_varint(delta),
                SMALL_VARINTS[index] if index < SMALL_VARINT_LIMIT else encode_varint(index),
                body[at:stop],
            )
            length = sum(map(len, fields))
            parts.append(SMALL_VARINTS[length] if length < SMALL_VARINT_LIMIT else encode_varint(length))
            parts += fields
            index += 1
    except IndexError:
        raise ValueError("the batch ends before its last record") from None
    return b"".join(parts), index - initial_count, base, newest
