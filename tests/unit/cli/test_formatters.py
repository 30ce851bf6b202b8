"""The formatters of console-consumer."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import pytest

from kavka.cli.formatters import current_name, make_formatter
from kavka.client.consumer._decode import ConsumerRecord
from kavka.common.config import ConfigError
from kavka.protocol.messages.offsets_topic import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue


def record(**fields: Any) -> ConsumerRecord:
    return ConsumerRecord(
        "t", 3, 7, **{"key": b"k", "value": b"v", "timestamp": 5, "timestamp_type": 0, "leader_epoch": 2, **fields}
    )


def printed(record: ConsumerRecord, name: str = "DefaultMessageFormatter", **options: str) -> bytes:
    properties = {key.replace("_", "."): value for key, value in options.items()}
    return make_formatter(name, properties, line_end=b"").write([record])


def test_default_formatter_prints_values() -> None:
    assert printed(record()) == b"v\n"
    assert printed(record(value=None)) == b"null\n"
    assert make_formatter("DefaultMessageFormatter", {}, line_end=b"").write([record(), record()]) == b"v\nv\n"


def test_parts_of_a_record_are_in_kafka_order() -> None:
    options = dict.fromkeys(
        ("print_key", "print_timestamp", "print_offset", "print_partition", "print_headers", "print_epoch"), "true"
    )
    full = record(headers=[("a", b"1"), ("b", None)])
    assert printed(full, **options) == b"CreateTime:5\tPartition:3\tOffset:7\tEpoch:2\ta:1,b:null\tk\tv\n"
    bare = record(timestamp_type=-1, leader_epoch=-1, key=None)
    line = b"NO_TIMESTAMP|Partition:3|Offset:7|Epoch:NOT_PRESENT|NO_HEADERS|-|v;"
    assert printed(bare, **options, key_separator="|", line_separator=";", null_literal="-") == line
    assert printed(record(), print_value="false") == b""
    assert printed(record(), print_value="false", print_key="true") == b"k\n"


@pytest.mark.parametrize(
    ("deserializer", "data", "shown"),
    [
        ("LongDeserializer", struct.pack(">q", -5), b"-5"),
        ("DoubleDeserializer", struct.pack(">d", 1.5e7), b"1.5E7"),
        ("BooleanDeserializer", b"\x01", b"true"),
        ("StringDeserializer", b"\xff", "\ufffd".encode()),
        ("BytesDeserializer", b"a\\\n", b"a\\x5C\\x0A"),
        ("ByteArrayDeserializer", b"\xff", b"\xff"),
    ],
)
def test_deserializers_have_java_names(deserializer: str, data: bytes, shown: bytes) -> None:
    name = f"org.apache.kafka.common.serialization.{deserializer}"
    assert printed(record(value=data), value_deserializer=name) == shown + b"\n"


def test_deserialization_error_is_raised() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        printed(record(value=b"abc"), value_deserializer="LongDeserializer")


def test_offsets_are_json_and_other_records_of_the_topic_are_skipped() -> None:
    key = b"\x00\x01" + OffsetCommitKey(group="g", topic="t", partition=1).to_bytes(1)
    value = b"\x00\x03" + OffsetCommitValue(offset=9, leader_epoch=4, metadata="m", commit_timestamp=8).to_bytes(3)
    for name in ("OffsetsMessageFormatter", "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter"):
        assert printed(record(key=key, value=value), name) == (
            b'{"key":{"version":1,"data":{"group":"g","topic":"t","partition":1}},"value":{"version":3,'
            b'"data":{"offset":9,"leaderEpoch":4,"metadata":"m","commitTimestamp":8}}}'
        )
    assert printed(record(key=key, value=None), "OffsetsMessageFormatter").endswith(b'"value":null}')
    assert b'"unknown"' in printed(record(key=key, value=b"\x00\x63rest"), "OffsetsMessageFormatter")
    group = b"\x00\x02" + GroupMetadataKey(group="g").to_bytes(2)
    assert printed(record(key=group, value=None), "OffsetsMessageFormatter") == b""
    assert printed(record(key=group, value=None), "GroupMetadataMessageFormatter") != b""
    assert printed(record(key=None), "TransactionLogMessageFormatter") == b""


def test_deprecated_names_are_supported_and_unknown_names_rejected() -> None:
    current = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
    assert current_name("kafka.tools.DefaultMessageFormatter") == current
    assert current_name("org.apache.kafka.tools.consumer.NoOpMessageFormatter") is None
    assert printed(record(), "kafka.tools.NoOpMessageFormatter") == b""
    with pytest.raises(ConfigError, match="valid formatters are"):
        printed(record(), "kafka.tools.NoSuchFormatter")


class Upper:
    """A custom formatter."""

    def configure(self, properties: dict[str, str]) -> None:
        self.end = properties["end"]

    def write_to(self, record: ConsumerRecord, output: BinaryIO) -> None:
        output.write(record.value.upper() + self.end.encode())


def test_custom_formatter_is_a_python_class() -> None:
    assert printed(record(), f"{__name__}:Upper", end="!") == b"V!"
