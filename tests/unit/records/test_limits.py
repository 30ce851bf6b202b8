"""Limits of decompression: they bound time and memory, and regular batches stay below them."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import lz4.frame
import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records import compression
from kavka.records.batch import batch_at
from kavka.records.builder import BatchBuilder
from kavka.records.compression import GZIP, LZ4, MAX_BLOCKS, SNAPPY, ZSTD, decompress
from kavka.records.limits import MAX_UNPACKED_BYTES, MIN_RECORDS, MIN_UNPACKED_BYTES, record_limit, unpacked_limit
from kavka.records.reader import batch_records
from kavka.records.record import Record
from kavka.records.rules import MustDecompressInWorker, ProduceRules
from kavka.records.validate import validate_produce
from tests.support.wire import BatchFields, message, record

COMPACTED = ProduceRules(compacted=True)
NOW = 1_700_000_000_000
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def members(sizes: list[int]) -> tuple[bytes, bytes]:
    """Return random data, and the same data as concatenated gzip members."""
    pieces = [random.Random(size).randbytes(size) for size in sizes]
    return b"".join(pieces), b"".join(gzip.compress(piece, 1) for piece in pieces)


@pytest.mark.parametrize("sizes", [[0], [10, 0, 5], [100_000, 7, 50_000, 4096, 8192, 1], [3] * 500])
def test_concatenated_gzip_members_are_read(sizes: list[int]) -> None:
    plain, packed = members(sizes)
    assert decompress(GZIP, packed) == plain
    assert decompress(GZIP, packed + b"trailing") == plain
    assert decompress(GZIP, packed, len(plain)) == plain
    if plain:
        with pytest.raises(KafkaError, match="decompressed records exceed"):
            decompress(GZIP, packed, len(plain) - 1)
    with pytest.raises(KafkaError, match="gzip"):
        decompress(GZIP, packed[:-1])


BLOCKS = {
    "gzip": (GZIP, b"", gzip.compress(b"", mtime=0)),
    "snappy": (SNAPPY, XERIAL, struct.pack(">i", 1) + b"\0"),
    "snappy streams": (SNAPPY, b"", XERIAL),
    "lz4": (LZ4, lz4.frame.compress(b"", block_linked=False)[:7], b"\x01\0\0\0\0"),
    "zstd": (ZSTD, b"", bytes(cramjam.zstd.compress(b""))),
    "zstd skippable": (ZSTD, b"", struct.pack("<II", 0x184D2A50, 0)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_number_of_blocks_is_limited(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_BLOCKS", 1000)
    codec, head, block = BLOCKS[name]
    tail = bytes(4) if codec == LZ4 else b""
    assert decompress(codec, head + block * 400 + tail) == b""
    with pytest.raises(KafkaError, match="more than 1000 blocks") as caught:
        decompress(codec, head + block * 1001 + tail)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_compressors_write_far_fewer_blocks_than_the_limit() -> None:
    assert MAX_BLOCKS > 4 * MAX_UNPACKED_BYTES // (32 * 1024)


def test_the_limits_grow_with_the_batch_and_have_bounds() -> None:
    assert unpacked_limit(0) == unpacked_limit(1 << 20) == MIN_UNPACKED_BYTES
    assert unpacked_limit(10 << 20) == 160 << 20
    assert unpacked_limit(1 << 30) == MAX_UNPACKED_BYTES
    assert record_limit(10) == MIN_RECORDS
    assert record_limit(1 << 20) == 1 << 20


def batch(count: int, codec: int) -> bytearray:
    builder = BatchBuilder(codec=codec)
    for _ in range(count):
        builder.append(Record(-1, NOW, b"", None))
    return builder.build()


def copies(count: int, magic: int) -> bytearray:
    """A batch with the same record `count` times. No builder writes equal offsets, but such a batch
    compresses best."""
    if magic == 2:
        return bytearray(BatchFields(gzip.compress(record(None, b"") * count), count, attributes=GZIP).encode())
    inner = message(None, b"", magic=magic, timestamp=NOW)
    return bytearray(message(gzip.compress(inner * count), magic=magic, attributes=GZIP, timestamp=NOW))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_batch_of_too_many_records_is_rejected(magic: int) -> None:
    data = copies(MIN_RECORDS + 1000, magic)
    with pytest.raises(KafkaError, match=f"more than {MIN_RECORDS} records") as caught:
        validate_produce(memoryview(data), COMPACTED, NOW, 2 if magic < 2 else 7)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    batch = batch_at(data, 0, len(data))
    assert batch is not None
    with pytest.raises(KafkaError, match="records"):
        list(batch_records(batch, limited=True))


def test_only_small_batches_are_decompressed_on_the_loop() -> None:
    small = memoryview(batch(100, GZIP))
    assert validate_produce(small, COMPACTED, NOW, on_loop=True).count == 100
    for large in (batch(20_000, GZIP), batch(5000, 0)):
        with pytest.raises(MustDecompressInWorker):
            validate_produce(memoryview(large), COMPACTED, NOW, on_loop=True)
        assert validate_produce(memoryview(large), COMPACTED, NOW).count in (20_000, 5000)


def test_a_batch_of_any_size_is_accepted_without_decompression() -> None:
    assert validate_produce(memoryview(batch(20_000, GZIP)), ProduceRules(), NOW, on_loop=True).count == 20_000
