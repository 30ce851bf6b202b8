"""Offsets of partitions, and their distribution over tasks. No I/O.

The format in Spark's checkpoint is {"topic": {"0": 23}}, like that of Spark's own Kafka source.
Topics and partitions are sorted, because Spark compares offsets as text.

"$initial" in the end of a batch is the start of the batch. The end of a stream's first batch has
it, because Spark requests the initial offset again when it repeats the first batch after a crash.
With startingOffsets=latest that offset would have changed. The end of a batch that does not start
at the end of the previous batch also has "$initial".

"$topicIds" has the ids of the topics. They show that a topic was deleted and created again under
the same name. The next batch then starts at the beginning of the new topic. If the cluster has no
topic ids (Kafka before 2.8), "$topicIds" has the leader epochs of the partitions, which never
decrease while a topic exists. A broker with stale metadata has older epochs, so the leaders must
confirm a decrease. Without "$topicIds" (checkpoints of earlier versions) only an end offset that
decreases shows that a topic was recreated.

"$tasks" in the end of a batch has `maxPartitions`. A batch that runs again after a crash is divided
in the same way, even if the option has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kavka.client.admin.types import TopicDescription
from kavka.common.types import TopicPartition, uuid_text
from kavka.pipeline.spark.errors import PipelineError
from kavka.protocol.primitives import ZERO_UUID

Offsets = Mapping[TopicPartition, int]
# By topic: the id as text, or {"0": the leader epoch of partition 0}.
TopicIds = Mapping[str, str | Mapping[str, int]]

TOPIC_IDS = "$topicIds"
TASKS = "$tasks"

# Timestamps of records are below this one, of the year 2109.
_END_OF_TIME = 1 << 42

# The metadata of offsets that a job commits. Offsets that a tool sets do not have it.
DONE_BY_JOB = "kavka"


class Range(NamedTuple):
    """The offsets of a partition that one task reads: from `start` to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


def to_checkpoint(offsets: Offsets) -> dict[str, dict[str, int]]:
    checkpoint: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        checkpoint.setdefault(topic, {})[str(partition)] = offset
    return checkpoint


def from_checkpoint(value: Any) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, by_partition in value.items()
            if not topic.startswith("$")
            for partition, offset in by_partition.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise PipelineError(f"the offsets in the checkpoint have an unknown format: {value}") from None


def ids_of(topics: Iterable[TopicDescription]) -> TopicIds:
    ids: dict[str, str | Mapping[str, int]] = {}
    for topic in topics:
        if topic.topic_id != ZERO_UUID:
            ids[topic.name] = uuid_text(topic.topic_id)
        else:
            ids[topic.name] = {str(partition.partition): partition.leader_epoch for partition in topic.partitions}
    return ids


def recreated(previous: TopicIds, current: TopicIds) -> set[str]:
    """Return the topics that were deleted and created again. A topic without a known id counts as
    unchanged."""
    return {topic for topic in previous.keys() & current.keys() if _is_recreated(previous[topic], current[topic])}


def _is_recreated(previous: str | Mapping[str, int], current: str | Mapping[str, int]) -> bool:
    if isinstance(previous, str) or isinstance(current, str):
        return isinstance(previous, str) and isinstance(current, str) and previous != current
    # Brokers that do not support leader epochs return -1.
    return any(0 <= current.get(partition, epoch) < epoch for partition, epoch in previous.items())


def limit_end_offsets(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return end offsets that are about `limit` records after the start in total. The share of a
    partition is proportional to its records."""
    sizes = {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in end}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    result: dict[TopicPartition, int] = {}
    for tp, size in sizes.items():
        share = limit * size / total
        # Round up a share below 1, so that small partitions advance as well.
        advance = min(size, math.ceil(share) if share < 1 else math.floor(share))
        result[tp] = start.get(tp, end[tp]) + advance
    return result


def limit_by_time(
    start: Offsets, end: Offsets, limit: int, offsets_of: Callable[[Offsets], Offsets]
) -> dict[TopicPartition, int]:
    """Like `limit_end_offsets`, but older records come first: partitions with the same number,
    which one task reads, advance to the same time. `offsets_of` returns the offsets of the first
    records with these timestamps or later, -1 where there are none."""
    total = count(start, end)
    if total <= limit:
        return dict(end)
    groups: dict[int, Offsets] = {}
    for tp in sorted(end):
        groups[tp.partition] = {**groups.get(tp.partition, {}), tp: end[tp]}
    shares = {number: max(1, limit * count(start, ends) // total) for number, ends in groups.items()}
    result = dict(end)
    # By group: times between which the number of records exceeds the share. `low` and `high` have
    # the offsets of these times.
    times = {number: (0, _END_OF_TIME) for number, ends in groups.items() if count(start, ends) > shares[number]}
    low = {number: {tp: start.get(tp, end[tp]) for tp in groups[number]} for number in times}
    high = {number: groups[number] for number in times}
    while times:
        middle = {number: sum(bounds) // 2 for number, bounds in times.items()}
        listed = offsets_of({tp: time for number, time in middle.items() for tp in groups[number]})
        for number, time in middle.items():
            bounds, share = times[number], shares[number]
            ends = {
                tp: stop if listed[tp] < 0 else min(max(listed[tp], start.get(tp, stop)), stop)
                for tp, stop in groups[number].items()
            }
            size = count(start, ends)
            if size <= share:
                low[number], times[number] = ends, (time, bounds[1])
            else:
                high[number], times[number] = ends, (bounds[0], time)
            is_enough = share // 2 < size <= share
            if is_enough or times[number][1] - times[number][0] <= 1:
                del times[number]
                has_records = count(start, low[number]) > 0
                # One millisecond may have more records than the share.
                result |= low[number] if has_records else limit_end_offsets(start, high[number], share)
    return result


def count(start: Offsets, end: Offsets) -> int:
    return sum(max(0, end[tp] - start.get(tp, end[tp])) for tp in end)


def plan(
    start: Offsets, end: Offsets, min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """Return the range of each task. A partition with records has one task, or more because of
    `min_partitions` or `max_records`. The result depends only on the arguments, so a batch that
    runs again has the same tasks."""
    partition_ranges = [Range(*tp, start[tp], end[tp]) for tp in sorted(end) if end[tp] > start[tp]]
    ranges = [
        task_range
        for range_ in partition_ranges
        for task_range in _split(range_, 1 if max_records is None else math.ceil(range_.size / max_records))
    ]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    counts = _task_counts(ranges, min_partitions)
    return [task_range for range_, count in zip(ranges, counts, strict=True) for task_range in _split(range_, count)]


def task_of(partitions: Iterable[TopicPartition], tasks: int) -> dict[TopicPartition, int]:
    """Return the number of the task that reads each partition, if there are `tasks` tasks. The
    partitions take turns, in the order of their topics and numbers."""
    return {tp: index % tasks for index, tp in enumerate(sorted(partitions))}


def plan_tasks(start: Offsets, end: Offsets, tasks: int) -> list[list[Range]]:
    """Return the ranges of each task, of at most `tasks` tasks. Every partition belongs to one
    task, which may have no records in this batch."""
    groups: list[list[Range]] = [[] for _ in range(min(tasks, len(end)))]
    owners = task_of(end, max(1, len(groups)))
    for task_range in plan(start, end):
        groups[owners[task_range.tp]].append(task_range)
    return groups


def _task_counts(ranges: list[Range], total: int) -> list[int]:
    """Return the number of tasks of each range. The sum is `total` if there are enough records."""
    counts = [1] * len(ranges)
    for _ in range(min(total, sum(range_.size for range_ in ranges)) - len(ranges)):
        # Add a task to the range with the largest tasks.
        index = max(range(len(ranges)), key=lambda i: (ranges[i].size / counts[i], -i))
        counts[index] += 1
    return counts


def _split(range_: Range, count: int) -> Iterable[Range]:
    for index in range(count):
        begin = range_.start + range_.size * index // count
        end = range_.start + range_.size * (index + 1) // count
        if end > begin:
            yield Range(range_.topic, range_.partition, begin, end)
