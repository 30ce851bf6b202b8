"""The names of partition folders in a data directory.

orders-0                             the log of the partition
orders-0.<32 hex digits>-delete      a deleted log whose files are about to be removed
orders-0.<32 hex digits>-future      an incomplete copy of a log in another directory
orders-0.<32 hex digits>-stray       a log that belongs to no existing topic
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

MAX_NAME = 255  # The longest file name, in bytes. Topic names are ASCII.
_PARTITIONS = 2**31

_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
_PLAIN = re.compile(rf"({_TOPIC})-(0|[1-9][0-9]{{0,9}})")
_MARKED = re.compile(rf"({_TOPIC})-(0|[1-9][0-9]{{0,9}})\.([0-9a-zA-Z_-]+)-(delete|future|stray)")


class PartitionDir(NamedTuple):
    """The parsed name of a folder. The topic of a deleted or stray partition may be truncated to
    the maximum length of a file name."""

    partition: TopicPartition
    kind: str
    unique: str


def parse_dir_name(name: str) -> PartitionDir | None:
    """Parse the name of a folder. None for other names."""
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
    """The name of a `-delete`, `-stray` or `-future` folder. Both folders of a move have the same
    `unique`. As in Kafka, a long topic name is truncated, except in a `-future` folder, because its
    topic is read from its name. The name of such a folder may be longer than MAX_NAME."""
    suffix = f"-{partition.partition}.{unique or uuid.uuid4().hex}-{kind}"
    topic = partition.topic
    if kind != FUTURE:
        topic = topic[: MAX_NAME - len(suffix)]
    return topic + suffix
