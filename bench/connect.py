"""Connectors, compared with the same job in PySpark with Kavka's source and sink, or with Spark's
JDBC writer.

    python -m bench --only connect-file --only connect-parquet --only connect-jdbc [--pairs 5]
    python -m bench --only connect-tasks --records 1000000 [--pairs 5]

Both jobs of a pair run in the same Spark process, after a warm-up round. `connect-file` reads lines
of 500 bytes, `connect-parquet` records of 1000 bytes. The rows of `connect-jdbc` have a number, 100
bytes of text, a double and a timestamp.

`connect-tasks` compares the JDBC connectors with two tasks and with one, and the sink with
PostgreSQL's COPY of the same rows. The topic has two partitions. A proxy delays requests to the
database by 20 ms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import Options, Row
from bench.python_clients import ClientRow
from bench.spark import fill

DELAY_S = 0.02


def run_file(options: Options) -> list[Row]:
    from kavka.testing import Broker

    with Broker() as broker, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        line = os.urandom(249).hex() + "x\n"
        with path.open("w") as file:
            for start in range(0, options.records, 1000):
                file.write(line * min(1000, options.records - start))
        pairs = _pairs("file", options, broker.bootstrap_servers, str(path))
        what = f"file to topic, {options.records * 500 / 1e9:.1f} GB of lines"
        return [ClientRow(what, "records/s", pairs, "≥ 0.8 ×", 0.8)]


def run_parquet(options: Options) -> list[Row]:
    from kavka.testing import Broker

    with Broker() as broker:
        fill(broker.bootstrap_servers, "read", options.records)
        pairs = _pairs("parquet", options, broker.bootstrap_servers, "read")
        return [ClientRow("topic to parquet, 1000 B", "records/s", pairs, "≥ 0.9 ×", 0.9)]


def run_jdbc(options: Options) -> list[Row]:
    from tests.support.jars import class_path
    from tests.support.postgres import Postgres

    driver = class_path("postgresql-jdbc").split(":")[0]
    rows: list[Row] = []
    for mode, bar in (("insert", 0.9), ("upsert", 0.5)):
        with Postgres() as server:
            pairs = _pairs("jdbc", options, server.url, mode, server.user, server.password, driver)
            what = f"JDBC sink into PostgreSQL, {mode}"
            rows.append(ClientRow(what, "rows/s", pairs, f"≥ {bar} × Spark's append", bar))
    return rows


def run_tasks(options: Options) -> list[Row]:
    from kavka import Admin, NewTopic, Producer
    from kavka.testing import Broker
    from tests.support.jars import class_path
    from tests.support.postgres import Postgres
    from tests.support.proxy import Proxy

    driver = class_path("postgresql-jdbc").split(":")[0]
    with Broker() as broker, Postgres() as server, Proxy(("127.0.0.1", server.port), DELAY_S) as proxy:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic("rows", 2)])
        with Producer(bootstrap_servers=servers) as producer:
            for number in range(options.records):
                value = json.dumps({"id": number, "name": "x" * 100, "amount": number * 1.5})
                producer.send("rows", value=value, partition=number % 2)
        delayed = f"jdbc:postgresql://{proxy.address}/{server.database}"
        rows: list[Row] = []
        for job, what, url, bar in (
            ("tasks-sink", "JDBC sink, requests delayed by 20 ms, 2 tasks beside 1", delayed, 1.5),
            ("tasks-sink", "JDBC sink, 2 tasks beside 1", server.url, 1.0),
            ("tasks-source", "JDBC source, requests delayed by 20 ms, 2 tasks beside 1", delayed, 1.5),
            ("tasks-copy", "JDBC sink with 2 tasks beside COPY", server.url, 0.5),
        ):
            pairs = _pairs(job, options, servers, url, server.user, server.password, driver)
            rows.append(ClientRow(what, "rows/s", pairs, f"≥ {bar} ×", bar))
        return rows


def _pairs(job: str, options: Options, *arguments: str) -> list[tuple[float, float]]:
    """Run a job of bench.connect_jobs. Return the rates of the connector and of the other side."""
    argv = [sys.executable, "-m", "bench.connect_jobs", job, str(options.records), str(options.pairs), *arguments]
    env = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")}
    process = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(argv)} failed: {process.stderr[-3000:]}")
    pairs = [(connector, by_hand) for connector, by_hand in json.loads(lines[0][7:])]
    mode = arguments[1] if job == "jdbc" else ""
    for connector, by_hand in pairs:
        print(f"  {job} {mode}: connector {connector:,.0f}, other {by_hand:,.0f}", flush=True)
    return pairs
