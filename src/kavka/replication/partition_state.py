"""[pure] The state of a partition as the controller decides it, and the states of its ISR.

    CommittedIsr ──propose──> PendingExpandIsr | PendingShrinkIsr
    Pending*     ──accepted──> CommittedIsr (the proposed ISR)
    Pending*     ──refused──> CommittedIsr (the previous ISR), or UnresolvedIsr
    any          ──order with a new state──> CommittedIsr

At most one change is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kavka.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The controller's order for one partition (Kafka's LeaderAndIsr)."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]
    replicas: tuple[int, ...]
    partition_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    is_new: bool = False


class PartitionOrder(NamedTuple):
    topic_partition: TopicPartition
    topic_id: UUID
    state: LeaderAndIsr


class ReplicaStop(NamedTuple):
    """One partition of a StopReplica request. With `delete`, the log is deleted."""

    topic_partition: TopicPartition
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True, eq=False)
class IsrState:
    """`isr` is the last ISR that the controller committed. `maximal_isr` has every replica that the
    controller may consider in sync; the high watermark waits for all of them."""

    isr: frozenset[int]
    maximal_isr: frozenset[int]


class CommittedIsr(IsrState):
    """No change is in flight. Both sets are equal."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class PendingIsr(IsrState):
    """An AlterPartition request with the proposed ISR is in flight."""

    proposed: frozenset[int]
    leader_epoch: int
    partition_epoch: int


class PendingExpandIsr(PendingIsr):
    """The maximal ISR is the proposed ISR."""

    __slots__ = ()


class PendingShrinkIsr(PendingIsr):
    """The maximal ISR is the committed ISR."""

    __slots__ = ()


class UnresolvedIsr(IsrState):
    """The controller refused a change because this broker's state is stale. The ISR in effect is
    unknown until the next order, and the leader proposes no change before that order."""

    __slots__ = ()


NO_ISR = CommittedIsr(frozenset(), frozenset())
