"""Records that count as not consumed, because an iteration did not yield them or their processing
failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kavka import Consumer, aio
from kavka.client.consumer._decode import ConsumerRecord
from kavka.client.consumer.core import ConsumerCore
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


def test_record_of_an_iteration_is_consumed_until_it_is_put_back() -> None:
    unread = iterating()
    iteration = iter(unread)
    assert [next(iteration).offset for _ in range(3)] == [5, 7, 1]
    assert unread.first() == {B: 2}
    unread.put_back()
    assert unread.first() == {B: 1}


def test_records_of_a_poll_are_put_back_together() -> None:
    unread = iterating()
    next(iter(unread))
    unread.on_poll()
    assert len(unread.take(2)) == 2
    unread.put_back()
    assert unread.first() == {A: 7, B: 1}


def test_no_record_is_put_back_after_the_next_poll_started() -> None:
    unread = iterating()
    list(unread)
    unread.in_progress[A] = 3
    unread.on_poll()
    unread.put_back()
    assert unread.first() == {}


def test_records_committed_by_the_application_are_not_put_back() -> None:
    unread = Unread()
    unread.in_progress |= {A: 10, B: 20}
    unread.on_commit({A: OffsetAndMetadata(15), B: OffsetAndMetadata(3)})
    unread.put_back()
    assert unread.first() == {A: 15, B: 20}


def test_partition_with_a_new_position_is_not_put_back() -> None:
    unread = iterating()
    next(iter(unread))
    unread.in_progress[B] = 0
    unread.drop([A])
    unread.put_back()
    assert unread.first() == {B: 0}
    other = iterating()
    next(iter(other))
    other.keep([B])
    other.put_back()
    assert other.first() == {B: 1}


UNREACHABLE = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


def iterate(core: ConsumerCore) -> list[int]:
    """Start an iteration that has polled offsets 5, 6 and 7 of topic a, and yielded the first.
    Returns a list to which automatic commits append their offset."""
    core.subscriptions.set_partitions([A])
    core.subscriptions.state(A).seek(8)
    core.unread.set(Records({A: [ConsumerRecord("a", 0, offset) for offset in (5, 6, 7)]}))
    next(iter(core.unread))
    commits: list[int] = []
    core.commits._start = lambda offsets, callback: commits.append(offsets[A].offset)  # type: ignore[method-assign]
    return commits


def unsubscribe(consumer: Any) -> Any:
    return consumer.unsubscribe()


def assign_other(consumer: Any) -> Any:
    return consumer.assign([B])


@pytest.mark.parametrize("change", [unsubscribe, assign_other])
def test_unyielded_records_are_not_committed_by_a_new_assignment(
    change: Callable[[Any], Any],
) -> None:
    consumer = Consumer(UNREACHABLE)
    consumer.assign([A])
    commits = iterate(consumer._core)
    change(consumer)
    assert commits == [6] and not consumer._unread
    consumer.close(0)

    async def work() -> None:
        async with aio.Consumer(UNREACHABLE) as consumer:
            await consumer.assign([A])
            commits = iterate(consumer._core)
            await change(consumer)
            assert commits == [6] and not consumer._unread
            await consumer.close(0)

    asyncio.run(work())


def test_unyielded_records_are_read_again_after_a_new_subscription() -> None:
    consumer = Consumer(UNREACHABLE)
    consumer.subscribe(["a"])
    iterate(consumer._core)
    consumer.subscribe(["a", "b"])
    assert consumer._core.commits.consumed()[A].offset == 6 and not consumer._unread
    # The processing of the current record failed.
    consumer._unread.put_back()
    assert consumer._core.commits.consumed()[A].offset == 5
    consumer.close(0)

    async def work() -> None:
        async with aio.Consumer(UNREACHABLE) as consumer:
            await consumer.subscribe(["a"])
            iterate(consumer._core)
            await consumer.subscribe(["a", "b"])
            assert consumer._core.commits.consumed()[A].offset == 6 and not consumer._unread
            await consumer.close(0)

    asyncio.run(work())
