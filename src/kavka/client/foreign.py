"""Recognizes the protocol of a peer that is not a Kafka broker by the first bytes that it sends."""

from __future__ import annotations

# TLS records begin with their type and the major version 3. A TLS server rejects a plain request
# with an alert.
_STARTS = (
    (b"HTTP", "an HTTP port"),
    (b"<!DO", "an HTTP port"),
    (b"<htm", "an HTTP port"),
    (b"<HTM", "an HTTP port"),
    (b"\x15\x03", "a TLS port"),
    (b"\x16\x03", "a TLS port"),
    (b"SSH-", "an SSH port"),
)


def foreign_protocol_hint(data: bytes | bytearray | memoryview) -> str:
    """Return a hint to append to an error message: the protocol that the bytes match, or the bytes
    if they are printable text. Empty for other bytes."""
    start = bytes(data[:4])
    for prefix, port in _STARTS:
        if start.startswith(prefix):
            return f" (this looks like {port})"
    if len(start) == 4 and all(0x20 <= byte < 0x7F or byte in b"\r\n\t" for byte in start):
        return f" (it begins with the text {start.decode()!r})"
    return ""
