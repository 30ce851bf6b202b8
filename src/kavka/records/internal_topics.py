"""Converts the records of `__consumer_offsets` and `__transaction_state` to JSON, with Kafka's
names in Kafka's order.

Fields that the version of a record does not have, and tagged fields that are not set, are omitted.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from kavka.common.types import uuid_text
from kavka.protocol.messages import consumer_protocol, offsets_topic, transaction_log
from kavka.protocol.primitives import Message, ProtocolError, TopMessage

# The key and value types of a record by the version at the start of its key.
OFFSET_TOPIC: dict[int, tuple[type[TopMessage], type[TopMessage]]] = {
    0: (offsets_topic.OffsetCommitKey, offsets_topic.OffsetCommitValue),
    1: (offsets_topic.OffsetCommitKey, offsets_topic.OffsetCommitValue),
    2: (offsets_topic.GroupMetadataKey, offsets_topic.GroupMetadataValue),
    3: (offsets_topic.ConsumerGroupMetadataKey, offsets_topic.ConsumerGroupMetadataValue),
    4: (offsets_topic.ConsumerGroupPartitionMetadataKey, offsets_topic.ConsumerGroupPartitionMetadataValue),
    5: (offsets_topic.ConsumerGroupMemberMetadataKey, offsets_topic.ConsumerGroupMemberMetadataValue),
    6: (
        offsets_topic.ConsumerGroupTargetAssignmentMetadataKey,
        offsets_topic.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    7: (offsets_topic.ConsumerGroupTargetAssignmentMemberKey, offsets_topic.ConsumerGroupTargetAssignmentMemberValue),
    8: (offsets_topic.ConsumerGroupCurrentMemberAssignmentKey, offsets_topic.ConsumerGroupCurrentMemberAssignmentValue),
    16: (offsets_topic.ConsumerGroupRegularExpressionKey, offsets_topic.ConsumerGroupRegularExpressionValue),
}
TRANSACTION_TOPIC: dict[int, tuple[type[TopMessage], type[TopMessage]]] = {
    0: (transaction_log.TransactionLogKey, transaction_log.TransactionLogValue),
}
TRANSACTION_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip

# The versions that have a field (class, name), for fields that not all versions have.
_VERSIONS = {
    ("OffsetCommitValue", "leader_epoch"): range(3, 1000),
    ("OffsetCommitValue", "expire_timestamp"): range(1, 2),
    ("GroupMetadataValue", "current_state_timestamp"): range(2, 1000),
    ("MemberMetadata", "group_instance_id"): range(3, 1000),
    ("MemberMetadata", "rebalance_timeout"): range(1, 1000),
    ("ConsumerProtocolSubscription", "owned_partitions"): range(1, 1000),
    ("ConsumerProtocolSubscription", "generation_id"): range(2, 1000),
    ("ConsumerProtocolSubscription", "rack_id"): range(3, 1000),
}
_TAGGED = {
    ("OffsetCommitValue", "topic_id"),
    ("ConsumerGroupMetadataValue", "metadata_hash"),
    ("ConsumerGroupTargetAssignmentMetadataValue", "assignment_timestamp"),
    ("TopicPartitions", "assignment_epochs"),
    ("TransactionLogValue", "previous_producer_id"),
    ("TransactionLogValue", "next_producer_id"),
    ("TransactionLogValue", "next_producer_epoch"),
    ("TransactionLogValue", "client_transaction_version"),
}
_VERSION = Struct(">h")


class Decoded(NamedTuple):
    """`message` is None if the version is not supported."""

    version: int
    message: TopMessage | None


def version_of(data: bytes) -> int:
    if len(data) < 2:
        raise ProtocolError(f"{len(data)} bytes are too few for a record's version")
    return int(_VERSION.unpack_from(data)[0])


def decode(kind: type[TopMessage], data: bytes) -> Decoded:
    version = version_of(data)
    if not kind.MIN_VERSION <= version <= kind.MAX_VERSION:
        return Decoded(version, None)
    return Decoded(version, kind.decode(data, 2, version)[0])


def to_json(message: Message, version: int) -> dict[str, Any]:
    """The fields of a message that `version` has, with bytes as base64 and ids as Kafka writes
    them."""
    name = type(message).__name__
    document: dict[str, Any] = {}
    fields: tuple[str, ...] = type(message).__slots__
    for field in fields:
        value = getattr(message, field)
        qualified = name, field
        if qualified in _VERSIONS and version not in _VERSIONS[qualified]:
            continue
        if qualified in _TAGGED and (value is None or value == [] or value == getattr(type(message)(), field)):
            continue
        document[_camel(field)] = _json_value(value, version)
    return document


def group_metadata_to_json(value: offsets_topic.GroupMetadataValue, version: int) -> dict[str, Any]:
    """Like `to_json`, with the subscriptions and assignments of a consumer group decoded."""
    group = to_json(value, version)
    if value.protocol_type == "consumer":
        for member, document in zip(value.members, group["members"], strict=True):
            document["subscription"] = _embedded(consumer_protocol.ConsumerProtocolSubscription, member.subscription)
            document["assignment"] = _embedded(consumer_protocol.ConsumerProtocolAssignment, member.assignment)
    return group


def _embedded(kind: type[TopMessage], data: bytes) -> Any:
    if not data:
        return {}
    version = min(version_of(data), kind.MAX_VERSION)
    try:
        return to_json(kind.decode(data, 2, version)[0], version)
    except ProtocolError:
        return base64.b64encode(data).decode()


def record_to_json(
    kinds: dict[int, tuple[type[TopMessage], type[TopMessage]]], key: bytes, value: bytes | None
) -> dict[str, Any] | None:
    """A record as Kafka's formatters show it: its key and its value, each with its version. None if
    the version of the key is not in `kinds`. Raises ProtocolError for malformed records."""
    kind = version_of(key)
    if kind not in kinds:
        return None
    key_type, value_type = kinds[kind]
    message = decode(key_type, key).message
    assert message is not None
    document: dict[str, Any] = {"key": {"version": kind, "data": to_json(message, kind)}, "value": None}
    if value is not None:
        version, decoded = decode(value_type, value)
        document["value"] = {"version": version, "data": "unknown" if decoded is None else to_json(decoded, version)}
    return document


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _json_value(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return to_json(value, version)
    if isinstance(value, (list, tuple)):
        return [_json_value(item, version) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return uuid_text(value) if isinstance(value, UUID) else value


@cache
def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)
