"""What counts as not consumed: records that an iteration did not return, and those whose handler failed."""

from __future__ import annotations

from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.records import Records
from kavka.client.consumer.unread import Unread
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition as TP

A, B = TP("a", 0), TP("b", 0)


def iterating() -> Unread:
    """An iteration that has polled four records."""
    unread = Unread()
    offsets = {A: (5, 7), B: (1, 2)}
    unread.set(Records({tp: [ConsumerRecord(tp.topic, 0, offset) for offset in offsets[tp]] for tp in (A, B)}))
    return unread


def test_the_record_of_an_iteration_is_consumed_until_it_is_put_back() -> None:
    unread = iterating()
    iteration = iter(unread)
    assert [next(iteration).offset for _ in range(3)] == [5, 7, 1]
    assert unread.first() == {B: 2}
    unread.put_back()
    assert unread.first() == {B: 1}


def test_the_records_of_a_poll_are_put_back_together() -> None:
    unread = iterating()
    next(iter(unread))
    unread.polled()
    assert len(unread.take(2)) == 2
    unread.put_back()
    assert unread.first() == {A: 7, B: 1}


def test_nothing_is_put_back_after_the_next_poll_has_begun() -> None:
    unread = iterating()
    list(unread)
    unread.under_way[A] = 3
    unread.polled()
    unread.put_back()
    assert unread.first() == {}


def test_what_the_program_committed_itself_is_not_put_back() -> None:
    unread = Unread()
    unread.under_way |= {A: 10, B: 20}
    unread.committed({A: OffsetAndMetadata(15), B: OffsetAndMetadata(3)})
    unread.put_back()
    assert unread.first() == {A: 15, B: 20}


def test_a_partition_whose_position_the_program_chose_is_not_put_back() -> None:
    unread = iterating()
    next(iter(unread))
    unread.under_way[B] = 0
    unread.drop([A])
    unread.put_back()
    assert unread.first() == {B: 0}
    other = iterating()
    next(iter(other))
    other.keep([B])
    other.put_back()
    assert other.first() == {B: 1}
