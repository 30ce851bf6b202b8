"""Small types that producer, consumer and admin share."""

from __future__ import annotations

from typing import NamedTuple

from kavka.common.types import TopicPartition as TopicPartition


class OffsetAndMetadata(NamedTuple):
    """What is committed for a partition: the offset of the next record to read, and a note of the committer's."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """A record's place and its time, in milliseconds."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class ConsumerGroupMetadata(NamedTuple):
    """Who commits offsets in a transaction; a consumer's `group_metadata()` gives it. A group's id alone also works,
    but then a member that was thrown out of the group is not kept from committing."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
