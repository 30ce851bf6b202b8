"""Offsets of an application: those that the checkpoint of its query has completed, and the ends of
its topics."""

from __future__ import annotations

import json
from collections.abc import Collection

from kavka.client.admin import Admin
from kavka.client.admin.types import OffsetSpec
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.files import AnyPath
from kavka.pipeline.spark.offsets import from_checkpoint

# A file of offsets begins with the version and the settings of the batch. A line for each source
# follows, "-" if it had no offsets.
_HEAD = 2


def done(checkpoint: AnyPath) -> dict[TopicPartition, int]:
    """The offsets up to which all records are read, processed and written. Spark creates, each
    atomically, `offsets/N` with the end of batch N, and `commits/N` when it is complete."""
    batch = last_batch(checkpoint)
    offsets: dict[TopicPartition, int] = {}
    for line in () if batch is None else source_lines(checkpoint, batch):
        offsets |= from_checkpoint(json.loads(line))
    return offsets


def source_lines(checkpoint: AnyPath, batch: int) -> list[str]:
    """The end of a batch, by source, as JSON."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[_HEAD:]
    return [line for line in lines if line.startswith("{")]


def _numbers(folder: AnyPath) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []


def last_batch(checkpoint: AnyPath) -> int | None:
    """The last completed batch."""
    return max(_numbers(checkpoint / "commits"), default=None)


def has_begun(checkpoint: AnyPath) -> bool:
    """Whether the first batch has its offsets."""
    return bool(_numbers(checkpoint / "offsets"))


def end_offsets(admin: Admin, topics: Collection[str], committed: bool) -> dict[TopicPartition, int]:
    """The ends of the partitions of these topics; with `committed`, the beginning of the first open
    transaction."""
    if not topics:
        return {}
    described = admin.describe_topics(sorted(topics)).values()
    partitions = [TopicPartition(topic.name, info.partition) for topic in described for info in topic.partitions]
    specs = dict.fromkeys(partitions, OffsetSpec.latest())
    level = "read_committed" if committed else "read_uncommitted"
    return {tp: result.offset for tp, result in admin.list_offsets(specs, isolation_level=level).items()}
