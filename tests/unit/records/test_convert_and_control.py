from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import LOG_APPEND_TIME, batches, rewrite_crc
from kavka.records.builder import BatchBuilder
from kavka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from kavka.records.control import EndMarker, control_type, end_marker, parse_end_marker
from kavka.records.convert import down_convert
from kavka.records.reader import read_records
from kavka.records.record import Record
from tests.unit.records.support import TIME, built, patched, records_of, simple

OLD_CODECS = [NONE, GZIP, SNAPPY, LZ4]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@given(data=st.data())
@settings(max_examples=25)
def test_down_conversion_drops_only_headers_and_in_magic_0_timestamps(
    magic: int, codec: int, data: st.DataObject
) -> None:
    records = data.draw(records_of(2))
    batch = built(records, codec=codec, base_offset=500)
    converted = down_convert(batch, magic, 500)
    assert {(b.magic, b.codec) for b in batches(converted)} == {(magic, codec)}
    assert list(read_records(converted)) == [
        record._replace(offset=500 + i, headers=(), timestamp=record.timestamp if magic else -1)
        for i, record in enumerate(records)
    ]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_log_append_time_survives_conversion_to_magic_1(codec: int) -> None:
    batch = built(simple(3), codec=codec, timestamp_type=LOG_APPEND_TIME, append_time=TIME + 9)
    converted = down_convert(batch, 1, 0)
    assert all(b.timestamp_type == LOG_APPEND_TIME for b in batches(converted))
    assert [record.timestamp for record in read_records(converted)] == [TIME + 9] * 3


@pytest.mark.parametrize("magic", [0, 1])
def test_uncompressed_records_before_the_fetch_offset_are_omitted(magic: int) -> None:
    plain = down_convert(built(simple(5), base_offset=10), magic, 12)
    assert [record.offset for record in read_records(plain)] == [12, 13, 14]
    packed = down_convert(built(simple(5), codec=GZIP, base_offset=10), magic, 12)
    assert [record.offset for record in read_records(packed)] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_gaps_left_by_compaction_are_kept(codec: int, magic: int) -> None:
    builder = BatchBuilder(codec=codec, base_offset=20)
    for offset in (22, 23, 40):
        builder.append(Record(offset, TIME, b"k", b"v"))
    converted = down_convert(builder.build(last_offset=49), magic, 20)
    assert [record.offset for record in read_records(converted)] == [22, 23, 40]


def test_control_batches_and_empty_batches_are_omitted() -> None:
    txn = built(simple(2), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    marker = end_marker(True, 1, 0, 3, TIME, base_offset=2)
    empty = BatchBuilder(base_offset=3).build(last_offset=8, max_timestamp=TIME)
    plain = built(simple(1), base_offset=9)
    converted = down_convert(txn + marker + empty + plain + plain[:-1], 1, 0)
    assert [record.offset for record in read_records(converted)] == [0, 1, 9]
    assert down_convert(marker, 1, 0) == b""


def test_old_formats_are_copied_and_magic_1_is_converted_to_0() -> None:
    original = built(simple(2), 1, GZIP)
    zero = built(simple(2), 0)
    assert down_convert(original + zero, 1, 0) == bytes(original + zero)
    converted = down_convert(original, 0, 0)
    assert [(r.offset, r.timestamp, r.value) for r in read_records(converted)] == [
        (i, -1, record.value) for i, record in enumerate(simple(2))
    ]


def test_zstd_cannot_be_converted() -> None:
    for magic in (0, 1):
        with pytest.raises(KafkaError) as caught:
            down_convert(built(simple(1), codec=ZSTD), magic, 0)
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@given(st.data())
def test_mutated_batches_are_converted_or_rejected_with_a_code(data: st.DataObject) -> None:
    batch = built(simple(3), codec=data.draw(st.sampled_from(OLD_CODECS)))
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        batch[data.draw(st.integers(min_value=0, max_value=len(batch) - 1))] = data.draw(st.integers(0, 255))
    rewrite_crc(batch)
    with contextlib.suppress(KafkaError):
        list(read_records(down_convert(batch, data.draw(st.sampled_from([0, 1])), 0, 100_000)))


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_marker_is_read_back(commit: bool) -> None:
    data = end_marker(commit, 42, 7, 3, TIME, base_offset=11, leader_epoch=2)
    (batch,) = batches(data)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch) == (42, 7, -1, 2)
    assert parse_end_marker(batch) == EndMarker(commit, 3)


def control(key: bytes | None, value: bytes | None) -> bytearray:
    return built([Record(timestamp=TIME, key=key, value=value)], control=True, producer_id=1, producer_epoch=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0\0", b"\0\0\0\0\0\1"),
        (b"\xff\xff\0\1", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0\0\0"),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\1"),
    ],
)
def test_a_marker_that_is_too_short_or_has_no_version_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    (batch,) = batches(control(key, value))
    with pytest.raises(KafkaError) as caught:
        parse_end_marker(batch)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_markers_of_other_types_and_empty_ones_are_ignored() -> None:
    (batch,) = batches(control(b"\0\0\0\2", b"anything"))
    assert parse_end_marker(batch) is None
    assert control_type(b"\0\0\0\2") == 2
    empty = BatchBuilder(base_offset=3, control=True, transactional=True, producer_id=1, producer_epoch=0)
    (batch,) = batches(empty.build(last_offset=3))
    assert parse_end_marker(batch) is None
    (batch,) = batches(built(simple(1)))
    with pytest.raises(KafkaError):
        parse_end_marker(batch)


def test_a_later_version_of_a_marker_is_read_by_its_first_fields() -> None:
    (batch,) = batches(control(b"\0\1\0\1more", b"\0\1\0\0\0\x09more"))
    assert parse_end_marker(batch) == EndMarker(True, 9)
    (batch,) = batches(patched(control(b"\0\0\0\0", b"\0\0\0\0\0\x09"), ">q", 35, TIME))
    assert parse_end_marker(batch) == EndMarker(False, 9)
