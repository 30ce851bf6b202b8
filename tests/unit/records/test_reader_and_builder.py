from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import LOG_APPEND_TIME, batches, rewrite_crc
from kavka.records.builder import BatchBuilder, legacy_message, plain_batch
from kavka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from kavka.records.reader import batch_records, read_records
from kavka.records.record import Record
from kavka.records.varint import decode_varint, encode_varint
from tests.unit.records.support import FORMATS, TIME, built, patched, records_of, simple, with_body


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
@given(data=st.data(), base=st.integers(min_value=0, max_value=1 << 40))
@settings(max_examples=40)
def test_built_records_are_read_back(magic: int, codec: int, data: st.DataObject, base: int) -> None:
    records = data.draw(records_of(magic))
    batch = built(records, magic, codec, base_offset=base)
    expected = [record._replace(offset=base + i) for i, record in enumerate(records)]
    assert list(read_records(batch)) == expected
    assert list(read_records(memoryview(bytes(batch)))) == expected


@pytest.mark.parametrize("codec", [NONE, GZIP])
@given(
    records=st.lists(
        st.tuples(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=300)), min_size=1, max_size=200
    )
)
@settings(max_examples=40)
def test_a_plain_batch_equals_that_of_a_builder(codec: int, records: list[tuple[bytes | None, bytes | None]]) -> None:
    builder = BatchBuilder(codec=codec)
    for key, value in records:
        builder.append(Record(-1, TIME, key, value, ()))
    assert plain_batch(records, TIME, codec) == builder.build()


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_offsets_with_gaps_are_kept(magic: int, codec: int) -> None:
    records = [Record(offset, TIME if magic else -1, b"k", b"v") for offset in (107, 108, 190, 4000)]
    batch = built(records, magic, codec, base_offset=107)
    assert list(read_records(batch)) == records
    assert list(batches(batch))[-1].last_offset == 4000


@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f[0] > 0])
def test_log_append_time_is_the_time_of_all_records(magic: int, codec: int) -> None:
    batch = built(simple(3), magic, codec, timestamp_type=LOG_APPEND_TIME, append_time=TIME + 99)
    assert [record.timestamp for record in read_records(batch)] == [TIME + 99] * 3


def test_a_wrapper_with_log_append_time_overrides_inner_timestamps() -> None:
    inner = built(simple(2), 1, NONE)
    wrapper = legacy_message(1, 11, GZIP | 8, TIME + 77, None, compress(GZIP, inner))
    assert [(r.offset, r.timestamp) for r in read_records(wrapper)] == [(10, TIME + 77), (11, TIME + 77)]


def test_inner_offsets_are_absolute_in_magic_0_and_relative_to_the_last_in_magic_1() -> None:
    for magic, expected in ((0, [3, 4]), (1, [99, 100])):
        inner = built(simple(2), magic, NONE, base_offset=3)
        wrapper = legacy_message(magic, 100, GZIP, TIME, None, compress(GZIP, inner))
        assert [record.offset for record in read_records(wrapper)] == expected
        wrapper = legacy_message(magic, 0, GZIP, TIME, None, compress(GZIP, inner))
        assert [record.offset for record in read_records(wrapper)] == [3, 4]


def test_header_keys_that_are_not_utf_8_are_written_unchanged() -> None:
    body = b"\x00\x00\x00\x01\x01" + b"\x02" + b"\x04\xff\xfe" + b"\x01"
    batch = with_body(encode_varint(len(body)) + body, 1)
    (record,) = read_records(batch)
    rebuilt = built([record._replace(timestamp=TIME)], base_offset=0)
    assert next(iter(read_records(rebuilt))).headers == record.headers
    assert b"\xff\xfe" in rebuilt


def test_a_compacted_batch_keeps_its_last_offset_and_may_be_empty() -> None:
    builder = BatchBuilder(base_offset=50, producer_id=3, producer_epoch=1, base_sequence=20)
    builder.append(Record(52, TIME, b"k", b"v"))
    (batch,) = batches(builder.build(last_offset=59))
    assert (batch.base_offset, batch.last_offset, batch.count, batch.last_sequence) == (50, 59, 1, 29)
    assert [record.offset for record in batch_records(batch)] == [52]

    empty = BatchBuilder(base_offset=50, producer_id=3, producer_epoch=1, base_sequence=20)
    (batch,) = batches(empty.build(last_offset=59, max_timestamp=TIME))
    assert (batch.base_offset, batch.last_offset, batch.count, batch.max_timestamp) == (50, 59, 0, TIME)
    assert batch.has_valid_crc()
    assert list(batch_records(batch)) == []


def test_a_builder_rejects_features_that_the_format_lacks() -> None:
    with pytest.raises(KafkaError) as caught:
        BatchBuilder(1, producer_id=5)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    with pytest.raises(KafkaError) as caught:
        BatchBuilder(1, ZSTD)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    builder = BatchBuilder()
    builder.append(Record(offset=5))
    with pytest.raises(KafkaError):
        builder.append(Record(offset=5))
    builder.append(Record(offset=5 + 2**31))
    with pytest.raises(KafkaError):
        builder.build()
    with pytest.raises(KafkaError):
        built([Record(timestamp=-(2**63)), Record(timestamp=2**63 - 1)])


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_a_wrong_checksum_is_detected_unless_verification_is_off(magic: int, codec: int) -> None:
    batch = built(simple(2), magic, codec)
    crc = 17 if magic == 2 else 12
    batch[crc] ^= 1
    with pytest.raises(KafkaError) as caught:
        list(read_records(batch))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert len(list(read_records(batch, verify_crc=False))) == 2


def test_a_wrong_checksum_inside_a_wrapper_is_detected() -> None:
    inner = built(simple(2), 1, NONE)
    inner[12] ^= 1
    with pytest.raises(KafkaError) as caught:
        list(read_records(legacy_message(1, 1, GZIP, TIME, None, compress(GZIP, inner))))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


RECORD = encode_varint(8) + b"\x00\x00\x00\x02k\x02v\x00"


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (RECORD, 2),
        (RECORD * 2, 1),
        (RECORD, 2**31 - 1),
        (RECORD + b"\x00", 1),
        (RECORD[:-1], 1),
        (b"", 1),
        (b"\x01" + RECORD[1:], 1),
        (b"\xff\xff\xff\xff\xff\xff" + RECORD, 1),
        (b"\xff\xff\xff\xff\x7f" + RECORD, 1),
        (encode_varint(2**31 - 1) + RECORD[1:], 1),
        (encode_varint(8) + b"\x00\x00\x00\x03k\x02v\x00", 1),
        (encode_varint(8) + b"\x00\x00\x00\x7ek\x02v\x00", 1),
        (encode_varint(8) + b"\x00\x00\x00\x02k\x03v\x00", 1),
        (encode_varint(8) + b"\x00\x00\x00\x02k\x02v\x01", 1),
        (encode_varint(8) + b"\x00\x00\x00\x02k\x02v\x7e", 1),
        (encode_varint(9) + b"\x00\x00\x00\x02k\x02v\x02\x7e", 1),
        (encode_varint(10) + b"\x00\x00\x00\x02k\x02v\x02\x02h", 1),
        (encode_varint(10) + b"\x00\x00\x00\x02k\x02v\x02\x01\x00", 1),
        (encode_varint(11) + b"\x00\x00\x00\x02k\x02v\x02\x02h\x05", 1),
        (encode_varint(17) + b"\x00" + b"\xff" * 9 + b"\x7f" + b"\x00\x02k\x02v\x00", 1),
    ],
)
def test_a_malformed_body_is_corrupt(body: bytes, count: int, codec: int) -> None:
    batch = with_body(compress(codec, body), count, codec)
    with pytest.raises(KafkaError) as caught:
        list(read_records(batch))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_record_in_the_malformed_bodies_is_valid() -> None:
    assert list(read_records(with_body(RECORD, 1))) == [Record(0, TIME, b"k", b"v")]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "value",
    [
        None,
        compress(GZIP, b""),
        compress(GZIP, b"not a message"),
        compress(GZIP, bytes(built(simple(1), 1))[:-1]),
        compress(GZIP, bytes(built(simple(1), 0))[:-1]),
        compress(GZIP, built(simple(1), 2)),
        compress(GZIP, built(simple(1), 0) + built(simple(1), 1)),
        compress(GZIP, built(simple(1), 0, GZIP)),
        compress(GZIP, built(simple(1), 1, GZIP)),
        b"not gzip",
    ],
)
def test_a_wrapper_without_complete_plain_messages_of_its_magic_is_corrupt(magic: int, value: bytes | None) -> None:
    with pytest.raises(KafkaError) as caught:
        list(read_records(legacy_message(magic, 0, GZIP, TIME, None, value)))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_in_an_old_format_is_rejected(magic: int) -> None:
    with pytest.raises(KafkaError) as caught:
        list(read_records(legacy_message(magic, 0, ZSTD, TIME, None, compress(ZSTD, built(simple(1), magic)))))
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("field", "length"), [("key", -2), ("key", 1000), ("value", -5), ("value", 0), ("value", 9999)]
)
def test_wrong_lengths_in_a_message_are_corrupt(magic: int, field: str, length: int) -> None:
    message = legacy_message(magic, 0, 0, TIME, b"key", b"value")
    position = (26 if magic else 18) + (0 if field == "key" else 7)
    struct.pack_into(">i", message, position, length)
    struct.pack_into(">I", message, 12, zlib.crc32(message[16:]))
    with pytest.raises(KafkaError) as caught:
        list(read_records(message))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
@pytest.mark.parametrize("magic", [1, 2])
def test_a_decompression_bomb_in_a_batch_is_rejected_in_bounded_memory(codec: int, magic: int) -> None:
    packed = compress(codec, RECORD * (8 << 20), 1)
    if magic == 2:
        batch = with_body(packed, 8 << 20, codec)
    elif codec == ZSTD:
        return
    else:
        batch = legacy_message(1, 0, codec, TIME, None, packed)
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            list(read_records(batch, max_decompressed=1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_many_small_records_are_not_all_in_memory() -> None:
    batch = with_body(compress(GZIP, RECORD * 40_000), 40_000, GZIP)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_records(batch)) == 40_000
        # All records as objects would take over 5 MB.
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
@given(data=st.data())
@settings(max_examples=60)
def test_mutated_batches_are_read_or_rejected_with_a_code(magic: int, codec: int, data: st.DataObject) -> None:
    batch = built(simple(3), magic, codec)
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        batch[data.draw(st.integers(min_value=0, max_value=len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(read_records(batch, verify_crc=False, max_decompressed=100_000))
    except KafkaError as error:
        assert error.code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


@given(st.binary(max_size=120), st.integers(min_value=-3, max_value=5))
def test_any_body_is_read_or_rejected_as_corrupt(body: bytes, count: int) -> None:
    batch = with_body(body, 1)
    batch = patched(batch, ">i", 57, count)
    try:
        assert len(list(read_records(batch))) == max(0, count)
    except KafkaError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_varints_of_64_bits_are_decoded_as_encoded(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(data, 0, 10) == (value, len(data))


@given(st.integers(min_value=-(2**31), max_value=2**31 - 1))
def test_varints_of_32_bits_are_decoded_as_encoded(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(b"!" + data, 1) == (value, len(data) + 1)


@pytest.mark.parametrize(
    ("data", "width"), [(b"\x80" * 5 + b"\x00", 5), (b"\xff\xff\xff\xff\x1f", 5), (b"\x80" * 10 + b"\x00", 10)]
)
def test_overlong_varints_are_corrupt(data: bytes, width: int) -> None:
    with pytest.raises(KafkaError) as caught:
        decode_varint(data, 0, width)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_an_incomplete_last_batch_and_control_batches_are_skipped() -> None:
    plain = built(simple(2))
    control = built([Record(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")], control=True, producer_id=1, producer_epoch=0)
    data = plain + control + plain[:-1]
    assert len(list(read_records(data))) == 2
    assert len(list(read_records(data, include_control=True))) == 3


def test_rewriting_the_checksum_makes_a_changed_batch_valid() -> None:
    batch = built(simple(2))
    batch[40] ^= 1
    assert not next(iter(batches(batch))).has_valid_crc()
    rewrite_crc(batch)
    assert next(iter(batches(batch))).has_valid_crc()
