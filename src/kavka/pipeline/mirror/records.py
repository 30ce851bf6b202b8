"""The records of MirrorMaker's topics, byte for byte as Kafka's `connect-mirror` writes them. No
I/O.

- `mm2-offset-syncs.<target>.internal`: topic, partition → upstream offset, downstream offset
- `<source>.checkpoints.internal`: group, topic (its name in the target), partition → version 0,
  upstream offset, downstream offset, metadata
- `heartbeats`: source, target → version 0, timestamp

Strings have a two-byte length prefix; numbers are big-endian: partitions have 4 bytes, offsets and
times 8, versions 2.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

_LENGTH = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
_SYNC = Struct(">qq")
_CHECKPOINT = Struct(">hqq")
_HEARTBEAT = Struct(">hq")


class RecordFormatError(ValueError):
    """The bytes are not a record of the expected type."""


class OffsetSync(NamedTuple):
    """The record at `upstream` in the source is at `downstream` in the target."""

    topic: str
    partition: int
    upstream: int
    downstream: int

    def key(self) -> bytes:
        return _text(self.topic) + _I32.pack(self.partition)

    def value(self) -> bytes:
        return _SYNC.pack(self.upstream, self.downstream)

    @classmethod
    def read(cls, key: bytes, value: bytes) -> OffsetSync:
        try:
            topic, position = _read_text(key, 0)
            return cls(topic, *_I32.unpack_from(key, position), *_SYNC.unpack_from(value))
        except (StructError, UnicodeDecodeError) as error:
            raise RecordFormatError(f"not an offset sync: {error}") from None


class Checkpoint(NamedTuple):
    """The committed offset of a group in the source, and the corresponding offset in the target."""

    group: str
    topic: str
    partition: int
    upstream: int
    downstream: int
    metadata: str = ""

    def key(self) -> bytes:
        return _text(self.group) + _text(self.topic) + _I32.pack(self.partition)

    def value(self) -> bytes:
        return _CHECKPOINT.pack(0, self.upstream, self.downstream) + _text(self.metadata)

    @classmethod
    def read(cls, key: bytes, value: bytes) -> Checkpoint:
        try:
            group, position = _read_text(key, 0)
            topic, position = _read_text(key, position)
            (partition,) = _I32.unpack_from(key, position)
            _, upstream, downstream = _CHECKPOINT.unpack_from(value)
            metadata, _ = _read_text(value, _CHECKPOINT.size)
        except (StructError, UnicodeDecodeError) as error:
            raise RecordFormatError(f"not a checkpoint: {error}") from None
        return cls(group, topic, partition, upstream, downstream, metadata)


class Heartbeat(NamedTuple):
    """A heartbeat of a flow, with the time of its creation in ms."""

    source: str
    target: str
    timestamp: int

    def key(self) -> bytes:
        return _text(self.source) + _text(self.target)

    def value(self) -> bytes:
        return _HEARTBEAT.pack(0, self.timestamp)

    @classmethod
    def read(cls, key: bytes, value: bytes) -> Heartbeat:
        try:
            source, position = _read_text(key, 0)
            target, _ = _read_text(key, position)
            _, timestamp = _HEARTBEAT.unpack_from(value)
        except (StructError, UnicodeDecodeError) as error:
            raise RecordFormatError(f"not a heartbeat: {error}") from None
        return cls(source, target, timestamp)


# A header that Kavka adds to an offset sync: the number of preceding records whose offsets are
# contiguous in source and target. Without the header a sync covers its record only. MirrorMaker
# ignores headers.
RUN_HEADER = "kavka.run"


def run_header(preceding: int) -> bytes:
    return _I64.pack(preceding)


def read_run_header(value: bytes | None) -> int:
    if value is None or len(value) != _I64.size:
        return 0
    return max(0, int(_I64.unpack(value)[0]))


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    if length < 0 or length > len(data) - position:
        raise RecordFormatError(f"a string has {length} bytes, but only {len(data) - position} bytes remain")
    return data[position : position + length].decode(), position + length
