"""[pure] What consumers of the classic protocol put into JoinGroup and SyncGroup, in terms of the new one.

Subscriptions and assignments are bytes that begin with an int16 version; topics are by name there, by id here.
"""

from __future__ import annotations

from typing import Any

from kavka.coordinator.group.consumer.records import Owned
from kavka.coordinator.group.consumer.topics import Topics
from kavka.protocol.messages.consumer_group_heartbeat import TopicPartitions
from kavka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from kavka.protocol.primitives import ProtocolError

# Clients' own assignors, none of which reads the data that may come with an assignment. (librdkafka's sticky ones write
# some nevertheless, for which Kafka refuses to upgrade their groups.)
WITHOUT_USER_DATA = frozenset(("range", "roundrobin", "sticky", "cooperative-sticky"))


def _decode(kind: Any, data: bytes) -> Any:
    if len(data) < 2 or (version := int.from_bytes(data[:2], "big", signed=True)) < 0:
        raise ProtocolError("bytes without a version")
    # A newer version begins with the fields of the one that is known.
    message, _ = kind.decode(data, 2, min(version, kind.MAX_VERSION))
    return message


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """ProtocolError where it is none."""
    subscription: ConsumerProtocolSubscription = _decode(ConsumerProtocolSubscription, data)
    return subscription


def read_assignment(data: bytes, assignor: str, epoch: int, topics: Topics) -> Owned:
    """Empty for a member that was never told of one. ProtocolError where it is none, or has data for an assignor that
    is not known: that would be lost."""
    if not data:
        return {}
    assignment: ConsumerProtocolAssignment = _decode(ConsumerProtocolAssignment, data)
    if assignment.user_data and assignor not in WITHOUT_USER_DATA:
        raise ProtocolError("data of a custom assignor would be lost")
    owned: Owned = {}
    for one in assignment.assigned_partitions:
        topic = topics.get(one.topic)
        if topic is not None and one.partitions:
            owned[topic.topic_id] = dict.fromkeys(one.partitions, epoch)
    return owned


def write_assignment(owned: Owned, like: bytes, topics: Topics) -> bytes:
    """In the version in which the member sent its subscription, `like`."""
    version = int.from_bytes(like[:2], "big", signed=True) if len(like) >= 2 else 0
    version = max(0, min(version, ConsumerProtocolAssignment.MAX_VERSION))
    assigned = [
        ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in owned.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    assigned.sort(key=lambda one: one.topic)
    out: list[bytes] = [version.to_bytes(2, "big")]
    ConsumerProtocolAssignment(assigned_partitions=assigned).encode(out, version)
    return b"".join(out)


def reported_partitions(subscription: ConsumerProtocolSubscription, topics: Topics) -> list[TopicPartitions]:
    """What a member says that it has. Those that give up everything before they join (eager ones) have nothing."""
    return [
        TopicPartitions(topic_id=topic.topic_id, partitions=list(one.partitions))
        for one in subscription.owned_partitions
        if (topic := topics.get(one.topic)) is not None
    ]
