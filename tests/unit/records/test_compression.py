from __future__ import annotations

import gzip
import random
import tracemalloc

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.compression import (
    CODEC_IDS,
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
)
from kavka.records.compression import _header_checksum as header_checksum

CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
PACKING = [GZIP, SNAPPY, LZ4, ZSTD]
NOISE = random.Random(7).randbytes(150_000)
MIXED = b"a line of a log that says little\n" * 5_000 + NOISE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", MIXED, NOISE], ids=["empty", "one byte", "mixed", "noise"])
def test_decompression_reverses_compression(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data))), len(data)) == data


@given(st.sampled_from(CODECS), st.binary(max_size=2000), st.integers(min_value=1, max_value=60))
def test_repeated_bytes_survive_any_codec(codec: int, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 17), (ZSTD, -5, 22)])
def test_every_level_can_be_decompressed_and_levels_differ(codec: int, low: int, high: int) -> None:
    text = b" ".join(str(i * i % 7919 ^ i).encode() for i in range(20_000))
    sizes = set()
    for level in (low, 1, high):
        packed = compress(codec, memoryview(bytearray(text)), level)
        sizes.add(len(packed))
        assert decompress(codec, packed) == text
    assert len(sizes) > 1


def test_codec_names_match_kafka() -> None:
    assert CODEC_NAMES == ("none", "gzip", "snappy", "lz4", "zstd")
    assert CODEC_IDS["zstd"] == 4


def test_an_unknown_codec_is_rejected() -> None:
    for codec in (5, 7, -1):
        with pytest.raises(KafkaError) as caught:
            decompress(codec, b"abc")
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        with pytest.raises(KafkaError):
            compress(codec, b"abc")


def test_all_gzip_members_are_read_and_trailing_bytes_ignored() -> None:
    assert decompress(GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    assert decompress(GZIP, gzip.compress(b"one") + b"\0\0\0") == b"one"
    with pytest.raises(KafkaError):
        decompress(GZIP, gzip.compress(b"one") * 3, 8)


def test_raw_snappy_without_a_frame_is_read() -> None:
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(MIXED))) == MIXED


def test_concatenated_snappy_streams_are_read() -> None:
    assert decompress(SNAPPY, compress(SNAPPY, b"one ") + compress(SNAPPY, b"two")) == b"one two"


def test_snappy_is_written_in_blocks_of_32_kb() -> None:
    packed = compress(SNAPPY, NOISE[:70_000])
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    blocks = []
    pos = 16
    while pos < len(packed):
        length = int.from_bytes(packed[pos : pos + 4], "big")
        blocks.append(cramjam.snappy.decompress_raw_len(packed[pos + 4 : pos + 4 + length]))
        pos += 4 + length
    assert blocks == [32768, 32768, 70_000 - 65536]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_linked": False},
        {"content_checksum": True},
        {"block_checksum": True},
        {"block_checksum": True, "block_linked": False},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB, "store_size": True},
        {"compression_level": 9},
    ],
)
def test_lz4_frames_of_every_kind_are_read_and_bounded(options: dict[str, int]) -> None:
    packed = lz4.frame.compress(MIXED, **options)
    assert decompress(LZ4, packed, len(MIXED)) == MIXED
    with pytest.raises(KafkaError) as caught:
        decompress(LZ4, packed, len(MIXED) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("linked", [True, False])
def test_lz4_with_the_header_checksum_of_magic_0_is_read(linked: bool) -> None:
    assert decompress(LZ4, compress(LZ4, MIXED, broken_lz4=True)) == MIXED
    frame = bytearray(lz4.frame.compress(MIXED, block_linked=linked, store_size=False, block_size=4))
    assert frame[4:6] == (b"\x40\x40" if linked else b"\x60\x40")
    assert frame[6] == header_checksum(bytes(frame[4:6]))
    frame[6] = header_checksum(bytes(frame[:6]))
    assert decompress(LZ4, frame) == MIXED
    frame[6] ^= 0x55
    with pytest.raises(KafkaError):
        decompress(LZ4, frame)


def test_our_lz4_is_read_by_the_reference_implementation() -> None:
    assert lz4.frame.decompress(compress(LZ4, MIXED)) == MIXED
    assert lz4.frame.decompress(compress(LZ4, MIXED, 12)) == MIXED
    assert lz4.frame.decompress(compress(LZ4, b"")) == b""


@pytest.mark.parametrize("codec", PACKING)
def test_the_decompression_limit_is_exact(codec: int) -> None:
    packed = compress(codec, MIXED)
    assert len(decompress(codec, packed, len(MIXED))) == len(MIXED)
    with pytest.raises(KafkaError) as caught:
        decompress(codec, packed, len(MIXED) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def bomb(codec: int) -> bytes:
    """Compress 200 MB of zeros."""
    if codec == SNAPPY:
        return compress(SNAPPY, bytes(1 << 20)) * 200
    return compress(codec, bytes(200 << 20), 1)


@pytest.mark.parametrize("codec", PACKING)
def test_a_decompression_bomb_is_rejected_in_bounded_memory(codec: int) -> None:
    packed = bomb(codec)
    limit = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            decompress(codec, packed, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    # The decoder uses a few buffers of the allowed size instead of 200 MB.
    assert peak < 4 * limit


def test_a_few_bytes_of_snappy_that_claim_a_gigabyte_are_corrupt() -> None:
    with pytest.raises(KafkaError) as caught:
        decompress(SNAPPY, b"\x80\x80\x80\x80\x04abc", 1 << 31)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("size", [0, 1, 3, 6, 7, 10, 20, -1])
def test_truncated_data_is_corrupt(codec: int, size: int) -> None:
    packed = compress(codec, b"hello " * 100)[:size]
    with pytest.raises(KafkaError) as caught:
        decompress(codec, packed)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@given(st.data())
def test_mutated_bytes_are_decompressed_or_rejected_with_a_code(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(PACKING))
    source = MIXED[165_000 - 200 : 165_000 + 200]
    packed = bytearray(
        lz4.frame.compress(source, content_checksum=True)
        if codec == LZ4 and data.draw(st.booleans())
        else compress(codec, source)
    )
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        packed[data.draw(st.integers(min_value=0, max_value=len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, packed, 10_000)) <= 10_000
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


@given(st.sampled_from(PACKING), st.binary(max_size=200))
def test_any_bytes_are_decompressed_or_rejected_with_a_code(codec: int, junk: bytes) -> None:
    starts = {GZIP: b"\x1f\x8b\x08", SNAPPY: b"\x82SNAPPY\0", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
    for data in (junk, starts[codec] + junk):
        try:
            assert len(decompress(codec, data, 10_000)) <= 10_000
        except KafkaError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
