"""What this broker knows of the cluster: live brokers, topics, leaders. Fed by the controller's UpdateMetadata.

Only the loop thread reads or writes it. Every request that needs to know who leads a partition asks here, never
the metadata store.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import UUID

from kavka.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)

NO_LEADER = -1
# The controller says that a topic is going away by giving its partitions this leader.
LEADER_DURING_DELETION = -2


class Endpoint(NamedTuple):
    host: str
    port: int


class BrokerInfo(NamedTuple):
    id: int
    rack: str | None
    endpoints: dict[str, Endpoint]  # by listener name


class TopicInfo:
    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: UUID) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, UpdateMetadataPartitionState] = {}


class MetadataCache:
    def __init__(self) -> None:
        self.controller_id = -1
        # Set by the first update: before that there is nothing to tell clients.
        self.heard = asyncio.Event()
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.names_by_id: dict[UUID, str] = {}
        # Goes up whenever a topic comes or goes, or its partitions or their replicas change; not with leaders.
        self.topics_version = 0

    def update(self, request: UpdateMetadataRequest) -> list[str]:
        """Take what the controller says; returns the topics that are gone by it."""
        self.controller_id = request.controller_id
        self.heard.set()
        self.brokers = {
            broker.id: BrokerInfo(
                broker.id,
                broker.rack,
                {e.listener: Endpoint(e.host, e.port) for e in broker.endpoints},
            )
            for broker in request.live_brokers
        }
        gone: list[str] = []
        for state in request.topic_states:
            name = state.topic_name
            if any(p.leader == LEADER_DURING_DELETION for p in state.partition_states):
                self.forget(name)
                gone.append(name)
                continue
            topic = self.topics.get(name)
            if topic is None or topic.topic_id != state.topic_id:
                self.forget(name)
                topic = self.topics[name] = TopicInfo(name, state.topic_id)
                self.names_by_id[state.topic_id] = name
                self.topics_version += 1
            for partition in state.partition_states:
                known = topic.partitions.get(partition.partition_index)
                if known is None or known.replicas != partition.replicas:
                    self.topics_version += 1
                topic.partitions[partition.partition_index] = partition
        return gone

    def forget(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.names_by_id.pop(topic.topic_id, None)
            self.topics_version += 1

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.names_by_id.get(topic_id)

    def partition_state(self, topic: str, partition: int) -> UpdateMetadataPartitionState | None:
        info = self.topics.get(topic)
        return info.partitions.get(partition) if info else None

    def has_leaders(self, topic: str, partitions: int = 1) -> bool:
        """Whether the topic has so many partitions, and all it has are led."""
        info = self.topics.get(topic)
        if info is None or len(info.partitions) < partitions:
            return False
        return all(state.leader > NO_LEADER for state in info.partitions.values())

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        broker = self.brokers.get(broker_id)
        return broker.endpoints.get(listener) if broker else None
