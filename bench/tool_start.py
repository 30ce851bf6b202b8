"""From the start of `kafka-topics --list` to its end, our tool beside Apache's of both versions, on the same broker."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.measure import Options, Row
from bench.sides import Side
from tests.support.java_client import tool_command

SCRIPT = Path(__file__).resolve().parents[1] / "bin" / "kafka-topics.sh"
# What Kafka's own script gives a tool when nothing is set.
TOOL_JVM = ("-Xmx256M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
TOOL_JVM += ("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true")
RUNS = 5
"""In a row, the middle one counts: a single run is short beside what else a machine does."""


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    side = sides["kavka"]
    list_topics = ("--list", "--bootstrap-server", side.bootstrap)
    rows = []
    for version in ("3.9.1", "4.3.0"):
        theirs = tool_command(version, "topics", *list_topics, jvm=TOOL_JVM)
        pairs = []
        for index in range(options.pairs):
            pairs.append((_seconds([str(SCRIPT), *list_topics]), _seconds(theirs)))
            print(f"  kafka-topics --list, s, pair {index + 1}: {pairs[-1][0]:.2f} to {pairs[-1][1]:.2f}", flush=True)
        rows.append(Row(f"kafka-topics --list: our tool, that of {version}", "s", pairs, "≤ 0.4 ×", at_most=0.4))
    return rows


def _seconds(argv: list[str]) -> float:
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        took.append(time.perf_counter() - began)
    return sorted(took)[RUNS // 2]
