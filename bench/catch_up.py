"""A consumer that reads data outside the page cache, while a producer writes to another topic."""

from __future__ import annotations

import os
import sys
import time

from bench import clients
from bench.measure import Options, OwnShare, Row, in_pairs, paired
from bench.sides import Side

READ_TOPIC, WRITE_TOPIC = "benchmark-old", "benchmark"


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    alone: dict[tuple[str, int], float] = {}
    beside_warm: dict[tuple[str, int], float] = {}
    read_rate: dict[tuple[str, int], float] = {}
    for side in sides.values():
        side.new_topic(READ_TOPIC)
        clients.produce(side, READ_TOPIC, options.records)
    os.sync()

    def producer_rate(side: Side) -> float:
        side.new_topic(WRITE_TOPIC)
        rate = clients.produce(side, WRITE_TOPIC, options.records)
        side.drop_topic(WRITE_TOPIC)
        return rate

    def beside_reader(side: Side, *extra: str) -> tuple[float, float]:
        """Return the producer's records/s and the reader's MB/s."""
        folder = side.log_dir / f"{READ_TOPIC}-0"
        argv = [sys.executable, "-m", "bench.cold_reader", side.bootstrap, READ_TOPIC, str(folder), *extra]
        reader = clients.Client(argv)
        if not reader.ready.wait(30):
            raise RuntimeError("the reader did not become ready")
        started = time.monotonic()
        try:
            rate = producer_rate(side)
        finally:
            reader.process.terminate()
        seconds = time.monotonic() - started
        return rate, int(reader.output(60).splitlines()[-1]) / seconds / 1e6

    def once(side: Side, index: int) -> float:
        key = side.name, index
        alone[key] = producer_rate(side)
        beside_warm[key], _ = beside_reader(side, "warm")
        os.sync()
        rate, read_rate[key] = beside_reader(side)
        return rate / alone[key]

    for side in sides.values():
        producer_rate(side)
    shares = in_pairs(sides, options.pairs, once, title="producer beside a cold reader, share of its rate alone")
    for side in sides.values():
        side.drop_topic(READ_TOPIC)

    warm_shares = {key: value / alone[key] for key, value in beside_warm.items()}
    return [
        OwnShare("producer beside a reader of cold data: share of its own rate alone", "", shares, "≥ 0.8", 0.8),
        OwnShare("the same beside a reader of warm data", "", paired(warm_shares, options.pairs)),
        Row("rate of the reader of cold data meanwhile", "MB/s", paired(read_rate, options.pairs)),
    ]
