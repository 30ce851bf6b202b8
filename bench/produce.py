"""The throughput of a producer with one partition, and the broker's CPU time and memory."""

from __future__ import annotations

from typing import NamedTuple

from bench import clients
from bench.measure import Options, OwnFigure, Pairs, Row, in_pairs, paired
from bench.sides import Side


class Figures(NamedTuple):
    """Records per second, and the broker's CPU time in seconds and memory in MiB, in pairs."""

    rates: Pairs
    cpu: Pairs
    rss: Pairs


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    figures = measure(sides, options, "produce")
    rows = [
        Row(
            "produce: 1 partition, 1000-byte records, acks=1, 16 KB batches", "records/s", figures.rates, "≥ 1.3 ×", 1.3
        ),
        Row("broker CPU time", "s", figures.cpu, "≤ 0.5 ×", at_most=0.5),
        Row("broker memory afterwards (RSS)", "MiB", figures.rss, "≤ 0.15 ×", at_most=0.15),
    ]
    if figures.rates.ceiling:
        shares = [(kavka / limit, 0.0) for (kavka, _), limit in zip(figures.rates, figures.rates.ceiling, strict=True)]
        rows.append(OwnFigure("produce: share of the ceiling", "", shares, "≥ 0.9", 0.9))
    return rows


def measure(sides: dict[str, Side], options: Options, title: str) -> Figures:
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
    rates = in_pairs(sides, options.pairs, once, title=f"{title}, records/s")
    return Figures(rates, paired(cpu, options.pairs), paired(rss, options.pairs))
