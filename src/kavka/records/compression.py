"""The four compression types of record batches. Decompression limits the size of its result.

- gzip: RFC 1952, with one or more members.
- snappy: xerial framing, as Java writes it (16 bytes of header, then blocks of a 4-byte big-endian
  length and raw snappy). Raw snappy, which some older clients send, can also be read.
- lz4: LZ4 frames. With message format 0, clients include the magic number of the frame in the
  checksum of the frame header, which is wrong (KAFKA-3160). Decompression accepts both checksums;
  `broken_lz4` writes the wrong one.
- zstd: plain frames, magic 2 only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import Buffer, corrupt

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_IDS: Final = {name: codec for codec, name in enumerate(CODEC_NAMES)}
DEFAULT_LEVELS: Final = {GZIP: 6, LZ4: 9, ZSTD: 3}

# The default limit for the decompressed size of a batch, in bytes.
MAX_DECOMPRESSED: Final = 256 * 1024 * 1024

# The maximum number of blocks, frames or members in a batch. Compressors fill blocks of 32 KB or
# more; many small or empty blocks would only cost CPU time.
MAX_BLOCKS: Final = 65_536

_GZIP_WBITS = 31
_GZIP_WINDOW = 4096
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 * 1024
# A copy element of three bytes yields at most 64 bytes, so this is the maximum compression ratio.
_SNAPPY_MAX_RATIO = 22

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no checksums; blocks of at most 64 KB.
_LZ4_DESCRIPTOR = b"\x60\x40"
_LZ4_BLOCK = 64 * 1024
_LZ4_BLOCK_SIZES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_MAX_RATIO = 255

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK = 128 * 1024


def codec_name(codec: int) -> str:
    return CODEC_NAMES[codec] if 0 <= codec < len(CODEC_NAMES) else f"codec {codec}"


def compress(codec: int, data: Buffer, level: int | None = None, *, broken_lz4: bool = False) -> bytes:
    """Return `data` compressed. `broken_lz4` writes the lz4 header checksum that clients expect
    with message format 0. Raises UNSUPPORTED_COMPRESSION_TYPE for an unknown codec."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return zlib.compress(data, 6 if level is None else level, _GZIP_WBITS)
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data, level, broken_lz4)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise _unknown_codec(codec)


def decompress(codec: int, data: Buffer, max_size: int = MAX_DECOMPRESSED) -> bytes:
    """Return `data` decompressed. Raises DecompressedTooLarge if the result exceeds `max_size`
    bytes, CORRUPT_MESSAGE if the data is malformed, and UNSUPPORTED_COMPRESSION_TYPE for an unknown
    codec. Allocates about twice `max_size` at most."""
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise _unknown_codec(codec)
    return decoder(data, max_size)


def _unknown_codec(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression type {codec}")


class DecompressedTooLarge(KafkaError):
    """The decompressed data exceeds the limit (MESSAGE_TOO_LARGE)."""


def _too_large(max_size: int) -> KafkaError:
    return DecompressedTooLarge(ErrorCode.MESSAGE_TOO_LARGE, f"the decompressed records exceed {max_size} bytes")


def _check_blocks(name: str, count: int) -> None:
    if count > MAX_BLOCKS:
        raise corrupt(f"{name}: more than {MAX_BLOCKS} blocks")


def _decompress_none(data: Buffer, max_size: int) -> bytes:
    if len(data) > max_size:
        raise _too_large(max_size)
    return bytes(data)


def _decompress_gzip(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    pieces: list[bytes] = []
    remaining = max_size
    pos = 0
    while True:
        unpacker = zlib.decompressobj(_GZIP_WBITS)
        # zlib copies the bytes after a member to `unused_data`. The first member is usually the
        # only one and is passed all bytes. Later members are passed windows, because many small
        # members would otherwise need quadratic time.
        window = len(view) if pos == 0 else _GZIP_WINDOW
        while not unpacker.eof:
            chunk = view[pos : pos + window]
            if not chunk:
                raise corrupt("gzip: the stream is incomplete")
            try:
                # zlib grows its output buffer in steps and does not allocate the limit at once.
                piece = unpacker.decompress(chunk, remaining + 1)
            except zlib.error as error:
                raise corrupt(f"gzip: {error}") from None
            if len(piece) > remaining:
                raise _too_large(max_size)
            remaining -= len(piece)
            pieces.append(piece)
            _check_blocks("gzip", len(pieces))
            pos += len(chunk) - len(unpacker.unused_data)
            window *= 2
        if bytes(view[pos : pos + 2]) != b"\x1f\x8b":
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        pieces.append(len(block).to_bytes(4, "big"))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, max_size, max_size)
    pieces: list[bytes] = []
    remaining = max_size
    pos = count = 0
    end = len(view)
    while pos < end:
        count += 1
        _check_blocks("snappy", count)
        if view[pos : pos + 8] == _XERIAL_MAGIC:
            # Several streams may be concatenated, each with a header.
            if end - pos < len(_XERIAL_HEADER):
                raise corrupt("snappy: the stream header is incomplete")
            pos += len(_XERIAL_HEADER)
            continue
        length = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if length > end - pos:
            raise corrupt(f"snappy: a block has a length of {length} bytes, but {max(0, end - pos)} bytes remain")
        piece = _decompress_raw_snappy(view[pos : pos + length], remaining, max_size)
        pieces.append(piece)
        remaining -= len(piece)
        pos += length
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decompress_raw_snappy(block: memoryview, remaining: int, max_size: int) -> bytes:
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > _SNAPPY_MAX_RATIO * len(block):
            raise corrupt(f"snappy: a block of {len(block)} bytes cannot decompress to {length} bytes")
        if length > remaining:
            raise _too_large(max_size)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise corrupt(f"snappy: {error}") from None


def _compress_lz4(data: Buffer, level: int | None, broken: bool) -> bytes:
    # As in Kafka, the default level selects the fast compressor, any other LZ4 HC.
    if level is not None and level != DEFAULT_LEVELS[LZ4]:
        return _compress_lz4_hc(data, level, broken)
    pieces = [_LZ4_FRAME_HEADERS[broken]]
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK):
        source = view[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(source, store_size=False))
        if len(block) < len(source):
            pieces.append(len(block).to_bytes(4, "little"))
            pieces.append(block)
        else:
            pieces.append((len(source) | 0x80000000).to_bytes(4, "little"))
            pieces.append(bytes(source))
    pieces.append(b"\x00\x00\x00\x00")
    return b"".join(pieces)


def _compress_lz4_hc(data: Buffer, level: int, broken: bool) -> bytes:
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    frame = bytearray(compressor.finish())
    if broken:
        frame[6] = _header_checksum(bytes(frame[:6]))
    return bytes(frame)


def _decompress_lz4(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    size = len(view)
    if size < 7 or view[:4] != _LZ4_MAGIC:
        raise corrupt("lz4: the data does not start with a frame")
    flags = view[4]
    max_block_bytes = _LZ4_BLOCK_SIZES.get(view[5] >> 4 & 7)
    if flags >> 6 != 1 or flags & 2 or view[5] & 0x8F or max_block_bytes is None:
        raise corrupt("lz4: the frame header is not valid")
    if flags & 1:
        raise corrupt("lz4: the frame needs a dictionary")
    header_end = 6 + (8 if flags & 8 else 0)
    if size <= header_end:
        raise corrupt("lz4: the frame header is incomplete")
    checksum = view[header_end]
    expected_checksum = _header_checksum(bytes(view[4:header_end]))
    if checksum not in (expected_checksum, _header_checksum(bytes(view[:header_end]))):
        raise corrupt("lz4: the checksum of the frame header is wrong")

    block_trailer = 4 if flags & 16 else 0
    blocks: list[tuple[int, int, bool]] = []
    bound = 0
    pos = header_end + 1
    while True:
        if size - pos < 4:
            raise corrupt("lz4: the frame is incomplete")
        length = int.from_bytes(view[pos : pos + 4], "little")
        pos += 4
        if length == 0:
            break
        is_compressed = length < 0x80000000
        length &= 0x7FFFFFFF
        if length > max_block_bytes or length + block_trailer > size - pos:
            raise corrupt(f"lz4: a block has the invalid length {length}; {size - pos} bytes remain")
        blocks.append((pos, length, is_compressed))
        _check_blocks("lz4", len(blocks))
        bound += min(max_block_bytes, length * _LZ4_MAX_RATIO) if is_compressed else length
        pos += length + block_trailer
    if flags & 0x34 == 0x20:
        return _decompress_lz4_blocks(view, blocks, max_block_bytes, max_size)

    end = pos + (4 if flags & 4 else 0)
    frame = (
        bytes(view[:end])
        if checksum == expected_checksum
        else b"".join((view[:header_end], bytes((expected_checksum,)), view[header_end + 1 : end]))
    )
    return _decompress_into(cramjam.lz4.decompress_into, "lz4", frame, bound, max_size)


def _decompress_lz4_blocks(
    view: memoryview, blocks: list[tuple[int, int, bool]], max_block_bytes: int, max_size: int
) -> bytes:
    """Decompress independent blocks without checksums, which Kafka's clients write."""
    pieces: list[bytes] = []
    remaining = max_size
    for pos, length, is_compressed in blocks:
        piece = view[pos : pos + length]
        if is_compressed:
            limit = min(max_block_bytes, length * _LZ4_MAX_RATIO)
            out = bytearray(limit)
            try:
                written = cramjam.lz4.decompress_block_into(piece, out, output_len=limit)
            except cramjam.DecompressionError as error:
                raise corrupt(f"lz4: {error}") from None
            decompressed = bytes(memoryview(out)[:written])
        else:
            decompressed = bytes(piece)
        remaining -= len(decompressed)
        if remaining < 0:
            raise _too_large(max_size)
        pieces.append(decompressed)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decompress_zstd(data: Buffer, max_size: int) -> bytes:
    return _decompress_into(
        cramjam.zstd.decompress_into, "zstd", data, _zstd_bound(memoryview(data), max_size), max_size
    )


def _zstd_bound(view: memoryview, max_size: int) -> int:
    """Return the maximum decompressed size of the frames in `view`, computed from the headers of
    the frames and blocks (RFC 8878). Stops above `max_size`."""
    bound = pos = count = 0
    size = len(view)
    while pos < size and bound <= max_size:
        count += 1
        _check_blocks("zstd", count)
        magic = int.from_bytes(view[pos : pos + 4], "little")
        pos += 4
        if magic & 0xFFFFFFF0 == 0x184D2A50:
            pos += 4 + int.from_bytes(view[pos : pos + 4], "little")
            continue
        if magic != _ZSTD_MAGIC or pos >= size:
            raise corrupt("zstd: a frame does not start with the magic number")
        descriptor = view[pos]
        single_segment = descriptor & 0x20
        pos += 1 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
        size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        content_size = int.from_bytes(view[pos : pos + size_bytes], "little") + (256 if size_bytes == 2 else 0)
        pos += size_bytes
        frame_bound = 0
        is_last = 0
        while not is_last:
            if size - pos < 3:
                raise corrupt("zstd: the frame is incomplete")
            header = int.from_bytes(view[pos : pos + 3], "little")
            is_last = header & 1
            block_type = header >> 1 & 3
            length = header >> 3
            pos += 3 + (1 if block_type == 1 else length)
            frame_bound += min(length, _ZSTD_BLOCK) if block_type < 2 else _ZSTD_BLOCK
            count += 1
            _check_blocks("zstd", count)
        bound += min(frame_bound, content_size) if size_bytes else frame_bound
        pos += 4 if descriptor & 4 else 0
    return bound


def _decompress_into(
    unpack: Callable[[Buffer, bytearray], int], name: str, data: Buffer, bound: int, max_size: int
) -> bytes:
    """Decompress into a buffer of `bound` or `max_size + 1` bytes, whichever is smaller. `bound` is
    the maximum decompressed size. The decoder stops at the end of the buffer."""
    out = bytearray(min(bound, max_size + 1))
    try:
        written = unpack(data, out)
    except cramjam.DecompressionError as error:
        if bound > max_size and "whole buffer" in str(error):
            raise _too_large(max_size) from None
        raise corrupt(f"{name}: {error}") from None
    if written > max_size:
        raise _too_large(max_size)
    return bytes(memoryview(out)[:written])


def _header_checksum(descriptor: bytes) -> int:
    """Return the second byte of the XXH32 hash with seed 0. `descriptor` must have fewer than 16
    bytes."""
    mask = 0xFFFFFFFF
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    value = p5 + len(descriptor)
    word_end = len(descriptor) & ~3
    for pos in range(0, word_end, 4):
        value = (value + int.from_bytes(descriptor[pos : pos + 4], "little") * p3) & mask
        value = ((value << 17 | value >> 15) & mask) * p4 & mask
    for byte in descriptor[word_end:]:
        value = (value + byte * p5) & mask
        value = ((value << 11 | value >> 21) & mask) * p1 & mask
    value = (value ^ value >> 15) * p2 & mask
    value = (value ^ value >> 13) * p3 & mask
    return (value ^ value >> 16) >> 8 & 0xFF


_LZ4_FRAME_HEADERS = (
    _LZ4_MAGIC + _LZ4_DESCRIPTOR + bytes((_header_checksum(_LZ4_DESCRIPTOR),)),
    _LZ4_MAGIC + _LZ4_DESCRIPTOR + bytes((_header_checksum(_LZ4_MAGIC + _LZ4_DESCRIPTOR),)),
)

_DECODERS: dict[int, Callable[[Buffer, int], bytes]] = {
    NONE: _decompress_none,
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
