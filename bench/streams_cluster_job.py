"""A job of bench.streams_cluster.

    python streams_cluster_job.py JOB SERVERS TOPIC COUNT APPLICATION SETTINGS

It runs the job on all records of the topic, after one run that warms up Spark, and prints RESULT
and a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder

TICKS = os.sysconf("SC_CLK_TCK")


def topology(job: str, topic: str, output: str) -> Any:
    builder = StreamsBuilder()
    records = builder.stream(topic)
    if job == "words":
        groups = records.flat_map_values(lambda line: line.lower().split(" ")).group_by(lambda key, word: word)
        counts = groups.count()
    else:
        counts = records.group_by_key().aggregate(lambda: "0", lambda key, value, total: str(int(total) + int(value)))
    serde = Serdes.Long() if job == "words" else Serdes.String()
    counts.to_stream().to(output, Produced.with_(Serdes.String(), serde))
    return builder.build()


def processes(roots: set[int]) -> dict[int, tuple[str, float]]:
    """By pid: (command, CPU seconds) of these processes and their descendants."""
    table: dict[int, tuple[int, str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(") ")
        except OSError:
            continue
        fields = rest.split()
        # With the time of children that have ended.
        table[int(entry.name)] = int(fields[1]), name, sum(map(int, fields[11:15])) / TICKS
    members = set(roots)
    while grown := {pid for pid, (parent, _, _) in table.items() if parent in members} - members:
        members |= grown
    return {pid: (table[pid][1], table[pid][2]) for pid in members if pid in table}


def cpu(roots: set[int]) -> tuple[float, float]:
    """(seconds of Python, seconds of all) of these processes and their descendants."""
    times = processes(roots).values()
    return sum(seconds for name, seconds in times if name.startswith("python")), sum(seconds for _, seconds in times)


def executor_bytes(spark: Any) -> dict[str, int]:
    """The bytes that the tasks of each executor read from and wrote to shuffles."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    summaries = [executors.apply(index) for index in range(executors.size())]
    return {
        summary.id(): summary.totalShuffleRead() + summary.totalShuffleWrite()
        for summary in summaries
        if summary.id() != "driver"
    }


def main(job: str, servers: str, topic: str, count: str, application: str, text: str) -> None:
    settings = json.loads(text)
    workers = {int(pid) for pid in settings.pop("workers", "").split(",") if pid}
    figures: dict[str, float] = {}
    spark: Any = None
    for number in range(2):
        name = f"{application}-{number}-{os.getpid()}"
        config = {"bootstrap.servers": servers, "application.id": name, "commit.interval.ms": 1000, **settings}
        streams = KafkaStreams(topology(job, topic, f"{name}-out"), config, spark)
        before = (0.0, 0.0) if spark is None else cpu({os.getpid()})
        before_workers = cpu(workers)[1]
        bytes_before = {} if spark is None else executor_bytes(spark)
        started = time.perf_counter()
        with streams:
            spark = spark or streams._session()
            streams.process_all_available()
            figures["rate"] = int(count) / (time.perf_counter() - started)
            driver, workers_after = cpu({os.getpid()}), cpu(workers)[1]
            work = {name: size - bytes_before.get(name, 0) for name, size in executor_bytes(spark).items()}
        total = driver[1] - before[1] + workers_after - before_workers
        figures["driver"] = (driver[0] - before[0]) / total if workers and total else 0.0
        figures["busiest"] = max(work.values(), default=0) / max(1, sum(work.values()))
    print("RESULT " + json.dumps(figures), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
