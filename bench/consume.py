"""The throughput of a consumer of a partition in the page cache."""

from __future__ import annotations

from bench import clients
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    return rows(sides, options, "consume", "≥ 1.0 ×", 1.0)


def rows(
    sides: dict[str, Side], options: Options, title: str, bar: str = "", at_least: float | None = None
) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}
    for side in sides.values():
        side.new_topic("benchmark-read")
        clients.produce(side, "benchmark-read", options.records)
        clients.consume(side, "benchmark-read", options.records, in_group=options.groups)

    def once(side: Side, index: int) -> float:
        start_cpu = side.cpu_seconds()
        rate = clients.consume(side, "benchmark-read", options.records, in_group=options.groups)
        cpu[side.name, index] = side.cpu_seconds() - start_cpu
        return rate

    rates = in_pairs(sides, options.pairs, once, title=f"{title}, records/s")
    for side in sides.values():
        side.drop_topic("benchmark-read")
    used = paired(cpu, options.pairs)
    client = "ConsumerPerformance" if options.groups else "an assigned consumer"
    return [
        Row(f"{title}: {client}, fetches of 1 MB", "records/s", rates, bar, at_least),
        Row("broker CPU time", "s", used),
    ]
