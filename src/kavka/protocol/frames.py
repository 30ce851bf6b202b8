"""Frames: on a connection, every request and response follows its own size as an int32.

Bytes in, frames out; no I/O. A size that is negative or above the limit is a ProtocolError, after which the stream
cannot be read any further: where the next frame starts is not known.
"""

from __future__ import annotations

from struct import Struct

from kavka.protocol.primitives import Buffer, ProtocolError

SIZE_LENGTH = 4

_unpack_size = Struct(">i").unpack_from
_pack_size = Struct(">i").pack


def frame_size(length: int) -> bytes:
    """What goes in front of `length` bytes."""
    return _pack_size(length)


def split_frames(buf: memoryview, start: int, end: int, max_size: int) -> tuple[list[memoryview], int, int]:
    """The frames that are complete in buf[start:end], as slices of it.

    Returns them, the position of the first byte that belongs to no complete frame, and how many bytes from there on
    the next frame takes with its size (4 while that size is not there yet).
    """
    frames: list[memoryview] = []
    while end - start >= SIZE_LENGTH:
        (size,) = _unpack_size(buf, start)
        if not 0 <= size <= max_size:
            raise ProtocolError(f"a frame of {size} bytes, the limit is {max_size}")
        after = start + SIZE_LENGTH + size
        if after > end:
            return frames, start, SIZE_LENGTH + size
        frames.append(buf[start + SIZE_LENGTH : after])
        start = after
    return frames, start, SIZE_LENGTH


class FrameReader:
    """Frames from chunks of any size. Keeps only the bytes of the frame that is not complete yet."""

    __slots__ = ("_max_size", "_rest")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rest = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: Buffer) -> list[memoryview]:
        """The frames that `data` completes. Each is a view of memory that is not used again: it may be kept."""
        if self._rest:
            rest = self._rest
            rest += data
            if not self._complete(rest):
                return []
        else:
            rest = bytearray(data)
        frames, consumed, _needed = split_frames(memoryview(rest), 0, len(rest), self._max_size)
        self._rest = rest[consumed:]
        return frames

    def _complete(self, rest: bytearray) -> bool:
        """Whether there is a whole frame, so that a large one is not copied with every chunk of it."""
        if len(rest) < SIZE_LENGTH:
            return False
        (size,) = _unpack_size(rest)
        return not 0 <= size <= self._max_size or len(rest) >= SIZE_LENGTH + size
