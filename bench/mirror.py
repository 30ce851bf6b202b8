"""The mirror between two brokers of ours, beside our source alone reading the same records.

    python -m bench --only mirror [--records 2000000] [--pairs 5]

Each pair is a process of Spark's own with all that follows: the source reads the topic to nowhere, then the mirror
takes it, both warm from a smaller topic. The mirror's time is that of its batches by Spark's account. Then a producer
sends for a while and stops: the lag is how long the last of its records takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Options, Row
from bench.python_clients import ClientRow
from bench.spark import fill

CORES = 2
WARM_UP = 20_000
TRICKLE_S = 5.0


class MirrorRow(ClientRow):
    """`pairs` are (the mirror, the source alone)."""


class LagRow(ClientRow):
    """Seconds, beside the bar itself."""


def run(options: Options) -> list[Row]:
    from kavka.testing import Broker

    rows: list[Row] = []
    lags: list[tuple[float, float]] = []
    for partitions in (1, 2):
        pairs = []
        for _ in range(options.pairs):
            with Broker(num_partitions=partitions) as source, Broker(num_partitions=partitions) as target:
                found = _measured(source.bootstrap_servers, target.bootstrap_servers, options.records, partitions)
            print(f"  mirror, {partitions} partition(s): {json.dumps(found)}", flush=True)
            pairs.append((found["mirror"], found["source"]))
            lags.append((found["lag"], 5.0))
        what = f"mirror: 1000 B, {partitions} partition(s), beside the source alone"
        rows.append(MirrorRow(what, "records/s", pairs, "≥ 0.5 ×", 0.5))
    what = "mirror: the last record after the source went quiet, beside 5 s"
    rows.append(LagRow(what, "s", lags, "≤ 1.0 ×", at_most=1.0))
    return rows


def _measured(source: str, target: str, records: int, partitions: int) -> dict[str, float]:
    argv = [sys.executable, "-m", "bench.mirror", source, target, str(records), str(partitions)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(lines[0][7:])
    return found


# --- in a process of its own


def one(source: str, target: str, records: int, partitions: int) -> dict[str, float]:
    from kavka import Admin, NewTopic
    from kavka.pipeline.mirror.running import session
    from kavka.pipeline.spark import register

    spark = register(session(f"local[{CORES}]", {"spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}))
    with Admin(bootstrap_servers=source) as admin:
        for topic, count in (("warm", WARM_UP), ("large", records)):
            admin.create_topics([NewTopic(topic, partitions)])
            fill(source, topic, count)
    rates = [_source_alone(spark, source, topic, partitions, n) for topic, n in _rounds(records)]
    mirrored = [_mirror(spark, source, target, topic, n, partitions) for topic, n in _rounds(records)[:2]]
    spark.stop()
    return {"source": max(rates[1:]), **mirrored[-1]}


def _mirror(spark: Any, source: str, target: str, topic: str, count: int, partitions: int) -> dict[str, float]:
    """Records/s while there is something to do; then the lag."""
    from kavka.pipeline.mirror.running import Mirror
    from kavka.pipeline.mirror.settings import flows_of

    file = {
        "clusters": "A, B",
        "A.bootstrap.servers": source,
        "B.bootstrap.servers": target,
        "A->B.enabled": "true",
        "A->B.topics": topic,
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        "refresh.topics.interval.seconds": "5",
        "progress.group.id": f"mirror-{topic}",
    }
    mirror = Mirror(flows_of(file), spark)
    (flow,) = mirror.flows
    seen: dict[int, Any] = {}
    mirror.start()
    try:
        _until(lambda: _batches(flow, seen) and flow.status.records >= count)
        busy = [p for p in seen.values() if p["numInputRows"]]
        seconds = sum(p["durationMs"]["triggerExecution"] for p in busy) / 1000
        lag = _lag(source, target, topic, partitions) if topic == "large" else 0.0
    finally:
        mirror.stop()
    return {"mirror": count / seconds, "batches": len(busy), "lag": lag}


def _rounds(records: int) -> list[tuple[str, int]]:
    return [("warm", WARM_UP), ("large", records), ("large", records)]


def _source_alone(spark: Any, servers: str, topic: str, tasks: int, count: int) -> float:
    frame = (
        spark.read.format("kavka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("minPartitions", tasks)
        .load()
    )
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - began)


def _batches(flow: Any, seen: dict[int, Any]) -> bool:
    """Spark keeps the progress of the last hundred batches."""
    if flow._query is not None:
        seen.update((p["batchId"], p) for p in flow._query.recentProgress)
    return True


def _count(servers: str, topic: str, partitions: int) -> int:
    from kavka import Admin, TopicPartition
    from kavka.client.admin.types import OffsetSpec

    with Admin(bootstrap_servers=servers) as admin:
        found = admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)})
    return sum(one.offset for one in found.values())


def _lag(source: str, target: str, topic: str, partitions: int) -> float:
    """Seconds from the last record's acknowledgement in the source until it is in the target."""
    from kavka import Producer

    wanted = _count(target, f"A.{topic}", partitions)
    with Producer(bootstrap_servers=source, linger_ms=5) as producer:
        until = time.monotonic() + TRICKLE_S
        while time.monotonic() < until:
            for _ in range(200):
                producer.send(topic, b"x" * 1000)
                wanted += 1
            time.sleep(0.02)
    began = time.monotonic()
    _until(lambda: _count(target, f"A.{topic}", partitions) >= wanted)
    return time.monotonic() - began


def _until(condition: Callable[[], bool], timeout: float = 900.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the mirror does not get there")
        time.sleep(0.05)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="kavka-bench-") as folder, contextlib.chdir(folder):
        os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
        arguments = sys.argv[1:]
        print("RESULT " + json.dumps(one(arguments[0], arguments[1], int(arguments[2]), int(arguments[3]))), flush=True)
