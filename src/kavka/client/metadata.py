"""Metadata of brokers, topics and partitions. The objects are immutable, so any thread may read
them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from kavka.common.errors import ErrorCode
from kavka.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

NO_LEADER = -1


class Node(NamedTuple):
    """A broker. A bootstrap server has a negative id until its broker id is known."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


class PartitionMetadata(NamedTuple):
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic. `partitions` are in the order of their ids, without gaps; `available` are the ids of
    the partitions that have a leader."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    available: tuple[int, ...]
    authorized_operations: int | None = None


def error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def topic_metadata(topic: MetadataResponseTopic, previous: TopicMetadata | None = None) -> TopicMetadata:
    """Convert a topic of a Metadata response. If a partition in `previous` has a higher leader
    epoch, the broker that responded has older metadata, and the partition of `previous` is kept,
    unless the topic was recreated."""
    name = topic.name or ""
    previous_partitions: dict[int, PartitionMetadata] = {}
    if previous is not None and previous.topic_id == topic.topic_id:
        previous_partitions = {p.partition: p for p in previous.partitions}
    partitions = []
    for response in sorted(topic.partitions, key=lambda p: p.partition_index):
        partition = _partition(name, response)
        newer = previous_partitions.get(partition.partition)
        if newer is not None and newer.leader_epoch > partition.leader_epoch >= 0:
            partition = newer
        partitions.append(partition)
    operations = topic.topic_authorized_operations
    return TopicMetadata(
        name,
        topic.topic_id,
        topic.is_internal,
        tuple(partitions),
        _available(partitions),
        None if operations == -(2**31) else operations,
    )


def with_leader(topic: TopicMetadata, partition: int, leader: int, leader_epoch: int) -> TopicMetadata:
    """Return the topic with a new leader, or the same object if the leader epoch is not newer."""
    if not 0 <= partition < len(topic.partitions) or topic.partitions[partition].leader_epoch >= leader_epoch:
        return topic
    partitions = list(topic.partitions)
    partitions[partition] = partitions[partition]._replace(
        leader=leader, leader_epoch=leader_epoch, error=ErrorCode.NONE
    )
    return replace(topic, partitions=tuple(partitions), available=_available(partitions))


def _partition(topic: str, response: MetadataResponsePartition) -> PartitionMetadata:
    return PartitionMetadata(
        topic,
        response.partition_index,
        response.leader_id,
        response.leader_epoch,
        tuple(response.replica_nodes),
        tuple(response.isr_nodes),
        tuple(response.offline_replicas),
        error_code(response.error_code),
    )


def _available(partitions: Iterable[PartitionMetadata]) -> tuple[int, ...]:
    return tuple(p.partition for p in partitions if p.leader >= 0)
