"""Requests of old clients: Produce versions 0 to 2, Fetch versions 0 to 3, message formats 0 and 1.

The expected results are those of Apache Kafka 3.9 (`--target apache39`). Kafka 4 does not support
these versions.
"""

from __future__ import annotations

import gzip
import time

import cramjam
import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.support import wire
from tests.support.targets import APACHE, Target
from tests.support.wire import FETCH, PRODUCE, Wire

pytestmark = pytest.mark.records


@pytest.fixture(autouse=True)
def _serves_old_clients(target_name: str) -> None:
    if target_name == APACHE:
        pytest.skip("Apache Kafka 4 does not support these versions")


@pytest.fixture
def created(target: Target, topic: str) -> str:
    assert wire.create_topic(target.address, topic) == 0
    return topic


def read_with_current_client(
    target: Target, topic: str, count: int
) -> list[tuple[int, bytes | None, bytes | None, int]]:
    consumer = KafkaConsumer(bootstrap_servers=target.bootstrap_servers, group_id=None, enable_auto_commit=False)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        received: list[tuple[int, bytes | None, bytes | None, int]] = []
        deadline = time.monotonic() + 15
        while len(received) < count and time.monotonic() < deadline:
            for records in consumer.poll(200).values():
                received += [(r.offset, r.key, r.value, r.timestamp) for r in records]
        return received
    finally:
        consumer.close()


def produce(target: Target, topic: str, records: bytes, version: int) -> tuple[int, int]:
    with Wire(target.address) as connection:
        response = connection.call(PRODUCE, version, wire.produce_request(topic, 0, records, version=version))
        return wire.produce_error(response, version)


def fetch(target: Target, topic: str, offset: int, version: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """All messages from the offset on. There may be more responses with converted messages than
    batches."""
    messages: list[tuple[int, int, bytes | None, bytes | None]] = []
    with Wire(target.address) as connection:
        while True:
            response = connection.call(FETCH, version, wire.fetch_request(topic, 0, offset, version=version))
            code, high_watermark, records = wire.fetched(response, version)
            assert code == 0
            if offset >= high_watermark:
                return messages
            fetched = [message for message in wire.messages(records) if message[0] >= offset]
            assert fetched, f"nothing at offset {offset} below {high_watermark}"
            messages += fetched
            offset = messages[-1][0] + 1


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 0), (2, 1)])
def test_messages_of_old_formats_are_stored_and_read_by_old_and_current_clients(
    target: Target, created: str, version: int, magic: int
) -> None:
    sent = b"".join(
        wire.message(b"v%d" % n, b"k%d" % n if n else None, magic=magic, offset=n, timestamp=1_600_000_000_000 + n)
        for n in range(5)
    )
    assert produce(target, created, sent, version) == (0, 0)
    assert produce(target, created, wire.message(None, b"deleted", magic=magic), version) == (0, 5)

    expected = [(n, b"k%d" % n if n else None, b"v%d" % n) for n in range(5)] + [(5, b"deleted", None)]
    for fetch_version in (0, 1, 2, 3):
        messages = fetch(target, created, 0, fetch_version)
        assert [(offset, key, value) for offset, _, key, value in messages] == expected
        assert {message_magic for _, message_magic, _, _ in messages} == {0 if fetch_version < 2 else 1}
    records = read_with_current_client(target, created, 6)
    assert [(offset, key, value) for offset, key, value, _ in records] == expected
    if magic == 1:
        assert [timestamp for *_, timestamp in records[:5]] == [1_600_000_000_000 + n for n in range(5)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_compressed_messages_of_old_formats_are_read(target: Target, created: str, codec: str, magic: int) -> None:
    inner = b"".join(
        wire.message(b"v%d" % n, b"k%d" % n, magic=magic, offset=n, timestamp=1_600_000_000_000 + n) for n in range(8)
    )
    number, packed = {
        "gzip": (1, gzip.compress(inner)),
        "snappy": (2, bytes(cramjam.snappy.compress_raw(inner))),
    }[codec]
    outer = wire.message(packed, magic=magic, attributes=number, timestamp=1_600_000_000_007)
    assert produce(target, created, outer, 2) == (0, 0)
    assert produce(target, created, outer, 2) == (0, 8)
    expected = [(n, b"k%d" % (n % 8), b"v%d" % (n % 8)) for n in range(16)]
    assert [record[:3] for record in read_with_current_client(target, created, 16)] == expected


def test_an_old_client_reads_a_batch_of_the_current_format(target: Target, created: str) -> None:
    records = wire.batch([b"one", b"two", b"three"])
    assert produce(target, created, records, 3) == (0, 0)
    for version in (0, 2, 3):
        messages = fetch(target, created, 0, version)
        assert [(offset, value) for offset, _, _, value in messages] == [(0, b"one"), (1, b"two"), (2, b"three")]


def test_an_old_client_may_start_in_the_middle_of_a_batch_of_the_current_format(target: Target, created: str) -> None:
    assert produce(target, created, wire.batch([b"0", b"1", b"2", b"3"]), 3) == (0, 0)
    messages = fetch(target, created, 2, 1)
    assert [(offset, value) for offset, _, _, value in messages] == [(2, b"2"), (3, b"3")]


def test_an_invalid_checksum_in_an_old_format_is_rejected(target: Target, created: str) -> None:
    corrupt = wire.message(b"value", b"key", crc=12345)
    assert produce(target, created, corrupt, 0)[0] == 2
    assert produce(target, created, wire.message(b"value"), 0) == (0, 0)


@pytest.mark.parametrize(("version", "magic"), [(0, 1), (1, 1), (1, 2), (3, 0), (3, 1)])
def test_the_format_is_checked_against_the_version_as_in_kafka(
    target: Target, created: str, version: int, magic: int
) -> None:
    records = wire.batch([b"x"]) if magic == 2 else wire.message(b"x", magic=magic)
    assert (version, magic, produce(target, created, records, version)[0]) == (version, magic, EXPECTED[version, magic])


# Apache Kafka 3.9's response: only versions 3 and up check the format (87 is INVALID_RECORD).
EXPECTED = {(0, 1): 0, (1, 1): 0, (1, 2): 0, (3, 0): 87, (3, 1): 87}
