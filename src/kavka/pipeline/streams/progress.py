"""How far an application is: what its query's checkpoint says is done, and what its topics hold."""

from __future__ import annotations

import json
from collections.abc import Collection

from kavka.client.admin import Admin
from kavka.client.admin.types import OffsetSpec
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.files import AnyPath
from kavka.pipeline.spark.offsets import from_checkpoint

# Of a file of offsets: the version, and what the batch ran with. Then a line for each source, "-"
# where it had none.
_HEAD = 2


def done(checkpoint: AnyPath) -> dict[TopicPartition, int]:
    """Up to where everything is read, worked on and written. `commits/N` is made when batch N is,
    and `offsets/N` says where it ends; Spark keeps many of both, and puts each into place whole."""
    batch = last_batch(checkpoint)
    if batch is None:
        return {}
    found: dict[TopicPartition, int] = {}
    for line in source_lines(checkpoint, batch):
        found |= from_checkpoint(json.loads(line))
    return found


def source_lines(checkpoint: AnyPath, batch: int) -> list[str]:
    """Where a batch ends, by source, as JSON."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[_HEAD:]
    return [line for line in lines if line.startswith("{")]


def last_batch(checkpoint: AnyPath) -> int | None:
    """The last one that is done."""
    try:
        return max((int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit()), default=None)
    except FileNotFoundError:
        return None


def has_begun(checkpoint: AnyPath) -> bool:
    """Whether it is decided where the first batch begins."""
    try:
        return any(one.name.isdigit() for one in (checkpoint / "offsets").iterdir())
    except FileNotFoundError:
        return False


def ends(admin: Admin, topics: Collection[str], committed: bool) -> dict[TopicPartition, int]:
    """Where the partitions of these topics end; with `committed`, where the first open transaction
    begins."""
    if not topics:
        return {}
    described = admin.describe_topics(sorted(topics))
    partitions = [TopicPartition(one.name, p.partition) for one in described.values() for p in one.partitions]
    asked = dict.fromkeys(partitions, OffsetSpec.latest())
    level = "read_committed" if committed else "read_uncommitted"
    return {tp: one.offset for tp, one in admin.list_offsets(asked, isolation_level=level).items()}
