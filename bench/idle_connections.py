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
    rss: dict[tuple[str, int], float] = {}

    def rate(side: Side) -> float:
        side.new_topic("benchmark")
        records_per_second = clients.produce(side, "benchmark", options.records)
        side.drop_topic("benchmark")
        return records_per_second

    def once(side: Side, index: int) -> float:
        alone = rate(side)
        start_rss = side.rss_mib()
        idle: list[Wire] = []
        try:
            for _ in range(options.connections):
                connection = Wire(side.broker.address, 30.0)
                idle.append(connection)
                connection.call(API_VERSIONS, 0, b"")
            rss[side.name, index] = side.rss_mib() - start_rss
            return rate(side) / alone
        finally:
            for connection in idle:
                connection.close()

    for side in sides.values():
        rate(side)
    shares = in_pairs(sides, options.pairs, once, title="busy beside idle connections, share of its rate alone")
    memory = paired(rss, options.pairs)
    what = f"{options.connections:,} idle connections and one busy: share of its own rate alone"
    return [
        OwnShare(what, "", shares, "≥ 0.8", 0.8),
        Row(f"memory for {options.connections:,} idle connections", "MiB", memory),
    ]
