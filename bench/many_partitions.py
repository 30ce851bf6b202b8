"""Topics with a thousand partitions: the time to create them, and the CPU time of the first append
to each partition."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side
from tests.support import wire
from tests.support.wire import Wire

PARTITIONS = 1000
TOPICS = 3
RECORDS = 100_000


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    first_append_cpu: dict[tuple[str, int], float] = {}
    second_append_cpu: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int) -> float:
        topics = [f"wide-{index}-{topic_index}" for topic_index in range(TOPICS)]
        started = time.perf_counter()
        for topic in topics:
            side.new_topic(topic, PARTITIONS)
        _wait_for_leaders(side, topics[-1])
        seconds = time.perf_counter() - started
        first_append_cpu[side.name, index] = _append_cpu(side, topics[0])
        second_append_cpu[side.name, index] = _append_cpu(side, topics[0])
        for topic in topics:
            side.drop_topic(topic)
        return seconds

    created = in_pairs(sides, options.pairs, once, title=f"{TOPICS} topics of {PARTITIONS} partitions created, s")
    what = f"{RECORDS:,} records to a topic of {PARTITIONS:,} partitions, broker CPU time"
    return [
        Row(f"{TOPICS} topics of {PARTITIONS:,} partitions created in turn", "s", created, "≤ 1.0 ×", at_most=1.0),
        Row(f"first {what}", "s", paired(first_append_cpu, options.pairs), "≤ 0.2 ×", at_most=0.2),
        Row(f"second {what}", "s", paired(second_append_cpu, options.pairs)),
    ]


def _wait_for_leaders(side: Side, topic: str) -> None:
    deadline = time.monotonic() + 120
    with Wire(side.broker.address, 30.0) as connection:
        while wire.end_offset(connection, topic, PARTITIONS - 1)[0] != 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{side.title}: partition {PARTITIONS - 1} of {topic} has no leader")
            time.sleep(0.01)


def _append_cpu(side: Side, topic: str) -> float:
    """Return the broker's CPU time for RECORDS records to all partitions of a topic."""
    producer = Producer({"bootstrap.servers": side.bootstrap, "acks": 1, "linger.ms": 5, "log_level": 3})
    producer.list_topics(topic, timeout=60)
    start_cpu = side.cpu_seconds()
    for index in range(RECORDS):
        producer.produce(topic, b"x" * 100, partition=index % PARTITIONS)
        if index % 1000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError(f"{side.title}: records were not acknowledged")
    return side.cpu_seconds() - start_cpu
