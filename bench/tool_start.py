"""The run time of `kafka-topics --list`: Kavka's tool and those of two Apache Kafka releases, on
the same broker."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.measure import Options, Row
from bench.sides import Side
from tests.support.java_client import tool_command

SCRIPT = Path(__file__).resolve().parents[1] / "bin" / "kafka-topics.sh"
# The default JVM options of Kafka's script.
TOOL_JVM = ("-Xmx256M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
TOOL_JVM += ("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true")
RUNS = 5
"""Runs per measured value; the value is their median. A single run is short and noisy."""


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    side = sides["kavka"]
    list_topics = ("--list", "--bootstrap-server", side.bootstrap)
    rows = []
    for version in ("3.9.1", "4.3.0"):
        apache = tool_command(version, "topics", *list_topics, jvm=TOOL_JVM)
        pairs = []
        for index in range(options.pairs):
            pairs.append((_seconds([str(SCRIPT), *list_topics]), _seconds(apache)))
            print(f"  kafka-topics --list, s, pair {index + 1}: {pairs[-1][0]:.2f} to {pairs[-1][1]:.2f}", flush=True)
        rows.append(
            Row(f"kafka-topics --list: Kavka's tool, the tool of {version}", "s", pairs, "≤ 0.4 ×", at_most=0.4)
        )
    return rows


def _seconds(argv: list[str]) -> float:
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return sorted(times)[RUNS // 2]
