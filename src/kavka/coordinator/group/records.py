"""[pure] The records of `__consumer_offsets`, in Kafka's layout.

Key and value each start with an int16 version. The key version is the record type. A record without
a value is a tombstone.

    key 0, 1   OffsetCommitKey: group, topic, partition          value: OffsetCommitValue
    key 2      GroupMetadataKey: group                           value: GroupMetadataValue (classic)
    key 3..    consumer groups (`consumer/records.py`)

We write the versions that Kafka 4.3 writes and 3.9 reads: key 1 with value 4 (value 1 if the commit
has a retention time), and key 2 with value 3. We read all versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from kavka.protocol.messages.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kavka.protocol.primitives import ZERO_UUID, ProtocolError, TopMessage
from kavka.records.batch import Buffer

OFFSET_COMMIT_KEY_VERSION = 1
OFFSET_COMMIT_VALUE_VERSION = 4
OFFSET_COMMIT_VALUE_WITH_EXPIRY_VERSION = 1
GROUP_METADATA_VALUE_VERSION = 3

_VERSION = Struct(">h")
_pack_key_start = Struct(">hh").pack
_pack_length = Struct(">h").pack
_pack_partition = Struct(">i").pack
_pack_value_start = Struct(">hqiB").pack
_pack_value_without_metadata = Struct(">hqiBqBBB16s").pack
_pack_timestamp = Struct(">qB").pack
_pack_timestamp_and_id = Struct(">qBBB16s").pack
_MIN_TWO_BYTE_UVARINT = 128
# Groups commit offsets for the same partitions repeatedly.
_MAX_CACHED_KEYS = 16_384


class CommittedOffset(NamedTuple):
    """A group's committed offset for one partition. `topic_id` is zero if unknown (older clients
    and records)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    topic_id: UUID = ZERO_UUID


class OffsetRecord(NamedTuple):
    group: str
    topic: str
    partition: int
    value: CommittedOffset | None


class GroupRecord(NamedTuple):
    """The last generation of a classic group, with its members and their assignments."""

    group: str
    value: GroupMetadataValue | None


Encoded = tuple[bytes, bytes | None]


@lru_cache(_MAX_CACHED_KEYS)
def _offset_key(group: str, topic: str, partition: int) -> bytes:
    group_id = group.encode()
    topic_name = topic.encode()
    return b"".join(
        (
            _pack_key_start(OFFSET_COMMIT_KEY_VERSION, len(group_id)),
            group_id,
            _pack_length(len(topic_name)),
            topic_name,
            _pack_partition(partition),
        )
    )


def encode_offset(record: OffsetRecord) -> Encoded:
    group, topic, partition, committed = record
    key = _offset_key(group, topic, partition)
    if committed is None:
        return key, None
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id = committed
    text = metadata.encode()
    size = len(text) + 1
    if expire_timestamp != -1 or size >= _MIN_TWO_BYTE_UVARINT:
        return key, _encode_offset_value(committed)
    topic_id_int = topic_id.int
    if not topic_id_int:
        tail = _pack_timestamp(commit_timestamp, 0)
    elif size == 1:
        return key, _pack_value_without_metadata(
            OFFSET_COMMIT_VALUE_VERSION,
            offset,
            leader_epoch,
            1,
            commit_timestamp,
            1,
            0,
            16,
            topic_id_int.to_bytes(16, "big"),
        )
    else:
        tail = _pack_timestamp_and_id(commit_timestamp, 1, 0, 16, topic_id_int.to_bytes(16, "big"))
    return key, b"".join((_pack_value_start(OFFSET_COMMIT_VALUE_VERSION, offset, leader_epoch, size), text, tail))


def _encode_offset_value(committed: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp,
        expire_timestamp=committed.expire_timestamp,
        topic_id=committed.topic_id,
    )
    has_expiry = committed.expire_timestamp != -1
    return encode_message(value, OFFSET_COMMIT_VALUE_WITH_EXPIRY_VERSION if has_expiry else OFFSET_COMMIT_VALUE_VERSION)


def encode_message(message: Any, version: int) -> bytes:
    out: list[bytes] = [_VERSION.pack(version)]
    message.encode(out, version)
    return b"".join(out)


def decode_offset(key_version: int, key: Buffer, value: Buffer | None) -> OffsetRecord:
    parsed_key, _ = OffsetCommitKey.decode(key, 2, key_version)
    if value is None:
        return OffsetRecord(parsed_key.group, parsed_key.topic, parsed_key.partition, None)
    decoded = _decode_value(OffsetCommitValue, value)
    committed = CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.expire_timestamp,
        decoded.topic_id,
    )
    return OffsetRecord(parsed_key.group, parsed_key.topic, parsed_key.partition, committed)


def _decode_value(value_type: type[TopMessage], value: Buffer) -> Any:
    (version,) = _VERSION.unpack_from(value, 0)
    return value_type.decode(value, 2, version)[0]


# Encoders by record class, decoders by key version. `register` adds the other record types.
ENCODERS: dict[type, Callable[[Any], Encoded]] = {OffsetRecord: encode_offset}
DECODERS: dict[int, Callable[[int, Buffer, Buffer | None], Any]] = {
    0: decode_offset,
    OFFSET_COMMIT_KEY_VERSION: decode_offset,
}


def register(
    record_type: Callable[..., Any],
    key_type: type[TopMessage],
    value_type: type[TopMessage],
    to_message: Callable[[Any], Any],
    from_message: Callable[[Any], Any],
    value_version: int = 0,
) -> None:
    """Add a record type. `record_type` is a NamedTuple: the fields of the key, then the value.
    `to_message` and `from_message` convert the value."""
    key_version = key_type.MAX_VERSION
    key_fields: Sequence[str] = key_type.__slots__

    def encode_record(record: Any) -> Encoded:
        *key_values, value = record
        key = encode_message(key_type(**dict(zip(key_fields, key_values, strict=True))), key_version)
        return key, None if value is None else encode_message(to_message(value), value_version)

    def decode_record(version: int, key: Buffer, value: Buffer | None) -> Any:
        parsed_key, _ = key_type.decode(key, 2, version)
        key_values = [getattr(parsed_key, name) for name in key_fields]
        return record_type(*key_values, None if value is None else from_message(_decode_value(value_type, value)))

    ENCODERS[record_type] = encode_record  # type: ignore[index]
    DECODERS[key_version] = decode_record


def _unchanged(message: Any) -> Any:
    return message


register(GroupRecord, GroupMetadataKey, GroupMetadataValue, _unchanged, _unchanged, GROUP_METADATA_VALUE_VERSION)


def encode(record: Any) -> Encoded:
    return ENCODERS[type(record)](record)


def decode(key: Buffer, value: Buffer | None) -> Any | None:
    """Return the record, or None if its type is unknown. Raises ProtocolError if the bytes are
    invalid."""
    if len(key) < 2 or (value is not None and len(value) < 2):
        raise ProtocolError("the key or the value has no version")
    (version,) = _VERSION.unpack_from(key, 0)
    decoder = DECODERS.get(version)
    return decoder(version, key, value) if decoder is not None else None
