"""Avro data encoded by hand, so that it can contain errors that no library would write."""

from __future__ import annotations

import json
import zlib
from typing import Any

from kavka.console.avro import CONTAINER


def number(value: int) -> bytes:
    """Encode a long."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def container(schema: Any, *blocks: tuple[int, bytes], codec: bytes = b"null") -> bytes:
    """Encode an object container file with blocks of (count, bytes)."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    meta = {b"avro.schema": text, b"avro.codec": codec}
    out = CONTAINER + number(len(meta))
    for name, value in meta.items():
        out += number(len(name)) + name + number(len(value)) + value
    out += b"\0" + b"S" * 16
    for count, data in blocks:
        out += number(count) + number(len(data)) + data + b"S" * 16
    return out


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()
