"""Offsets in Spark's checkpoint, and their distribution over tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.offsets import (
    Offsets,
    Range,
    count,
    from_checkpoint,
    limit_by_time,
    limit_end_offsets,
    plan,
    plan_tasks,
    to_checkpoint,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_checkpoint_has_topics_and_partitions_in_order() -> None:
    offsets = {B0: 5, TopicPartition("a", 10): 2, A1: 1}
    assert str(to_checkpoint(offsets)) == "{'a': {'1': 1, '10': 2}, 'b': {'0': 5}}"
    assert from_checkpoint(to_checkpoint(offsets)) == offsets
    with pytest.raises(PipelineError, match="offsets in the checkpoint have an unknown format"):
        from_checkpoint({"a": 3})


def test_every_partition_belongs_to_one_task_in_turn() -> None:
    start, end = {A0: 0, A1: 0, B0: 0}, {A0: 5, A1: 0, B0: 2}
    first, last = Range("a", 0, 0, 5), Range("b", 0, 0, 2)
    assert plan_tasks(start, end, 1) == [[first, last]]
    assert plan_tasks(start, end, 2) == [[first, last], []]
    assert plan_tasks(start, end, 9) == [[first], [], [last]]
    assert plan_tasks({}, {}, 2) == []


def test_a_limit_is_shared_by_partitions_in_proportion_to_their_records() -> None:
    start, end = {A0: 0, A1: 0, B0: 10}, {A0: 900, A1: 99, B0: 11}
    end_offsets = limit_end_offsets(start, end, 100)
    assert end_offsets == {A0: 90, A1: 9, B0: 11}
    assert limit_end_offsets(start, end, 1000) == end
    assert count(start, end) == 1000


def test_every_partition_with_records_has_a_task() -> None:
    assert plan({A0: 0, A1: 5, B0: 1}, {A0: 10, A1: 5, B0: 2}) == [Range("a", 0, 0, 10), Range("b", 0, 1, 2)]


def test_the_largest_partitions_are_split() -> None:
    ranges = plan({A0: 0, B0: 0}, {A0: 100, B0: 10}, min_partitions=4)
    assert [(range_.topic, range_.start, range_.end) for range_ in ranges] == [
        ("a", 0, 33), ("a", 33, 66), ("a", 66, 100), ("b", 0, 10),
    ]  # fmt: skip


def test_no_task_has_more_records_than_allowed() -> None:
    ranges = plan({A0: 0, B0: 0}, {A0: 25, B0: 3}, max_records=10)
    assert [range_.size for range_ in ranges] == [8, 8, 9, 3]


_offset = st.integers(0, 1000)


@given(
    st.dictionaries(st.sampled_from([A0, A1, B0]), st.tuples(_offset, _offset), min_size=1),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 50),
)
def test_tasks_cover_every_offset_once(
    spans: dict[TopicPartition, tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    start = {tp: first for tp, (first, _) in spans.items()}
    end = {tp: first + size for tp, (first, size) in spans.items()}
    ranges = plan(start, end, min_partitions, max_records)
    covered = sorted((range_.tp, offset) for range_ in ranges for offset in range(range_.start, range_.end))
    assert covered == sorted((tp, offset) for tp in end for offset in range(start[tp], end[tp]))
    total = len(covered)
    assert all(range_.size > 0 for range_ in ranges)
    assert max_records is None or all(range_.size <= max_records for range_ in ranges)
    assert min_partitions is None or len(ranges) >= min(min_partitions, total)
    assert ranges == plan(start, end, min_partitions, max_records)


@given(st.dictionaries(st.sampled_from([A0, A1, B0]), st.tuples(_offset, _offset), min_size=1), st.integers(1, 500))
def test_a_limited_end_always_advances(spans: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    start = {tp: first for tp, (first, _) in spans.items()}
    end = {tp: first + size for tp, (first, size) in spans.items()}
    end_offsets = limit_end_offsets(start, end, limit)
    assert all(start[tp] <= end_offsets[tp] <= end[tp] for tp in end)
    assert count(start, end_offsets) <= limit + len(end)
    assert count(start, end_offsets) > 0 or count(start, end) == 0


class Topics:
    """The timestamps of the records of partitions, each from offset 0 on."""

    def __init__(self, times: dict[TopicPartition, list[int]]) -> None:
        self.times = times
        self.lookups = 0

    def offsets_of(self, times: Offsets) -> Offsets:
        self.lookups += 1
        return {
            tp: next((offset for offset, at in enumerate(self.times[tp]) if at >= time), -1)
            for tp, time in times.items()
        }

    def batches(self, limit: int) -> list[Offsets]:
        end: Offsets = {tp: len(times) for tp, times in self.times.items()}
        batches: list[Offsets] = [dict.fromkeys(end, 0)]
        while batches[-1] != end:
            batches.append(limit_by_time(batches[-1], end, limit, self.offsets_of))
        return batches


def test_a_backlog_is_read_by_time() -> None:
    table, stream = list(range(1000, 1100)), list(range(5000, 5900))
    topics = Topics({A0: stream, B0: table})
    batches = topics.batches(150)
    for batch in batches[1:]:
        assert batch[A0] == 0 or batch[B0] == 100
    assert len(batches) <= 15


def test_records_of_one_millisecond_may_exceed_the_limit() -> None:
    topics = Topics({A0: [7000] * 500, B0: [7000] * 500})
    assert len(topics.batches(100)) == 11
    assert Topics({A0: [2**60] * 30, B0: [-1] * 30}).batches(20)[1] == {A0: 0, B0: 20}


def test_partitions_of_different_tasks_advance_independently() -> None:
    topics = Topics({A0: list(range(100)), B0: list(range(100)), A1: list(range(10**6, 10**6 + 200))})
    batch = topics.batches(100)[1]
    assert 12 < batch[A0] == batch[B0] <= 25 < batch[A1] <= 50


_times = st.lists(st.integers(-1, 50) | st.integers(0, 1 << 43), max_size=30)


@given(st.dictionaries(st.sampled_from([A0, A1, B0]), _times, min_size=1), st.integers(1, 20))
def test_a_batch_by_time_advances_and_has_no_newer_record_than_a_later_batch(
    times: dict[TopicPartition, list[int]], limit: int
) -> None:
    topics = Topics({tp: sorted(stamps) for tp, stamps in times.items()})
    batches = topics.batches(limit)
    for before, after in pairwise(batches):
        assert 0 < count(before, after) <= limit + len(times)
        read = {tp: topics.times[tp][before[tp] : after[tp]] for tp in after}
        unread = {tp: topics.times[tp][after[tp] :] for tp in after}
        for number in {tp.partition for tp in after}:
            latest = max((time for tp in read if tp.partition == number for time in read[tp]), default=-2)
            assert all(time >= min(latest, 1 << 42) for tp in unread if tp.partition == number for time in unread[tp])
    assert topics.lookups <= 43 * len(batches)
