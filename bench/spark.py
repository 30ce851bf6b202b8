"""Kavka's Spark source and sink, compared with the connector of Spark 4.0.0, on a Kavka broker.

    python -m bench --only spark-source --only spark-avro --only spark-sink [--pairs 5]
    python -m bench --only spark-latency [--pairs 5]
    python -m bench --only streams-pyspark --records 10000000 [--pairs 5]

Each value is the median of several rounds in a Spark process, without the first round, in which the
JVM is cold. The connector of Spark 4.3 is not available.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.measure import Options, Row
from bench.python_clients import ClientRow
from tests.support import spark40

JOBS = Path(__file__).parent / "spark_jobs.py"
ROUNDS_PER_PROCESS = 4
WORDS_PER_LINE = 10
VOCABULARY = 20_000
SYLLABLES = ("ka", "ve", "lo", "mi", "stra", "ten", "Re", "du")
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "product", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
CONNECTOR = f"the connector of Spark {spark40.VERSION}"


def run_source(options: Options) -> list[Row]:
    from kavka.testing import Broker

    with Broker() as broker:
        fill(broker.bootstrap_servers, "read", options.records)
        rows: list[Row] = []
        for tasks in ("1", "2"):
            pairs = [
                _pair("source", broker.bootstrap_servers, ["read", str(options.records), tasks])
                for _ in range(options.pairs)
            ]
            rows.append(ClientRow(f"source: 1000 B to nowhere, {tasks} task(s)", "records/s", pairs, "≥ 1.0 ×", 1.0))
        return rows


def run_avro(options: Options) -> list[Row]:
    from kavka.testing import Broker

    text = json.dumps(ORDER)
    with Broker() as broker, _registry(text) as url:
        fill_avro(broker.bootstrap_servers, "orders", options.records)
        rows: list[Row] = []
        for tasks in ("1", "2"):
            arguments = ["orders", str(options.records), tasks, url, text]
            pairs = [
                _pair("avro", broker.bootstrap_servers, arguments, jars=spark40.avro()) for _ in range(options.pairs)
            ]
            rows.append(ClientRow(f"Avro to eight columns, {tasks} task(s)", "records/s", pairs, "≥ 1.0 ×", 1.0))
        return rows


@contextmanager
def _registry(text: str) -> Iterator[str]:
    """Serve the schema as the only version of every subject, with the id 1."""
    body = json.dumps({"subject": "orders-value", "version": 1, "id": 1, "schema": text}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fill_avro(servers: str, topic: str, count: int) -> None:
    """Send orders with Confluent's framing."""
    from fastavro import parse_schema, schemaless_writer

    from kavka import Producer

    schema = parse_schema(ORDER)
    with Producer(bootstrap_servers=servers, linger_ms=50, batch_size=200_000) as producer:
        for number in range(count):
            data = io.BytesIO(b"\0\0\0\0\1")
            data.seek(5)
            order = {
                "id": number, "customer": f"customer-{number % 1000}", "product": f"product-{number % 77}",
                "quantity": number % 9, "price": number % 997 / 4, "paid": number % 3 == 0,
                "placed_at": 1_700_000_000_000 + number, "note": None if number % 2 else "gift",
            }  # fmt: skip
            schemaless_writer(data, schema, order)
            producer.send(topic, data.getvalue())


def run_sink(options: Options) -> list[Row]:
    from kavka.testing import Broker

    rows: list[Row] = []
    for name, exactly_once, bar in (("at least once", "false", 0.7), ("exactly once", "true", 0.5)):
        pairs = []
        for index in range(options.pairs):
            with Broker() as broker:
                arguments = [f"out{index}", str(options.records), exactly_once]
                pairs.append(_pair("sink", broker.bootstrap_servers, arguments))
        rows.append(ClientRow(f"sink: 1000 B, one task, {name}", "records/s", pairs, f"≥ {bar} ×", bar))
    return rows


def run_latency(options: Options) -> list[Row]:
    from kavka.testing import Broker

    pairs: list[tuple[float, float]] = []
    with Broker() as broker:
        for index in range(options.pairs):
            topics = [f"in{index}", f"out{index}"]
            with _trickle(broker.bootstrap_servers, topics[0]):
                pairs.append(_pair("latency", broker.bootstrap_servers, topics, rounds=100))
    return [ClientRow("micro-batch, topic to topic, p50", "ms", pairs, "≤ 1.5 ×", at_most=1.5)]


def run_word_count(options: Options) -> list[Row]:
    """Count words in lines of ten words. `options.records` is the number of words."""
    from kavka import Admin, NewTopic
    from kavka.testing import Broker

    lines = max(1, options.records // WORDS_PER_LINE)
    pairs: list[tuple[float, float]] = []
    with Broker() as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic("lines", 4)])
        fill_lines(servers, "lines", lines)
        for index in range(options.pairs):
            rates = {}
            for implementation in ("streams", "by-hand") if index % 2 == 0 else ("by-hand", "streams"):
                arguments = ["lines", str(lines), implementation]
                rates[implementation] = _measure(
                    [sys.executable], "kavka", "", "word_count", servers, arguments, ROUNDS_PER_PROCESS
                )
                print(
                    f"  word count, {lines:,} lines, {implementation}: {rates[implementation]:,.0f} lines/s", flush=True
                )
            pairs.append((rates["streams"], rates["by-hand"]))
    return [ClientRow("word count: streams compared with PySpark", "lines/s", pairs, "≥ 0.9 ×", 0.9)]


def fill_lines(servers: str, topic: str, count: int) -> None:
    """Send lines of ten words with the word frequencies of a text."""
    from kavka import Producer

    generator = random.Random(8)
    words = [f"{generator.choice(SYLLABLES)}{generator.choice(SYLLABLES)}{number}" for number in range(VOCABULARY)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))
    with Producer(bootstrap_servers=servers, linger_ms=50, batch_size=200_000) as producer:
        for _ in range(count):
            line = " ".join(generator.choices(words, cum_weights=weights, k=WORDS_PER_LINE))
            producer.send(topic, line.encode())


def fill(servers: str, topic: str, count: int) -> None:
    from kavka import Producer

    value = os.urandom(500).hex().encode()
    with Producer(bootstrap_servers=servers, batch_max_bytes=0, linger_ms=50) as producer:
        for _ in range(count):
            producer.send(topic, value)


@contextmanager
def _trickle(servers: str, topic: str) -> Iterator[None]:
    """Send a record every 5 ms inside the block."""
    from kavka import Producer

    stop = threading.Event()

    def work() -> None:
        with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
            while not stop.wait(0.005):
                producer.send(topic, b"a line of text")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _pair(
    job: str, servers: str, arguments: list[str], rounds: int = ROUNDS_PER_PROCESS, jars: Sequence[str] = ()
) -> tuple[float, float]:
    kavka = _measure([sys.executable], "kavka", "", job, servers, arguments, rounds)
    peer_arguments = [*arguments[:-1], "false"] if job == "sink" else arguments
    peer = _measure(
        [str(spark40.python())], "kafka", ",".join([*spark40.connector(), *jars]), job, servers, peer_arguments, rounds
    )
    print(f"  {job} {' '.join(arguments[:3])}: Kavka {kavka:,.0f}, {CONNECTOR} {peer:,.0f}", flush=True)
    return kavka, peer


def _measure(
    interpreter: list[str], form: str, jars: str, job: str, servers: str, arguments: list[str], rounds: int
) -> float:
    """Run a job in a Spark process. Return the median of its rounds, without the first."""
    removed_variables = ("PYSPARK_PYTHON", "SPARK_HOME", *(() if form == "kavka" else ("PYTHONPATH",)))
    env = {name: value for name, value in os.environ.items() if name not in removed_variables}
    argv = [*interpreter, str(JOBS), job, form, jars, servers, str(rounds), *arguments]
    process = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(argv)} failed: {process.stderr[-3000:]}")
    figures = sorted(json.loads(lines[0][7:])[1:])
    return float(figures[len(figures) // 2])
