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

MAX_NAME_BYTES = 255  # The maximum length of a file name. Topic names are ASCII.
_MAX_PARTITIONS = 2**31

_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
_PLAIN = re.compile(rf"({_TOPIC})-(0|[1-9][0-9]{{0,9}})")
_MARKED = re.compile(rf"({_TOPIC})-(0|[1-9][0-9]{{0,9}})\.([0-9a-zA-Z_-]+)-(delete|future|stray)")


class PartitionDir(NamedTuple):
    """The parsed name of a folder. `suffix` is LOG, DELETE, FUTURE or STRAY. `unique_id` is empty
    for LOG. The topic of a deleted or stray partition may be truncated to the maximum length of a
    file name."""

    partition: TopicPartition
    suffix: str
    unique_id: str


def parse_dir_name(name: str) -> PartitionDir | None:
    """Parse the name of a folder. Returns None if it is not the name of a partition folder."""
    match = _MARKED.fullmatch(name)
    if match is not None:
        topic, index, unique_id, suffix = match.groups()
    else:
        match = _PLAIN.fullmatch(name)
        if match is None:
            return None
        topic, index = match.groups()
        unique_id, suffix = "", LOG
    if int(index) >= _MAX_PARTITIONS or topic in (".", ".."):
        return None
    return PartitionDir(TopicPartition(topic, int(index)), suffix, unique_id)


def marked_name(partition: TopicPartition, suffix: str, unique_id: str | None = None) -> str:
    """The name of a `-delete`, `-stray` or `-future` folder. Both folders of a move have the same
    `unique_id`, by default a random one.

    As in Kafka, a long topic name is truncated, except in the name of a `-future` folder, from
    which the topic is parsed. That name may be longer than MAX_NAME_BYTES.
    """
    ending = f"-{partition.partition}.{unique_id or uuid.uuid4().hex}-{suffix}"
    topic = partition.topic
    if suffix != FUTURE:
        topic = topic[: MAX_NAME_BYTES - len(ending)]
    return topic + ending
