"""The controller's state in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kavka.common.types import TopicPartition
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.controller.topic_names import metric_name
from kavka.metadata.paths import BrokerRegistration, PartitionStateNode, ReplicaAssignment


class Replica(NamedTuple):
    partition: TopicPartition
    broker_id: int

    def __str__(self) -> str:
        return f"the replica of {self.partition} on broker {self.broker_id}"


@dataclass(frozen=True, slots=True)
class Leadership:
    """The content of a state node with its version. `zxid` is the zxid of the last write, or -1 if
    this controller created the node."""

    state: PartitionStateNode
    partition_epoch: int
    zxid: int = field(default=-1, compare=False)


@dataclass(slots=True)
class Topic:
    topic_id: UUID
    partitions: dict[int, ReplicaAssignment]


class ControllerContext:
    """Owns a copy of the znode tree and the states of partitions and replicas.

    Only the controller's events read or change it. A partition without an entry in `leaderships`
    has no state node yet. After a crash the next controller reads everything from the tree.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.epoch_version = 0
        self.brokers: dict[int, BrokerRegistration] = {}
        self.broker_epochs: dict[int, int] = {}
        # Brokers in controlled shutdown. They receive all requests, but are not elected.
        self.shutting_down: set[int] = set()
        # Registered brokers whose connection failed. They are treated in the same way.
        self.unreachable: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[UUID, str] = {}
        # The topics by their names in metrics, in which '.' and '_' are equal.
        self.topics_by_metric_name: dict[str, str] = {}
        self.leaderships: dict[TopicPartition, Leadership] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[Replica, ReplicaState] = {}
        # Replicas with a failed disk on a live broker.
        self.replicas_on_failed_disks: set[Replica] = set()
        self.topics_to_delete: set[str] = set()
        self.topics_being_deleted: set[str] = set()
        self.topics_not_deletable_now: set[str] = set()
        # Partitions whose assignment has adding or removing replicas.
        self.reassigning: set[TopicPartition] = set()

    # ---- brokers

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker is registered, reachable and not shutting down."""
        return broker_id in self.brokers and broker_id not in self.shutting_down and broker_id not in self.unreachable

    def has_host(self, replica: Replica) -> bool:
        """Whether the broker is registered and the replica's disk has not failed. Such a replica
        may be the leader, even if it may not be elected."""
        return replica.broker_id in self.brokers and replica not in self.replicas_on_failed_disks

    def is_online(self, replica: Replica) -> bool:
        return self.is_live(replica.broker_id) and replica not in self.replicas_on_failed_disks

    def online_brokers(self, tp: TopicPartition) -> set[int]:
        """The brokers that have a replica of `tp` and can serve it."""
        return {b for b in self.replicas_of(tp) if self.is_online(Replica(tp, b))}

    def add_broker(self, broker: BrokerRegistration, epoch: int) -> None:
        self.brokers[broker.id] = broker
        self.broker_epochs[broker.id] = epoch

    def forget_broker(self, broker_id: int) -> None:
        self.brokers.pop(broker_id, None)
        self.broker_epochs.pop(broker_id, None)
        self.shutting_down.discard(broker_id)
        self.unreachable.discard(broker_id)
        self.replicas_on_failed_disks = {r for r in self.replicas_on_failed_disks if r.broker_id != broker_id}

    def registered_since(self, tp: TopicPartition) -> set[int]:
        """The brokers with a replica of `tp` that registered after its state was written. The state
        describes their previous run."""
        leadership = self.leaderships[tp]
        return {b for b in self.replicas_of(tp) if self.broker_epochs.get(b, -1) > leadership.zxid >= 0}

    def racks(self) -> dict[int, str | None]:
        return {broker.id: broker.rack for broker in self.brokers.values()}

    # ---- topics

    def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(name, p) for name in topics if name in self.topics for p in self.topics[name].partitions]

    def all_partitions(self) -> list[TopicPartition]:
        return self.partitions_of(self.topics)

    def assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition, _NO_REPLICAS) if topic is not None else _NO_REPLICAS

    def replicas_of(self, tp: TopicPartition) -> tuple[int, ...]:
        return self.assignment(tp).replicas

    def replicas(self, partitions: Iterable[TopicPartition]) -> Iterator[Replica]:
        return (Replica(tp, broker_id) for tp in partitions for broker_id in self.replicas_of(tp))

    def replicas_on(self, broker_ids: Iterable[int]) -> list[Replica]:
        hosts = set(broker_ids)
        return [r for r in self.replicas(self.all_partitions()) if r.broker_id in hosts]

    def add_topic(self, name: str, topic_id: UUID, partitions: Mapping[int, ReplicaAssignment]) -> None:
        self.topics[name] = Topic(topic_id, dict(partitions))
        self.topic_names[topic_id] = name
        self.topics_by_metric_name[metric_name(name)] = name
        self.reassigning.update(TopicPartition(name, p) for p, a in partitions.items() if a.is_being_reassigned)

    def set_assignment(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        self.topics[tp.topic].partitions[tp.partition] = assignment

    def forget_topic(self, name: str) -> None:
        for tp in self.partitions_of([name]):
            for broker_id in self.replicas_of(tp):
                self.replica_states.pop(Replica(tp, broker_id), None)
                self.replicas_on_failed_disks.discard(Replica(tp, broker_id))
            self.leaderships.pop(tp, None)
            self.partition_states.pop(tp, None)
            self.reassigning.discard(tp)
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.topic_names.pop(topic.topic_id, None)
            if self.topics_by_metric_name.get(metric_name(name)) == name:
                del self.topics_by_metric_name[metric_name(name)]
        for topics in (self.topics_to_delete, self.topics_being_deleted, self.topics_not_deletable_now):
            topics.discard(name)

    # ---- states

    def state_of(self, tp: TopicPartition) -> PartitionState:
        return self.partition_states.get(tp, PartitionState.NON_EXISTENT)

    def replica_state(self, replica: Replica) -> ReplicaState:
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def partitions_in(self, *states: PartitionState) -> list[TopicPartition]:
        return [tp for tp, state in self.partition_states.items() if state in states]


_NO_REPLICAS = ReplicaAssignment(())
