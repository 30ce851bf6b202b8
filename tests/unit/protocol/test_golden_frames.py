"""Every version of every message against the bytes of Apache Kafka's serializer (see
tools/make_golden_frames.py)."""

from __future__ import annotations

import pytest

from kavka.protocol.primitives import ProtocolError
from tests.unit.protocol.cases import CASES, Case, from_json, golden_of

each_message = pytest.mark.parametrize("case", CASES, ids=str)


@each_message
def test_every_version_has_golden_frames(case: Case) -> None:
    full = {frame.version for frame in golden_of(case) if frame.variant == "full"}

    assert full == set(case.schema.versions)


@each_message
def test_frames_of_kafka_are_decoded(case: Case) -> None:
    for frame in golden_of(case):
        expected = from_json(case, case.schema, frame.json, frame.version)
        for data in (frame.data, memoryview(bytearray(frame.data))):
            message, end = case.cls.decode(data, 0, frame.version)

            assert message == expected, (frame.version, frame.variant)
            assert end == len(frame.data)


@each_message
def test_objects_encode_to_bytes_of_kafka(case: Case) -> None:
    for frame in golden_of(case):
        message = from_json(case, case.schema, frame.json, frame.version)

        assert message.to_bytes(frame.version) == frame.data, (frame.version, frame.variant)


@each_message
def test_defaults_match_kafka(case: Case) -> None:
    for frame in golden_of(case):
        if frame.variant == "default":
            assert case.cls().to_bytes(frame.version) == frame.data, frame.version


@each_message
def test_decode_starts_at_position_and_ignores_further_bytes(case: Case) -> None:
    for frame in golden_of(case):
        message, end = case.cls.decode(b"before" + frame.data + b"after", 6, frame.version)

        assert message.to_bytes(frame.version) == frame.data
        assert end == 6 + len(frame.data)


@each_message
def test_truncated_frames_are_rejected(case: Case) -> None:
    for frame in golden_of(case):
        decode = case.cls.decoder(frame.version)
        step = max(1, len(frame.data) // 64)
        for length in [*range(0, len(frame.data), step), *range(max(len(frame.data) - 8, 0), len(frame.data))]:
            with pytest.raises(ProtocolError):
                decode(memoryview(frame.data)[:length], 0)
