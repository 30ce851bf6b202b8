"""[pure] The state of a partition as the controller decides it, and the states of its ISR.

    CommittedIsr ──propose──> PendingExpandIsr | PendingShrinkIsr
    Pending*     ──accepted──> CommittedIsr (the new ISR)
    Pending*     ──refused──> CommittedIsr (the old ISR), or UnresolvedIsr
    any          ──order of the controller──> CommittedIsr

At most one change is in flight. Every state knows `isr`, the last ISR that the controller has
committed, and `maximal_isr`, every replica that the controller may consider in sync. The high
watermark waits for the maximal ISR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kavka.common.types import TopicPartition

NO_REPLICAS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The controller's order about one partition (Kafka's LeaderAndIsr)."""

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
    """The controller's order to stop a replica, and perhaps to delete its log."""

    topic_partition: TopicPartition
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True, eq=False)
class CommittedIsr:
    """No change is in flight."""

    isr: frozenset[int]

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


@dataclass(frozen=True, slots=True, eq=False)
class PendingIsr:
    """The leader has proposed a change to the controller and has no response yet."""

    isr: frozenset[int]
    proposed: frozenset[int]
    leader_epoch: int
    partition_epoch: int

    @property
    def maximal_isr(self) -> frozenset[int]:
        raise NotImplementedError


class PendingExpandIsr(PendingIsr):
    __slots__ = ()

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.proposed


class PendingShrinkIsr(PendingIsr):
    __slots__ = ()

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


@dataclass(frozen=True, slots=True, eq=False)
class UnresolvedIsr:
    """The controller refused a change because this broker's state is stale. Which ISR is in effect
    is unknown until the next order, and the leader proposes no change before that."""

    isr: frozenset[int]
    maximal_isr: frozenset[int]


IsrState = CommittedIsr | PendingIsr | UnresolvedIsr
NO_ISR = CommittedIsr(NO_REPLICAS)
