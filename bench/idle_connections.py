"""Thousands of idle connections and one busy producer."""

from __future__ import annotations

import resource

from bench import clients
from bench.measure import Options, OwnShare, Row, in_pairs, paired
from bench.sides import Side
from tests.support.wire import API_VERSIONS, Wire


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = options.connections + 500
    if hard < needed:
        raise RuntimeError(f"{options.connections} connections need {needed} open files; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    rss_increase: dict[tuple[str, int], float] = {}

    def rate(side: Side) -> float:
        side.new_topic("benchmark")
        records_per_second = clients.produce(side, "benchmark", options.records)
        side.drop_topic("benchmark")
        return records_per_second

    def once(side: Side, index: int) -> float:
        baseline_rate = rate(side)
        start_rss = side.rss_mib()
        idle_connections: list[Wire] = []
        try:
            for _ in range(options.connections):
                connection = Wire(side.broker.address, 30.0)
                idle_connections.append(connection)
                connection.call(API_VERSIONS, 0, b"")
            rss_increase[side.name, index] = side.rss_mib() - start_rss
            return rate(side) / baseline_rate
        finally:
            for connection in idle_connections:
                connection.close()

    for side in sides.values():
        rate(side)
    fractions = in_pairs(sides, options.pairs, once, title="producer rate with idle connections / without")
    memory = paired(rss_increase, options.pairs)
    what = f"producer rate with {options.connections:,} idle connections, as a fraction of its rate without them"
    return [
        OwnShare(what, "", fractions, "≥ 0.8", 0.8),
        Row(f"memory for {options.connections:,} idle connections", "MiB", memory),
    ]
