"""A minimal implementation of Kafka's wire format that does not use kavka.protocol, for tests that
check or send single bytes.

It supports only old versions without tagged fields. `*_request` functions return the body of a
request. `Wire` adds the header and the frame.
"""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 18, 19, 20, 37


def string(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def blob(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


class Reader:
    """A cursor over a response."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.position : self.position + size]
        if len(piece) != size:
            raise EOFError(f"{size} bytes expected at {self.position} of {len(self.data)}")
        self.position += size
        return piece

    def unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(">" + layout, self.take(struct.calcsize(">" + layout)))

    def int8(self) -> int:
        return self.unpack("b")[0]

    def int16(self) -> int:
        return self.unpack("h")[0]

    def int32(self) -> int:
        return self.unpack("i")[0]

    def int64(self) -> int:
        return self.unpack("q")[0]

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self.take(size).decode()

    def blob(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self.take(size)


class Wire:
    """A blocking connection to a broker."""

    def __init__(self, address: tuple[str, int], timeout: float = 10.0) -> None:
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_request(self, key: int, version: int, body: bytes, client_id: str | None = "wire") -> int:
        self._correlation += 1
        self.send(request(key, version, body, self._correlation, client_id))
        return self._correlation

    def receive(self) -> Reader:
        """Receive the next response. The reader is at the body, after the correlation id."""
        size = struct.unpack(">i", self._receive(4))[0]
        reader = Reader(self._receive(size))
        correlation = reader.int32()
        if correlation != self._correlation:
            raise AssertionError(f"correlation id {correlation}, {self._correlation} was sent")
        return reader

    def call(self, key: int, version: int, body: bytes, client_id: str | None = "wire") -> Reader:
        self.send_request(key, version, body, client_id)
        return self.receive()

    def expect_correlation(self, correlation: int) -> None:
        """Set the correlation id of the next response, after a frame that the test has built."""
        self._correlation = correlation

    def shut_for_writing(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def closed_within(self, seconds: float) -> bool:
        """Return whether the peer closes the connection in this time. Discard the received data."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self.socket.settimeout(remaining)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    def _receive(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            piece = self.socket.recv(size - len(pieces))
            if not piece:
                raise ConnectionResetError(f"closed after {len(pieces)} of {size} bytes")
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: int, version: int, body: bytes, correlation: int = 1, client_id: str | None = "wire") -> bytes:
    return frame(struct.pack(">hhi", key, version, correlation) + string(client_id) + body)


def responds(address: tuple[str, int], timeout: float = 5.0) -> bool:
    """Return whether the broker responds to ApiVersions."""
    try:
        with Wire(address, timeout) as wire:
            wire.call(API_VERSIONS, 0, b"")
            return True
    except (OSError, EOFError):
        return False


def served(address: tuple[str, int]) -> set[int]:
    """Return the API keys in the ApiVersions response of a broker."""
    with Wire(address) as wire:
        response = wire.call(API_VERSIONS, 0, b"")
        assert response.int16() == 0
        return {response.unpack("hhh")[0] for _ in range(response.int32())}


# --- record formats


def message(
    value: bytes | None,
    key: bytes | None = None,
    *,
    magic: int = 0,
    offset: int = 0,
    timestamp: int = 0,
    attributes: int = 0,
    crc: int | None = None,
) -> bytes:
    """Encode a message of format 0 or 1, preceded by its offset and size."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += blob(key) + blob(value)
    checksum = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", offset, len(body) + 4, checksum & 0xFFFFFFFF) + body


def varint(value: int) -> bytes:
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(value: bytes | None, key: bytes | None = None, *, offset_delta: int = 0, timestamp_delta: int = 0) -> bytes:
    def piece(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + piece(key) + piece(value) + varint(0)
    return varint(len(body)) + body


@dataclass
class BatchFields:
    """The fields of a record batch of format 2. The defaults are valid."""

    records: bytes
    count: int
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_000
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    crc: int | None = None
    length: int | None = None
    trailer: bytes = field(default=b"")

    def encode(self) -> bytes:
        delta = self.count - 1 if self.last_offset_delta is None else self.last_offset_delta
        checked = (
            struct.pack(
                ">hiqqqhii",
                self.attributes,
                delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            )
            + self.records
        )
        checksum = crc32c.crc32c(checked) if self.crc is None else self.crc
        length = 9 + len(checked) if self.length is None else self.length
        return (
            struct.pack(">qiibI", self.base_offset, length, self.leader_epoch, self.magic, checksum)
            + checked
            + self.trailer
        )


def batch(values: Sequence[bytes], **fields: int) -> bytes:
    records = b"".join(record(value, offset_delta=delta) for delta, value in enumerate(values))
    count = fields.pop("count", len(values))
    return BatchFields(records, count, **fields).encode()  # type: ignore[arg-type]


def messages(data: bytes) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
    """Yield (offset, magic, key, value) of the messages in an uncompressed message set of format 0
    or 1, without an incomplete message at the end."""
    position = 0
    while position + 12 <= len(data):
        offset, size = struct.unpack_from(">qi", data, position)
        if position + 12 + size > len(data):
            return
        reader = Reader(data[position + 12 : position + 12 + size])
        checksum = reader.unpack("I")[0]
        if zlib.crc32(reader.data[4:]) != checksum:
            raise AssertionError(f"wrong CRC at offset {offset}")
        magic, attributes = reader.unpack("bb")
        if attributes & 7:
            raise AssertionError("compressed")
        if magic == 1:
            reader.int64()
        key = reader.blob()
        yield offset, magic, key, reader.blob()
        position += 12 + size


# --- requests


def produce_request(topic: str, partition: int, records: bytes | None, *, version: int, acks: int = 1) -> bytes:
    head = string(None) if version >= 3 else b""
    data = array([struct.pack(">i", partition) + blob(records)])
    return head + struct.pack(">hi", acks, 10_000) + array([string(topic) + data])


def produce_error(response: Reader, version: int) -> tuple[int, int]:
    """Return (error code, base offset) of a Produce response with one partition, versions 0 to
    8."""
    assert response.int32() == 1
    response.string()
    assert response.int32() == 1
    response.int32()
    code = response.int16()
    return code, response.int64()


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    version: int,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
) -> bytes:
    head = struct.pack(">iii", -1, max_wait_ms, min_bytes)
    if version >= 3:
        head += struct.pack(">i", max_bytes)
    if version >= 4:
        head += b"\0"
    entry = struct.pack(">iq", partition, offset)
    if version >= 5:
        entry += struct.pack(">q", -1)
    entry += struct.pack(">i", max_bytes)
    return head + array([string(topic) + array([entry])])


def fetched(response: Reader, version: int) -> tuple[int, int, bytes]:
    """Return (error code, high watermark, records) of a Fetch response with one partition, versions
    0 to 5."""
    if version >= 1:
        response.int32()
    assert response.int32() == 1
    response.string()
    assert response.int32() == 1
    response.int32()
    code = response.int16()
    high_watermark = response.int64()
    if version >= 4:
        response.int64()
        if version >= 5:
            response.int64()
        for _ in range(max(response.int32(), 0)):
            response.unpack("qq")
    return code, high_watermark, response.blob() or b""


def create_topic_request(topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> bytes:
    """Return the body of a CreateTopics request of version 2."""
    entries = [string(name) + string(value) for name, value in (configs or {}).items()]
    body = string(topic) + struct.pack(">ih", partitions, 1) + array([]) + array(entries)
    return array([body]) + struct.pack(">i", 10_000) + b"\0"


def create_topic(address: tuple[str, int], topic: str, partitions: int = 1, **configs: str) -> int:
    """Create a topic and wait for its leaders. Return the error code. The names in `configs` have
    underscores instead of dots."""
    with Wire(address, 30.0) as wire:
        names = {name.replace("_", "."): value for name, value in configs.items()}
        response = wire.call(CREATE_TOPICS, 2, create_topic_request(topic, partitions, names))
        response.int32()
        assert response.int32() == 1
        response.string()
        code = response.int16()
        deadline = time.monotonic() + 10
        while code == 0 and not _has_leaders(wire, topic, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no leader for {topic}")
            time.sleep(0.02)
        return code


def delete_topic(address: tuple[str, int], topic: str) -> int:
    """Delete a topic with DeleteTopics of version 1. Return the error code."""
    with Wire(address, 60.0) as wire:
        response = wire.call(DELETE_TOPICS, 1, array([string(topic)]) + struct.pack(">i", 30_000))
        response.int32()
        assert response.int32() == 1
        response.string()
        return response.int16()


def metadata_request(topics: Sequence[str] | None, *, allow_auto_create: bool = False) -> bytes:
    """Return the body of a Metadata request of version 4."""
    names = struct.pack(">i", -1) if topics is None else array([string(topic) for topic in topics])
    return names + (b"\1" if allow_auto_create else b"\0")


def brokers_of(response: Reader) -> list[int]:
    response.int32()
    ids = []
    for _ in range(response.int32()):
        ids.append(response.int32())
        response.string()
        response.int32()
        response.string()
    response.string()
    response.int32()
    return ids


def _has_leaders(wire: Wire, topic: str, partitions: int) -> bool:
    """Return whether the broker responds as the leader of all partitions. Kafka's metadata contains
    a leader slightly too early."""
    return all(end_offset(wire, topic, partition)[0] == 0 for partition in range(partitions))


def end_offset(wire: Wire, topic: str, partition: int, timestamp: int = -1) -> tuple[int, int]:
    """Return (error code, offset) of a ListOffsets request of version 1."""
    body = struct.pack(">i", -1) + array([string(topic) + array([struct.pack(">iq", partition, timestamp)])])
    response = wire.call(LIST_OFFSETS, 1, body)
    assert response.int32() == 1
    response.string()
    assert response.int32() == 1
    _, code, _, offset = response.unpack("ihqq")
    return code, offset


def brokers_in_metadata(address: tuple[str, int], timeout: float = 5.0) -> list[int]:
    """Return the ids of the brokers in the metadata of a broker; none if it does not respond."""
    try:
        with Wire(address, timeout) as wire:
            return sorted(brokers_of(wire.call(METADATA, 4, metadata_request([]))))
    except (OSError, EOFError):
        return []


def lists_itself(address: tuple[str, int], timeout: float = 5.0) -> bool:
    """Return whether the metadata of a broker contains a broker, so that topics can be created."""
    return bool(brokers_in_metadata(address, timeout))


def next_offset(records: bytes, offset: int) -> int:
    """Return the offset after the last complete batch of format 2; `offset` if there is none."""
    position = 0
    while position + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > len(records):
            break
        offset = base + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += 12 + length
    return int(offset)
