"""[pure] The embedded consumer protocol: the subscriptions in JoinGroup and the assignments in
SyncGroup.

Both are bytes that start with an int16 version. They contain topic names, while consumer groups use
topic ids.
"""

from __future__ import annotations

from typing import TypeVar

from kavka.coordinator.group.consumer.records import OwnedPartitions
from kavka.coordinator.group.consumer.topics import Topics
from kavka.protocol.messages.consumer_group_heartbeat import TopicPartitions
from kavka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from kavka.protocol.primitives import ProtocolError, TopMessage

M = TypeVar("M", bound=TopMessage)

# An upgrade drops the user data of assignments. These client-side assignors ignore it, so their
# groups can be upgraded. Kafka rejects all user data, for example of librdkafka's sticky assignors.
ASSIGNORS_IGNORING_USER_DATA = frozenset(("range", "roundrobin", "sticky", "cooperative-sticky"))


def _decode(message_type: type[M], data: bytes) -> M:
    if len(data) < 2 or (version := int.from_bytes(data[:2], "big", signed=True)) < 0:
        raise ProtocolError("the bytes do not start with a valid version")
    # A newer version starts with the fields of the latest version that we support.
    message, _ = message_type.decode(data, 2, min(version, message_type.MAX_VERSION))
    return message


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Return the subscription in JoinGroup metadata. Raises ProtocolError if the bytes are
    invalid."""
    return _decode(ConsumerProtocolSubscription, data)


def read_assignment(data: bytes, assignor: str, epoch: int, topics: Topics) -> OwnedPartitions:
    """Return the assigned partitions, each with `epoch`. Raises ProtocolError if the bytes are
    invalid, or if they contain user data of a custom assignor: the upgrade would lose it."""
    if not data:
        return {}
    assignment = _decode(ConsumerProtocolAssignment, data)
    if assignment.user_data and assignor not in ASSIGNORS_IGNORING_USER_DATA:
        raise ProtocolError("the user data of a custom assignor would be lost")
    owned: OwnedPartitions = {}
    for entry in assignment.assigned_partitions:
        topic = topics.get(entry.topic)
        if topic is not None and entry.partitions:
            owned[topic.topic_id] = dict.fromkeys(entry.partitions, epoch)
    return owned


def write_assignment(owned: OwnedPartitions, subscription: bytes, topics: Topics) -> bytes:
    """Return the encoded assignment, in the version of the member's subscription."""
    version = int.from_bytes(subscription[:2], "big", signed=True) if len(subscription) >= 2 else 0
    version = max(0, min(version, ConsumerProtocolAssignment.MAX_VERSION))
    assigned = [
        ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in owned.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    assigned.sort(key=lambda entry: entry.topic)
    out: list[bytes] = [version.to_bytes(2, "big")]
    ConsumerProtocolAssignment(assigned_partitions=assigned).encode(out, version)
    return b"".join(out)


def reported_partitions(subscription: ConsumerProtocolSubscription, topics: Topics) -> list[TopicPartitions]:
    """Return the partitions that a member reports as owned. Members of the eager protocol revoke
    all partitions before they join."""
    return [
        TopicPartitions(topic_id=topic.topic_id, partitions=list(entry.partitions))
        for entry in subscription.owned_partitions
        if (topic := topics.get(entry.topic)) is not None
    ]
