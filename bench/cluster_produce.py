"""Three brokers: the throughput of a producer with acks=all, and the latency at a thousand records
per second."""

from __future__ import annotations

from bench.clients import Latencies, Producer
from bench.cluster_sides import ClusterRow, ClusterSide
from bench.measure import Options, Row, in_pairs, paired

PARTITIONS = 3
RATE = 1000
SECONDS = 30
WARM_UP_SECONDS = 10
# The index of a run before the pairs, whose values are not used.
UNCOUNTED = -1


def run(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}
    rss: dict[tuple[str, int], float] = {}

    def once(side: ClusterSide, index: int) -> float:
        side.new_topic("benchmark", PARTITIONS)
        start_cpu = side.cpu_seconds()
        rate = Producer(side, "benchmark", options.records, acks="all").result()
        cpu[side.name, index] = side.cpu_seconds() - start_cpu
        rss[side.name, index] = side.rss_mib()
        side.drop_topic("benchmark")
        return rate

    for side in sides.values():
        once(side, UNCOUNTED)
    rates = in_pairs(sides, options.pairs, once, title="produce to three replicas, records/s")

    memory = paired(rss, options.pairs)
    what = "produce: 3 partitions × 3 replicas, min ISR 2, acks=all, 1000-byte records"
    return [
        ClusterRow(what, "records/s", rates, "≥ 1.5 ×", 1.5),
        ClusterRow("CPU time of the three brokers", "s", paired(cpu, options.pairs)),
        ClusterRow("memory of the three brokers afterwards (RSS)", "MiB", memory, "≤ 0.3 ×", at_most=0.3),
    ]


def run_latency(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    latencies: dict[tuple[str, int], Latencies] = {}

    def once(side: ClusterSide, index: int) -> float:
        side.new_topic("latency", PARTITIONS)
        records, warm_up = RATE * (SECONDS + WARM_UP_SECONDS), RATE * WARM_UP_SECONDS
        result = Producer(side, "latency", records, acks="all", rate=RATE, warm_up=warm_up).latencies()
        side.drop_topic("latency")
        latencies[side.name, index] = result
        return result.p99

    for side in sides.values():
        once(side, UNCOUNTED)
    p99 = in_pairs(sides, options.pairs, once, title="99th percentile of latency at 1000 records/s, ms")
    p50 = paired({run: result.p50 for run, result in latencies.items()}, options.pairs)
    return [
        ClusterRow("latency at 1000 records/s, acks=all, 99th percentile", "ms", p99, "≤ 1.0 ×", at_most=1.0),
        ClusterRow("the same, median", "ms", p50),
    ]
