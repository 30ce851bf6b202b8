"""Offsets of many partitions, and how a stretch of them is cut into tasks. No I/O.

In Spark's checkpoint they are {"topic": {"0": 23}}, as Spark's own Kafka source writes them, with topics and partitions
in order: Spark compares offsets as text.

The end of a stream's first batch also has, under "$initial", where that batch begins. Spark asks for the beginning
again when it runs the first batch again after a crash; with startingOffsets=latest the answer would be another then.
So has the end of a batch that begins elsewhere than where the one before it ended.

Under "$topicIds" are the ids of the topics, so that a topic that was deleted and created again under the same name is
noticed: the next batch begins at the beginning of the new one. Where the cluster has no ids (Kafka before 2.8), the
leader epochs of the partitions are there instead: those never go back while a topic exists. A broker whose metadata is
behind has older ones, so the leaders have to confirm it. Checkpoints of earlier versions have neither, and notice only
that an end went back.
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

# The note with which a job commits what it has done to a group, so that it is told from what a tool has set there.
DONE_BY_JOB = "kavka"


class Range(NamedTuple):
    """Offsets of one partition, for one task: from `start` up to, not including, `end`."""

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
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_checkpoint(value: Any) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, by_partition in value.items()
            if not topic.startswith("$")
            for partition, offset in by_partition.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise PipelineError(f"the checkpoint has offsets that are not ours: {value}") from None


def ids_of(topics: Iterable[TopicDescription]) -> TopicIds:
    found: dict[str, str | Mapping[str, int]] = {}
    for topic in topics:
        if topic.topic_id != ZERO_UUID:
            found[topic.name] = uuid_text(topic.topic_id)
        else:
            found[topic.name] = {str(one.partition): one.leader_epoch for one in topic.partitions}
    return found


def recreated(before: TopicIds, now: TopicIds) -> set[str]:
    """Topics that were deleted and created again. Where nothing is known of a topic, it counts as the same."""
    return {topic for topic in before.keys() & now.keys() if _is_another(before[topic], now[topic])}


def _is_another(before: str | Mapping[str, int], now: str | Mapping[str, int]) -> bool:
    if isinstance(before, str) or isinstance(now, str):
        return isinstance(before, str) and isinstance(now, str) and before != now
    # A broker that is too old to say has -1.
    return any(0 <= now.get(partition, epoch) < epoch for partition, epoch in before.items())


def limited(start: Offsets, end: Offsets, most: int) -> dict[TopicPartition, int]:
    """An end no more than about `most` records after the start: each partition gives in proportion to what it has."""
    sizes = {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in end}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    result: dict[TopicPartition, int] = {}
    for tp, size in sizes.items():
        share = most * size / total
        # A small partition beside large ones is not left waiting for ever.
        taken = min(size, math.ceil(share) if share < 1 else math.floor(share))
        result[tp] = start.get(tp, end[tp]) + taken
    return result


def count(start: Offsets, end: Offsets) -> int:
    return sum(max(0, end[tp] - start.get(tp, end[tp])) for tp in end)


def plan(
    start: Offsets, end: Offsets, min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """A task for each partition that has something; more where `min_partitions` or `max_records` ask for it. It depends
    on nothing but the arguments: a batch that is run again is cut in the same way."""
    whole = [Range(tp.topic, tp.partition, start[tp], end[tp]) for tp in sorted(end) if end[tp] > start[tp]]
    ranges = [
        piece for one in whole for piece in _cut(one, 1 if max_records is None else math.ceil(one.size / max_records))
    ]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    return [
        piece for one, parts in zip(ranges, _parts(ranges, min_partitions), strict=True) for piece in _cut(one, parts)
    ]


def _parts(ranges: list[Range], wanted: int) -> list[int]:
    """How many pieces to cut each range into, `wanted` in all where there are records enough."""
    parts = [1] * len(ranges)
    for _ in range(min(wanted, sum(one.size for one in ranges)) - len(ranges)):
        # The next cut goes to the range whose pieces are the largest.
        index = max(range(len(ranges)), key=lambda i: (ranges[i].size / parts[i], -i))
        parts[index] += 1
    return parts


def _cut(one: Range, parts: int) -> Iterable[Range]:
    for part in range(parts):
        begin = one.start + one.size * part // parts
        end = one.start + one.size * (part + 1) // parts
        if end > begin:
            yield Range(one.topic, one.partition, begin, end)
