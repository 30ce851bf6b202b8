"""Offsets in Spark's checkpoint, and their distribution over tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.types import TopicPartition
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.offsets import Range, count, from_checkpoint, limit_end_offsets, plan, to_checkpoint

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_checkpoint_has_topics_and_partitions_in_order() -> None:
    offsets = {B0: 5, TopicPartition("a", 10): 2, A1: 1}
    assert str(to_checkpoint(offsets)) == "{'a': {'1': 1, '10': 2}, 'b': {'0': 5}}"
    assert from_checkpoint(to_checkpoint(offsets)) == offsets
    with pytest.raises(PipelineError, match="offsets in the checkpoint have an unknown format"):
        from_checkpoint({"a": 3})


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
