"""Runs the benchmarks, prints the table, and saves it with all values in bench/results/."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench import (
    acl_produce,
    authorize,
    both,
    catch_up,
    clients,
    cluster_controller,
    cluster_failover,
    cluster_produce,
    commits,
    connect,
    console,
    console_large,
    console_search,
    consume,
    groups,
    idle_connections,
    latency,
    many_partitions,
    many_topics,
    mirror,
    perf_tools,
    produce,
    python_clients,
    python_consumers,
    python_producers,
    python_tls,
    saturation,
    scram_connections,
    small_requests,
    spark,
    start,
    streams,
    streams_cluster,
    test_broker,
    tls,
    tool_start,
    transactions,
    two_brokers,
)
from bench.ceiling import CeilingSide, compiler
from bench.cluster_sides import ClusterRow, ClusterSide
from bench.measure import Options, Row, machine, markdown
from bench.sides import APACHE, CEILING, KAVKA, SecuredSide, Side
from kavka.security.local_security import LocalSecurity

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"

Benchmark = Callable[[dict[str, Side], Options], list[Row]]
ClusterBenchmark = Callable[[dict[str, ClusterSide], Options], list[Row]]

BENCHMARKS: dict[str, Benchmark] = {
    "produce": produce.run,
    "consume": consume.run,
    "both": both.run,
    "catch-up": catch_up.run,
    "idle-connections": idle_connections.run,
    "latency": latency.run,
    "saturation": saturation.run,
    "small-requests": small_requests.run,
    "many-partitions": many_partitions.run,
    "many-topics": many_topics.run,
    "start": start.run,
    "groups": groups.run,
    "commits": commits.run,
    "transactions": transactions.run,
    "perf-tools": perf_tools.run,
    "tool-start": tool_start.run,
    "console": console.run,
    "console-large": console_large.run,
    "console-search": console_search.run,
}
# These benchmarks have the ceiling as a third side.
WITH_CEILING = ("produce", "consume", "saturation", "small-requests")
# Before these benchmarks Apache's JVM is warmed up.
WARMED_UP = (*WITH_CEILING, "both", "latency")
WARM_UP_ROUND = 1_000_000
# The clients of these benchmarks use a second listener with this security.
SECURED: dict[str, tuple[Benchmark, Callable[[Path], LocalSecurity]]] = {
    "tls-produce": (tls.run_produce, tls.new_security),
    "tls-consume": (tls.run_consume, tls.new_security),
    "scram-connections": (scram_connections.run, scram_connections.new_security),
}
# Comparisons of clients with one broker.
CLIENTS: dict[str, Callable[[Options], list[Row]]] = {
    "two-brokers": two_brokers.run,
    "test-broker": test_broker.run,
    "python-producers": python_producers.run,
    "python-consumers": python_consumers.run,
    "python-tls-producers": python_tls.run_producers,
    "python-tls-consumers": python_tls.run_consumers,
    "acl-produce": acl_produce.run,
    "authorize": authorize.run,
    "spark-source": spark.run_source,
    "spark-avro": spark.run_avro,
    "spark-sink": spark.run_sink,
    "spark-latency": spark.run_latency,
    "streams-word-count": streams.run_word_count,
    "streams-expressions": streams.run_expressions,
    "streams-aggregate": streams.run_aggregate,
    "streams-join": streams.run_join,
    "streams-latency": streams.run_latency,
    "streams-memory": streams.run_memory,
    "streams-idle": streams.run_idle,
    "streams-pyspark": spark.run_word_count,
    "streams-cluster": streams_cluster.run,
    "mirror": mirror.run,
    "connect-file": connect.run_file,
    "connect-parquet": connect.run_parquet,
    "connect-jdbc": connect.run_jdbc,
    "connect-tasks": connect.run_tasks,
}
# Three brokers, compared with Apache Kafka 3.9, the last release with ZooKeeper.
CLUSTERS: dict[str, ClusterBenchmark] = {
    "cluster-produce": cluster_produce.run,
    "cluster-latency": cluster_produce.run_latency,
    "cluster-failover": cluster_failover.run,
    "cluster-controller": cluster_controller.run,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Compare Kavka with Apache Kafka or an earlier Kavka, in alternating pairs."
    )
    names = [*BENCHMARKS, *SECURED, *CLIENTS, *CLUSTERS]
    parser.add_argument("--only", action="append", choices=names, help="run only this benchmark; may be repeated")
    parser.add_argument("--records", type=int, default=2_000_000, help="records per run (default: 2,000,000)")
    parser.add_argument("--full", action="store_true", help="5,000,000 records per run")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument(
        "--warm-up",
        type=float,
        metavar="GB",
        help=f"produce and consume this much on Apache Kafka before {', '.join(WARMED_UP)} "
        "(default: 5; 0.01 with --quick)",
    )
    parser.add_argument("--groups", action="store_true", help="consume with ConsumerPerformance, which uses a group")
    parser.add_argument("--connections", type=int, default=5000, help="idle connections (default: 5,000)")
    parser.add_argument("--partitions", type=int, default=1000, help="partitions in start (default: 1,000)")
    parser.add_argument(
        "--cluster-partitions", type=int, default=2000, help="partitions in cluster-controller (default: 2,000)"
    )
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the state of streams (default: 1,000,000)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds in streams-latency (default: 200)")
    parser.add_argument("--seconds", type=float, default=60, help="seconds in streams-idle (default: 60)")
    parser.add_argument("--quick", action="store_true", help="a short run with small sizes, to see whether it works")
    parser.add_argument("--folder", type=Path, help="the folder for the brokers' data (default: a temporary folder)")
    parser.add_argument("--peer", metavar="REVISION", help="compare with Kavka at this git revision instead of Apache")
    parser.add_argument("--docs", type=Path, help="also write the table to this file")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    options = Options(
        records=5_000_000 if arguments.full else arguments.records,
        pairs=arguments.pairs,
        groups=arguments.groups,
        connections=arguments.connections,
        partitions=arguments.partitions,
        cluster_partitions=arguments.cluster_partitions,
        keys=arguments.keys,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        warm_up_gb=5.0 if arguments.warm_up is None else arguments.warm_up,
    )
    if arguments.quick:
        options = replace(options, records=2000, pairs=1, keys=500, rounds=2, seconds=3)
        if arguments.warm_up is None:
            options = replace(options, warm_up_gb=0.01)
    Side.peer = arguments.peer
    names = arguments.only or [*BENCHMARKS, *SECURED, *CLIENTS, *CLUSTERS]
    folder = Path(tempfile.mkdtemp(prefix="kavka-bench-", dir=arguments.folder))
    rows: list[Row] = []
    started = time.monotonic()
    try:
        for name in names:
            print(f"{name}:", flush=True)
            if name in CLIENTS:
                rows += CLIENTS[name](options)
            elif name in CLUSTERS:
                rows += _measure_clusters(CLUSTERS[name], options, folder / name)
            elif name in SECURED:
                benchmark, new_security = SECURED[name]
                rows += _measure(benchmark, options, folder / name, new_security(folder / name / "security"))
            else:
                rows += _measure(BENCHMARKS[name], options, folder / name, name=name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.peer is not None:
        for row in rows:
            row.bar, row.at_least, row.at_most = "", None, None  # the bars apply to Apache Kafka
    table = _tables(rows, options)
    print(f"\n{table}\n{time.monotonic() - started:.0f} s in total")
    _save(rows, options, table)
    if arguments.docs is not None:
        arguments.docs.write_text(f"# Benchmarks\n\n{table}")
    return 1 if any(row.verdict == "MISSED" for row in rows) else 0


def _tables(rows: list[Row], options: Options) -> str:
    clients = [row for row in rows if isinstance(row, python_clients.ClientRow)]
    clusters = [row for row in rows if isinstance(row, ClusterRow)]
    brokers = [row for row in rows if not isinstance(row, python_clients.ClientRow | ClusterRow)]
    peer = "Apache Kafka 4.3" if Side.peer is None else f"Kavka at {Side.peer}"
    tables = [markdown(brokers, options, peer)] if brokers else []
    if clusters:
        tables.append(markdown(clusters, options, "Apache Kafka 3.9.1, 3 brokers"))
    if clients:
        tables.append(python_clients.markdown(clients, options.pairs))
    return "\n".join(tables)


def _measure(
    benchmark: Benchmark, options: Options, folder: Path, security: LocalSecurity | None = None, name: str = ""
) -> list[Row]:
    """Run a benchmark with two new brokers, which run for all of its pairs. With `security` its
    clients use a secured listener."""
    sides: dict[str, Side] = {}
    try:
        for side in (KAVKA, APACHE):
            sides[side] = Side(side, folder / side) if security is None else SecuredSide(side, folder / side, security)
        if name in WITH_CEILING and not options.groups:
            if compiler() is None:
                print("  there is no C compiler (cc): without the ceiling", flush=True)
            else:
                records = options.records if name == "consume" else 0
                sides[CEILING] = CeilingSide(folder / CEILING, records=records, record_size=clients.RECORD_SIZE)
        if benchmark is not start.run:
            for broker in sides.values():
                broker.start()
        if name in WARMED_UP and Side.peer is None:
            _warm_up(sides[APACHE], int(options.warm_up_gb * 1e9 / clients.RECORD_SIZE))
        return benchmark(sides, options)
    finally:
        for broker in sides.values():
            broker.close()


def _warm_up(side: Side, records: int) -> None:
    """Produce and consume records, in several topics so that they need little space."""
    started = time.monotonic()
    for remaining in range(records, 0, -WARM_UP_ROUND):
        side.new_topic("warm-up")
        clients.produce(side, "warm-up", min(remaining, WARM_UP_ROUND))
        clients.consume(side, "warm-up", min(remaining, WARM_UP_ROUND))
        side.drop_topic("warm-up")
    print(f"  warm-up of {side.title}: {records:,} records in {time.monotonic() - started:.0f} s", flush=True)


def _measure_clusters(benchmark: ClusterBenchmark, options: Options, folder: Path) -> list[Row]:
    sides: dict[str, ClusterSide] = {}
    try:
        for name in (KAVKA, APACHE):
            sides[name] = ClusterSide(name, folder / name)
            sides[name].start()
        return benchmark(sides, options)
    finally:
        for side in sides.values():
            side.close()


def _save(rows: list[Row], options: Options, table: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    values = {"machine": machine(), "options": vars(options), "rows": [row.as_dict() for row in rows]}
    (RESULTS / f"{stamp}.json").write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    (RESULTS / f"{stamp}.md").write_text(table)


if __name__ == "__main__":
    raise SystemExit(main())
