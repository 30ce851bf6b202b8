"""What a client knows of the cluster: immutable pieces, replaced as a whole, so that any thread may read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kavka.common.errors import ErrorCode
from kavka.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

NO_LEADER = -1


class Node(NamedTuple):
    """A broker. Those of `bootstrap.servers`, whose ids are not known yet, have negative ids."""

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
    """`partitions` are in order of their ids, without gaps. `available` are the ids of those that have a leader."""

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
    """One topic of an answer. A leader that an older metadata names with a higher epoch is kept: the answer came from a
    broker that has not heard of it yet. Not so when the topic was deleted and created again."""
    name = topic.name or ""
    known: dict[int, PartitionMetadata] = {}
    if before is not None and before.topic_id == topic.topic_id:
        known = {p.partition: p for p in before.partitions}
    partitions = []
    for answer in sorted(topic.partitions, key=lambda p: p.partition_index):
        found = _partition(name, answer)
        old = known.get(found.partition)
        partitions.append(old if old is not None and old.leader_epoch > found.leader_epoch >= 0 else found)
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
    """The topic with a new leader that a broker's answer named, if that is news; else the same object."""
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


def _partition(topic: str, answer: MetadataResponsePartition) -> PartitionMetadata:
    return PartitionMetadata(
        topic,
        answer.partition_index,
        answer.leader_id,
        answer.leader_epoch,
        tuple(answer.replica_nodes),
        tuple(answer.isr_nodes),
        tuple(answer.offline_replicas),
        error_code(answer.error_code),
    )


def _available(partitions: Iterable[PartitionMetadata]) -> tuple[int, ...]:
    return tuple(p.partition for p in partitions if p.leader >= 0)
