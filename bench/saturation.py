"""Saturation by native producers: several librdkafka processes, each with its own partition.

The broker is the bottleneck, so its CPU time per GB matters as well as the rate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from bench.measure import Options, Row, in_pairs, paired
from bench.python_clients import Stopwatch
from bench.sides import Side
from tests.support.processes import dying_with_parent

PROCESSES = 2
SHAPES = ((1000, 16_384), (100, 16_384), (1000, 1_048_576))
"""Record size and batch size in bytes."""


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    return [row for size, batch in SHAPES for row in _rows(sides, options, size, batch)]


def _rows(sides: dict[str, Side], options: Options, size: int, batch: int) -> list[Row]:
    records = options.records * (1 if size >= 1000 else 3)
    gigabytes = records * size / 1e9
    broker_cpu: dict[tuple[str, int], float] = {}
    client_cpu: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int) -> float:
        side.new_topic("saturation", PROCESSES)
        start_cpu = side.cpu_seconds()
        seconds, client_seconds = produce(side.bootstrap, "saturation", records, size, batch)
        broker_cpu[side.name, index] = (side.cpu_seconds() - start_cpu) / gigabytes
        client_cpu[side.name, index] = client_seconds / gigabytes
        side.drop_topic("saturation")
        return records / seconds

    for side in sides.values():
        once(side, -1)
    shape = f"{size}-byte records, batches of {batch // 1024} KB"
    rates = in_pairs(sides, options.pairs, once, title=f"saturation, {shape}, records/s")
    return [
        Row(f"{PROCESSES} native producers, {shape}", "records/s", rates),
        Row("broker CPU time per GB", "s", paired(broker_cpu, options.pairs)),
        Row("client CPU time per GB", "s", paired(client_cpu, options.pairs)),
    ]


def produce(bootstrap: str, topic: str, records: int, size: int, batch: int) -> tuple[float, float]:
    """Send records to a topic with a partition for each process. Return the seconds from the first
    record to the last acknowledgement, and the clients' CPU time."""
    command = [sys.executable, "-m", "bench.saturation", bootstrap, topic]
    producers = [
        subprocess.Popen(
            dying_with_parent([*command, *map(str, (partition, records // PROCESSES, size, batch))]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for partition in range(PROCESSES)
    ]
    for producer in producers:
        assert producer.stdout is not None
        producer.stdout.readline()  # connected
    started = time.perf_counter()
    for producer in producers:
        assert producer.stdin is not None
        producer.stdin.write("go\n")
        producer.stdin.flush()
    reports = [producer.communicate(timeout=1800)[0] for producer in producers]
    seconds = time.perf_counter() - started
    if any(producer.returncode for producer in producers):
        raise RuntimeError("a producer failed")
    return seconds, sum(json.loads(report)["cpu"] for report in reports)


def main() -> int:
    """Run a producer process: connect, wait for a line of input, send, and report the CPU time."""
    from confluent_kafka import Producer

    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    for name in ("partition", "records", "size", "batch"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    errors: list[object] = []

    def on_delivery_report(error: object, _message: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": options.batch,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": max(options.batch, 1_000_000),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "log_level": 3,
        }
    )
    producer.list_topics(options.topic, timeout=30)
    print("ready", flush=True)
    sys.stdin.readline()
    watch = Stopwatch()
    value = b"x" * options.size
    for index in range(options.records):
        while True:
            try:
                producer.produce(options.topic, value, partition=options.partition, on_delivery=on_delivery_report)
                break
            except BufferError:
                producer.poll(0.01)
        if index & 1023 == 0:
            producer.poll(0)
    unsent = producer.flush(600)
    print(json.dumps({"cpu": watch.read(options.records)[1]}))
    return 1 if unsent or errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
