"""The throughput of a producer with one partition, and the broker's CPU time and memory."""

from __future__ import annotations

from bench import clients
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}
    rss: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int) -> float:
        side.new_topic("benchmark")
        start_cpu = side.cpu_seconds()
        rate = clients.produce(side, "benchmark", options.records)
        cpu[side.name, index] = side.cpu_seconds() - start_cpu
        rss[side.name, index] = side.rss_mib()
        side.drop_topic("benchmark")
        return rate

    for side in sides.values():
        once(side, -1)
    rates = in_pairs(sides, options.pairs, once, title="produce, records/s")

    return [
        Row("produce: 1 partition, 1000-byte records, acks=1, 16 KB batches", "records/s", rates, "≥ 1.3 ×", 1.3),
        Row("broker CPU time", "s", paired(cpu, options.pairs), "≤ 0.5 ×", at_most=0.5),
        Row("broker memory afterwards (RSS)", "MiB", paired(rss, options.pairs), "≤ 0.15 ×", at_most=0.15),
    ]
