"""A client's view of the cluster: immutable objects, replaced as a whole, so that any thread may
read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


def topic_metadata(topic: MetadataResponseTopic, before: TopicMetadata | None = None) -> TopicMetadata:
    """Convert a topic of a Metadata response. A partition in `before` with a higher leader epoch is
    kept, since the response came from a broker that is behind, unless the topic was recreated."""
    name = topic.name or ""
    previous: dict[int, PartitionMetadata] = {}
    if before is not None and before.topic_id == topic.topic_id:
        previous = {p.partition: p for p in before.partitions}
    partitions = []
    for response in sorted(topic.partitions, key=lambda p: p.partition_index):
        new = _partition(name, response)
        old = previous.get(new.partition)
        partitions.append(old if old is not None and old.leader_epoch > new.leader_epoch >= 0 else new)
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
    """The topic with a new leader; the same object if the leader epoch is not newer."""
    if not 0 <= partition < len(topic.partitions) or topic.partitions[partition].leader_epoch >= leader_epoch:
        return topic
    partitions = list(topic.partitions)
    partitions[partition] = partitions[partition]._replace(
        leader=leader, leader_epoch=leader_epoch, error=ErrorCode.NONE
    )
    return TopicMetadata(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        tuple(partitions),
        _available(partitions),
        topic.authorized_operations,
    )


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
