from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records import validate
from kavka.records.batch import CREATE_TIME, HEADER_SIZE, LOG_APPEND_TIME, assign_offsets, batches, rewrite_crc
from kavka.records.builder import legacy_message
from kavka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from kavka.records.control import end_marker
from kavka.records.normalise import normalise_produce
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.records.rules import InvalidRecordError, ProduceRules, ValidatedBatch
from kavka.records.validate import has_record_count, validate_produce
from tests.unit.records.support import FORMATS, NOW, TIME, built, patched, records_of, simple, with_body

PLAIN = ProduceRules()
COMPACTED = ProduceRules(compacted=True)
CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]


def check(data: bytes | bytearray, rules: ProduceRules = PLAIN, version: int = 9, **options: bool) -> ValidatedBatch:
    """Validate a copy of `data`, and check that neither success nor an error changes the buffer."""
    buffer = bytearray(b"##" + data)
    original = bytes(buffer)
    try:
        result = validate_produce(memoryview(buffer)[2:], rules, NOW, version, **options)
    finally:
        assert bytes(buffer) == original
    if result.append_time is None:
        assert next(iter(batches(result.buffer))).max_timestamp == result.max_timestamp
    (stored,) = batches(result.buffer)
    stored.ensure_crc()
    assert stored.magic == 2
    assert stored.end == len(result.buffer) == result.size
    assert stored.count == result.count
    assert stored.last_offset - stored.base_offset == result.last_offset_delta
    assert stored.attributes == result.attributes
    return result


def assert_rejected(
    data: bytes | bytearray, code: ErrorCode, rules: ProduceRules = PLAIN, version: int = 9, **options: bool
) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        check(data, rules, version, **options)
    assert caught.value.code is code, caught.value
    return caught.value


@pytest.mark.parametrize("codec", CODECS)
def test_a_plain_batch_is_accepted_without_a_copy(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "normalise_produce", None)
    data = memoryview(
        built(simple(3), codec=codec, producer_id=7, producer_epoch=1, base_sequence=5, transactional=True)
    )
    result = validate_produce(data, PLAIN, NOW, 9)
    assert result.buffer is data
    assert result.size == len(data)
    assert (result.count, result.last_offset_delta, result.max_timestamp) == (3, 2, TIME + 2)
    assert (result.producer_id, result.producer_epoch, result.base_sequence) == (7, 1, 5)
    assert result.is_transactional
    assert not result.is_control
    assert not result.rewritten
    assert result.append_time is None


def test_log_append_time_needs_no_decompression_and_is_assigned_with_the_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validate, "normalise_produce", None)
    data = memoryview(built(simple(3), codec=ZSTD))
    result = validate_produce(data, ProduceRules(timestamp_type=LOG_APPEND_TIME, before_max_ms=5), NOW, 9)
    assert (result.append_time, result.max_timestamp) == (NOW, NOW)
    assign_offsets(result.buffer, 100, 3, result.append_time)
    assert [(r.offset, r.timestamp) for r in read_records(result.buffer)] == [(100, NOW), (101, NOW), (102, NOW)]


@given(st.data())
@settings(max_examples=60)
def test_the_fast_path_and_the_slow_path_agree(data: st.DataObject) -> None:
    batch = built(data.draw(records_of(2)), codec=data.draw(st.sampled_from(CODECS)))
    if data.draw(st.booleans()):
        position = data.draw(st.integers(min_value=0, max_value=HEADER_SIZE + 20))
        if position < len(batch):
            batch[position] ^= data.draw(st.sampled_from([1, 2, 16, 128]))
        if data.draw(st.booleans()):
            rewrite_crc(batch)
    outcomes = []
    for function in (validate_produce, normalise_produce):
        try:
            result = function(bytearray(batch), PLAIN, NOW, 9, True)
            outcomes.append(result._replace(rewritten=False, buffer=bytearray(result.buffer)))
        except KafkaError as error:
            outcomes.append(error.code)
    if outcomes[0] != outcomes[1]:
        # Only the slow path reads the records: it detects more errors, and corrects the max
        # timestamp of the header.
        assert isinstance(outcomes[0], ValidatedBatch)
        if isinstance(outcomes[1], ValidatedBatch):
            assert outcomes[0]._replace(buffer=bytearray(), max_timestamp=0) == outcomes[1]._replace(
                buffer=bytearray(), max_timestamp=0
            )
        else:
            assert outcomes[1] in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP, ErrorCode.MESSAGE_TOO_LARGE)


# --- sizes and checksums


def test_a_wrong_checksum_is_corrupt() -> None:
    for codec in CODECS:
        data = built(simple(3), codec=codec)
        data[-1] ^= 1
        assert_rejected(data, ErrorCode.CORRUPT_MESSAGE)


def test_a_length_below_a_header_is_corrupt_and_a_length_past_the_end_is_invalid() -> None:
    data = built(simple(3))
    for length in (0, -1, 48):
        assert_rejected(patched(data, ">i", 8, length), ErrorCode.CORRUPT_MESSAGE)
    for length in (len(data) - 11, 2**31 - 1):
        assert_rejected(patched(data, ">i", 8, length), ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("size", [0, 1, 12, 16, 17, 60, 61])
def test_an_incomplete_batch_is_rejected(size: int) -> None:
    assert_rejected(built(simple(3))[:size], ErrorCode.INVALID_RECORD)


def test_an_incomplete_batch_after_the_first_is_ignored() -> None:
    data = built(simple(3))
    assert check(data + b"\0" * 10).size == len(data)


def test_more_than_one_batch_is_rejected() -> None:
    data = built(simple(3))
    assert_rejected(data + data, ErrorCode.INVALID_RECORD)
    assert_rejected(data + data, ErrorCode.INVALID_RECORD, version=2)


def test_a_batch_larger_than_the_topic_allows_is_too_large() -> None:
    data = built(simple(10))
    rules = ProduceRules(max_message_bytes=len(data))
    assert check(data, rules).count == 10
    assert_rejected(data, ErrorCode.MESSAGE_TOO_LARGE, ProduceRules(max_message_bytes=len(data) - 1))


def test_a_batch_that_grows_beyond_the_limit_by_recompression_is_too_large() -> None:
    data = built(simple(10, 2000), codec=GZIP)
    assert_rejected(data, ErrorCode.MESSAGE_TOO_LARGE, ProduceRules(codec=NONE, max_message_bytes=10_000))


@pytest.mark.parametrize("magic", [3, -1])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    assert_rejected(patched(built(simple(1)), ">b", 16, magic), ErrorCode.CORRUPT_MESSAGE)


# --- counts


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("count", "delta"), [(4, 2), (2, 2), (3, 3), (0, -1), (0, 0), (-1, -2), (2**31 - 1, 2)])
def test_a_count_that_does_not_match_the_offsets_is_rejected(codec: int, count: int, delta: int) -> None:
    data = patched(patched(built(simple(3), codec=codec), ">i", 57, count), ">i", 23, delta)
    assert_rejected(data, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("count", [1, 3, 64, 65, 70, 200, 3000])
@pytest.mark.parametrize("size", [0, 20, 200, 1500])
@pytest.mark.parametrize("surplus", [-1, +1, +2, +70])
def test_a_wrong_count_for_an_uncompressed_body_is_rejected(count: int, size: int, surplus: int) -> None:
    if count > 200 and size > 20:
        return
    data = built(simple(count, size))
    rules = ProduceRules(max_message_bytes=1 << 30)
    assert check(data, rules).count == count
    if count + surplus < 1:
        return
    data = patched(patched(data, ">i", 57, count + surplus), ">i", 23, count + surplus - 1)
    assert_rejected(data, ErrorCode.INVALID_RECORD, rules)


def test_a_wrong_count_for_a_compressed_body_is_rejected_on_decompression() -> None:
    for codec in CODECS[1:]:
        data = built(simple(3), codec=codec)
        data = patched(patched(data, ">i", 57, 5), ">i", 23, 4)
        assert_rejected(data, ErrorCode.INVALID_RECORD, COMPACTED)
        assert_rejected(data, ErrorCode.INVALID_RECORD, ProduceRules(codec=NONE))


def test_the_search_for_the_last_record_finds_it_with_headers_late_times_and_any_payload() -> None:
    records = [
        Record(timestamp=TIME + i * 100_000, key=b"k", value=bytes(range(i % 256)), headers=(("h", b"\xff"),))
        for i in range(300)
    ]
    data = built(records)
    assert has_record_count(data, len(data), 300)
    assert validate._ends_with_record(data, len(data), 299)
    assert not validate._ends_with_record(data, len(data), 298)
    # If the payload is full of the searched bytes, the scan of all records decides.
    needle = bytes((299 << 1 & 127 | 128, 299 >> 6)) * 40
    data = built([Record(timestamp=TIME, value=needle) for _ in range(300)])
    assert not validate._ends_with_record(data, len(data), 299)
    assert has_record_count(data, len(data), 300)
    assert not has_record_count(data, len(data), 299)


@given(st.lists(st.integers(min_value=0, max_value=20_000), min_size=1, max_size=90))
@settings(max_examples=50)
def test_valid_batches_of_any_record_sizes_are_accepted(sizes: list[int]) -> None:
    data = built([Record(timestamp=TIME, value=bytes(size)) for size in sizes])
    assert has_record_count(data, len(data), len(sizes))
    assert not has_record_count(data, len(data), len(sizes) + 1)


@pytest.mark.parametrize(
    "body", [b"\x0f" * 20, b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\xfe\xff\xff\xff\x0f\0\0\0", b"\x80\x80", b"\x80" * 9]
)
def test_a_body_with_invalid_lengths_is_rejected(body: bytes) -> None:
    for count in (1, 2):
        assert_rejected(with_body(body, count), ErrorCode.INVALID_RECORD)


def test_the_base_offset_of_a_batch_from_a_client_is_zero() -> None:
    assert_rejected(built(simple(3), base_offset=5), ErrorCode.INVALID_RECORD)
    assert check(built(simple(3), base_offset=5), from_client=False).count == 3


def test_a_producer_id_without_a_sequence_is_rejected() -> None:
    assert_rejected(built(simple(3), producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD)


def test_control_records_are_for_coordinators_only() -> None:
    marker = end_marker(True, 5, 0, 1, TIME)
    assert_rejected(marker, ErrorCode.INVALID_RECORD)
    result = check(marker, ProduceRules(compacted=True, codec=GZIP), from_client=False)
    assert result.is_control
    assert result.is_transactional
    assert not result.rewritten


def test_records_of_a_coordinator_need_no_keys() -> None:
    assert check(built(simple(2, key=None)), COMPACTED, from_client=False).count == 2


def test_a_batch_of_a_coordinator_uses_the_fast_path_on_a_compacted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    data = built(simple(3))
    damaged = bytearray(data)
    damaged[-1] ^= 1
    assert_rejected(damaged, ErrorCode.CORRUPT_MESSAGE, COMPACTED, from_client=False)
    monkeypatch.setattr(validate, "normalise_produce", None)
    assert check(data, COMPACTED, from_client=False).count == 3


# --- codecs


def test_zstd_needs_produce_v7() -> None:
    data = built(simple(3), codec=ZSTD)
    for version in (3, 6):
        assert_rejected(data, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, version=version)
    assert check(data, version=7).count == 3


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_rejected(codec: int) -> None:
    assert_rejected(with_body(b"abcdefg" * 5, 1, codec), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_the_compression_type_of_the_topic_is_applied(source: int, target: int) -> None:
    data = built(simple(30, 200), codec=source, producer_id=7, producer_epoch=1, base_sequence=5, transactional=True)
    result = check(data, ProduceRules(codec=target))
    assert result.rewritten == (source != target)
    assert result.attributes & 7 == target
    assert result.is_transactional
    assert (result.producer_id, result.producer_epoch, result.base_sequence) == (7, 1, 5)
    assert list(read_records(result.buffer)) == list(read_records(data))


def test_the_compression_level_of_the_topic_is_used() -> None:
    data = built([Record(timestamp=TIME, value=b" ".join(str(i * i % 991).encode() for i in range(20_000)))])
    low_level = check(data, ProduceRules(codec=GZIP, level=1))
    high_level = check(data, ProduceRules(codec=GZIP, level=9))
    assert high_level.size < low_level.size


def test_malformed_compressed_data_is_rejected_on_decompression() -> None:
    for codec in CODECS[1:]:
        data = with_body(b"this is not compressed", 1, codec)
        assert_rejected(data, ErrorCode.INVALID_RECORD, COMPACTED)


def test_a_decompression_bomb_is_rejected_on_decompression() -> None:
    for codec in (GZIP, LZ4, ZSTD):
        data = with_body(compress(codec, bytes(20 << 20)), 1, codec)
        assert_rejected(data, ErrorCode.MESSAGE_TOO_LARGE, ProduceRules(compacted=True, max_decompressed=1 << 20))


# --- records of a compacted topic, timestamps


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_names_the_records_without_a_key(codec: int) -> None:
    records = [record._replace(key=None) if i in (1, 3) else record for i, record in enumerate(simple(5))]
    error = assert_rejected(built(records, codec=codec), ErrorCode.INVALID_RECORD, COMPACTED)
    assert isinstance(error, InvalidRecordError)
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert check(built(simple(5), codec=codec), COMPACTED).count == 5
    assert check(built(records, codec=codec), PLAIN).count == 5


def test_an_empty_key_is_a_key() -> None:
    assert check(built(simple(2, key=b"")), COMPACTED).count == 2


@pytest.mark.parametrize("codec", CODECS)
def test_records_with_timestamps_too_far_ahead_are_rejected(codec: int) -> None:
    records = [record._replace(timestamp=NOW + 3_600_000 + i) for i, record in enumerate(simple(3))]
    error = assert_rejected(built(records, codec=codec), ErrorCode.INVALID_TIMESTAMP)
    assert isinstance(error, InvalidRecordError)
    assert [index for index, _ in error.record_errors] == [1, 2]
    assert check(built(records, codec=codec), ProduceRules(after_max_ms=3_600_002)).count == 3
    assert check(built(records, codec=codec), ProduceRules(timestamp_type=LOG_APPEND_TIME)).count == 3


@pytest.mark.parametrize("codec", CODECS)
def test_records_with_timestamps_before_the_bound_are_rejected(codec: int) -> None:
    records = [record._replace(timestamp=NOW - 1000 + i) for i, record in enumerate(simple(3))]
    error = assert_rejected(built(records, codec=codec), ErrorCode.INVALID_TIMESTAMP, ProduceRules(before_max_ms=999))
    assert isinstance(error, InvalidRecordError)
    assert [index for index, _ in error.record_errors] == [0]
    assert check(built(records, codec=codec), ProduceRules(before_max_ms=1000)).count == 3


def test_records_without_a_timestamp_are_within_any_bound() -> None:
    data = built([Record(value=b"v")])
    assert check(data, ProduceRules(before_max_ms=0, after_max_ms=0)).max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
def test_a_timestamp_2_63_ms_ago_is_rejected_with_any_bound(codec: int) -> None:
    """Kafka 4 also rejects it, because its subtraction overflows."""
    for timestamp in (-(2**63), NOW - 2**63):
        data = built([Record(timestamp=timestamp, value=b"v")], codec=codec)
        assert_rejected(data, ErrorCode.INVALID_TIMESTAMP)
        assert check(data, ProduceRules(timestamp_type=LOG_APPEND_TIME)).max_timestamp == NOW
    assert check(built([Record(timestamp=NOW - 2**63 + 1, value=b"v")], codec=codec)).max_timestamp == -1


def test_rewritten_records_have_no_negative_timestamp_except_minus_one() -> None:
    message = legacy_message(1, 0, 0, -2, b"k", b"v")
    assert_rejected(message, ErrorCode.INVALID_TIMESTAMP, version=2)
    assert check(legacy_message(1, 0, 0, -1, b"k", b"v"), version=2).max_timestamp == -1
    data = built([Record(timestamp=-2, value=b"v")])
    assert_rejected(data, ErrorCode.INVALID_TIMESTAMP, ProduceRules(codec=GZIP))
    assert check(data).count == 1


def test_a_wrong_max_timestamp_is_corrected_on_decompression() -> None:
    data = patched(built(simple(3)), ">q", 35, NOW + 10**10)
    result = check(data)
    assert result.rewritten
    assert result.max_timestamp == TIME + 2


def test_a_producer_may_not_set_log_append_time_on_a_log_append_time_topic() -> None:
    data = built(simple(3), timestamp_type=LOG_APPEND_TIME, append_time=TIME)
    assert_rejected(data, ErrorCode.INVALID_TIMESTAMP, ProduceRules(timestamp_type=LOG_APPEND_TIME))
    result = check(data, ProduceRules(timestamp_type=CREATE_TIME))
    (batch,) = batches(result.buffer)
    assert batch.timestamp_type == CREATE_TIME


def test_offset_deltas_that_do_not_increase_by_one_are_rejected() -> None:
    data = built([Record(0, TIME, b"k", b"a"), Record(2, TIME, b"k", b"b")])
    data = patched(data, ">i", 23, 1)
    error = assert_rejected(data, ErrorCode.INVALID_RECORD, COMPACTED)
    assert isinstance(error, InvalidRecordError)
    assert error.record_errors[0][0] == 1


def test_the_list_of_rejected_records_is_limited() -> None:
    error = assert_rejected(built(simple(5000, 5, key=None)), ErrorCode.INVALID_RECORD, COMPACTED)
    assert isinstance(error, InvalidRecordError)
    assert len(error.record_errors) == 10
    assert "10 or more records" in error.message


# --- old formats


@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f[0] < 2])
@pytest.mark.parametrize("target", [None, NONE, LZ4, ZSTD])
def test_old_messages_are_converted_to_one_batch_of_magic_2(magic: int, codec: int, target: int | None) -> None:
    records = simple(5)
    data = built(records, magic, codec)
    result = check(data, ProduceRules(codec=target), version=magic)
    assert result.rewritten
    assert result.count == 5
    assert result.producer_id == -1
    assert result.attributes & 7 == (codec if target is None else target)
    assert result.max_timestamp == (TIME + 4 if magic else -1)
    assign_offsets(result.buffer, 900, 1, result.append_time)
    expected = [r._replace(offset=900 + i, timestamp=r.timestamp if magic else -1) for i, r in enumerate(records)]
    assert list(read_records(result.buffer)) == expected


def test_old_messages_get_log_append_time() -> None:
    result = check(built(simple(2), 0), ProduceRules(timestamp_type=LOG_APPEND_TIME), version=0)
    assert result.max_timestamp == result.append_time == NOW


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_rejected_from_produce_v3_on(magic: int) -> None:
    assert_rejected(built(simple(1), magic), ErrorCode.INVALID_RECORD, version=3)


def test_a_batch_of_magic_2_in_an_old_produce_is_accepted() -> None:
    assert check(built(simple(3)), version=2).count == 3


@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f[0] < 2])
def test_errors_in_old_messages_have_kafkas_codes(magic: int, codec: int) -> None:
    data = built(simple(3), magic, codec)
    broken = bytearray(data)
    broken[-1] ^= 1
    assert_rejected(broken, ErrorCode.CORRUPT_MESSAGE, version=1)
    keyless = built(simple(3, key=None), magic, codec)
    error = assert_rejected(keyless, ErrorCode.INVALID_RECORD, COMPACTED, version=1)
    assert isinstance(error, InvalidRecordError)
    assert [index for index, _ in error.record_errors] == [0, 1, 2]
    assert_rejected(data, ErrorCode.MESSAGE_TOO_LARGE, ProduceRules(max_message_bytes=40), version=1)
    if codec:
        assert_rejected(data + data, ErrorCode.INVALID_RECORD, version=1)


def test_a_message_with_log_append_time_is_rejected_by_a_log_append_time_topic() -> None:
    data = legacy_message(1, 0, 8, TIME, None, b"v")
    assert_rejected(data, ErrorCode.INVALID_TIMESTAMP, ProduceRules(timestamp_type=LOG_APPEND_TIME), version=2)


# --- arbitrary input


RULES = [
    PLAIN,
    COMPACTED,
    ProduceRules(codec=GZIP, max_decompressed=100_000),
    ProduceRules(codec=NONE, before_max_ms=10**13),
    ProduceRules(timestamp_type=LOG_APPEND_TIME, codec=LZ4),
]


@given(st.data())
@settings(max_examples=300)
def test_mutated_requests_are_accepted_or_rejected_with_a_code(data: st.DataObject) -> None:
    magic, codec = data.draw(st.sampled_from(FORMATS))
    batch = built(simple(3), magic, codec)
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        batch[data.draw(st.integers(min_value=0, max_value=len(batch) - 1))] = data.draw(st.integers(0, 255))
    if magic == 2 and data.draw(st.booleans()):
        rewrite_crc(batch)
    rules = data.draw(st.sampled_from(RULES))
    try:
        result = validate_produce(memoryview(batch), rules, NOW, data.draw(st.sampled_from([0, 2, 3, 9])))
    except KafkaError:
        return
    assign_offsets(result.buffer, 77, 3, result.append_time)
    (stored,) = batches(result.buffer)
    stored.ensure_crc()
    assert stored.base_offset == 77
    assert stored.last_offset == 77 + result.last_offset_delta
    assert stored.max_timestamp == result.max_timestamp


@given(st.binary(max_size=150), st.sampled_from([0, 1, 2]))
def test_any_bytes_are_rejected_with_a_code(junk: bytes, magic: int) -> None:
    data = bytearray(junk)
    if len(data) > 16:
        data[16] = magic
        struct.pack_into(">i", data, 8, len(data) - 12)
    with pytest.raises(KafkaError):
        validate_produce(memoryview(data), PLAIN, NOW, 2)
