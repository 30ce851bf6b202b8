"""Offsets of partitions, and their distribution over tasks. No I/O.

In Spark's checkpoint they are {"topic": {"0": 23}}, as Spark's own Kafka source writes them, with
topics and partitions in order: Spark compares offsets as text.

The end of a stream's first batch also has the start of that batch, under "$initial". Spark asks for
the initial offset again when it repeats the first batch after a crash; with startingOffsets=latest
it would be different then. The same holds for a batch that does not start where the previous one
ended.

The ids of the topics are under "$topicIds". They detect a topic that was deleted and created again
under the same name: the next batch starts at the beginning of the new topic. If the cluster has no
topic ids (Kafka before 2.8), the leader epochs of the partitions are there instead: they never
decrease while a topic exists. A broker with stale metadata has older epochs, so the leaders must
confirm. Checkpoints of earlier versions have neither, and detect only that an end offset decreased.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kavka.client.admin.types import TopicDescription
from kavka.common.types import TopicPartition, uuid_text
from kavka.pipeline.spark.errors import PipelineError
from kavka.protocol.primitives import ZERO_UUID

Offsets = Mapping[TopicPartition, int]
# By topic: the id as text, or {"0": the leader epoch of partition 0}.
TopicIds = Mapping[str, str | Mapping[str, int]]

TOPIC_IDS = "$topicIds"

# The metadata of offsets that a job commits, which distinguishes them from those that a tool sets.
DONE_BY_JOB = "kavka"


class Range(NamedTuple):
    """Offsets of one partition, for one task: from `start` to `end`, exclusive."""

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
        raise PipelineError(f"the checkpoint has offsets in another format: {value}") from None


def ids_of(topics: Iterable[TopicDescription]) -> TopicIds:
    ids: dict[str, str | Mapping[str, int]] = {}
    for topic in topics:
        if topic.topic_id != ZERO_UUID:
            ids[topic.name] = uuid_text(topic.topic_id)
        else:
            ids[topic.name] = {str(partition.partition): partition.leader_epoch for partition in topic.partitions}
    return ids


def recreated(before: TopicIds, now: TopicIds) -> set[str]:
    """Topics that were deleted and created again. A topic without a known id counts as
    unchanged."""
    return {topic for topic in before.keys() & now.keys() if _is_recreated(before[topic], now[topic])}


def _is_recreated(before: str | Mapping[str, int], now: str | Mapping[str, int]) -> bool:
    if isinstance(before, str) or isinstance(now, str):
        return isinstance(before, str) and isinstance(now, str) and before != now
    # -1: the broker is too old to know the epoch.
    return any(0 <= now.get(partition, epoch) < epoch for partition, epoch in before.items())


def limited(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """An end at most about `limit` records after the start, with a share for each partition in
    proportion to its records."""
    sizes = {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in end}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    result: dict[TopicPartition, int] = {}
    for tp, size in sizes.items():
        share = limit * size / total
        # A small partition beside large ones must still advance.
        advance = min(size, math.ceil(share) if share < 1 else math.floor(share))
        result[tp] = start.get(tp, end[tp]) + advance
    return result


def count(start: Offsets, end: Offsets) -> int:
    return sum(max(0, end[tp] - start.get(tp, end[tp])) for tp in end)


def plan(
    start: Offsets, end: Offsets, min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """A task for each partition with records; more for `min_partitions` or `max_records`. The
    result depends only on the arguments: a batch that runs again has the same tasks."""
    whole = [Range(tp.topic, tp.partition, start[tp], end[tp]) for tp in sorted(end) if end[tp] > start[tp]]
    ranges = [
        piece
        for range_ in whole
        for piece in _split(range_, 1 if max_records is None else math.ceil(range_.size / max_records))
    ]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    parts = _parts(ranges, min_partitions)
    return [piece for range_, count in zip(ranges, parts, strict=True) for piece in _split(range_, count)]


def _parts(ranges: list[Range], total: int) -> list[int]:
    """The number of pieces of each range, `total` together if there are enough records."""
    parts = [1] * len(ranges)
    for _ in range(min(total, sum(range_.size for range_ in ranges)) - len(ranges)):
        # Split the range with the largest pieces.
        index = max(range(len(ranges)), key=lambda i: (ranges[i].size / parts[i], -i))
        parts[index] += 1
    return parts


def _split(range_: Range, parts: int) -> Iterable[Range]:
    for part in range(parts):
        begin = range_.start + range_.size * part // parts
        end = range_.start + range_.size * (part + 1) // parts
        if end > begin:
            yield Range(range_.topic, range_.partition, begin, end)
