from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.protocol.frames import FrameReader, frame_size, split_frames
from kavka.protocol.primitives import ProtocolError


def framed(*bodies: bytes) -> bytes:
    return b"".join(frame_size(len(body)) + body for body in bodies)


@given(bodies=st.lists(st.binary(max_size=20), max_size=6), data=st.data())
def test_frames_come_out_however_the_bytes_are_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = framed(*bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader(max_size=20)

    frames = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[start:end])
    ]

    assert [bytes(frame) for frame in frames] == bodies
    assert reader.buffered == 0


def test_frames_stay_valid_when_more_is_read() -> None:
    reader = FrameReader(max_size=100)
    [first] = reader.feed(framed(b"first") + b"\x00\x00")
    [second] = reader.feed(b"\x00\x06second")

    assert (bytes(first), bytes(second)) == (b"first", b"second")


@pytest.mark.parametrize("size", [-1, 101, 2**31 - 1, -(2**31)])
def test_a_size_out_of_bounds_is_refused_as_soon_as_it_is_there(size: int) -> None:
    reader = FrameReader(max_size=100)
    assert reader.feed(frame_size(size)[:3]) == []

    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes, the limit is 100"):
        reader.feed(frame_size(size)[3:])


def test_an_announced_frame_takes_no_memory_before_its_bytes_arrive() -> None:
    reader = FrameReader(max_size=2**31 - 1)

    assert reader.feed(frame_size(2**31 - 1) + b"abc") == []
    assert reader.buffered == 7


def test_splitting_tells_how_much_is_missing() -> None:
    buf = memoryview(b"??" + framed(b"one", b"") + frame_size(50) + b"part" + b"??")
    end = len(buf) - 2

    frames, start, needed = split_frames(buf, 2, end, 100)

    assert [bytes(frame) for frame in frames] == [b"one", b""]
    assert bytes(buf[start:end]) == frame_size(50) + b"part"
    assert needed == 54
    assert split_frames(buf, end, end, 100) == ([], end, 4)
