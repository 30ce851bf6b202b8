"""The records of `__consumer_offsets` in all versions of Kafka's formats."""

from __future__ import annotations

from uuid import UUID

import pytest

from kavka.coordinator.group.records import CommittedOffset, GroupRecord, OffsetRecord, decode, encode
from kavka.protocol.messages.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kavka.protocol.primitives import ProtocolError

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def test_a_commit_is_written_as_key_version_1_and_value_version_4() -> None:
    key, value = encode(OffsetRecord("g", "topic", 3, CommittedOffset(42, 7, "note", 1000, -1, ID)))
    assert key == b"\x00\x01" + OffsetCommitKey(group="g", topic="topic", partition=3).to_bytes(1)
    expected = OffsetCommitValue(offset=42, leader_epoch=7, metadata="note", commit_timestamp=1000, topic_id=ID)
    assert value == b"\x00\x04" + expected.to_bytes(4)


@pytest.mark.parametrize("metadata", ["", "a", "x" * 126, "x" * 127, "x" * 128, "é" * 5000])
@pytest.mark.parametrize("topic_id", [ID, UUID(int=0)])
def test_offset_records_survive_a_round_trip(metadata: str, topic_id: UUID) -> None:
    record = OffsetRecord("größe", "t", 0, CommittedOffset(2**62, -1, metadata, 2**41, -1, topic_id))
    key, value = encode(record)
    assert value is not None
    reference = OffsetCommitValue(
        offset=2**62, leader_epoch=-1, metadata=metadata, commit_timestamp=2**41, topic_id=topic_id
    )
    assert value == b"\x00\x04" + reference.to_bytes(4)
    assert decode(key, value) == record


def test_a_commit_with_a_retention_time_is_written_as_value_version_1() -> None:
    record = OffsetRecord("g", "t", 0, CommittedOffset(1, -1, "m", 1000, 2000))
    key, value = encode(record)
    assert value is not None
    assert value[:2] == b"\x00\x01"
    assert decode(key, value) == record


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_commit_is_read(version: int) -> None:
    value = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    key = b"\x00\x00" + OffsetCommitKey(group="g", topic="t", partition=1).to_bytes(0)
    decoded = decode(key, version.to_bytes(2, "big") + value.to_bytes(version))
    assert decoded == OffsetRecord("g", "t", 1, CommittedOffset(5, -1, "m", 9))


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_group_metadata_is_read(version: int) -> None:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        members=[MemberMetadata(member_id="m", client_id="c", client_host="/h", session_timeout=10)],
    )
    key = b"\x00\x02" + GroupMetadataKey(group="g").to_bytes(2)
    decoded = decode(key, version.to_bytes(2, "big") + value.to_bytes(version))
    assert decoded == GroupRecord("g", value)


def test_group_metadata_is_written_as_value_version_3() -> None:
    key, value = encode(GroupRecord("g", GroupMetadataValue(protocol_type="consumer", generation=1)))
    assert value is not None
    assert (key[:2], value[:2]) == (b"\x00\x02", b"\x00\x03")


def test_tombstones_have_no_value() -> None:
    for record in (OffsetRecord("g", "t", 0, None), GroupRecord("g", None)):
        key, value = encode(record)
        assert value is None
        assert decode(key, None) == record


def test_a_record_of_an_unknown_type_is_skipped() -> None:
    assert decode(b"\x00\x63whatever", b"\x00\x00") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", None), (b"\x00", None), (b"\x00\x01", None), (b"\x00\x02\x00\x05ab", None), (b"\x00\x02\x00\x01g", b"")],
)
def test_malformed_records_are_protocol_errors(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)
