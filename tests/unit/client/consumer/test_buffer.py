"""The buffer between fetching and polling."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from kavka.client.consumer._decode import Fetched
from kavka.client.consumer.buffer import FetchBuffer
from kavka.client.consumer.errors import RecordDeserializationError
from kavka.client.consumer.records import Records
from kavka.client.consumer.subscription import PartitionState, drop
from kavka.client.consumer.unread import Unread
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition as TP
from kavka.records.builder import BatchBuilder
from kavka.records.record import Record


class Frame(bytearray):
    """Memory that a test can watch with a weak reference."""


class Setup:
    def __init__(self, key: Any = None, value: Any = None) -> None:
        self.room = 0
        self.frames: list[weakref.ref[Frame]] = []
        self.buffer = FetchBuffer(key, value, self._on_room)
        self.states: dict[int, PartitionState] = {}

    def _on_room(self) -> None:
        self.room += 1

    def state(self, partition: int) -> PartitionState:
        if partition not in self.states:
            self.states[partition] = PartitionState(TP("t", partition))
            self.states[partition].seek(0)
        return self.states[partition]

    def fetch(self, partition: int, offset: int, *values: bytes, damage: bool = False) -> Fetched:
        state = self.state(partition)
        builder = BatchBuilder(base_offset=offset, leader_epoch=3)
        for value in values:
            builder.append(Record(timestamp=1, value=value))
        data = Frame(builder.build())
        self.frames.append(weakref.ref(data))
        if damage:
            data[-1] ^= 1
        fetched = Fetched("t", partition, memoryview(data), offset, True, None, state, state.version)
        state.fetched_bytes += fetched.size
        self.buffer.append(fetched)
        return fetched

    def buffered(self, partition: int) -> int:
        return self.state(partition).fetched_bytes - self.state(partition).drained_bytes

    def values(self, limit: int = 100) -> list[Any]:
        return [record.value for record in Records(*self.buffer.take(limit))]


def test_records_are_taken_in_fetch_order_up_to_the_limit() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a", b"b", b"c")
    setup.fetch(1, 5, b"d")
    assert setup.values(2) == [b"a", b"b"]
    assert setup.state(0).position == 2
    assert setup.values() == [b"c", b"d"]
    assert (setup.state(0).position, setup.state(1).position) == (3, 6)
    assert setup.values() == []
    assert not setup.buffer


def test_records_carry_the_offsets_to_commit() -> None:
    setup = Setup()
    setup.fetch(0, 4, b"a", b"b")
    records = Records(*setup.buffer.take(1))
    assert records.next_offsets == {TP("t", 0): (5, "", 3)}


def test_seek_discards_fetched_records() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"old")
    setup.state(0).seek(7)
    setup.fetch(0, 7, b"new")
    assert setup.values() == [b"new"]
    assert setup.state(0).position == 8


def test_seek_discards_the_remaining_records_of_a_response() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a", b"b")
    assert setup.values(1) == [b"a"]
    setup.state(0).seek(0)
    assert setup.values() == []
    assert setup.state(0).position == 0


def test_paused_partition_resumes_in_order() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a", b"b")
    setup.fetch(1, 0, b"x")
    setup.fetch(0, 2, b"c")
    assert setup.values(1) == [b"a"]
    setup.state(0).paused = True
    assert setup.values() == [b"x"]
    assert setup.values() == []
    setup.state(0).paused = False
    setup.buffer.resume()
    assert setup.values() == [b"b", b"c"]


def test_held_partition_returns_no_records() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a")
    setup.state(0).held = True
    assert setup.values() == []
    assert setup.state(0).position == 0


def test_taking_data_updates_sizes_and_calls_on_room_once() -> None:
    setup = Setup()
    size = setup.fetch(0, 0, b"a", b"b").size
    assert setup.buffered(0) == size
    setup.buffer.needs_room = True
    setup.values(1)
    assert (setup.buffered(0), setup.room) == (size, 0)
    setup.values()
    assert (setup.buffered(0), setup.room, setup.buffer.needs_room) == (0, 1, False)
    assert (setup.buffer.records, setup.buffer.bytes) == (2, size)


def test_invalid_batch_is_raised_after_all_records_before_it() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a")
    setup.fetch(1, 0, b"evil", damage=True)
    assert setup.values() == [b"a"]
    for _ in range(2):
        with pytest.raises(KafkaError, match="t-1 at offset 0"):
            setup.values()
    setup.state(1).seek(1)
    assert setup.values() == []


def reject_odd(topic: str, data: Any, headers: Any) -> int:
    number = int(data)
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def test_deserializers_convert_values() -> None:
    setup = Setup(value=reject_odd)
    setup.fetch(0, 0, b"0", b"2")
    assert setup.values() == [0, 2]


def test_record_that_cannot_be_deserialized_is_raised_until_a_seek() -> None:
    setup = Setup(value=reject_odd)
    setup.fetch(0, 0, b"0", b"2", b"3", b"4")
    assert setup.values() == [0, 2]
    assert setup.state(0).position == 2
    for _ in range(2):
        with pytest.raises(RecordDeserializationError, match="3 is odd") as caught:
            setup.values()
        error = caught.value
        assert (error.topic_partition, error.offset, error.origin, error.value) == (TP("t", 0), 2, "value", b"3")
    setup.state(0).seek(3)
    setup.fetch(0, 3, b"4")
    assert setup.values() == [4]


def test_columns_continue_at_a_record_that_cannot_be_deserialized() -> None:
    setup = Setup(value=reject_odd)
    setup.fetch(0, 0, b"0", b"1", b"2")
    assert setup.values() == [0]
    columns = setup.buffer.take_columns(100)
    assert columns is not None and columns.rows == 2
    assert setup.state(0).position == 3


def test_columns_contain_all_partitions_up_to_an_invalid_batch() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a", b"b")
    setup.fetch(1, 0, b"c")
    setup.fetch(0, 2, b"evil", damage=True)
    columns = setup.buffer.take_columns(1 << 40)
    assert columns is not None and columns.rows == 3
    with pytest.raises(KafkaError, match="t-0 at offset 2"):
        setup.buffer.take_columns(1 << 40)


def test_columns_respect_the_limit() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a", b"b", b"c")
    first = setup.buffer.take_columns(2)
    second = setup.buffer.take_columns(2)
    assert first is not None and second is not None
    assert (first.rows, second.rows, setup.buffer.take_columns(2)) == (2, 1, None)


# --- records that an iteration has not yielded


def unread(*values: bytes) -> Unread:
    """An iteration that has polled these values from two partitions."""
    setup = Setup()
    setup.fetch(0, 0, *values)
    setup.fetch(1, 0, *values)
    unread_records = Unread()
    unread_records.set(Records(*setup.buffer.take(100)))
    return unread_records


def test_interrupted_iteration_continues() -> None:
    unread_records = unread(b"a", b"b")
    for record in unread_records:
        assert record.value == b"a"
        break
    assert unread_records.first() == {TP("t", 0): 1, TP("t", 1): 0}
    assert [r.value for r in unread_records] == [b"b", b"a", b"b"]
    assert not unread_records and unread_records.first() == {}


def test_remaining_records_of_an_iteration_can_be_polled() -> None:
    unread_records = unread(b"a", b"b")
    next(iter(unread_records))
    records = unread_records.take(2)
    assert [(r.partition, r.value) for r in records] == [(0, b"b"), (1, b"a")]
    assert records.next_offsets == {TP("t", 0): (2, "", 3), TP("t", 1): (1, "", 3)}
    assert unread_records.first() == {TP("t", 1): 1}


def test_partitions_can_be_removed_from_an_iteration() -> None:
    unread_records = unread(b"a", b"b")
    unread_records.drop([TP("t", 0)])
    assert unread_records.first() == {TP("t", 1): 0}
    unread_records.keep([TP("t", 5)])
    assert not unread_records


def test_records_are_grouped_by_partition_and_topic() -> None:
    setup = Setup()
    setup.fetch(0, 0, b"a", b"b")
    setup.fetch(1, 0, b"c")
    records = Records(*setup.buffer.take(100))
    assert (len(records), bool(records), records.partitions) == (3, True, {TP("t", 0), TP("t", 1)})
    assert [r.value for r in records.by_partition()[TP("t", 0)]] == [b"a", b"b"]
    assert [r.value for r in records.records("t")] == [b"a", b"b", b"c"]
    assert [r.value for r in records.records(("t", 1))] == [b"c"]  # type: ignore[arg-type]
    assert records.records("other") == [] and not Records()
    assert repr(records) == "Records(t-0: 2, t-1: 1)"


def test_concurrent_append_does_not_disturb_taking_columns() -> None:
    setup = Setup()
    real = setup.fetch(0, 0, b"a")

    class Appending:
        """Appends to the queue while its size is read, like a concurrent loop."""

        source, version, end = real.source, real.version, real.end

        @property
        def batch_end(self) -> int:
            setup.buffer.append(real)
            return int(real.batch_end)

    setup.buffer._queue.appendleft(Appending())  # type: ignore[arg-type]
    assert setup.buffer._available_bytes() == 2 * (real.end - real.batch_end)
    assert len(setup.buffer._queue) == 3


def test_parked_data_of_revoked_partitions_is_released() -> None:
    setup = Setup()
    for _ in range(100):
        setup.fetch(0, 0, b"a")
        setup.state(0).held = True
        assert setup.values() == []
        drop(setup.states.pop(0))
    assert sum(frame() is not None for frame in setup.frames) < 50


def test_parked_data_of_a_paused_partition_survives_revocations() -> None:
    setup = Setup()
    setup.fetch(1, 0, b"parked")
    setup.state(1).paused = True
    assert setup.values() == []
    for _ in range(100):
        setup.fetch(0, 0, b"a")
        setup.state(0).held = True
        assert setup.values() == []
        drop(setup.states.pop(0))
    setup.state(1).paused = False
    setup.buffer.resume()
    assert setup.values() == [b"parked"]
