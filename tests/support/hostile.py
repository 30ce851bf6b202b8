"""Malformed and malicious requests, and the reaction of a broker to them.

`CASES` maps a name to the bytes of one connection. `outcome` sends them and returns "closed",
"silent", or the error code of the response. `python -m tests.support.hostile HOST:PORT` prints the
table for a running broker. The expectations in the test are the results of Apache Kafka."""

from __future__ import annotations

import gzip
import random
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import lz4.frame

from tests.support import wire
from tests.support.wire import (
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    BatchFields,
    Reader,
    Wire,
    array,
    batch,
    message,
    record,
    request,
    string,
    varint,
)

TOPIC = "hostile"


@dataclass(frozen=True)
class Case:
    """The bytes of a connection, and the function that reads the error code of the response."""

    data: bytes
    code: Callable[[Reader], int] | None = None
    half_close: bool = False


def _produce(records: bytes | None, version: int = 7, topic: str = TOPIC, partition: int = 0, acks: int = 1) -> Case:
    body = wire.produce_request(topic, partition, records, version=version, acks=acks)
    return Case(request(PRODUCE, version, body), lambda response: wire.produce_error(response, version)[0])


def _fetch(offset: int, version: int = 4, partition: int = 0, size: int = 1000) -> Case:
    body = wire.fetch_request(TOPIC, partition, offset, version=version, max_bytes=size)
    return Case(request(FETCH, version, body), lambda response: wire.fetched(response, version)[0])


def _metadata_code(response: Reader) -> int:
    wire.brokers_of(response)
    assert response.int32() == 1
    return response.int16()


def _metadata(topic: str, create: bool) -> Case:
    body = wire.metadata_request([topic], allow_auto_create=create)
    return Case(request(METADATA, 4, body), _metadata_code)


def _create_code(response: Reader) -> int:
    response.int32()
    assert response.int32() == 1
    response.string()
    return response.int16()


def _create(topic: str, partitions: int = 1, **configs: str) -> Case:
    return Case(request(CREATE_TOPICS, 2, wire.create_topic_request(topic, partitions, configs)), _create_code)


def _create_partitions(topic: str, count: int) -> Case:
    """Return a CreatePartitions request of version 0."""
    body = array([string(topic) + struct.pack(">ii", count, -1)]) + struct.pack(">ib", 10_000, 0)
    return Case(request(CREATE_PARTITIONS, 0, body), _create_code)


def _list_offsets(timestamp: int) -> Case:
    body = struct.pack(">i", -1) + array([string(TOPIC) + array([struct.pack(">iq", 0, timestamp)])])

    def code(response: Reader) -> int:
        response.int32()
        response.string()
        response.int32()
        return response.unpack("ih")[1]

    return Case(request(LIST_OFFSETS, 1, body), code)


def _compressed_batch(codec: int, raw: bytes, count: int) -> bytes:
    pack: dict[int, Callable[[bytes], bytes]] = {
        1: lambda data: gzip.compress(data, 9),
        2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
        3: lambda data: lz4.frame.compress(data, block_linked=False),
        4: lambda data: bytes(cramjam.zstd.compress(data, 19)),
    }
    return BatchFields(pack[codec](raw), count, attributes=codec).encode()


def bomb(codec: int, size: int) -> bytes:
    """Return a valid batch with one record, whose value is `size` zeros."""
    body_size = len(b"\0" + varint(0) + varint(0) + varint(-1) + varint(size) + varint(0)) + size
    head = varint(body_size) + b"\0" + varint(0) + varint(0) + varint(-1) + varint(size)
    if codec == 1:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        pieces = [packer.compress(head)]
        chunk = bytes(1 << 20)
        for _ in range(size >> 20):
            pieces.append(packer.compress(chunk))
        pieces += [packer.compress(bytes(size & 0xFFFFF) + varint(0)), packer.flush()]
        return BatchFields(b"".join(pieces), 1, attributes=1).encode()
    return _compressed_batch(codec, head + bytes(size) + varint(0), 1)


_RANDOM = random.Random(20)
_RECORDS = b"".join(record(b"value", offset_delta=n) for n in range(3))
_FRAME = request(METADATA, 4, wire.metadata_request([TOPIC]))

CASES: dict[str, Case] = {
    # framing
    "random bytes": Case(b"\x7f" + _RANDOM.randbytes(4000)),
    "random bytes in a valid frame": Case(wire.frame(_RANDOM.randbytes(500))),
    "a length of 2 GB": Case(struct.pack(">i", 0x7FFFFFFF) + b"x" * 100),
    "a length over socket.request.max.bytes": Case(struct.pack(">i", 104857601) + b"x" * 100),
    "a negative length": Case(struct.pack(">i", -5) + b"x" * 100),
    "a length of zero": Case(struct.pack(">i", 0)),
    "a frame shorter than a header": Case(wire.frame(b"\0\3\0")),
    "a truncated frame": Case(_FRAME[:-5], half_close=True),
    "a truncated frame, held open": Case(_FRAME[:-5]),
    "an HTTP request": Case(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a TLS hello": Case(bytes.fromhex("160301") + _RANDOM.randbytes(300)),
    # headers
    "an unknown API key": Case(request(999, 0, b"")),
    "a negative API key": Case(request(-1, 0, b"")),
    "a version out of range": Case(request(METADATA, 99, b"\0\0\0\0\0")),
    "a negative version": Case(request(METADATA, -1, b"\0\0\0\0\0")),
    "ApiVersions of a version out of range": Case(request(API_VERSIONS, 99, b"\0" * 4), Reader.int16),
    "ApiVersions of a version out of range, a header without tags": Case(request(API_VERSIONS, 99, b"")),
    "a client id longer than the frame": Case(wire.frame(struct.pack(">hhih", METADATA, 4, 1, 9999) + b"x")),
    # bodies
    "bytes after the request": Case(request(METADATA, 4, wire.metadata_request([TOPIC]) + b"more"), _metadata_code),
    "a body that ends early": Case(request(METADATA, 4, struct.pack(">i", 3) + string("a"))),
    "an array of 2 billion": Case(request(METADATA, 4, struct.pack(">i", 0x7FFFFFFF) + string("a"))),
    "an array of -7": Case(request(PRODUCE, 7, string(None) + struct.pack(">hii", 1, 1000, -7))),
    "a name that is not UTF-8": Case(
        request(METADATA, 4, struct.pack(">ih", 1, 3) + b"\xff\xfe\xfd" + b"\0"), _metadata_code
    ),
    "records longer than the frame": Case(
        request(
            PRODUCE,
            7,
            string(None) + struct.pack(">hii", 1, 1000, 1) + string(TOPIC) + struct.pack(">iii", 1, 0, 1 << 30) + b"xx",
        )
    ),
    # names
    "Metadata of a name with a slash": _metadata("a/b", False),
    "Metadata that creates a name with a slash": _metadata("a/b", True),
    "Metadata of an empty name": _metadata("", True),
    "CreateTopics of a name with a slash": _create("a/b"),
    "CreateTopics of an empty name": _create(""),
    "CreateTopics of a name of 250": _create("x" * 250),
    "CreateTopics of a parent folder": _create(".."),
    "CreateTopics with 2 billion partitions": _create("huge", 0x7FFFFFFF),
    "CreateTopics with 10,001 partitions": _create("huge", 10_001),
    "CreateTopics with -7 partitions": _create("huge", -7),
    "CreatePartitions up to 2 billion": _create_partitions(TOPIC, 0x7FFFFFFF),
    "CreatePartitions up to -7": _create_partitions(TOPIC, -7),
    "Produce to a name with a slash": _produce(batch([b"x"]), topic="a/b"),
    "Produce to a parent folder": _produce(batch([b"x"]), topic="../../etc"),
    "Produce to partition 99": _produce(batch([b"x"]), partition=99),
    "Produce to partition -1": _produce(batch([b"x"]), partition=-1),
    "Produce with acks of 5": _produce(batch([b"x"]), acks=5),
    "Fetch of a negative offset": _fetch(-5),
    "Fetch past the end": _fetch(1 << 60),
    "Fetch of partition 99": _fetch(0, partition=99),
    "Fetch with a negative size": _fetch(0, size=-1),
    "ListOffsets of an unknown special time": _list_offsets(-99),
    # batches
    "a valid batch": _produce(batch([b"x", b"y"])),
    "no records": _produce(b""),
    "null records": _produce(None),
    "truncated records": _produce(batch([b"x" * 100])[:-20]),
    "a batch of 10 bytes": _produce(b"0123456789"),
    "a wrong CRC": _produce(batch([b"x"], crc=1)),
    "an unknown format": _produce(batch([b"x"], magic=3)),
    "a negative format": _produce(batch([b"x"], magic=-1)),
    "two batches": _produce(batch([b"x"]) + batch([b"y"])),
    "a batch length that is too short": _produce(batch([b"x" * 50], length=60)),
    "a batch length that is too long": _produce(batch([b"x" * 50], length=5000)),
    "a negative batch length": _produce(batch([b"x"], length=-1)),
    "a batch length of 0": _produce(batch([b"x"], length=0)),
    "bytes after the batch": _produce(batch([b"x"]) + b"\0" * 5),
    "a control batch": _produce(batch([b"x"], attributes=0x20)),
    "a transactional batch without an id": _produce(batch([b"x"], attributes=0x10)),
    "a base offset of 7": _produce(batch([b"x"], base_offset=7)),
    "a record count too high": _produce(BatchFields(_RECORDS, 5).encode()),
    "a record count too low": _produce(BatchFields(_RECORDS, 2).encode()),
    "a record count that differs from the last offset": _produce(
        BatchFields(_RECORDS, 3, last_offset_delta=9).encode()
    ),
    "a record count of 0": _produce(BatchFields(_RECORDS, 0).encode()),
    "a record count of -1": _produce(BatchFields(_RECORDS, -1).encode()),
    "a record count of 2 billion": _produce(BatchFields(_RECORDS, 0x7FFFFFFF).encode()),
    "a batch without records": _produce(BatchFields(b"", 0).encode()),
    "offsets out of order": _produce(
        BatchFields(record(b"x", offset_delta=1) + record(b"y", offset_delta=0), 2).encode()
    ),
    "a record length that is too long": _produce(BatchFields(varint(5000) + _RECORDS, 3).encode()),
    "a negative record length": _produce(BatchFields(varint(-5) + _RECORDS, 3).encode()),
    "a record length without end": _produce(BatchFields(b"\xff" * 50, 1).encode()),
    "a record too large": _produce(batch([b"x" * 1_100_000])),
    "a timestamp far ahead": _produce(batch([b"x"], base_timestamp=1 << 60, max_timestamp=1 << 60)),
    "a negative timestamp": _produce(batch([b"x"], base_timestamp=-5, max_timestamp=-5)),
    "a sequence without a producer": _produce(batch([b"x"], base_sequence=5)),
    "an unknown producer, sequence 5": _produce(batch([b"x"], producer_id=4242, producer_epoch=0, base_sequence=5)),
    "a producer with a negative epoch": _produce(batch([b"x"], producer_id=4243, producer_epoch=-3, base_sequence=0)),
    # compression
    "zstd in a version without zstd": _produce(_compressed_batch(4, _RECORDS, 3), version=6),
    "an unknown compression": _produce(BatchFields(_RECORDS, 3, attributes=5).encode()),
    "invalid gzip data": _produce(BatchFields(b"not gzip at all", 3, attributes=1).encode()),
    "a record count too high, gzip": _produce(_compressed_batch(1, _RECORDS, 5)),
    "a record count too low, gzip": _produce(_compressed_batch(1, _RECORDS, 2)),
    "a record count too high, lz4": _produce(_compressed_batch(3, _RECORDS, 5)),
    "a record count too high, zstd": _produce(_compressed_batch(4, _RECORDS, 5)),
    "a record count too high, snappy": _produce(_compressed_batch(2, _RECORDS, 5)),
    "a record count too low, zstd": _produce(_compressed_batch(4, _RECORDS, 2)),
    "a bomb of 200 MB, gzip": _produce(bomb(1, 200 << 20)),
    "a bomb of 200 MB, zstd": _produce(bomb(4, 200 << 20)),
    "a message of format 0 in a current request": _produce(message(b"x")),
}


def outcome(address: tuple[str, int], case: Case, wait: float = 1.5) -> str:
    """Send the bytes of a case. Return "closed", "silent", or the error code of the response."""
    with Wire(address, 30.0) as connection:
        connection.expect_correlation(1)
        try:
            connection.send(case.data)
            if case.half_close:
                connection.shut_for_writing()
        except OSError:
            return "closed"
        connection.socket.settimeout(30.0 if case.code else wait)
        try:
            response = connection.receive()
        except TimeoutError:
            return "silent"
        except OSError:
            return "closed"
        return "response" if case.code is None else str(case.code(response))


def main() -> int:
    host, port = sys.argv[1].rsplit(":", 1)
    address = (host, int(port))
    wire.create_topic(address, TOPIC)
    for name, case in CASES.items():
        print(f"{name:55} {outcome(address, case)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
