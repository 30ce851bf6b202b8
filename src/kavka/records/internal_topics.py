"""Converts the records of `__consumer_offsets` and `__transaction_state` to JSON. The names and the
order of the fields are Kafka's.

Fields that the version of a record does not have are omitted, and so are tagged fields that are not
set.
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

# The classes of the key and the value of a record, by the version at the start of its key.
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

# The versions that have a field, by (class, field). All versions have the fields that are not
# listed.
_FIELD_VERSIONS = {
    ("OffsetCommitValue", "leader_epoch"): range(3, 1000),
    ("OffsetCommitValue", "expire_timestamp"): range(1, 2),
    ("GroupMetadataValue", "current_state_timestamp"): range(2, 1000),
    ("MemberMetadata", "group_instance_id"): range(3, 1000),
    ("MemberMetadata", "rebalance_timeout"): range(1, 1000),
    ("ConsumerProtocolSubscription", "owned_partitions"): range(1, 1000),
    ("ConsumerProtocolSubscription", "generation_id"): range(2, 1000),
    ("ConsumerProtocolSubscription", "rack_id"): range(3, 1000),
}
_TAGGED_FIELDS = {
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
    """A key or value and its version. `message` is None if the version is not supported."""

    version: int
    message: TopMessage | None


def version_of(data: bytes) -> int:
    """Return the version at the start of a key or value. Raises ProtocolError if it is
    incomplete."""
    if len(data) < 2:
        raise ProtocolError(f"a key or value of {len(data)} bytes is too short for a version")
    return int(_VERSION.unpack_from(data)[0])


def decode(message_class: type[TopMessage], data: bytes) -> Decoded:
    """Decode a key or value with its version. Raises ProtocolError if it is malformed."""
    version = version_of(data)
    if not message_class.MIN_VERSION <= version <= message_class.MAX_VERSION:
        return Decoded(version, None)
    return Decoded(version, message_class.decode(data, 2, version)[0])


def to_json(message: Message, version: int) -> dict[str, Any]:
    """Return the fields of a message that `version` has. Bytes are base64, and UUIDs are in Kafka's
    text form."""
    class_name = type(message).__name__
    document: dict[str, Any] = {}
    fields: tuple[str, ...] = type(message).__slots__
    for field in fields:
        value = getattr(message, field)
        qualified_field = class_name, field
        if qualified_field in _FIELD_VERSIONS and version not in _FIELD_VERSIONS[qualified_field]:
            continue
        if qualified_field in _TAGGED_FIELDS and (
            value is None or value == [] or value == getattr(type(message)(), field)
        ):
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


def _embedded(message_class: type[TopMessage], data: bytes) -> Any:
    """Return an embedded message as JSON, or base64 if it is malformed."""
    if not data:
        return {}
    version = min(version_of(data), message_class.MAX_VERSION)
    try:
        return to_json(message_class.decode(data, 2, version)[0], version)
    except ProtocolError:
        return base64.b64encode(data).decode()


def record_to_json(
    classes_by_version: dict[int, tuple[type[TopMessage], type[TopMessage]]], key: bytes, value: bytes | None
) -> dict[str, Any] | None:
    """Return a record as Kafka's formatters print it: its key and its value, each with its version.
    Return None if the version of the key is not in `classes_by_version`. Raises ProtocolError if
    the record is malformed."""
    key_version = version_of(key)
    if key_version not in classes_by_version:
        return None
    key_class, value_class = classes_by_version[key_version]
    message = decode(key_class, key).message
    assert message is not None
    document: dict[str, Any] = {
        "key": {"version": key_version, "data": to_json(message, key_version)},
        "value": None,
    }
    if value is not None:
        version, decoded = decode(value_class, value)
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
