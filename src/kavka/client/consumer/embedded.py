"""[pure] The consumer protocol embedded in JoinGroup and SyncGroup: encoded subscriptions and
assignments that begin with an int16 version."""

from __future__ import annotations

from typing import Any

from kavka.client.consumer.assignors import Assignment, Subscription
from kavka.common.types import TopicPartition, by_topic
from kavka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from kavka.protocol.primitives import ProtocolError, TopMessage

PROTOCOL_TYPE = "consumer"
SUBSCRIPTION_VERSION = 3
# All versions of assignments have the same fields; current clients read version 1.
ASSIGNMENT_VERSION = 1


def write_subscription(subscription: Subscription) -> bytes:
    return _encode(
        ConsumerProtocolSubscription(
            topics=sorted(subscription.topics),
            user_data=subscription.user_data,
            owned_partitions=[
                ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(sorted(subscription.owned)).items()
            ],
            generation_id=subscription.generation,
            rack_id=subscription.rack,
        ),
        SUBSCRIPTION_VERSION,
    )


def read_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Decode a subscription. Raises ProtocolError for invalid data."""
    message: ConsumerProtocolSubscription = _decode(ConsumerProtocolSubscription, data)
    owned = tuple(TopicPartition(topic.topic, p) for topic in message.owned_partitions for p in topic.partitions)
    return Subscription(
        frozenset(message.topics), message.user_data, owned, message.generation_id, instance_id, message.rack_id
    )


def write_assignment(assignment: Assignment) -> bytes:
    return _encode(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(sorted(assignment.partitions)).items()
            ],
            user_data=assignment.user_data,
        ),
        ASSIGNMENT_VERSION,
    )


def read_assignment(data: bytes) -> Assignment:
    """Decode an assignment. Empty data is an empty assignment. Raises ProtocolError for invalid
    data."""
    if not data:
        return Assignment()
    message: ConsumerProtocolAssignment = _decode(ConsumerProtocolAssignment, data)
    partitions = tuple(
        TopicPartition(topic.topic, p) for topic in message.assigned_partitions for p in topic.partitions
    )
    return Assignment(partitions, message.user_data)


def _encode(message: TopMessage, version: int) -> bytes:
    out: list[Any] = [version.to_bytes(2, "big")]
    message.encode(out, version)
    return b"".join(out)


def _decode(message_class: Any, data: bytes) -> Any:
    if len(data) < 2 or (version := int.from_bytes(data[:2], "big", signed=True)) < 0:
        raise ProtocolError("the data has no version")
    # A newer version begins with the fields of the known version.
    message, _ = message_class.decode(data, 2, min(version, message_class.MAX_VERSION))
    return message
