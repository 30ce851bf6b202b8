"""Every message in every version against the bytes of Apache Kafka's serializer (see tools/make_golden_frames.py)."""

from __future__ import annotations

import pytest

from kavka.protocol.primitives import ProtocolError
from tests.unit.protocol.cases import CASES, Case, from_json, golden_of

each_message = pytest.mark.parametrize("case", CASES, ids=str)


@each_message
def test_there_are_golden_frames_of_every_version(case: Case) -> None:
    full = {frame.version for frame in golden_of(case) if frame.variant == "full"}

    assert full == set(case.schema.versions)


@each_message
def test_what_kafka_wrote_decodes_to_the_object_that_kafka_had(case: Case) -> None:
    for frame in golden_of(case):
        expected = from_json(case, case.schema, frame.json, frame.version)
        for data in (frame.data, memoryview(bytearray(frame.data))):
            message, end = case.cls.decode(data, 0, frame.version)

            assert message == expected, (frame.version, frame.variant)
            assert end == len(frame.data)


@each_message
def test_objects_encode_to_the_bytes_that_kafka_wrote(case: Case) -> None:
    for frame in golden_of(case):
        message = from_json(case, case.schema, frame.json, frame.version)

        assert message.to_bytes(frame.version) == frame.data, (frame.version, frame.variant)


@each_message
def test_a_new_object_has_the_defaults_of_kafka(case: Case) -> None:
    for frame in golden_of(case):
        if frame.variant == "default":
            assert case.cls().to_bytes(frame.version) == frame.data, frame.version


@each_message
def test_decoding_starts_where_it_is_told_to_and_leaves_what_follows(case: Case) -> None:
    for frame in golden_of(case):
        message, end = case.cls.decode(b"before" + frame.data + b"after", 6, frame.version)

        assert message.to_bytes(frame.version) == frame.data
        assert end == 6 + len(frame.data)


@each_message
def test_every_frame_that_is_cut_short_is_refused(case: Case) -> None:
    for frame in golden_of(case):
        decode = case.cls.decoder(frame.version)
        step = max(1, len(frame.data) // 64)
        for length in [*range(0, len(frame.data), step), *range(max(len(frame.data) - 8, 0), len(frame.data))]:
            with pytest.raises(ProtocolError):
                decode(memoryview(frame.data)[:length], 0)
