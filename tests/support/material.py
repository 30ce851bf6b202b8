"""Topics of every kind, filled by third-party clients, and the records to expect from them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from tests.support import wire
from tests.support.java_client import run_tool
from tests.support.targets import Target
from tests.support.wire import PRODUCE, Wire

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"segment.bytes": "20000", "index.interval.bytes": "500"}

ReadRecord = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
Records = dict[tuple[str, int], list[ReadRecord]]


@dataclass
class Material:
    """The sent records and the log start offsets, by topic and partition."""

    records: Records = field(default_factory=dict)
    start_offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def expected(self) -> Records:
        """Return the records that a consumer must read."""
        return {
            partition: [record for record in records if record[0] >= self.start_offsets.get(partition, 0)]
            for partition, records in self.records.items()
        }


def fill(target: Target, *, old_formats: bool = True) -> Material:
    material = Material()
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    topics = {f"plain-{codec}": SMALL_SEGMENTS for codec in CODECS}
    topics |= {f"own-{codec}": {**SMALL_SEGMENTS, "compression.type": codec} for codec in ("gzip", "zstd")}
    topics["append-time"] = {**SMALL_SEGMENTS, "message.timestamp.type": "LogAppendTime"}
    topics["idempotent"] = topics["trimmed"] = SMALL_SEGMENTS
    topics["whole"] = {}
    if old_formats:
        topics["old"] = SMALL_SEGMENTS
    partitions = {"whole": 3}
    new_topics = [Topic(name, partitions.get(name, 1), 1, config=config) for name, config in topics.items()]
    for future in admin.create_topics(new_topics).values():
        future.result(30)
    for name in topics:
        if name == "old":
            _send_old(target, material)
            continue
        codec = name.partition("-")[2] if name.startswith("plain-") else "none"
        for partition in range(partitions.get(name, 1)):
            _send(target, material, name, partition, codec, idempotent=name == "idempotent")
    partition = TopicPartition("trimmed", 0, 130)
    admin.delete_records([partition])[partition].result(10)
    material.start_offsets["trimmed", 0] = 130
    return material


def _send(target: Target, material: Material, topic: str, partition: int, codec: str, *, idempotent: bool) -> None:
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "batch.num.messages": 20,
            "linger.ms": 20,
        }
    )
    errors: list[KafkaError] = []
    records: list[ReadRecord] = []
    for number in range(300):
        key = None if number % 7 == 0 else b"key-%d" % (number % 50)
        value = None if number % 11 == 10 and key else b"value %d of %s " % (number, topic.encode()) * 10
        headers = [("number", b"%d" % number), ("none", None)] if number % 3 == 0 else []
        producer.produce(
            topic,
            value,
            key,
            partition,
            on_delivery=lambda error, _: errors.append(error) if error else None,
            timestamp=1_700_000_000_000 + number * 1000,
            headers=headers,
        )
        records.append((number, key, value, tuple(headers)))
    assert producer.flush(30) == 0
    if errors:
        raise KafkaException(errors[0])
    material.records[topic, partition] = records


def _send_old(target: Target, material: Material) -> None:
    """Send messages of formats 0 and 1, as an old client does."""
    wire.create_topic(target.address, "old")
    records: list[ReadRecord] = []
    with Wire(target.address) as connection:
        for number in range(100):
            magic = number % 2
            key, value = b"old-%d" % number, b"value of format %d " % magic * 10
            data = wire.message(value, key, magic=magic, timestamp=1_700_000_000_000 + number)
            body = wire.produce_request("old", 0, data, version=2)
            assert wire.produce_error(connection.call(PRODUCE, 2, body), 2) == (0, number)
            records.append((number, key, value, ()))
    material.records["old", 0] = records


def read_all(bootstrap: str, partitions: Iterable[tuple[str, int]], timeout: float = 60.0) -> Records:
    """Read all records of these partitions with librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    received: Records = {partition: [] for partition in partitions}
    unfinished = set(received)
    deadline = time.monotonic() + timeout
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in received])
        while unfinished and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                partition = message.topic(), message.partition()
                if error is None:
                    headers = tuple((name, value) for name, value in message.headers() or [])
                    received[partition].append((message.offset(), message.key(), message.value(), headers))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
                elif not error.retriable():
                    raise KafkaException(error)
        if unfinished:
            raise TimeoutError(f"the end of {sorted(unfinished)} was not reached")
        return received
    finally:
        consumer.close()


def log_files(folder: Path, suffix: str) -> Iterator[Path]:
    for path in sorted(folder.glob(f"*-[0-9]*/*{suffix}")):
        if not path.parent.name.endswith(("-delete", "-stray", "-future")) and not path.parent.name.startswith("__"):
            yield path


PROBLEMS = (
    "Mismatches in :",
    "Non-consecutive offsets in",
    "Found timestamp mismatch",
    "Found out of order timestamp",
    "Found out of order",
    "is invalid",
    "isvalid: false",
    "isInvalid: true",
    "corrupt",
    "Exception",
)


def dump(version: str, files: list[Path], *options: str) -> str:
    """Return the output of DumpLogSegments for these files. Raise AssertionError if it reports a
    problem."""
    result: subprocess.CompletedProcess[str] = run_tool(
        version, "dump-log", "--files", ",".join(str(path) for path in files), *options
    )
    lines = (result.stdout + result.stderr).splitlines()
    problems = [
        f"{line} {next_line}"
        for line, next_line in zip(lines, [*lines[1:], ""], strict=True)
        if any(word in line for word in PROBLEMS) and not _is_file_boundary(line, next_line)
    ]
    assert not problems, "\n".join(problems[:20])
    return result.stdout


def _is_file_boundary(line: str, next_line: str) -> bool:
    """Return whether a reported gap is between two files. The tool of 4.3 compares the last offset
    of a file with the first offset of the next file."""
    base_offset = re.search(r"(\d+)\.log$", line)
    offset = re.search(r"is followed by (\d+)", next_line)
    return base_offset is not None and offset is not None and int(base_offset[1]) == int(offset[1])
