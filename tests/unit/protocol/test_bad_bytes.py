"""Arbitrary bytes decode to a message or raise ProtocolError, in bounded time and memory."""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.protocol.primitives import ProtocolError
from tests.unit.protocol.cases import BY_NAME, CASES, Case, golden_of

# The maximum memory per byte of input: the smallest elements take two or three bytes and become an
# object with a list.
MAX_MEMORY_PER_BYTE = 80

each_message = pytest.mark.parametrize("case", CASES, ids=str)


def check_any_bytes(case: Case, version: int, data: bytes) -> None:
    """Decoding raises ProtocolError, or returns a message that round-trips."""
    try:
        message, end = case.cls.decode(memoryview(data), 0, version)
    except ProtocolError:
        return
    assert end <= len(data)
    encoded = message.to_bytes(version)
    again, end = case.cls.decode(encoded, 0, version)
    assert end == len(encoded)
    assert again.to_bytes(version) == encoded


@each_message
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=300), choice=st.integers(0, 1000))
def test_random_bytes_are_rejected_or_decoded(case: Case, data: bytes, choice: int) -> None:
    versions = list(case.schema.versions)

    check_any_bytes(case, versions[choice % len(versions)], data)


@each_message
def test_damaged_frames_are_rejected_or_decoded(case: Case) -> None:
    rng = random.Random(case.schema.name)
    for frame in golden_of(case):
        for _ in range(12):
            check_any_bytes(case, frame.version, damaged(frame.data, rng))


def damaged(data: bytes, rng: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(4):
            case 0:
                result[at : at + 1] = bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))),))
            case 1:
                result[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\xff\xff"))
            case 2:
                del result[at : at + rng.randint(1, 8)]
            case 3:
                result[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(result)


# Large counts and lengths in every encoding; the fill bytes decode to the smallest elements.
HOSTILE = (
    b"\x7f\xff\xff\xff",
    b"\x00\x00\x7f\xff",
    b"\x00\x00\x10\x00",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\x03",
    b"\x80\x20",
)
FILL = (b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff")


def hostile_inputs(case: Case, version: int, size: int) -> Iterator[bytes]:
    """Large counts after every prefix of a valid frame."""
    frames = [frame.data for frame in golden_of(case) if frame.version == version and frame.variant != "full"]
    for data in frames:
        for cut in range(min(len(data), 24)):
            rng = random.Random(cut)
            hostile, fill = rng.choice(HOSTILE), rng.choice(FILL)
            yield data[:cut] + hostile + fill * (size - cut - len(hostile))


@each_message
def test_time_and_memory_are_proportional_to_input(case: Case) -> None:
    size = 4096
    decoders = [case.cls.decoder(version) for version in case.schema.versions]  # imports happen before the measurement
    tracemalloc.start()
    started = time.monotonic()
    try:
        for version, decode in zip(case.schema.versions, decoders, strict=True):
            for data in hostile_inputs(case, version, size):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(ProtocolError):
                    decode(data, 0)
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < size * MAX_MEMORY_PER_BYTE, (version, data[:40].hex(), peak)
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 30


@each_message
def test_smallest_elements_stay_within_memory_bound(case: Case) -> None:
    for version in case.schema.versions:
        decode = case.cls.decoder(version)
        for f in case.schema.fields:
            if f.array and f.struct is not None and version in f.versions:
                element = case.nested(f.struct)
                data = case.cls(**{f.name: [element() for _ in range(1000)]}).to_bytes(version)
                tracemalloc.start()
                message, _end = decode(data, 0)
                _now, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert len(getattr(message, f.name)) == 1000
                assert peak < len(data) * MAX_MEMORY_PER_BYTE, (version, f.name)


@pytest.mark.parametrize("version", [0, 9])
def test_huge_count_is_rejected_before_allocation(version: int) -> None:
    flexible = version >= 9
    head = b"\x00" if flexible else b""
    count = b"\xff\xff\xff\xff\x07" if flexible else b"\x7f\xff\xff\xff"
    data = head + b"\x00\x01\x00\x00\x75\x30" + count + bytes(1000)

    tracemalloc.start()
    with pytest.raises(ProtocolError, match="topic_data needs"):
        BY_NAME["ProduceRequest"].cls.decode(data, 0, version)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


@each_message
def test_unknown_version_is_rejected(case: Case) -> None:
    for version in (case.schema.versions.first - 1, case.schema.versions.last + 1):
        with pytest.raises(ProtocolError, match=f"{case.schema.name} has no version {version}"):
            case.cls.decode(b"\x00" * 64, 0, version)
        with pytest.raises(ProtocolError, match="has no version"):
            case.cls().to_bytes(version)
