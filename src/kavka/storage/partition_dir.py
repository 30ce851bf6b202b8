"""The names of partitions' folders in a data directory.

orders-0                                             the partition's log
orders-0.6f1c2a…(32 hex digits)-delete               deleted; its files are on their way out
orders-0.6f1c2a…-future                              a copy on its way from another directory
orders-0.6f1c2a…-stray                               of a topic that is no more, set aside (also by Kafka's tools)
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

from kavka.common.types import TopicPartition

LOG = ""
DELETE = "delete"
FUTURE = "future"
STRAY = "stray"

MAX_NAME = 255

_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
_PLAIN = re.compile(rf"({_TOPIC})-(0|[1-9][0-9]{{0,9}})")
_MARKED = re.compile(rf"({_TOPIC})-(0|[1-9][0-9]{{0,9}})\.([0-9a-zA-Z_-]+)-(delete|future|stray)")


class PartitionDir(NamedTuple):
    """A folder's name taken apart. For a deleted or stray partition the topic may be cut short: file names have a
    limit."""

    partition: TopicPartition
    kind: str
    unique: str


def parse_dir_name(name: str) -> PartitionDir | None:
    """None for a name that is no partition's."""
    found = _MARKED.fullmatch(name)
    if found is not None:
        topic, number, unique, kind = found.groups()
        return PartitionDir(TopicPartition(topic, int(number)), kind, unique)
    found = _PLAIN.fullmatch(name)
    if found is not None and int(found[2]) < 2**31 and found[1] not in (".", ".."):
        return PartitionDir(TopicPartition(found[1], int(found[2])), LOG, "")
    return None


def marked_name(partition: TopicPartition, kind: str, unique: str | None = None) -> str:
    """A name for a folder to be deleted, set aside or being copied; with the same `unique` the two ends of a move are
    told together."""
    suffix = f"-{partition.partition}.{unique or uuid.uuid4().hex}-{kind}"
    topic = partition.topic
    if kind != FUTURE:
        topic = topic[: MAX_NAME - len(suffix)]
    return topic + suffix
