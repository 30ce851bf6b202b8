"""Small types that producer, consumer and admin client share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kavka.common.types import TopicPartition as TopicPartition

if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", default=Any)
    V = TypeVarWithDefault("V", default=Any)
else:
    # Before Python 3.13, a TypeVar has no default at run time.
    K = TypeVar("K")
    V = TypeVar("V")


class OffsetAndMetadata(NamedTuple):
    """A committed offset of a partition: the offset of the next record to read, and metadata of the
    application."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """The offset and the timestamp (in milliseconds) of a record."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class PreparedTransaction(NamedTuple):
    """The handle of a prepared transaction. `Producer.prepare_transaction` returns it, and
    `Admin.end_transactions` uses it, in any process, to commit or abort the transaction. If the
    transaction is the first transaction of the producer, no later transaction of the transactional
    id has the same producer id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    second_protocol: bool = False
    """Whether ending the transaction bumps the epoch (transaction.version 2)."""


class ConsumerGroupMetadata(NamedTuple):
    """The group member that commits offsets in a transaction; `Consumer.group_metadata()` returns
    it. If only the group id is set, a member that was removed from the group is not fenced."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
