"""Compressed data in pieces, for readers that must not hold all of it in memory: a few kilobytes may unpack to
MAX_DECOMPRESSED.

Data that unpacks to no more than IN_MEMORY is unpacked at once. Of the rest, gzip, snappy and lz4 are unpacked block by
block. A zstd frame, and an lz4 frame of linked blocks, cannot be: they are unpacked to a temporary file.
"""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import cramjam

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import Buffer, corrupt
from kavka.records.compression import (
    GZIP,
    LZ4,
    MAX_DECOMPRESSED,
    SNAPPY,
    ZSTD,
    _zstd_bound,
    compress,
    decompress,
)

CHUNK = 1024 * 1024
"""The usual size of a piece; a multiple of the blocks that snappy and lz4 are written in. A block that somebody else
wrote may be larger."""
IN_MEMORY = 16 * 1024 * 1024

_GZIP_WBITS = 31
_GZIP_WINDOW = 4096
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
_LZ4_HEADER_SIZE = 7
_LZ4_END_SIZE = 4
_LZ4_BLOCK_SIZES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_MAX_RATIO = 255
_OS_ERROR = re.compile(r"os error (\d+)")


class Unpacked:
    """`data` unpacked, to be read from its start as often as needed. `folder` is where a temporary file may be made.
    MESSAGE_TOO_LARGE and CORRUPT_MESSAGE as from `decompress`, also while it is read."""

    __slots__ = ("_body", "_codec", "_data", "_fd", "_folder")

    def __init__(self, codec: int, data: Buffer, folder: str) -> None:
        self._codec = codec
        self._data = memoryview(data)
        self._folder = folder
        self._fd = -1
        self._body: bytes | None = None
        try:
            self._body = decompress(codec, data, IN_MEMORY)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise

    @property
    def body(self) -> bytes | None:
        """All of it, where that is no more than IN_MEMORY."""
        return self._body

    def chunks(self) -> Iterator[bytes]:
        if self._body is not None:
            yield from _pieces(self._body)
            return
        room = MAX_DECOMPRESSED
        for piece in self._large():
            room -= len(piece)
            if room < 0:
                raise _too_large()
            yield piece

    def _large(self) -> Iterator[bytes]:
        data = self._data
        if self._codec == GZIP:
            return _gzip(data)
        if self._codec == SNAPPY:
            return _snappy(data)
        if self._codec == LZ4:
            blocks, block_max, are_independent = _lz4_blocks(data)
            if are_independent:
                return _lz4(data, blocks, block_max)
            bound = sum(min(block_max, length * _LZ4_MAX_RATIO) for _, length, _ in blocks)
            return self._from_file(cramjam.lz4.decompress_into, bound)
        if self._codec == ZSTD:
            return self._from_file(cramjam.zstd.decompress_into, _zstd_bound(data, MAX_DECOMPRESSED))
        return _pieces(data)

    def _from_file(self, unpack: Callable[..., int], bound: int) -> Iterator[bytes]:
        if self._fd < 0:
            if bound > MAX_DECOMPRESSED:
                raise _too_large()
            self._fd = _unpack_to_file(unpack, self._data, self._folder)
        position = 0
        while piece := os.pread(self._fd, CHUNK, position):
            yield piece
            position += len(piece)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(codec: int, pieces: Iterable[bytes], *, broken_lz4: bool = False) -> bytes:
    """The pieces compressed as one. What is in memory at a time is CHUNK or a piece, and the result."""
    if codec == GZIP:
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WBITS)
        return b"".join([packer.compress(piece) for piece in pieces] + [packer.flush()])
    if codec == ZSTD:
        chunks = _regrouped(pieces)
        first = next(chunks, b"")
        if len(first) < CHUNK:
            return compress(ZSTD, first)
        zstd = cramjam.zstd.Compressor(level=3)
        for chunk in chain((first,), chunks):
            zstd.compress(chunk)
        return bytes(zstd.finish())
    if codec == SNAPPY:
        out = [compress(SNAPPY, chunk)[_XERIAL_HEADER_SIZE:] for chunk in _regrouped(pieces)]
        return b"".join([compress(SNAPPY, b""), *out])
    if codec == LZ4:
        frame = compress(LZ4, b"", broken_lz4=broken_lz4)
        out = [compress(LZ4, chunk)[_LZ4_HEADER_SIZE:-_LZ4_END_SIZE] for chunk in _regrouped(pieces)]
        return b"".join([frame[:_LZ4_HEADER_SIZE], *out, frame[-_LZ4_END_SIZE:]])
    return compress(codec, b"".join(pieces))


def _too_large() -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"compressed records unpack to more than {MAX_DECOMPRESSED} bytes")


def _pieces(data: Buffer) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield bytes(data[start : start + CHUNK])


def _regrouped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, CHUNK at a time, so that no block but the last is short."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) >= CHUNK:
            yield bytes(waiting[:CHUNK])
            del waiting[:CHUNK]
    if waiting:
        yield bytes(waiting)


def _gzip(view: memoryview) -> Iterator[bytes]:
    pos = 0
    while True:
        unpacker = zlib.decompressobj(_GZIP_WBITS)
        while not unpacker.eof:
            window: Buffer = view[pos : pos + _GZIP_WINDOW]
            if not window:
                raise corrupt("gzip: the stream ends too early")
            pos += len(window)
            while window:
                try:
                    piece = unpacker.decompress(window, CHUNK)
                except zlib.error as error:
                    raise corrupt(f"gzip: {error}") from None
                if piece:
                    yield piece
                window = unpacker.unconsumed_tail
        pos -= len(unpacker.unused_data)
        if bytes(view[pos : pos + 2]) != b"\x1f\x8b":
            return


def _snappy(view: memoryview) -> Iterator[bytes]:
    """Blocks of xerial's framing. Without framing there is one block, which must be unpacked whole."""
    if view[:8] != _XERIAL_MAGIC:
        yield decompress(SNAPPY, view)
        return
    pos = 0
    while pos < len(view):
        if view[pos : pos + 8] == _XERIAL_MAGIC:
            pos += _XERIAL_HEADER_SIZE
            continue
        length = int.from_bytes(view[pos : pos + 4], "big")
        pos += 4
        if length > len(view) - pos:
            raise corrupt(f"snappy: a block of {length} bytes where {max(0, len(view) - pos)} are left")
        yield decompress(SNAPPY, view[pos : pos + length])
        pos += length


def _lz4_blocks(view: memoryview) -> tuple[list[tuple[int, int, bool]], int, bool]:
    """(position, length, is compressed) of each block, the most that one unpacks to, and whether each can be unpacked
    alone: they do not refer to one another and have no checksums."""
    if len(view) < _LZ4_HEADER_SIZE:
        raise corrupt("lz4: no frame starts here")
    flags = view[4]
    block_max = _LZ4_BLOCK_SIZES.get(view[5] >> 4 & 7, 0)
    pos = 7 + (8 if flags & 8 else 0)
    trailer = 4 if flags & 16 else 0
    blocks: list[tuple[int, int, bool]] = []
    while True:
        if len(view) - pos < 4:
            raise corrupt("lz4: the frame ends too early")
        length = int.from_bytes(view[pos : pos + 4], "little")
        pos += 4
        if length == 0:
            return blocks, block_max, flags & 0x34 == 0x20
        is_packed = length < 0x80000000
        length &= 0x7FFFFFFF
        if length > block_max or length + trailer > len(view) - pos:
            raise corrupt(f"lz4: a block of {length} bytes where {len(view) - pos} are left")
        blocks.append((pos, length, is_packed))
        pos += length + trailer


def _lz4(view: memoryview, blocks: list[tuple[int, int, bool]], block_max: int) -> Iterator[bytes]:
    for pos, length, is_packed in blocks:
        block = view[pos : pos + length]
        if not is_packed:
            yield bytes(block)
            continue
        limit = min(block_max, length * _LZ4_MAX_RATIO)
        out = bytearray(limit)
        try:
            written = cramjam.lz4.decompress_block_into(block, out, output_len=limit)
        except cramjam.DecompressionError as error:
            raise corrupt(f"lz4: {error}") from None
        yield bytes(memoryview(out)[:written])


def _unpack_to_file(unpack: Callable[..., int], data: memoryview, folder: str) -> int:
    """The descriptor of a file without a name. A crash before the name is removed leaves a `.tmp`, which opening the
    log removes."""
    fd, path = tempfile.mkstemp(".tmp", "unpacked-", folder)
    try:
        try:
            sink = cramjam.File(path, write=True)
        finally:
            os.unlink(path)
        try:
            unpack(bytes(data), sink)
        except (cramjam.DecompressionError, OSError) as error:
            number = _OS_ERROR.search(str(error))
            if number is not None:
                code = int(number[1])
                raise OSError(code, os.strerror(code), path) from None
            raise corrupt(f"cannot be unpacked: {error}") from None
    except BaseException:
        os.close(fd)
        raise
    return fd
