"""The console on a broker with 10,000 topics and 1,000 groups: the 95th percentile of the load time
of each page, while the console takes samples of the cluster."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench.console import PAGES, Pages, load_times
from bench.measure import Options, Row
from bench.sides import Side
from kavka import Admin, NewTopic, TopicPartition
from tests.support.console import ConsoleProcess
from tests.support.processes import wait_until

TOPICS, GROUPS = 10_000, 1_000
TOPICS_PER_REQUEST = 500
TOPICS_PER_GROUP = 5
LOADS = 40


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    values = {name: _measure(side) for name, side in sides.items()}
    pairs = {what: [(values["kavka"][what], values["apache"][what])] for what in values["kavka"]}
    return [
        Pages("slowest page of the console at p95, 10,000 topics and 1,000 groups", "ms", pairs["slowest"]),
        Row("memory of the console", "MiB", pairs["memory"]),
    ]


def _measure(side: Side) -> dict[str, float]:
    broker = _fill(side)
    with (
        tempfile.TemporaryDirectory(prefix="kavka-bench-console-") as folder,
        ConsoleProcess(Path(folder), side.bootstrap) as console,
    ):
        wait_until(lambda: console.responds("/api/clusters/default/overview"), timeout=120, what="the console")
        slowest = 0.0
        for page in PAGES:
            path = "/c/default/" + page.format(broker=broker)
            times = load_times(console, path, LOADS, pause_s=0.1)
            p95 = statistics.quantiles(times, n=20)[-1]
            slowest = max(slowest, p95)
            print(f"  {side.title}: {page}: {statistics.median(times):.0f} ms, p95 {p95:.0f} ms", flush=True)
        memory = console.process.rss_bytes() / (1 << 20)
        print(f"  {side.title}: {memory:.0f} MiB", flush=True)
        return {"slowest": slowest, "memory": memory}


def _fill(side: Side) -> int:
    """Create the topics and groups. Returns the id of the broker."""
    with Admin(bootstrap_servers=side.bootstrap, default_api_timeout_ms=600_000, request_timeout_ms=300_000) as admin:
        for first in range(0, TOPICS, TOPICS_PER_REQUEST):
            names = [f"topic-{index}" for index in range(first, first + TOPICS_PER_REQUEST)]
            admin.create_topics([NewTopic(name, 1, 1) for name in names])
        for index in range(GROUPS):
            topics = [f"topic-{index * TOPICS_PER_GROUP + number}" for number in range(TOPICS_PER_GROUP)]
            admin.alter_consumer_group_offsets(f"group-{index}", {TopicPartition(topic, 0): 0 for topic in topics})
        return admin.describe_cluster().nodes[0].id
