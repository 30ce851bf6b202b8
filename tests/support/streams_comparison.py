"""The same topologies on the same topics with three partitions, in our TopologyTestDriver, on
Spark, and in Kafka Streams. Each operator is compared in what it defines; see `Defined`.

The driver has one partition. Where records stay in their partition, it runs once for each of them;
where an operator changes keys, once for all records.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from kavka.client.producer._append import murmur2
from kavka.streams import KafkaStreams
from tests.support import streams_cases
from tests.support.java_client import probe_command
from tests.support.processes import dying_with_parent

PROBE = Path(__file__).parent / "java" / "StreamsProbe.java"
PARTITIONS = 3
KEYS = 12
CACHE = 10 << 20
_JVM = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Defined(Enum):
    """How much of the output of an operator does not depend on the order of partitions."""

    SEQUENCE = "the values and timestamps of each key, in order"
    RECORDS = "all records, in any order"
    FINAL = "the last value of each key"
    PARTS = "the last value of each key, with its characters in any order"
    MATCHED = "all records with both sides of a join, in any order; others may be missing"


# Operators that change keys: records of several partitions meet in an order that depends on the
# machine. All other cases are compared by SEQUENCE.
DEFINED = {
    "stateless": Defined.RECORDS,
    # Stateless steps read the topics of a task one after the other on Spark.
    "merge": Defined.RECORDS,
    "stream_join_rekeyed": Defined.RECORDS,
    "group_by": Defined.FINAL,
    "group_by_windowed": Defined.FINAL,
    "table_group": Defined.FINAL,
    "versioned_group": Defined.FINAL,
    "fk_join": Defined.FINAL,
    "fk_left_join": Defined.FINAL,
    "fk_join_grouped": Defined.FINAL,
    "versioned_fk_join": Defined.FINAL,
    "table_group_aggregate": Defined.PARTS,
    "cogroup_regrouped": Defined.PARTS,
}
# Kafka writes records that match nothing some time after their window has closed, we do when it
# closes. With windows of two lengths, a late record may still match in between.
DEFINED_IN_KAFKA = {"stream_left_join": Defined.RECORDS, "stream_outer_join": Defined.MATCHED}
REKEYED = {name for name in DEFINED if name not in ("stateless", "merge")}
# With a cache, the final values of these depend on when the cache is flushed: they count or show
# updates, or their result depends on the stream time at which an update arrives.
NOT_CACHED = {
    "table_group_aggregate",
    "table_group_reduce",
    "final_grouped",
    "transform_values",
    "transform_values_store",
    "transform_values_group",
    "suppress",
    "suppress_time",
    "join_suppressed",
    "join_suppressed_filter",
    "stream_join_suppressed",
    # A late record finds sessions that are in the cache, though not in the store any more.
    "cogroup_session",
}

Value = tuple[str | None, int]
# The values of each key by topic; values are in order.
Output = dict[str, dict[str, list[Value]]]


def input_records() -> list[streams_cases.Record]:
    """Return records for three partitions, in the order in which they are produced. No record of
    `a` has the timestamp of a record of `b`: which of them Kafka reads first is not defined."""
    records = streams_cases.generate_records(360, KEYS, 3)
    return [(topic, key, value, 2 * at + (topic == "b")) for topic, key, value, at in records]


RECORDS = input_records()


def partition_of(key: str, partitions: int = PARTITIONS) -> int:
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def drive(name: str) -> Output:
    """Return the output of our TopologyTestDriver."""
    output: Output = defaultdict(lambda: defaultdict(list))
    for partition in [None] if name in REKEYED else range(PARTITIONS):
        is_global = name.startswith("global_")
        records = [
            record
            for record in RECORDS
            if partition is None or partition_of(record[1]) == partition or (is_global and record[0] == "b")
        ]
        records = streams_cases.in_time(records)
        if is_global:
            # A global table is read to its end before the first record of a stream.
            records.sort(key=lambda record: record[0] != "b")
        for topic, key, value, timestamp in streams_cases.driven_records(name, 0, records):
            if name.startswith("transform_values") and value is not None:
                value = re.sub("/0$", f"/{partition}", value)
            output[topic][key].append((value, timestamp))
    return output


class Comparison:
    """Topics of a broker that Kafka Streams and our applications read. Every run writes to other
    topics."""

    def __init__(self, servers: str, prefix: str, folder: Path, names: Sequence[str]) -> None:
        self.servers, self.prefix, self.folder = servers, prefix, folder
        self.names = list(names)
        self.expected = {name: drive(name) for name in names}
        self._admin = Admin(bootstrap_servers=servers)
        self._fill()

    def close(self) -> None:
        self._admin.close()

    def _create(self, topics: Iterable[str]) -> None:
        settings = {"retention.ms": "-1"}
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1, configs=settings) for topic in topics], timeout=60)

    def _fill(self) -> None:
        self._create(f"{self.prefix}.{name}.{topic}" for name in self.names for topic in ("a", "b"))
        with Producer(bootstrap_servers=self.servers, linger_ms=20) as producer:
            for name in self.names:
                for topic, key, value, timestamp in RECORDS:
                    data = None if value is None else value.encode()
                    producer.send(f"{self.prefix}.{name}.{topic}", value=data, key=key.encode(), timestamp=timestamp)

    def _output_topics(self, prefix: str) -> list[str]:
        return [f"{prefix}.{name}.{topic}" for name in self.names for topic in self.expected[name]]

    def in_kafka_streams(self, version: str, cache: int, guarantee: str) -> dict[str, Output]:
        """Return the output of Kafka Streams, with all topologies in one JVM."""
        outputs = f"{self.prefix}.java{version}-{cache}"
        self._create(self._output_topics(outputs))
        state = self.folder / f"java-{version}-{cache}"
        arguments = ["brokers", self.servers, self.prefix, outputs, str(state), str(cache), guarantee, *self.names]
        command = probe_command(version, *arguments, jvm=_JVM, source=PROBE, kind="streams")
        result = subprocess.run(
            dying_with_parent(command), capture_output=True, text=True, timeout=60 + 20 * len(self.names), check=False
        )
        assert result.stdout.endswith("done\n"), result.stderr[-3000:]
        return self._read(outputs)

    def on_spark(self, spark: Any, cache: int, guarantee: str) -> dict[str, Output]:
        """Return the output of our applications. Topologies with global stores or transformers are
        a separate application: with either, all of a topology runs in another way."""
        outputs = f"{self.prefix}.spark-{cache}"
        self._create(self._output_topics(outputs))
        apart = [name for name in self.names if name.startswith(("global_", "transform_"))]
        for number, part in enumerate(([name for name in self.names if name not in apart], apart)):
            if not part:
                continue
            settings = {
                "bootstrap.servers": self.servers,
                "application.id": f"{outputs}-{number}",
                "state.dir": str(self.folder),
                "cache.max.bytes.buffering": cache,
                "processing.guarantee": guarantee,
            }
            topology = streams_cases.topology_of_all(part, self.prefix, outputs)
            with KafkaStreams(topology, settings, spark) as streams:
                streams.process_all_available()
        return self._read(outputs)

    def _read(self, prefix: str) -> dict[str, Output]:
        topics = self._output_topics(prefix)
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        read: dict[str, dict[str, list[Value]]] = defaultdict(lambda: defaultdict(list))
        with Consumer(
            bootstrap_servers=self.servers, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            deadline = time.monotonic() + 120
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                assert time.monotonic() < deadline, "the output could not be read in time"
                for record in consumer.poll(0.2):
                    key, value = record.key.decode(), record.value
                    assert record.partition == partition_of(key), f"{record.topic}: {key} is in another partition"
                    read[record.topic][key].append((None if value is None else value.decode(), record.timestamp))
        return {name: {topic: read[f"{prefix}.{name}.{topic}"] for topic in self.expected[name]} for name in self.names}

    def differences(self, name: str, output: Output, how: Defined) -> list[Any]:
        """Return the differences from the output of the driver in what is defined: [(topic, key,
        values, values of the driver)]."""
        different = []
        for topic, expected in self.expected[name].items():
            values, others = (_comparable(side, how) for side in (output[topic], expected))
            for key in sorted(values.keys() | others.keys()):
                if values.get(key) != others.get(key):
                    different.append((topic, key, values.get(key), others.get(key)))
            if how is Defined.MATCHED:
                for key, sequence in output[topic].items():
                    if not set(sequence) <= set(expected[key]):
                        different.append((topic, key, sequence, expected[key]))
        return different


def defined_in(name: str, writer: str, cached: bool) -> Defined:
    """Return what to compare of a case. `writer` is "spark" or a version of Kafka."""
    how = DEFINED.get(name, Defined.SEQUENCE)
    if writer != "spark":
        how = DEFINED_IN_KAFKA.get(name, how)
    return Defined.FINAL if cached and how is Defined.SEQUENCE else how


def _comparable(values: Mapping[str, list[Value]], how: Defined) -> dict[str, Any]:
    if how is Defined.SEQUENCE:
        return {key: sequence for key, sequence in values.items() if sequence}
    if how is Defined.RECORDS:
        return {key: sorted(sequence, key=str) for key, sequence in values.items() if sequence}
    if how is Defined.MATCHED:
        return {
            key: matched
            for key, sequence in values.items()
            if (matched := sorted(record for record in sequence if "null" not in str(record[0])))
        }
    last = {key: sequence[-1][0] for key, sequence in values.items() if sequence}
    # A count of 0 is as good as none: whether there was a record in between depends on the order.
    table = {key: value for key, value in last.items() if value not in (None, "0")}
    return {key: sorted(value or "") if how is Defined.PARTS else value for key, value in table.items()}
