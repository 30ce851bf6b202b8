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
"""The longest name that file systems take, in bytes. Topic names are ASCII."""
_PARTITIONS = 2**31

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
    match = _MARKED.fullmatch(name)
    if match is not None:
        topic, number, unique, kind = match.groups()
    else:
        match = _PLAIN.fullmatch(name)
        if match is None:
            return None
        topic, number = match.groups()
        unique, kind = "", LOG
    if int(number) >= _PARTITIONS or topic in (".", ".."):
        return None
    return PartitionDir(TopicPartition(topic, int(number)), kind, unique)


def marked_name(partition: TopicPartition, kind: str, unique: str | None = None) -> str:
    """A name for a folder to be deleted, set aside or being copied; with the same `unique` the two ends of a move are
    told together. As in Kafka, the topic is cut to what fits, but not for a copy, whose topic is read from its name:
    there the result may be longer than MAX_NAME."""
    suffix = f"-{partition.partition}.{unique or uuid.uuid4().hex}-{kind}"
    topic = partition.topic
    if kind != FUTURE:
        topic = topic[: MAX_NAME - len(suffix)]
    return topic + suffix
