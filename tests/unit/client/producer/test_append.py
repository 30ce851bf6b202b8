"""The path from `send` to the bytes of a batch, in both forms."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.client.producer.completion import Completion
from kavka.client.producer.encoding import encode_batch, encoded_headers
from kavka.records.builder import BatchBuilder
from kavka.records.reader import read_records
from kavka.records.record import Record
from tests.support import forms

NAME = "kavka.client.producer._append"
TIME = 1_700_000_000_000
_LOADED: dict[str, ModuleType] = {}


def loaded(form: str) -> ModuleType:
    if form not in _LOADED:
        _LOADED[form] = forms.load(NAME, form)
    return _LOADED[form]


@pytest.fixture(params=forms.FORMS)
def hot(request: pytest.FixtureRequest) -> ModuleType:
    return loaded(request.param)


class Setup:
    """An accumulator with one topic, and a count of how often it woke the sender."""

    def __init__(self, hot: Any, partitions: int = 1, **limits: int) -> None:
        values = {
            "batch_size": 1000,
            "grow_to": 4000,
            "buffer_limit": 1 << 20,
            "max_record": 1 << 16,
            "max_count": 1 << 30,
            "record_limit": 1 << 30,
        } | limits
        self.wakes = 0
        self.accumulator = hot.Accumulator(*values.values(), self._wake, lambda topic: (topic.sticky + 1) % topic.count)
        self.path = hot.SendPath(self.accumulator)
        self.topic = hot.TopicQueues("t")
        self.topic.queues = [hot.PartitionQueue(self.accumulator, "t", p) for p in range(partitions)]
        self.topic.count = partitions
        self.accumulator.topics = {"t": self.topic}
        self.queue = self.topic.queues[0]

    def _wake(self) -> None:
        self.wakes += 1

    def send(self, value: Any, **keywords: Any) -> Any:
        arguments = {"key": None, "partition": None, "timestamp": TIME, "headers": None, "callback": None} | keywords
        return self.path.try_send(
            "t", value, *(arguments[n] for n in ("key", "partition", "timestamp", "headers", "callback"))
        )


def test_compiled_form_is_compiled_and_plain_form_is_not() -> None:
    assert loaded(forms.COMPILED).is_compiled()
    assert not loaded(forms.PLAIN).is_compiled()


# Varint lengths of one, two and three bytes. Long values repeat a short drawn value.
long_fields = st.tuples(st.binary(min_size=1, max_size=4), st.integers(2000, 2100)).map(lambda t: (t[0] * t[1])[: t[1]])
fields = st.one_of(st.none(), st.binary(max_size=100), long_fields)
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
times = st.one_of(st.integers(0, 1 << 50), st.integers(TIME, TIME + 5000))


@pytest.mark.parametrize("form", forms.FORMS)
@given(records=st.lists(st.tuples(times, fields, fields, headers), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_batch_bytes_equal_those_of_the_batch_builder(form: str, records: list[Any]) -> None:
    hot: Any = loaded(form)
    pool = hot.BufferPool(1 << 20)
    batch = hot.Batch(None, 0, pool.take(1 << 20))
    builder = BatchBuilder(producer_id=7, producer_epoch=3, base_sequence=11)
    size = batch.size
    for timestamp, key, value, head in records:
        size += batch.append(timestamp, key, value, encoded_headers(head))
        builder.append(Record(timestamp=timestamp, key=key, value=value, headers=head))
    assert batch.size == size
    batch.producer_id, batch.producer_epoch, batch.base_sequence = 7, 3, 11
    assert bytes(encode_batch(batch, 0, None, False)) == bytes(builder.build())


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_sent_records_can_be_read_back(hot: Any, codec: int) -> None:
    setup = Setup(hot)
    for i in range(5):
        assert setup.send(b"value %d" % i, key=b"key") is not None
    batch = setup.queue.batches[0]
    decoded = list(read_records(encode_batch(batch, codec, None, False)))
    assert [(r.offset, r.key, r.value, r.timestamp) for r in decoded] == [
        (i, b"key", b"value %d" % i, TIME) for i in range(5)
    ]


def test_bytes_like_keys_and_values_are_accepted(hot: Any) -> None:
    setup = Setup(hot)
    future = setup.accumulator.append(setup.queue, 0, TIME, bytearray(b"k"), memoryview(b"value"), b"\x00", None)
    assert future is not None
    decoded = list(read_records(encode_batch(setup.queue.batches[0], 0, None, False)))
    assert (decoded[0].key, decoded[0].value) == (b"k", b"value")


def test_full_batch_is_followed_by_another_and_wakes_the_sender_once(hot: Any) -> None:
    setup = Setup(hot)
    setup.send(b"x" * 400)
    assert setup.wakes == 1
    setup.send(b"x" * 400)
    setup.send(b"x" * 400)
    assert (len(setup.queue.batches), setup.wakes) == (2, 1)
    setup.accumulator.awake = False
    setup.send(b"x" * 900)
    assert setup.wakes == 2


def test_batch_grows_beyond_batch_size_while_earlier_batches_are_pending(hot: Any) -> None:
    setup = Setup(hot)
    for _ in range(30):
        setup.send(b"x" * 200)
    sizes = [batch.size for batch in setup.queue.batches]
    assert sizes[0] <= 1000
    assert 3500 < sizes[1] <= 4000
    assert len(sizes) == 3


def test_batch_does_not_grow_when_growth_is_disabled(hot: Any) -> None:
    setup = Setup(hot, grow_to=0)
    for _ in range(30):
        setup.send(b"x" * 200)
    assert max(batch.size for batch in setup.queue.batches) <= 1000


def test_record_larger_than_batch_size_gets_a_separate_batch(hot: Any) -> None:
    setup = Setup(hot)
    setup.send(b"a")
    setup.send(b"x" * 5000)
    setup.send(b"b")
    assert [batch.count for batch in setup.queue.batches] == [1, 1, 1]


def test_batch_has_at_most_the_configured_number_of_records(hot: Any) -> None:
    setup = Setup(hot, max_count=3)
    for _ in range(7):
        setup.send(b"x")
    assert [batch.count for batch in setup.queue.batches] == [3, 3, 1]


def test_append_to_a_full_buffer_does_nothing(hot: Any) -> None:
    setup = Setup(hot, buffer_limit=1000)
    sent = 0
    while setup.send(b"x" * 100) is not None:
        sent += 1
    assert 5 < sent < 10
    assert setup.accumulator.used <= 1000
    assert sum(batch.count for batch in setup.queue.batches) == sent


def test_number_of_pending_records_is_limited(hot: Any) -> None:
    setup = Setup(hot, record_limit=4)
    assert [setup.send(b"x") is not None for _ in range(6)] == [True] * 4 + [False] * 2


def test_fast_path_rejects_records_above_the_limit(hot: Any) -> None:
    setup = Setup(hot, max_record=500)
    assert setup.send(b"x" * 500) is None
    assert setup.send(b"x" * 100) is not None


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": 17},
        {"value": b"x", "key": 1.5},
        {"value": b"x", "partition": 2},
        {"value": b"x", "partition": -1},
        {"value": b"x", "partition": "1"},
        {"value": b"x", "timestamp": -1},
        {"value": b"x", "timestamp": "now"},
        {"value": b"x", "headers": [("a", b"b")]},
    ],
)
def test_fast_path_rejects_unusual_arguments(hot: Any, arguments: dict[str, Any]) -> None:
    setup = Setup(hot, partitions=2)
    assert setup.send(**arguments) is None
    assert not setup.accumulator.pending


def test_strings_are_encoded_as_utf8_unless_a_serializer_is_set(hot: Any) -> None:
    setup = Setup(hot)
    assert setup.send("größe", key="schlüssel") is not None
    decoded = list(read_records(encode_batch(setup.queue.batches[0], 0, None, False)))
    assert (decoded[0].key, decoded[0].value) == ("schlüssel".encode(), "größe".encode())
    setup.path._accepts_text_values = False
    assert setup.send("text") is None


def test_sticky_partition_changes_after_a_batch(hot: Any) -> None:
    setup = Setup(hot, partitions=3)
    partitions = [setup.send(b"x" * 300).batch.queue.partition for _ in range(12)]
    assert partitions == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3


def test_key_hash_chooses_the_partition_unless_keys_are_ignored(hot: Any) -> None:
    setup = Setup(hot, partitions=7)
    expected = (hot.murmur2(b"some key") & 0x7FFFFFFF) % 7
    assert {setup.send(b"x", key=b"some key").batch.queue.partition for _ in range(5)} == {expected}
    setup.path._ignore_keys = True
    assert setup.send(b"x", key=b"some key").batch.queue.partition == 0


def test_fast_path_rejects_partitions_outside_the_transaction(hot: Any) -> None:
    setup = Setup(hot)
    setup.accumulator.transaction = 5
    assert setup.send(b"x") is None
    setup.queue.in_transaction = 5
    assert setup.send(b"x") is not None


def test_record_of_another_transaction_is_not_appended(hot: Any) -> None:
    setup = Setup(hot)
    setup.accumulator.transaction = setup.queue.in_transaction = 6
    for ended in (5, -1, 0):
        assert setup.accumulator.append(setup.queue, ended, TIME, None, b"x", b"\x00", None) is None
        assert setup.accumulator.append_records(setup.queue, ended, b"", 0, 0, 0, 1, TIME, -1) is None
        assert setup.accumulator.append_batch(setup.queue, ended, bytearray(70), 1, 0, TIME, TIME) is None
    assert not setup.accumulator.incomplete


# From org.apache.kafka.common.utils.Utils.murmur2, of kafka-clients 4.3.0.
JAVA_HASHES = {
    b"": 275646681,
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"schl\xc3\xbcssel": 331429656,
    b"\xc3\xbf\xc2\x80": 321056892,
}


@pytest.mark.parametrize(("key", "expected"), JAVA_HASHES.items())
def test_murmur2_equals_javas(hot: Any, key: bytes, expected: int) -> None:
    assert hot.murmur2(key) == expected & 0xFFFFFFFF


@given(key=st.binary(max_size=100))
@settings(max_examples=200, deadline=None)
def test_both_forms_compute_the_same_hash(key: bytes) -> None:
    assert loaded(forms.PLAIN).murmur2(key) == loaded(forms.COMPILED).murmur2(key)


def finish(setup: Setup, batch: Any, base_offset: int = 100, error: Any = None) -> None:
    with setup.accumulator.lock:
        batch.base_offset, batch.error, batch.done = base_offset, error, True
        waiters, batch.waiters = batch.waiters, None
    for waiter in waiters or ():
        waiter()


def test_future_has_its_offset_when_the_batch_is_done(hot: Any) -> None:
    setup = Setup(hot)
    futures = [setup.send(b"value", key=b"k") for _ in range(3)]
    assert not futures[2].done()
    finish(setup, setup.queue.batches[0])
    assert [future.get(0).offset for future in futures] == [100, 101, 102]
    assert futures[0].get(0) == ("t", 0, 100, TIME, 1, 5)
    assert futures[0].succeeded()
    assert futures[0].exception(0) is None


def test_get_waits_for_another_thread_and_times_out(hot: Any) -> None:
    setup = Setup(hot)
    future = setup.send(b"x")
    with pytest.raises(TimeoutError):
        future.get(0.01)
    timer = threading.Timer(0.05, finish, (setup, setup.queue.batches[0]))
    timer.start()
    assert future.get(5).offset == 100
    timer.join()


def test_get_raises_the_error_and_callbacks_receive_it(hot: Any) -> None:
    setup = Setup(hot)
    called: list[Any] = []
    future = setup.send(b"x", callback=lambda metadata, error: called.append((metadata, error)))
    error = ValueError("no")
    finish(setup, setup.queue.batches[0], -1, error)
    with pytest.raises(ValueError, match="no"):
        future.get(0)
    assert future.failed()
    hot.call_back(setup.queue.batches[0].entries, called.append)
    assert called == [(None, error)]
    future.add_errback(called.append).add_callback(called.append).add_done_callback(called.append)
    assert called[1:] == [error, future]


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_exception_of_a_callback_does_not_stop_the_others(hot: Any, kind: type[BaseException]) -> None:
    setup = Setup(hot)
    called: list[Any] = []

    def fail(metadata: Any, error: Any) -> None:
        raise kind("no")

    setup.send(b"x", callback=fail)
    setup.send(b"y", callback=lambda metadata, error: called.append(metadata.offset))
    finish(setup, setup.queue.batches[0])
    hot.call_back(setup.queue.batches[0].entries, lambda error: called.append(type(error)))
    assert called == [kind, 101]


def test_future_follows_its_record_into_a_part_of_a_split_batch(hot: Any) -> None:
    setup = Setup(hot)
    futures = [setup.send(b"x") for _ in range(5)]
    first, second = (hot.Batch(setup.queue, n, bytearray(1024)) for n in (1, 2))
    setup.queue.batches[0].parts = [(0, first), (3, second)]
    finish(setup, first, 50)
    assert [future.done() for future in futures] == [True] * 3 + [False] * 2
    finish(setup, second, 90)
    assert [future.get(0).offset for future in futures] == [50, 51, 52, 90, 91]


def test_buffers_are_reused_up_to_the_pool_limit(hot: Any) -> None:
    pool = hot.BufferPool(40_000)
    buffer = pool.take(pool.capacity(10_000))
    assert len(buffer) == 16384
    pool.put(buffer)
    assert pool.take(16_384) is buffer
    for _ in range(5):
        pool.put(bytearray(16384))
    assert pool.cached == 32768
    assert len(pool.take(pool.capacity(100_000_000))) == 100_000_000
    pool.put(bytearray(5000))
    assert pool.cached == 32768
    pool.trim(1)
    assert pool.cached == 16384
    pool.trim(1 << 30)
    assert pool.cached == 0 and not any(pool.classes)


def allocated(setup: Setup) -> int:
    return sum(len(batch.body) for batch in setup.accumulator.incomplete)


def test_one_record_in_each_of_many_partitions_uses_little_memory(hot: Any) -> None:
    setup = Setup(hot, partitions=2000, batch_size=16384, buffer_limit=32 << 20)
    for partition in range(2000):
        assert setup.send(b"x" * 17, partition=partition) is not None
    assert setup.accumulator.used == allocated(setup) == 2000 * 1024


@pytest.mark.parametrize("form", forms.FORMS)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 9), st.sampled_from([0, 50, 300, 900, 5000, 30_000])),
            st.tuples(st.just("finish"), st.integers(0, 9), st.booleans()),
        ),
        max_size=120,
    ),
    limit=st.sampled_from([3000, 20_000, 33_000, 100_000]),
)
@settings(max_examples=60, deadline=None)
def test_memory_of_batches_and_pool_stays_below_the_limit(form: str, steps: list[Any], limit: int) -> None:
    setup = Setup(loaded(form), partitions=10, buffer_limit=limit)
    accumulator: Any = setup.accumulator
    completion = Completion(accumulator)
    for action, partition, detail in steps:
        queue = setup.topic.queues[partition]
        if action == "send":
            used_before = accumulator.used
            future = setup.send(b"x" * detail, partition=partition)
            # An empty buffer accepts every record up to its size.
            assert future is not None or used_before or detail + 36 > limit
        elif queue.batches:
            batch = queue.batches.popleft()
            if queue.tail is batch:
                queue.tail = None
            completion.finish(batch, 0, -1, None, reuse=detail)
        assert accumulator.used == allocated(setup)
        is_only_batch = len(accumulator.incomplete) == 1
        assert accumulator.used + accumulator.pool.cached <= limit or (is_only_batch and not accumulator.pool.cached)
    for queue in setup.topic.queues:
        for batch in list(queue.batches):
            completion.finish(batch, 0, -1, None, reuse=True)
    assert accumulator.used == accumulator.records == 0


def test_nearly_full_buffer_is_filled_completely(hot: Any) -> None:
    setup = Setup(hot, batch_size=100_000, grow_to=100_000, buffer_limit=9_000)
    while setup.send(b"x" * 64) is not None:
        pass
    # A pooled buffer has 8,192 of the 9,000 bytes; the batch also uses the remaining bytes.
    assert 8_800 < setup.queue.batches[0].size <= 9_000
    assert setup.accumulator.used == allocated(setup) == 9_000
