from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    Batch,
    assign_offsets,
    batches,
    last_sequence,
    parse_header,
)
from kavka.records.compression import GZIP
from kavka.records.reader import read_records
from kavka.records.record import Record
from tests.unit.records.support import FORMATS, TIME, built, patched, simple


def test_a_header_is_parsed() -> None:
    data = built(
        simple(3), base_offset=42, producer_id=9, producer_epoch=2, base_sequence=7, leader_epoch=4, transactional=True
    )
    header = parse_header(b"??" + data, 2)
    assert header.base_offset == 42
    assert header.last_offset == 44
    assert header.count == 3
    assert header.size == len(data)
    assert header.leader_epoch == 4
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 2, 7, 9)
    assert (header.base_timestamp, header.max_timestamp) == (TIME, TIME + 2)
    assert header.is_transactional
    assert not header.is_control


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1])
def test_an_incomplete_header_is_corrupt(size: int) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_header(bytes(size))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_sequences_wrap_after_the_largest_int() -> None:
    assert last_sequence(2**31 - 1, 0) == 2**31 - 1
    assert last_sequence(2**31 - 1, 1) == 0
    assert last_sequence(2**31 - 2, 5) == 3
    assert last_sequence(-1, 5) == -1


def test_batches_of_all_formats_are_iterated_in_one_buffer() -> None:
    data = bytearray()
    expected = []
    for number, (magic, codec) in enumerate(FORMATS):
        base = number * 100
        batch_data = built([Record(timestamp=TIME, value=b"v" * 50)], magic, codec, base_offset=base)
        expected.append(
            (len(data), len(data) + len(batch_data), magic, codec, base, base, None if magic < 2 and codec else 1)
        )
        data += batch_data
    layout = [(b.start, b.end, b.magic, b.codec, b.base_offset, b.last_offset, b.count) for b in batches(data)]
    assert layout == expected
    assert all(batch.has_valid_crc() for batch in batches(data))
    assert [batch.size for batch in batches(data)] == [end - start for start, end, *_ in expected]


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_iteration_ends_before_an_incomplete_batch(magic: int, codec: int) -> None:
    first = built(simple(1), magic, codec)
    second = built(simple(1), magic, codec, base_offset=1)
    for size in range(len(second)):
        (batch,) = batches(first + second[:size])
        assert batch.end == len(first)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("length", [0, -1, 13, -(2**31)])
def test_an_invalid_length_is_corrupt(magic: int, length: int) -> None:
    data = built(simple(1), magic)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(KafkaError) as caught:
        list(batches(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [3, -1, 127])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    data = patched(built(simple(1)), ">b", 16, magic)
    with pytest.raises(KafkaError) as caught:
        list(batches(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_the_checksum_detects_every_flipped_bit(magic: int, codec: int) -> None:
    data = built(simple(2), magic, codec)
    covered = 21 if magic == 2 else 16
    end = next(iter(batches(data))).end
    for position in range(covered, end):
        if position in range(16, 17) and magic < 2:
            continue
        data[position] ^= 0x10
        assert not _first(data).has_valid_crc()
        data[position] ^= 0x10
    assert _first(data).has_valid_crc()


def _first(data: bytearray) -> Batch:
    return next(iter(batches(data)))


def test_offsets_and_epoch_are_assigned_without_changing_the_checksum() -> None:
    data = built(simple(3), codec=GZIP)
    original = bytes(data)
    assign_offsets(memoryview(data), 1_000_000_007, 12)
    (batch,) = batches(data)
    assert batch.has_valid_crc()
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (1_000_000_007, 1_000_000_009, 12)
    assert data[16:] == original[16:]
    assert len(data) == len(original)


def test_log_append_time_changes_type_max_timestamp_and_checksum() -> None:
    data = built(simple(3))
    assign_offsets(memoryview(data), 5, 1, TIME + 999)
    (batch,) = batches(data)
    assert batch.has_valid_crc()
    assert batch.timestamp_type == LOG_APPEND_TIME
    assert batch.max_timestamp == TIME + 999
    assert batch.base_timestamp == TIME
    assert [record.timestamp for record in read_records(data)] == [TIME + 999] * 3


def test_the_delete_horizon_is_the_base_timestamp() -> None:
    records = simple(2)
    (batch,) = batches(built(records, delete_horizon=TIME + 5_000))
    assert batch.delete_horizon == TIME + 5_000
    assert [record.timestamp for record in read_records(batch.data)] == [record.timestamp for record in records]
    (batch,) = batches(built(records))
    assert batch.delete_horizon is None


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2, 3]))
def test_iteration_over_any_bytes_ends_or_raises_corrupt_message(junk: bytes, magic: int) -> None:
    data = bytearray(junk)
    if len(data) > 16:
        data[16] = magic
    end = 0
    try:
        for batch in batches(data):
            assert batch.start == end
            assert batch.end > batch.start
            end = batch.end
            batch.has_valid_crc()
    except KafkaError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE
