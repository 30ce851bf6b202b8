"""Reads topics with a third-party client."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition


class ReadRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_all(
    servers: str,
    topic: str,
    partition: int = 0,
    *,
    read_committed: bool = False,
    at_least: int = 0,
    timeout: float = 30.0,
) -> list[ReadRecord]:
    """Read all records of a partition. Wait until there are at least `at_least` records. Raise
    TimeoutError if they are not read in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reading",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + timeout
        records: list[ReadRecord] = []
        end = -1
        while time.monotonic() < deadline:
            if end < 0 or len(records) < at_least:
                try:
                    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                except KafkaException:
                    time.sleep(0.05)
                    continue
            position = consumer.position([TopicPartition(topic, partition)])[0].offset
            if (position >= end or end == 0) and len(records) >= at_least:
                return records
            for message in consumer.consume(5000, 0.2):
                if message.error() is None:
                    records.append(
                        ReadRecord(
                            message.offset() or 0,
                            message.timestamp()[1],
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                        )
                    )
        raise TimeoutError(f"{topic}-{partition} was not read up to offset {end} in time: got {len(records)} records")
    finally:
        consumer.close()


def read_values(
    servers: str, topic: str, partition: int = 0, *, read_committed: bool = False, at_least: int = 0
) -> list[bytes | None]:
    return [r.value for r in read_all(servers, topic, partition, read_committed=read_committed, at_least=at_least)]
