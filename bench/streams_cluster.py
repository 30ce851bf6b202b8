"""Streams on a standalone Spark cluster of two executors with one core each and its state on S3,
compared with `local[2]` and a local disk.

    python -m bench --only streams-cluster --records 1000000 [--pairs 3]

Brokers, object store, driver and executors run on this machine. The rows are the rate, the share of
the busiest executor in the bytes that tasks read and wrote, and the share of the driver's Python
processes in the CPU time of the driver and the executors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.measure import Options, Row
from bench.python_clients import ClientRow
from bench.spark import WORDS_PER_LINE, fill_lines
from tests.support.s3 import S3, client_jars
from tests.support.spark_standalone import Standalone

JOB = Path(__file__).parent / "streams_cluster_job.py"
KEYS = 1_000_000
PARTITIONS = 8


def run(options: Options) -> list[Row]:
    from kavka import Admin, NewTopic
    from kavka.pipeline.spark.packing import pack
    from kavka.testing import Broker

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="kavka-bench-cluster-") as name, Broker() as broker:
        folder = Path(name)
        pack(folder / "environment.tar.gz")
        lines = max(1, options.records // WORDS_PER_LINE)
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic("lines", PARTITIONS), NewTopic("keys", PARTITIONS)])
        fill_lines(servers, "lines", lines)
        fill_keys(servers, "keys", options.records)
        with S3(folder / "s3") as s3, Standalone(folder / "spark", 2, is_isolated=True, memory="3g") as cluster:
            for job, topic, count in (("words", "lines", lines), ("keys", "keys", options.records)):
                pairs = []
                for number in range(options.pairs):
                    prefix = [job, servers, topic, str(count), f"{job}-{number}"]
                    on_cluster = _measure([*prefix, json.dumps(_cluster_settings(folder, s3, cluster))])
                    local = {"state.dir": str(folder / "state"), "spark.master": "local[2]"}
                    pairs.append((on_cluster, _measure([*prefix, json.dumps(local)])))
                    print(f"  {job} on the cluster: {on_cluster}; local: {pairs[-1][1]}", flush=True)
                rows += _rows(job, pairs)
    return rows


def _rows(job: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Row]:
    what = {"words": "word count", "keys": f"aggregate by key, {KEYS:,} keys"}[job]
    rates = [(on_cluster["rate"], local["rate"]) for on_cluster, local in pairs]
    shares = [(on_cluster["busiest"], 0.5) for on_cluster, _ in pairs]
    driver = [(on_cluster["driver"], 0.05) for on_cluster, _ in pairs]
    return [
        ClientRow(f"{what}: two executors and S3, beside local[2]", "records/s", rates, "≥ 0.8 ×", 0.8),
        ClientRow(f"{what}: share of the busiest executor, beside a half", "", shares, "≤ 1.2 ×", at_most=1.2),
        ClientRow(f"{what}: CPU of the driver's Python, beside 5 %", "", driver, "≤ 1.0 ×", at_most=1.0),
    ]


def _cluster_settings(folder: Path, s3: S3, cluster: Standalone) -> dict[str, str]:
    return {
        **s3.settings(),
        "state.dir": f"{s3.root}/state",
        "spark.master": cluster.master,
        "spark.archives": str(folder / "environment.tar.gz"),
        "spark.jars": client_jars(),
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "workers": ",".join(str(worker.pid) for worker in cluster.workers),
    }


def fill_keys(servers: str, topic: str, count: int) -> None:
    """Send records with KEYS distinct keys."""
    from kavka import Producer

    with Producer(bootstrap_servers=servers, linger_ms=50, batch_size=200_000) as producer:
        for number in range(count):
            producer.send(topic, b"1", key=f"key-{number * 7919 % KEYS:015}".encode())


def _measure(arguments: list[str]) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")}
    process = subprocess.run(
        [sys.executable, str(JOB), *arguments], env=env, capture_output=True, text=True, check=False
    )
    results = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not results:
        raise RuntimeError(f"{JOB.name} failed: {process.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(results[0].removeprefix("RESULT "))
    return figures
