"""The tail latency of a producer at a thousand records per second, acks=1, on a single node."""

from __future__ import annotations

from bench.clients import Latencies, Producer
from bench.cluster_produce import RATE, SECONDS, WARM_UP_SECONDS
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    latencies: dict[tuple[str, int], Latencies] = {}

    def once(side: Side, index: int) -> float:
        side.new_topic("latency")
        records, warm_up = RATE * (SECONDS + WARM_UP_SECONDS), RATE * WARM_UP_SECONDS
        latency = Producer(side, "latency", records, rate=RATE, warm_up=warm_up).latencies()
        side.drop_topic("latency")
        latencies[side.name, index] = latency
        return latency.p99

    for side in sides.values():
        once(side, -1)
    p99 = in_pairs(sides, options.pairs, once, title="p99 latency at 1000 records/s, acks=1, ms")
    p999 = paired({key: latency.p999 for key, latency in latencies.items()}, options.pairs)
    what = f"latency at {RATE} records/s, acks=1, one node"
    return [
        Row(f"{what}, p99", "ms", p99, "≤ 0.35 ×", at_most=0.35),
        Row(f"{what}, p99.9", "ms", p999, "≤ 0.35 ×", at_most=0.35),
    ]
