"""Decoding fetched bytes to records and columns, in the compiled and the plain form."""

from __future__ import annotations

import gc
import pickle
import socket
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import LOG_APPEND_TIME, rewrite_crc
from kavka.records.builder import BatchBuilder
from kavka.records.control import end_marker
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.records.varint import encode_varint
from tests.support import forms

TIME = 1_700_000_000_000
_LOADED: dict[str, ModuleType] = {}


def loaded(form: str) -> ModuleType:
    if form not in _LOADED:
        _LOADED[form] = forms.load("kavka.client.consumer._decode", form)
    return _LOADED[form]


@pytest.fixture(params=forms.FORMS)
def hot(request: pytest.FixtureRequest) -> ModuleType:
    return loaded(request.param)


def batch(offset: int, *values: bytes | None, **settings: Any) -> bytes:
    builder = BatchBuilder(base_offset=offset, **settings)
    for index, value in enumerate(values):
        builder.append(Record(timestamp=TIME + index, value=value))
    return bytes(builder.build())


def fetched(hot: Any, data: bytes, offset: int = 0, **settings: Any) -> Any:
    return hot.Fetched("t", 0, memoryview(bytearray(data)), offset, **settings)


def take(source: Any, limit: int = 1000) -> list[Any]:
    out: list[Any] = []
    source.take(out, limit)
    return out


def columns(hot: Any, source: Any, limit: int = 1 << 40, views: bool = False) -> Any:
    from kavka.client.consumer.arrow import record_batch

    out = hot.Columns(has_views=views)
    source.take_columns(out, limit)
    return record_batch(out)


records = st.builds(
    Record,
    timestamp=st.integers(0, 2**50),
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
)
many_batches = st.lists(
    st.tuples(st.lists(records, min_size=1, max_size=8), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=5
)


def build(batches: Any, magic: int = 2) -> tuple[bytes, list[Record]]:
    data, expected, offset = b"", [], 5
    for members, codec, gap in batches:
        builder = BatchBuilder(magic, codec if magic == 2 else min(codec, 3), base_offset=offset)
        for record in members:
            if magic < 2:
                record = record._replace(headers=(), timestamp=record.timestamp if magic else -1)
            expected.append(record._replace(offset=offset))
            builder.append(record._replace(offset=offset))
            offset += 1
        data += bytes(builder.build())
        offset += gap
    return data, expected


def as_record(record: Any) -> Record:
    return Record(record.offset, record.timestamp, record.key, record.value, record.headers)


@pytest.mark.parametrize("form", forms.FORMS)
@given(batches=many_batches, limit=st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_records_round_trip_for_any_limit(form: str, batches: Any, limit: int) -> None:
    data, expected = build(batches)
    source = fetched(loaded(form), data, 5)
    decoded: list[Any] = []
    while taken := take(source, limit):
        assert len(taken) <= limit
        decoded += taken
    assert source.exhausted
    assert [as_record(r) for r in decoded] == expected
    assert [(r.serialized_key_size, r.serialized_value_size) for r in decoded] == [
        (-1 if r.key is None else len(r.key), -1 if r.value is None else len(r.value)) for r in expected
    ]
    assert source.next_offset == expected[-1].offset + 1


@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("magic", [0, 1])
@given(batches=many_batches)
@settings(max_examples=25, deadline=None)
def test_old_formats_are_decoded(form: str, magic: int, batches: Any) -> None:
    data, expected = build(batches, magic)
    source = fetched(loaded(form), data, 5)
    decoded = take(source, 2) + take(source, 10_000)
    assert [as_record(r) for r in decoded] == expected
    assert {r.timestamp_type for r in decoded} == {-1 if magic == 0 else 0}


@pytest.mark.parametrize("form", forms.FORMS)
@given(batches=many_batches, limit=st.integers(1, 9), magic=st.sampled_from([2, 2, 2, 1, 0]))
@settings(max_examples=60, deadline=None)
def test_columns_equal_records(form: str, batches: Any, limit: int, magic: int) -> None:
    hot = loaded(form)
    data, expected = build(batches, magic)
    source = fetched(hot, data, 5)
    rows: list[dict[str, Any]] = []
    times: list[int] = []
    while not source.exhausted:
        decoded = columns(hot, source, limit)
        decoded.validate(full=True)
        times += decoded["timestamp"].cast("int64").to_pylist()
        rows += decoded.drop_columns("timestamp").to_pylist()
    assert [(r["offset"], r["key"], r["value"]) for r in rows] == [(r.offset, r.key, r.value) for r in expected]
    assert times == [r.timestamp for r in expected]
    assert {(r["topic"], r["partition"]) for r in rows} == {("t", 0)}
    assert [r["headers"] for r in rows] == [
        [{"key": k, "value": v} for k, v in r.headers] if r.headers else None for r in expected
    ]


@settings(max_examples=40, deadline=None)
@given(items=st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20))))
def test_views_have_the_same_content_as_copies(items: list[tuple[bytes | None, bytes | None]]) -> None:
    for form, codec, magic in product(forms.FORMS, (0, 1), (1, 2)):
        hot = loaded(form)
        builder = BatchBuilder(magic=magic, codec=codec)
        for key, value in items:
            builder.append(Record(timestamp=TIME, key=key, value=value))
        data = b"" if not items else bytes(builder.build())
        copies, views = (columns(hot, fetched(hot, data), views=v) for v in (False, True))
        views.validate(full=True)
        for name in ("key", "value"):
            assert str(views[name].type) == "binary_view" and str(copies[name].type) == "binary"
            assert views[name].to_pylist() == copies[name].to_pylist() == [i[name == "value"] for i in items]
        assert views.drop_columns(["key", "value"]) == copies.drop_columns(["key", "value"])


def test_views_do_not_copy_large_values() -> None:
    hot = loaded(forms.COMPILED)
    data = memoryview(bytearray(batch(0, b"a" * 100, b"short", b"b" * 100)))
    out = hot.Columns(has_views=True)
    source = hot.Fetched("t", 0, data, 0)
    assert source.take_columns(out, 2) == 2 and source.take_columns(out, 2) == 1
    assert out.buffers == [data] and out.buffers[0] is data
    assert not out.key_data and not out.value_data and out.value_used == 205


def test_columns_are_full_when_views_refer_to_enough_bytes(hot: ModuleType) -> None:
    out = hot.Columns(max_size=150, has_views=True)
    source = fetched(hot, batch(0, b"a" * 100) + batch(1, b"b" * 100) + batch(2, b"c" * 100))
    assert source.take_columns(out, 100) == 2


def test_a_batch_that_becomes_invalid_leaves_the_views_of_earlier_batches(hot: ModuleType) -> None:
    from kavka.client.consumer.arrow import record_batch

    bad = bytearray(batch(1, b"b" * 20))
    bad[bad.rindex(b"b" * 20) - 1] = 100
    out = hot.Columns(has_views=True)
    source = fetched(hot, batch(0, b"a" * 20) + bytes(bad), check_crcs=False)
    assert source.take_columns(out, 100) == 1
    with pytest.raises(KafkaError):
        source.take_columns(out, 100)
    decoded = record_batch(out)
    decoded.validate(full=True)
    assert decoded["value"].to_pylist() == [b"a" * 20]


@pytest.mark.parametrize("views", [False, True])
def test_columns_contain_several_partitions(hot: ModuleType, views: bool) -> None:
    from kavka.client.consumer.arrow import record_batch

    out = hot.Columns(has_views=views)
    for partition, topic in enumerate(("a", "b", "a")):
        source = hot.Fetched(topic, partition, memoryview(batch(0, b"x", None)), 0)
        assert source.take_columns(out, 100) == 2
    decoded = record_batch(out)
    decoded.validate(full=True)
    assert decoded["topic"].to_pylist() == ["a", "a", "b", "b", "a", "a"]
    assert decoded["partition"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert decoded["value"].to_pylist() == [b"x", None] * 3
    assert decoded["key"].null_count == 6


def test_records_before_the_fetch_offset_are_skipped(hot: ModuleType) -> None:
    data = batch(0, b"0", b"1", b"2") + batch(3, b"3", b"4", b"5")
    assert [r.value for r in take(fetched(hot, data, 4))] == [b"4", b"5"]
    source = fetched(hot, data, 4)
    assert [r.value for r in take(source, 1)] == [b"4"]
    assert source.next_offset == 5
    assert columns(hot, fetched(hot, data, 1))["value"].to_pylist() == [b"1", b"2", b"3", b"4", b"5"]


def test_truncated_batch_is_not_decoded(hot: ModuleType) -> None:
    data = batch(0, b"a") + batch(1, b"b")
    for length in range(len(data) - 1, len(batch(0, b"a")), -7):
        source = fetched(hot, data[:length])
        assert [r.value for r in take(source)] == [b"a"]
        assert (source.next_offset, source.exhausted) == (1, True)
        assert hot.end_of_batches(memoryview(data[:length])) == (1, -1, len(batch(0, b"a")))


def test_compacted_offsets_are_skipped(hot: ModuleType) -> None:
    builder = BatchBuilder(base_offset=10)
    for offset in (10, 13, 19):
        builder.append(Record(offset=offset, timestamp=TIME, value=b"%d" % offset))
    source = fetched(hot, bytes(builder.build()), 12)
    assert [r.offset for r in take(source)] == [13, 19]
    assert source.next_offset == 20


def test_position_after_a_batch_follows_its_last_offset(hot: ModuleType) -> None:
    data = bytearray(batch(0, b"a", b"b"))
    data[23:27] = (9).to_bytes(4, "big")
    rewrite_crc(data)
    source = fetched(hot, bytes(data))
    assert len(take(source)) == 2
    assert source.next_offset == 10
    assert hot.end_of_batches(memoryview(data)) == (10, -1, len(data))


def test_log_append_time_applies_to_all_records(hot: ModuleType) -> None:
    data = batch(0, b"a", b"b", timestamp_type=LOG_APPEND_TIME, append_time=77)
    assert [(r.timestamp, r.timestamp_type) for r in take(fetched(hot, data))] == [(77, 1), (77, 1)]
    assert columns(hot, fetched(hot, data))["timestamp_type"].to_pylist() == [1, 1]


def test_records_have_the_leader_epoch(hot: ModuleType) -> None:
    source = fetched(hot, batch(0, b"a", leader_epoch=7))
    assert take(source)[0].leader_epoch == 7
    assert source.epoch == 7
    assert hot.end_of_batches(memoryview(batch(0, b"a", leader_epoch=7)))[1] == 7


# --- transactions


def transaction(offset: int, producer: int, *values: bytes) -> bytes:
    settings = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return batch(offset, *values, **settings)


def marker(offset: int, producer: int, commit: bool) -> bytes:
    return bytes(end_marker(commit, producer, 0, 0, TIME, base_offset=offset))


LOG = (
    transaction(0, 1, b"lost", b"lost too")
    + transaction(2, 2, b"committed")
    + marker(3, 1, False)
    + transaction(4, 1, b"second try")
    + marker(5, 2, True)
    + marker(6, 1, True)
    + batch(7, b"plain")
)


def test_read_committed_skips_aborted_records(hot: ModuleType) -> None:
    source = fetched(hot, LOG, aborted=[(0, 1)])
    assert [r.value for r in take(source)] == [b"committed", b"second try", b"plain"]
    assert source.next_offset == 8
    assert columns(hot, fetched(hot, LOG, aborted=[(0, 1)]))["offset"].to_pylist() == [2, 4, 7]


def test_read_uncommitted_skips_only_markers(hot: ModuleType) -> None:
    assert [r.offset for r in take(fetched(hot, LOG))] == [0, 1, 2, 4, 7]


def test_position_moves_past_trailing_markers_and_aborted_records(hot: ModuleType) -> None:
    source = fetched(hot, transaction(0, 1, b"x") + marker(1, 1, False), aborted=[(0, 1)])
    assert take(source) == []
    assert (source.next_offset, source.exhausted) == (2, True)


# --- invalid data


def test_wrong_checksum_is_raised_on_every_call(hot: ModuleType) -> None:
    data = bytearray(batch(0, b"good") + batch(1, b"evil"))
    data[-1] ^= 1
    source = fetched(hot, bytes(data))
    assert [r.value for r in take(source)] == [b"good"]
    for _ in range(2):
        with pytest.raises(KafkaError, match=r"t-0 at offset 1: .*checksum.*seek past") as caught:
            take(source)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert source.next_offset == 1


def test_checksums_are_not_verified_if_disabled(hot: ModuleType) -> None:
    data = bytearray(batch(0, b"good"))
    data[17] ^= 255
    assert len(take(fetched(hot, bytes(data), check_crcs=False))) == 1


@pytest.mark.parametrize("form", forms.FORMS)
@given(position=st.integers(61, 140), value=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_wrong_byte_yields_an_error_or_other_records(form: str, position: int, value: int) -> None:
    hot = loaded(form)
    data = bytearray(batch(0, b"a" * 30, b"b" * 30, b"c" * 10))
    position = min(position, len(data) - 1)
    data[position] = value
    outcomes = []
    for decode in (lambda f: [as_record(r) for r in take(f)], lambda f: columns(hot, f).num_rows):
        try:
            result = decode(fetched(hot, bytes(data), check_crcs=False))
            outcomes.append(len(result) if isinstance(result, list) else result)
        except KafkaError as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE
            outcomes.append(-1)
    # Headers are decoded on access only.
    assert outcomes[0] in (outcomes[1], -1) or outcomes[1] == -1


@pytest.mark.parametrize("form", forms.FORMS)
@given(position=st.integers(61, 140), value=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_data_that_the_broker_rejects_is_rejected(form: str, position: int, value: int) -> None:
    """Both forms accept the same data as `kavka.records`, for any single wrong byte."""
    data = bytearray(batch(0, b"a" * 30, b"b" * 30, b"c" * 10))
    data[min(position, len(data) - 1)] = value
    try:
        expected: list[Record] | None = list(read_records(bytes(data), verify_crc=False))
    except KafkaError:
        expected = None
    try:
        out: list[Any] = []
        source = fetched(loaded(form), bytes(data), check_crcs=False)
        source.take(out, 100)
        decoded: list[Record] | None = [as_record(r) for r in out]
    except KafkaError:
        decoded = None
    if expected is None:
        # A wrong offset may place a record before the fetch offset.
        assert decoded is None or len(decoded) < 3
    else:
        assert decoded == [r for r in expected if r.offset >= 0]


@pytest.mark.parametrize("missing", [1, 8, 20, 59])
def test_batch_shorter_than_its_header_is_an_error(hot: ModuleType, missing: int) -> None:
    data = bytearray(batch(0, b"a"))
    data[8:12] = (61 - 12 - missing).to_bytes(4, "big", signed=True)
    with pytest.raises(KafkaError, match="a batch has the invalid size"):
        take(fetched(hot, bytes(data)))


def test_wrong_record_count_is_an_error(hot: ModuleType) -> None:
    for count in (3, 1, 1_000_000_000, -1):
        data = bytearray(batch(0, b"a", b"b"))
        data[57:61] = count.to_bytes(4, "big", signed=True)
        with pytest.raises(KafkaError):
            take(fetched(hot, bytes(data), check_crcs=False))


def test_no_record_of_an_invalid_batch_is_taken(hot: ModuleType) -> None:
    builder = BatchBuilder(base_offset=1)
    for value in (b"a", b"b"):
        builder.append(Record(timestamp=TIME, value=value, headers=(("h", b"1"),)))
    bad = bytearray(builder.build())
    # The length of the last value.
    bad[bad.rindex(b"b") - 1] = 100
    source = fetched(hot, batch(0, b"good") + bytes(bad), check_crcs=False)
    out: list[Any] = []
    assert source.take(out, 100) == 1 and len(out) == 1
    with pytest.raises(KafkaError):
        source.take(out, 100)
    assert len(out) == 1 and source.next_offset == 1
    table = hot.Columns()
    source.rewind(0)
    assert source.take_columns(table, 100) == 1
    with pytest.raises(KafkaError):
        source.take_columns(table, 100)
    assert (table.rows, table.headers) == (1, [])


def test_rewind_returns_the_same_records_again(hot: ModuleType) -> None:
    source = fetched(hot, LOG, aborted=[(0, 1)])
    first = take(source)
    source.rewind(4)
    assert take(source) == first[1:]


# --- the record


def test_records_compare_by_value(hot: ModuleType) -> None:
    make = hot.ConsumerRecord
    record = make("t", 1, 2, b"k", b"v", timestamp=3, headers=[("h", b"1")])
    same = make("t", 1, 2, b"k", b"v", timestamp=3, headers=[("h", b"1")])
    assert record == same and hash(record) == hash(same)
    assert record != make("t", 1, 2, b"k", b"other", timestamp=3, headers=[("h", b"1")])
    assert record != "something else"
    assert record.headers == (("h", b"1"),)
    assert "offset=2" in repr(record) and "b'v'" in repr(record)


def test_records_can_be_pickled() -> None:
    from kavka.client.consumer._decode import ConsumerRecord

    record = ConsumerRecord("t", 1, 2, b"k", b"v", timestamp=3, headers=[("h", None)])
    assert pickle.loads(pickle.dumps(record)) == record


def test_headers_are_decoded_on_access(hot: ModuleType) -> None:
    builder = BatchBuilder()
    builder.append(Record(timestamp=TIME, value=b"v", headers=(("é", b"1"), ("é", None))))
    record = take(fetched(hot, bytes(builder.build())))[0]
    assert record.headers == (("é", b"1"), ("é", None))
    assert record.headers is record.headers


@given(st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=5))
def test_headers_round_trip(headers: Any) -> None:
    encoded = b"".join(part for name, value in headers for part in (_field(name.encode()), _field(value)))
    data = encode_varint(len(headers)) + encoded
    assert loaded(forms.PLAIN).parse_headers(data) == tuple(headers)


def _field(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x02a", b"\x04\x02a\x01", b"\x00\x00", b"\x01"])
def test_invalid_headers_are_an_error(hot: ModuleType, data: bytes) -> None:
    with pytest.raises(KafkaError):
        hot.parse_headers(data)


def test_compiled_records_are_reused_without_garbage_collection() -> None:
    hot = loaded(forms.COMPILED)
    data = batch(0, *[b"v"] * 500)
    take(fetched(hot, data))
    collections_before = gc.get_stats()[0]["collections"]
    for _ in range(50):
        assert len(take(fetched(hot, data))) == 500
    assert gc.get_stats()[0]["collections"] - collections_before < 10


# --- undecoded batches


def undecoded_batches(source: Any) -> list[tuple[int, int, bytes]]:
    decoded = []
    while (taken := source.take_batch()) is not None:
        decoded.append((taken[0], taken[1], bytes(taken[2])))
    return decoded


def test_batches_from_the_fetch_offset_are_taken_undecoded(hot: ModuleType) -> None:
    batches = [batch(0, b"a", b"b"), batch(2, b"c", b"d", b"e", codec=1), batch(9, b"f")]
    source = fetched(hot, b"".join(batches) + batches[0][:30], 3)
    assert undecoded_batches(source) == [(3, 5, batches[1]), (9, 10, batches[2])]
    assert source.exhausted and source.next_offset == 10


def test_markers_and_aborted_batches_are_skipped(hot: ModuleType) -> None:
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    aborted, committed = batch(0, b"a", **producer), batch(3, b"b", **producer)
    data = aborted + marker(1, 5, False) + committed
    assert undecoded_batches(fetched(hot, data, aborted=[(0, 5)])) == [(3, 4, committed)]
    assert [first for first, _, _ in undecoded_batches(fetched(hot, data))] == [0, 3]


def test_error_for_a_corrupt_batch_names_its_offset(hot: ModuleType) -> None:
    bad = bytearray(batch(4, b"value"))
    bad[-3] ^= 1
    source = fetched(hot, batch(0, b"a") + bytes(bad))
    assert source.take_batch()[:2] == (0, 1)
    with pytest.raises(KafkaError, match="t-0 at offset 1: the checksum") as error:
        source.take_batch()
    assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert fetched(hot, bytes(bad), check_crcs=False).take_batch()[:2] == (4, 5)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_taken_singly_or_as_a_compressed_wrapper(hot: ModuleType, magic: int) -> None:
    plain, packed = batch(0, b"a", b"b", magic=magic), batch(2, b"c", b"d", magic=magic, codec=1)
    decoded = undecoded_batches(fetched(hot, plain + packed, 1))
    assert [(first, end) for first, end, _ in decoded] == [(1, 2), (2, 4)]
    assert [r.value for _, _, data in decoded for r in read_records(data)] == [b"b", b"c", b"d"]


# --- receiving large responses


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    right.setblocking(False)
    with left, right:
        yield left, right


def test_available_bytes_are_received_up_to_the_end_of_the_response(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    receive = loaded(forms.COMPILED).receive
    left, right = sockets
    buffer = bytearray(b"ab......")
    left.sendall(b"cde")
    assert receive(right.fileno(), buffer, 2, 8) == 3
    assert receive(right.fileno(), buffer, 5, 8) == 0
    left.sendall(b"fgh and the next response")
    assert receive(right.fileno(), buffer, 5, 8) == 3
    assert receive(right.fileno(), buffer, 8, 8) == 0
    assert buffer == b"abcdefgh"
    assert right.recv(100) == b" and the next response"
    left.close()
    assert receive(right.fileno(), buffer, 0, 8) == 0


def test_bytes_are_not_received_outside_the_buffer(sockets: tuple[socket.socket, socket.socket]) -> None:
    receive = loaded(forms.COMPILED).receive
    for start, end in ((-1, 4), (0, 5)):
        with pytest.raises(ValueError, match="no room"):
            receive(sockets[1].fileno(), bytearray(4), start, end)
    with pytest.raises(BufferError):
        receive(sockets[1].fileno(), b"1234", 0, 4)


def test_the_plain_form_leaves_the_bytes_to_the_event_loop(sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[0].sendall(b"abc")
    assert loaded(forms.PLAIN).receive(sockets[1].fileno(), bytearray(3), 0, 3) == 0
    assert sockets[1].recv(10) == b"abc"
