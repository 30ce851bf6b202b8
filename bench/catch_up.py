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
    baseline_rates: dict[tuple[str, int], float] = {}
    rates_with_warm_reader: dict[tuple[str, int], float] = {}
    read_rates: dict[tuple[str, int], float] = {}
    for side in sides.values():
        side.new_topic(READ_TOPIC)
        clients.produce(side, READ_TOPIC, options.records)
    os.sync()

    def producer_rate(side: Side) -> float:
        side.new_topic(WRITE_TOPIC)
        rate = clients.produce(side, WRITE_TOPIC, options.records)
        side.drop_topic(WRITE_TOPIC)
        return rate

    def rates_with_reader(side: Side, *extra: str) -> tuple[float, float]:
        """Return the producer's records/s and the reader's MB/s."""
        folder = side.log_dir / f"{READ_TOPIC}-0"
        argv = [sys.executable, "-m", "bench.cold_reader", side.bootstrap, READ_TOPIC, str(folder), *extra]
        reader = clients.Client(argv)
        if not reader.ready.wait(30):
            raise RuntimeError("the reader did not become ready")
        start = time.monotonic()
        try:
            rate = producer_rate(side)
        finally:
            reader.process.terminate()
        seconds = time.monotonic() - start
        return rate, int(reader.output(60).splitlines()[-1]) / seconds / 1e6

    def once(side: Side, index: int) -> float:
        key = side.name, index
        baseline_rates[key] = producer_rate(side)
        rates_with_warm_reader[key], _ = rates_with_reader(side, "warm")
        os.sync()
        rate, read_rates[key] = rates_with_reader(side)
        return rate / baseline_rates[key]

    for side in sides.values():
        producer_rate(side)
    fractions = in_pairs(sides, options.pairs, once, title="producer rate with a reader of cold data / without")
    for side in sides.values():
        side.drop_topic(READ_TOPIC)

    warm_fractions = {key: value / baseline_rates[key] for key, value in rates_with_warm_reader.items()}
    return [
        OwnShare(
            "producer rate with a reader of cold data, as a fraction of its rate without the reader",
            "",
            fractions,
            "≥ 0.8",
            0.8,
        ),
        OwnShare(
            "producer rate with a reader of warm data, as a fraction of its rate without the reader",
            "",
            paired(warm_fractions, options.pairs),
        ),
        Row("rate of the reader of cold data", "MB/s", paired(read_rates, options.pairs)),
    ]
