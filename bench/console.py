"""The console on a broker with 2,000 partitions and 200 groups: the load time of warm pages, the
memory, and the CPU time of the broker while no page is open."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Options, OwnShare, Row
from bench.sides import Side
from kavka import Admin, NewTopic, Producer, TopicPartition
from tests.support.console import ConsoleProcess
from tests.support.processes import wait_until

TOPICS, PARTITIONS, GROUPS = 200, 10, 200
LOADS = 15
QUIET_S = 15.0
"""Time after the last request until the console is idle."""
IDLE_S = 90.0
PAGES = (
    "overview",
    "brokers",
    "brokers/{broker}",
    "topics",
    "topics?sort=-messages",
    "topics/topic-7",
    "topics/topic-7/settings",
    "topics/topic-7/move",
    "messages?topic=topic-7",
    "groups",
    "groups/one?group=group-7",
    "transactions",
    "pipelines",
    "alerts",
    "audit",
)


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    values = {name: _measure(side) for name, side in sides.items()}
    pairs = {what: [(values["kavka"][what], values["apache"][what])] for what in values["kavka"]}
    return [
        Pages("slowest page of the console, 2,000 partitions and 200 groups, warm", "ms", pairs["slowest"]),
        Memory("memory of the console", "MiB", pairs["memory"]),
        Idle("broker CPU time for an idle console, share of a core", "%", pairs["idle"]),
        Row("CPU time of the idle console, share of a core", "%", pairs["console_cpu"]),
    ]


class Bar(OwnShare):
    """A row whose bar applies to the value of Kavka, not to the ratio."""

    MAX_VALUE = 0.0
    BAR_TEXT = ""

    def __init__(self, what: str, unit: str, pairs: list[tuple[float, float]]) -> None:
        super().__init__(what, unit, pairs, self.BAR_TEXT, at_most=self.MAX_VALUE)


class Pages(Bar):
    MAX_VALUE, BAR_TEXT = 300.0, "< 300 ms"


class Memory(Bar):
    MAX_VALUE, BAR_TEXT = 150.0, "< 150 MiB"


class Idle(Bar):
    MAX_VALUE, BAR_TEXT = 2.0, "< 2 %"


def _measure(side: Side) -> dict[str, float]:
    broker = _fill(side)
    time.sleep(QUIET_S)
    baseline = _share(side.cpu_seconds, IDLE_S / 2)
    with (
        tempfile.TemporaryDirectory(prefix="kavka-bench-console-") as folder,
        ConsoleProcess(Path(folder), side.bootstrap) as console,
    ):
        wait_until(lambda: console.responds("/api/clusters/default/overview"), timeout=120, what="the console")
        slowest = 0.0
        for page in PAGES:
            path = "/c/default/" + page.format(broker=broker)
            times = load_times(console, path, LOADS, pause_s=0.2)
            median = statistics.median(times)
            slowest = max(slowest, median)
            print(f"  {side.title}: {page}: {median:.0f} ms, at most {max(times):.0f} ms", flush=True)
        memory = console.process.rss_bytes() / (1 << 20)
        time.sleep(QUIET_S)
        start_cpu = console.process.cpu_seconds()
        idle = _share(side.cpu_seconds, IDLE_S)
        console_cpu = (console.process.cpu_seconds() - start_cpu) / IDLE_S * 100
        print(f"  {side.title}: {memory:.0f} MiB, broker {idle:.2f} % of a core, {baseline:.2f} % without", flush=True)
        return {"slowest": slowest, "memory": memory, "idle": max(0.0, idle - baseline), "console_cpu": console_cpu}


def load_times(console: ConsoleProcess, path: str, loads: int, *, pause_s: float) -> list[float]:
    """Load a page several times. Returns the milliseconds of each load."""
    times = []
    for _ in range(loads):
        started = time.perf_counter()
        response = console.get(path, Accept="text/html")
        times.append((time.perf_counter() - started) * 1000)
        if response.status != 200:
            raise RuntimeError(f"Cannot load {path}: status {response.status}")
        time.sleep(pause_s)
    return times


def _share(cpu_seconds: Callable[[], float], seconds: float) -> float:
    """Return the CPU time during the next `seconds`, as a percentage of a core."""
    start_cpu = cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - start_cpu) / seconds * 100


def _fill(side: Side) -> int:
    """Create topics with some records, and groups. Return the broker's id."""
    names = [f"topic-{index}" for index in range(TOPICS)]
    with Admin(bootstrap_servers=side.bootstrap, default_api_timeout_ms=300_000, request_timeout_ms=120_000) as admin:
        for first in range(0, TOPICS, 20):
            admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names[first : first + 20]])
        with Producer(bootstrap_servers=side.bootstrap) as producer:
            for name in names:
                for index in range(100):
                    producer.send(name, b"x" * 100, partition=index % PARTITIONS)
            producer.flush()
        for index in range(GROUPS):
            offsets = {TopicPartition(f"topic-{index % TOPICS}", p): 5 for p in range(PARTITIONS)}
            admin.alter_consumer_group_offsets(f"group-{index}", offsets)
        return admin.describe_cluster().nodes[0].id
