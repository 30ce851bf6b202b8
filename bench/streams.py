"""Streams, compared with Kafka Streams 4.3 and with a plain Spark query, on a Kavka broker.

    python -m bench --only streams-word-count --only streams-expressions --records 10000000
    python -m bench --only streams-aggregate --only streams-join --records 1000000
    python -m bench --only streams-latency --only streams-memory --only streams-idle
    python -m bench --only streams-word-count --quick

Throughput: both sides read the same topics with four partitions, with `exactly_once_v2`, the same
commit interval and their caches at the default. Kafka Streams has two threads, a heap of 1 GB and
RocksDB; Spark has two cores. A round lasts from the start of an application until all input is
committed. The first round of a process does not count. After each round the outputs of both sides
are read and must be equal: all records of a join, the last value of each key of a table.

Latency, memory and CPU are those of an aggregation by key. The plain query is `groupBy().sum()` on
the connector of Spark 4.0.0, as in bench.spark.
"""

from __future__ import annotations

import json
import marshal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Options, Row
from bench.process_tree import command_of, cpu_seconds, descendants, private_bytes
from bench.python_clients import ClientRow, OwnClientFigure
from bench.spark import WORDS_PER_LINE, fill_lines
from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support import spark40
from tests.support.java_client import probe_command
from tests.support.processes import dying_with_parent

PEER = Path(__file__).parent / "java" / "StreamsPeer.java"
PLAIN = Path(__file__).parent / "plain_spark.py"
VERSION = "4.3.0"
PARTITIONS = 4
COMMIT_INTERVAL = 100
ROUNDS_PER_PROCESS = 3
RECORDS_PER_ROUND = 4
_JVM = ("-Xmx1g", "-Xms1g")


class Difference(ClientRow):
    """A row whose bar applies to the difference of the two values."""

    def judged_value(self) -> float:
        return statistics.median(kavka - other for kavka, other in self.pairs)


def run_word_count(options: Options) -> list[Row]:
    """`options.records` is the number of words."""
    return [_throughput("word-count", "word count, lambdas", options, _lines, 1.0)]


def run_expressions(options: Options) -> list[Row]:
    return [
        _throughput("word-count-expressions", "word count, expressions", options, _lines, 1.5),
        _throughput("windowed-sum-expressions", "windowed sum, expressions", options, _numbers, 1.5),
    ]


def run_aggregate(options: Options) -> list[Row]:
    return [_throughput("aggregate", f"aggregate, lambdas, {options.keys:,} keys", options, _numbers, 0.4)]


def run_join(options: Options) -> list[Row]:
    return [
        _throughput("stream-table-join", "stream-table join, lambdas", options, _stream_and_table, 0.4),
        _throughput("stream-stream-join", "stream-stream join, lambdas", options, _two_streams, 0.4),
    ]


# --- input


def _key(number: int) -> bytes:
    """A key of 20 bytes."""
    return b"key-%016d" % number


def _send(servers: str, topic: str, count: int, keys: int, step: int = 1, start: int = 1_700_000_000_000) -> None:
    """Send numbers by key. Their time advances by `step` milliseconds every thousand records."""
    with Producer(bootstrap_servers=servers, linger_ms=20, batch_size=200_000) as producer:
        for number in range(count):
            value = (1 + number % 7).to_bytes(8, "big")
            producer.send(topic, value=value, key=_key(number % keys), timestamp=start + number // 1000 * step)


def _lines(servers: str, options: Options) -> int:
    lines = max(1, options.records // WORDS_PER_LINE)
    fill_lines(servers, "lines", lines)
    return lines


def _numbers(servers: str, options: Options) -> int:
    """At least two records for each key."""
    count = max(options.records, 2 * options.keys)
    _send(servers, "numbers", count, options.keys, 50)
    return count


def _stream_and_table(servers: str, options: Options) -> int:
    """The table is older than the stream, so that all records of the stream have a match."""
    keys = max(1, options.records // 10)
    _send(servers, "table", keys, keys, 0, 1_600_000_000_000)
    _send(servers, "stream", options.records, keys)
    return options.records + keys


def _two_streams(servers: str, options: Options) -> int:
    for topic in ("left", "right"):
        _send(servers, topic, options.records // 2, options.records // 2)
    return options.records // 2 * 2


# --- throughput


def _throughput(
    topology: str, what: str, options: Options, fill: Callable[[str, Options], int], bar: float
) -> ClientRow:
    from kavka.testing import Broker

    pairs: list[tuple[float, float]] = []
    with Broker(group_initial_rebalance_delay_ms=0) as broker, tempfile.TemporaryDirectory() as folder:
        servers = broker.bootstrap_servers
        _create(servers, ["lines", "numbers", "stream", "table", "left", "right"])
        count = fill(servers, options)
        for index in range(options.pairs):
            rates: dict[str, float] = {}
            outputs: dict[str, object] = {}
            for side in ("kavka", "java") if index % 2 == 0 else ("java", "kavka"):
                names = [f"{topology}-{side}-{index}-{number}" for number in range(ROUNDS_PER_PROCESS)]
                _create(servers, names)
                seconds = _run(side, topology, servers, f"{folder}/{side}-{index}", names)
                rates[side] = count / statistics.median(seconds[1:])
                outputs[side] = _output(servers, names, is_table="join" not in topology)
                print(f"  {what}, {side}: {rates[side]:,.0f} records/s", flush=True)
            if outputs["kavka"] != outputs["java"]:
                raise RuntimeError(f"{what}: the outputs differ: {outputs}")
            pairs.append((rates["kavka"], rates["java"]))
    return ClientRow(f"{what}, compared with Kafka Streams {VERSION}", "records/s", pairs, f"≥ {bar:g} ×", bar)


def _run(side: str, topology: str, servers: str, folder: str, outputs: list[str]) -> list[float]:
    """Run an application for each output topic in one process; return the seconds of each."""
    arguments = [topology, servers, folder, str(COMMIT_INTERVAL), *outputs]
    if side == "kavka":
        command = [sys.executable, "-m", "bench.streams_jobs", "throughput", *arguments]
    else:
        command = probe_command(VERSION, *arguments, jvm=_JVM, source=PEER, kind="streams")
    process = subprocess.run(dying_with_parent(command), capture_output=True, text=True, check=False)
    results = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not results:
        raise RuntimeError(f"{' '.join(command)} failed: {process.stderr[-3000:]}")
    return [float(seconds) for seconds in json.loads(results[0][7:])]


def _output(servers: str, topics: list[str], is_table: bool) -> tuple[int, int]:
    """Return what all rounds must have in common: the number of keys and the sum of their last
    values; for a join the number of records and the sum of all values."""
    results = set()
    for topic in topics:
        last: dict[bytes, int] = {}
        count = total = 0
        for key, value in _read(servers, topic):
            last[key] = int.from_bytes(value, "big")
            count += 1
            total += last[key]
        results.add((len(last), sum(last.values())) if is_table else (count, total))
    if len(results) != 1:
        raise RuntimeError(f"the rounds have different outputs: {results}")
    return results.pop()


def _read(servers: str, topic: str) -> Iterator[tuple[bytes, bytes]]:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=servers, **settings) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(0.2):
                yield record.key, record.value


def _create(servers: str, topics: list[str]) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, configs={"retention.ms": "-1"}) for topic in topics])


# --- applications that run


@contextmanager
def _serving(side: str, servers: str, folder: Path, interval: int, output: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the aggregation with Streams or as a plain query inside the block, which starts when all
    input is done."""
    arguments = [servers, str(folder), str(interval), output]
    if side == "streams":
        command = [sys.executable, "-m", "bench.streams_jobs", "serve", *arguments]
    else:
        command = [str(spark40.python()), str(PLAIN), ",".join(spark40.connector()), *arguments]
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            dying_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None and process.stdin is not None
        for line in process.stdout:
            if line == b"READY\n":
                break
        else:
            raise RuntimeError(f"{' '.join(command)} failed: {(folder / 'log').read_text()[-3000:]}")
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(60)
        finally:
            process.kill()


@contextmanager
def _loaded(side: str, keys: int, interval: int) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    """An application with so many keys in its state: address of the broker, folder, process."""
    from kavka.testing import Broker

    with Broker() as broker, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "application"
        _create(broker.bootstrap_servers, ["numbers", "sums"])
        _send(broker.bootstrap_servers, "numbers", keys, keys)
        with _serving(side, broker.bootstrap_servers, folder, interval, "sums") as process:
            yield broker.bootstrap_servers, folder, process


def run_latency(options: Options) -> list[Row]:
    """Rounds of four records, as soon as the round before is done; the trigger is 0 ms. Ten rounds
    first do not count."""
    few = min(10_000, options.keys)
    times: dict[str, list[list[float]]] = {"few": [], "many": [], "plain": []}
    restores = []
    for _ in range(options.pairs):
        for name, side, keys in (("few", "streams", few), ("many", "streams", options.keys), ("plain", "plain", few)):
            with _loaded(side, keys, 0) as (servers, folder, _process):
                _rounds(servers, keys, min(10, options.rounds))
                before = _restores(folder) if side == "streams" else 0
                rounds = _rounds(servers, keys, options.rounds)
                if side == "streams":
                    restores.append(100 * (_restores(folder) - before) / options.rounds)
            times[name].append(rounds)
            print(f"  {side}, {keys:,} keys: p50 {_p(rounds, 50):.0f} ms, p95 {_p(rounds, 95):.0f} ms", flush=True)
    few_p50, many_p50, plain_p50 = ([_p(rounds, 50) for rounds in times[name]] for name in times)
    few_p95, many_p95 = ([_p(rounds, 95) for rounds in times[name]] for name in ("few", "many"))
    many = f"{options.keys:,} keys"
    return [
        _latency_row(f"p50 with {many}, compared with {few:,} keys", many_p50, few_p50, 1.3),
        _latency_row(f"p95 with {many}, compared with p50", many_p95, many_p50, 2.0),
        _latency_row(f"p95 with {few:,} keys, compared with p50", few_p95, few_p50, 2.0),
        _latency_row(f"p50 with {few:,} keys, compared with a plain Spark query", few_p50, plain_p50, 2.0),
        OwnClientFigure("state restores per 100 rounds", "", [(each, 0) for each in restores], "0", at_most=0),
    ]


def _latency_row(what: str, values: list[float], others: list[float], bar: float) -> Row:
    pairs = list(zip(values, others, strict=True))
    return ClientRow(f"input to output, 4 records: {what}", "ms", pairs, f"≤ {bar:g} ×", at_most=bar)


def _p(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def _rounds(servers: str, keys: int, count: int) -> list[float]:
    """Return the milliseconds from sending four records to reading their results."""
    partitions = [TopicPartition("sums", number) for number in range(PARTITIONS)]
    milliseconds = []
    with (
        Producer(bootstrap_servers=servers, linger_ms=0) as producer,
        Consumer(bootstrap_servers=servers, auto_offset_reset="latest", fetch_max_wait_ms=50) as consumer,
    ):
        consumer.assign(partitions)
        consumer.seek_to_end(partitions)
        for tp in partitions:
            consumer.position(tp)
        for number in range(count):
            started = time.perf_counter()
            for index in range(RECORDS_PER_ROUND):
                key = _key((number * RECORDS_PER_ROUND + index) * 7919 % keys)
                producer.send("numbers", value=(1).to_bytes(8, "big"), key=key)
            producer.flush()
            results = 0
            while results < RECORDS_PER_ROUND:
                if time.perf_counter() > started + 120:
                    raise RuntimeError(f"{results} of {RECORDS_PER_ROUND} results after 120 s")
                results += len(list(consumer.poll(1.0)))
            milliseconds.append(1000 * (time.perf_counter() - started))
    return milliseconds


def _restores(folder: Path) -> int:
    """Return how often tasks replayed their state from Spark's copy (`local_state.py`)."""
    import lmdb

    restores = 0
    for task in folder.glob("sums/local/*/*/task-*"):
        with lmdb.open(str(task), readonly=True, lock=False, max_dbs=1) as environment:
            state = environment.open_db(b"state", create=False)
            with environment.begin() as transaction:
                version = transaction.get(b"version", db=state)
                restores += marshal.loads(version)[3] if version else 0
    return restores


def run_memory(options: Options) -> list[Row]:
    """The Python workers after a load of keys of 20 bytes, in four tasks."""
    largest, disk = [], []
    for _ in range(options.pairs):
        with _loaded("streams", options.keys, COMMIT_INTERVAL) as (servers, folder, process):
            _rounds(servers, options.keys, 3)
            workers = [pid for pid in descendants(process.pid) if ".daemon " in command_of(pid)]
            sizes = [private_bytes(pid) / (1 << 20) for pid in workers]
            if not sizes:
                raise RuntimeError("no Python worker is running")
            largest.append(max(sizes))
            used = subprocess.run(["du", "-sk", folder / "sums"], capture_output=True, text=True, check=True).stdout
            disk.append(int(used.split()[0]) / 1024)
            text = ", ".join(f"{size:.0f}" for size in sorted(sizes))
            print(f"  private memory of {len(sizes)} workers: {text} MB; disk {disk[-1]:.0f} MB", flush=True)
    what = f"{options.keys:,} keys of 20 bytes"
    return [
        OwnClientFigure(
            f"largest Python worker, {what}", "MB", [(size, 0) for size in largest], "≤ 150 MB", at_most=150
        ),
        OwnClientFigure(f"disk of the state, {what}", "MB", [(size, 0) for size in disk]),
    ]


def run_idle(options: Options) -> list[Row]:
    """CPU of an application that has nothing to do, in percent of a core."""
    pairs = []
    for index in range(options.pairs):
        cpu: dict[str, float] = {}
        for side in ("streams", "plain") if index % 2 == 0 else ("plain", "streams"):
            with _loaded(side, min(1000, options.keys), COMMIT_INTERVAL) as (servers, _folder, process):
                _rounds(servers, min(1000, options.keys), 3)
                # Batches without data that end a round, and the compiler of the JVM.
                time.sleep(min(10, options.seconds))
                before = cpu_seconds(process.pid)
                time.sleep(options.seconds)
                cpu[side] = 100 * (cpu_seconds(process.pid) - before) / options.seconds
            print(f"  idle, {side}: {cpu[side]:.1f} % of a core", flush=True)
        pairs.append((cpu["streams"], cpu["plain"]))
    return [Difference("idle, compared with a plain Spark query", "% of a core", pairs, "≤ + 2 %", at_most=2)]
