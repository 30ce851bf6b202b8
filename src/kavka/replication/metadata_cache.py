"""The broker's copy of the cluster's metadata: live brokers, topics and leaders.

The controller's UpdateMetadata requests update the cache. Handlers that need the leader of a
partition read this cache, never the metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
# The leader id in UpdateMetadata for every partition of a topic that is being deleted.
LEADER_DURING_DELETION = -2


class Endpoint(NamedTuple):
    host: str
    port: int


class BrokerInfo(NamedTuple):
    id: int
    rack: str | None
    endpoints: dict[str, Endpoint]  # by listener name


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition_index: int
    leader: int
    leader_epoch: int = -1
    replicas: list[int] = field(default_factory=list)
    isr: list[int] = field(default_factory=list)
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TopicInfo:
    """The partitions of one topic by their index. `MetadataCache` owns it."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)


class TopicUpdate(NamedTuple):
    """The changed partitions of one topic."""

    name: str
    topic_id: UUID
    partitions: Sequence[PartitionInfo]


class MetadataCache:
    """Owns the metadata. Only the loop thread uses it; only the controller's orders change it."""

    def __init__(self) -> None:
        self.controller_id = -1
        # Set by the first update.
        self.initialized = asyncio.Event()
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.names_by_id: dict[UUID, str] = {}
        # Increases when a topic, a partition or the replicas of a partition change. A change of the
        # leader does not increase it.
        self.topics_version = 0

    def update(
        self, brokers: Iterable[BrokerInfo] = (), topics: Iterable[TopicUpdate] = (), controller_id: int = -1
    ) -> list[str]:
        """Apply an order with all live brokers and the changed partitions. Returns the names of the
        deleted topics."""
        self.controller_id = controller_id
        self.initialized.set()
        self.brokers = {broker.id: broker for broker in brokers}
        deleted: list[str] = []
        for name, topic_id, partitions in topics:
            if any(partition.leader == LEADER_DURING_DELETION for partition in partitions):
                self.remove_topic(name)
                deleted.append(name)
                continue
            topic = self.topics.get(name)
            if topic is None or topic.topic_id != topic_id:
                self.remove_topic(name)
                topic = self.topics[name] = TopicInfo(name, topic_id)
                self.names_by_id[topic_id] = name
                self.topics_version += 1
            for partition in partitions:
                current = topic.partitions.get(partition.partition_index)
                if current is None or current.replicas != partition.replicas:
                    self.topics_version += 1
                topic.partitions[partition.partition_index] = partition
        return deleted

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.names_by_id.pop(topic.topic_id, None)
            self.topics_version += 1

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.names_by_id.get(topic_id)

    def partition_state(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return info.partitions.get(partition) if info else None

    def has_leaders(self, topic: str, partitions: int = 1) -> bool:
        """Whether the topic has at least this number of partitions and all partitions have a
        leader."""
        info = self.topics.get(topic)
        if info is None or len(info.partitions) < partitions:
            return False
        return all(state.leader > NO_LEADER for state in info.partitions.values())

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        broker = self.brokers.get(broker_id)
        return broker.endpoints.get(listener) if broker else None

    def rack(self, broker_id: int) -> str | None:
        broker = self.brokers.get(broker_id)
        return broker.rack if broker else None
