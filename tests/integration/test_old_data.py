"""A broker opens a data folder that an earlier version has written.

`tests/golden/data-e9b7370.tar.gz` was written by commit e9b7370: two starts with clean shutdowns,
several segments, idempotent producers, one committed and one aborted transaction, every codec, a
compacted topic, and a committed offset of group `g`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kavka.testing import Broker

ARCHIVE = Path(__file__).parent.parent / "golden" / "data-e9b7370.tar.gz"


@pytest.fixture(params=["clean shutdown", "crash"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "data"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    if request.param == "crash":
        (folder / ".kafka_cleanshutdown").unlink()
        (folder / "recovery-point-offset-checkpoint").unlink()
    # The records and offsets are old: retention must not delete them.
    with Broker(log_dir=folder, log_retention_ms=-1, offsets_retention_minutes=2**31 - 1) as broker:
        yield broker


def read(broker: Broker, topic: str, partition: int, count: int) -> list[tuple[int, bytes, bytes]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        messages = [consumer.poll(10) for _ in range(count)]
        assert all(message is not None and message.error() is None for message in messages)
        return [(message.offset(), message.key(), message.value()) for message in messages]
    finally:
        consumer.close()


def test_all_records_and_committed_offsets_of_an_earlier_version_are_read(broker: Broker) -> None:
    records = read(broker, "orders", 0, 8)
    assert [(offset, key) for offset, key, _ in records] == [
        *((n, b"k%d" % n) for n in range(6)),
        (6, b"committed"),
        (10, b"last"),
    ]
    assert all(value == b"plain %d " % n + b"x" * 100 for n, _, value in records[:6])
    assert [key for _, key, _ in read(broker, "orders", 1, 5)] == [b"other", b"gzip", b"snappy", b"lz4", b"zstd"]
    assert read(broker, "compacted", 0, 2) == [(0, b"a", b"1"), (1, b"a", b"2")]
    group = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    assert [partition.offset for partition in group.committed([TopicPartition("orders", 0)], 10)] == [3]
    group.close()


def test_a_transactional_producer_continues_after_the_upgrade(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("orders", key=b"new", value=b"", partition=0)
    producer.commit_transaction(10)
    assert read(broker, "orders", 0, 9)[-1] == (11, b"new", b"")
