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


class PreparedTransaction(NamedTuple):
    """A transaction that waits for its end, which anybody may send who has this: `Producer.prepare_transaction` gives
    it, `Admin.end_transactions` takes it, in whatever process. The producer id and epoch name this one transaction of
    the transactional id, and no later one, if the producer had no transaction before it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    second_protocol: bool = False
    """Whether the epoch rises with the transaction's end (transaction.version 2)."""


class ConsumerGroupMetadata(NamedTuple):
    """Who commits offsets in a transaction; a consumer's `group_metadata()` gives it. A group's id alone also works,
    but then a member that was thrown out of the group is not kept from committing."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
