"""`send_batch`: records that are copied from batches of another partition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.client.producer import _append
from kavka.client.producer.completion import Completion
from kavka.client.producer.encoding import encode_batch
from kavka.client.producer.send_batch import content_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import LOG_APPEND_TIME, parse_header
from kavka.records.builder import BatchBuilder
from kavka.records.compression import GZIP, LZ4
from kavka.records.reader import read_records
from kavka.records.record import Record
from tests.support import forms
from tests.unit.client.producer.test_append import Setup, fields, headers, loaded, times

LATER = 0x7FFFFFFFFFFFFFFF
a_record = st.tuples(times, fields, fields, headers)


def batch_of(records: list[Any], base: int = 100, step: int = 1, **options: Any) -> bytes:
    builder = BatchBuilder(base_offset=base, **options)
    for index, (timestamp, key, value, record_headers) in enumerate(records):
        builder.append(Record(base + index * step, timestamp, key, value, tuple(record_headers)))
    return bytes(builder.build())


def sent(setup: Setup) -> list[Record]:
    """The records in the queue. Checks that a broker would accept their batches."""
    out: list[Record] = []
    for batch in setup.queue.batches:
        data = encode_batch(batch, 0, None, False)
        header = parse_header(data)
        assert header.count == header.last_offset_delta + 1 == batch.count
        assert header.producer_id == -1
        records = list(read_records(data))
        assert [record.offset for record in records] == list(range(batch.count))
        assert header.max_timestamp == max(record.timestamp for record in records)
        out += records
    return out


def contents(records: list[Record]) -> list[Any]:
    return [(r.timestamp, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize("form", forms.FORMS)
@given(
    batches=st.lists(st.lists(a_record, min_size=1, max_size=8), min_size=1, max_size=6),
    codec=st.sampled_from([0, 0, LZ4]),
    step=st.integers(1, 3),
    append_time=st.booleans(),
    edges=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
@settings(max_examples=80, deadline=None)
def test_requested_records_are_copied_unchanged_and_in_order(
    form: str, batches: list[Any], codec: int, step: int, append_time: bool, edges: tuple[int, int]
) -> None:
    setup = Setup(loaded(form))
    expected: list[Any] = []
    for records in batches:
        kind = {"timestamp_type": LOG_APPEND_TIME, "append_time": 777} if append_time else {}
        data = batch_of(records, codec=codec, step=step, **kind)
        first, end = 100 + edges[0], 100 + len(records) * step - edges[1]
        selected = [r for r in read_records(data) if first <= r.offset < end]
        future = content_of(data, first, end).append(setup.accumulator, setup.queue)
        assert future is not None
        assert future.count == len(selected)
        expected += contents(selected)
    assert contents(sent(setup)) == expected
    assert setup.accumulator.records == len(expected)
    assert len(setup.accumulator.incomplete) == len(setup.queue.batches)


@pytest.mark.parametrize("form", forms.FORMS)
def test_small_batches_are_combined(form: str) -> None:
    setup = Setup(loaded(form), batch_size=100_000)
    futures = []
    for number in range(50):
        data = batch_of([(number, None, b"v%d" % number, ())], base=number)
        futures.append(content_of(data, 0, LATER).append(setup.accumulator, setup.queue))
    assert len(setup.queue.batches) == 1
    (batch,) = setup.queue.batches
    batch.done, batch.base_offset = True, 1000
    assert [future.offsets() for future in futures if future] == [[(1000 + number, 1)] for number in range(50)]


@pytest.mark.parametrize("form", forms.FORMS)
def test_compressed_batch_is_sent_unchanged(form: str) -> None:
    setup = Setup(loaded(form))
    data = batch_of([(1, b"k", b"v" * 500, ())] * 20, codec=GZIP, producer_id=7, producer_epoch=1, base_sequence=3)
    content_of(data, 0, LATER).append(setup.accumulator, setup.queue)
    (batch,) = setup.queue.batches
    encoded = bytes(encode_batch(batch, 0, None, True))
    assert encoded[61:] == data[61:]
    header = parse_header(encoded)
    assert (header.base_offset, header.codec, header.is_transactional, header.producer_id) == (0, GZIP, True, -1)
    # The next record is appended to another batch.
    setup.send(b"x", timestamp=5)
    assert [batch.count for batch in setup.queue.batches] == [20, 1]


@pytest.mark.parametrize("form", forms.FORMS)
def test_old_message_formats_are_converted(form: str) -> None:
    setup = Setup(loaded(form))
    for magic in (0, 1):
        data = batch_of([(5, b"k", b"v%d" % index, ()) for index in range(4)], magic=magic, codec=GZIP)
        content_of(data, 101, 103).append(setup.accumulator, setup.queue)
    assert [r.value for r in sent(setup)] == [b"v1", b"v2", b"v1", b"v2"]


@pytest.mark.parametrize("form", forms.FORMS)
def test_invalid_batch_appends_nothing(form: str) -> None:
    setup = Setup(loaded(form))
    good = batch_of([(1, None, b"v" * 40, ())] * 3)
    # A negative length, a length beyond the end, too large a record count, unterminated deltas.
    for position, invalid_bytes in ((61, b"\x7f"), (61, b"\xfe\x7e"), (60, b"\x09"), (63, b"\xff" * 12)):
        bad = bytearray(good)
        bad[position : position + len(invalid_bytes)] = invalid_bytes
        with pytest.raises(KafkaError) as error:
            content_of(bad, 0, LATER).append(setup.accumulator, setup.queue)
        assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert not setup.queue.batches and not setup.accumulator.pending and not setup.accumulator.incomplete
    assert setup.accumulator.used == 0


def test_data_without_a_batch_is_rejected() -> None:
    for data in (b"", b"\x00" * 30, batch_of([(1, None, b"v", ())])[:60]):
        with pytest.raises(KafkaError):
            content_of(data, 0, LATER)


@pytest.mark.parametrize("form", forms.FORMS)
def test_full_buffer_rejects_batches_and_an_empty_one_accepts_any_size(form: str) -> None:
    setup = Setup(loaded(form), buffer_limit=2000)
    large = content_of(batch_of([(1, None, b"v" * 5000, ())]), 0, LATER)
    compressed = content_of(batch_of([(1, None, bytes(range(256)) * 20, ())], codec=GZIP), 0, LATER)
    assert large.append(setup.accumulator, setup.queue) is not None
    assert large.append(setup.accumulator, setup.queue) is None
    assert compressed.append(setup.accumulator, setup.queue) is None


def test_future_follows_its_records_into_the_parts_of_a_split_batch() -> None:
    # Only in the installed form: futures do not work with batches of the other form.
    setup = Setup(_append, batch_size=100_000)
    futures = [
        content_of(batch_of([(1, None, b"v" * 300, ())] * 5), 0, LATER).append(setup.accumulator, setup.queue)
        for _ in range(2)
    ]
    batch = setup.queue.batches.popleft()
    encode_batch(batch, 0, None, False)
    completion = Completion(setup.accumulator)
    parts = completion.split(batch)
    assert len(parts) >= 2
    assert not any(future.done() for future in futures if future)
    for number, part in enumerate(parts):
        completion.finish(part, 1000 * number, -1, None)
    for future in futures:
        assert future is not None
        assert future.done()
        assert sum(count for _, count in future.offsets()) == 5
        assert future.get(0) is not None
    assert futures[0] and futures[0].offsets()[0][0] == 0
    assert futures[1] and futures[1].offsets()[-1][0] >= 1000
