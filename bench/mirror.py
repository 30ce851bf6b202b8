"""The mirror between two Kavka brokers, compared with the Spark source alone.

    python -m bench --only mirror [--records 2000000] [--pairs 5]
    python -m bench.mirror takeover

Each pair is a separate Spark process. After a warm-up with a smaller topic, the source reads the
topic twice and discards the records; the higher rate counts. Then the mirror copies the topic, also
after a warm-up. The mirror's time is the sum of its batch durations. Finally a producer sends for a
while and stops; the lag is the time until its last record is mirrored.

The takeover: two processes share an exactly-once flow, and the process that runs it is killed.
The time is from the kill until a read_committed consumer receives a record that was sent after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from bench.measure import Options, Row
from bench.python_clients import ClientRow
from bench.spark import fill

CORES = 2
WARM_UP_RECORDS = 20_000
TRICKLE_DURATION_S = 5.0
MAX_LAG_S = 5.0
SESSION_TIMEOUT_S = 6.0
MAX_START_S = 5.0


class MirrorRow(ClientRow):
    """The values in `pairs` are those of the mirror and of the source alone."""


class LagRow(ClientRow):
    """The values in `pairs` are the lag in seconds and its limit."""


def run(options: Options) -> list[Row]:
    from kavka.testing import Broker

    rows: list[Row] = []
    lags: list[tuple[float, float]] = []
    for partitions in (1, 2):
        pairs = []
        for _ in range(options.pairs):
            with Broker(num_partitions=partitions) as source, Broker(num_partitions=partitions) as target:
                figures = _run_process(source.bootstrap_servers, target.bootstrap_servers, options.records, partitions)
            print(f"  mirror, {partitions} partition(s): {json.dumps(figures)}", flush=True)
            pairs.append((figures["mirror"], figures["source"]))
            lags.append((figures["lag"], MAX_LAG_S))
        what = f"mirror: 1000 B, {partitions} partition(s), compared with the source alone"
        rows.append(MirrorRow(what, "records/s", pairs, "≥ 0.5 ×", 0.5))
    what = f"mirror: last record acknowledged in the source to last record mirrored, compared with {MAX_LAG_S:g} s"
    rows.append(LagRow(what, "s", lags, "≤ 1.0 ×", at_most=1.0))
    limit = SESSION_TIMEOUT_S + MAX_START_S
    takeovers = [(takeover(), limit) for _ in range(options.pairs)]
    what = f"mirror: kill -9 of a flow's process to records mirrored by another, compared with {limit:g} s"
    rows.append(LagRow(what, "s", takeovers, "≤ 1.0 ×", at_most=1.0))
    return rows


TAKEOVER_FILE = """
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
A->B.enabled = true
topics = numbers
group.id = mirrors
session.timeout.ms = {session_timeout_ms}
exactly.once.source.support = enabled
state.dir = {folder}/state
"""


def takeover() -> float:
    """Return the seconds from the kill of the process that runs a flow until its records are
    mirrored again."""
    from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
    from kavka.testing import Broker

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kavka-bench-")))
        source, target = (stack.enter_context(Broker()).bootstrap_servers for _ in range(2))
        with Admin(bootstrap_servers=source) as admin:
            admin.create_topics([NewTopic("numbers", 1)])
        (folder / "mm2.properties").write_text(
            TAKEOVER_FILE.format(
                source=source, target=target, folder=folder, session_timeout_ms=int(SESSION_TIMEOUT_S * 1000)
            )
        )
        mirrors = [stack.enter_context(_Mirror(folder, port)) for port in (_free_port(), _free_port())]
        producer = stack.enter_context(Producer(bootstrap_servers=source, linger_ms=0))
        consumer = stack.enter_context(
            Consumer(bootstrap_servers=target, isolation_level="read_committed", auto_offset_reset="earliest")
        )
        producer.send("numbers", b"-1").get(60)
        _wait_until(lambda: sorted(mirror.state() for mirror in mirrors) == ["RUNNING", "UNASSIGNED"])
        consumer.assign([TopicPartition("A.numbers", 0)])
        _wait_until(lambda: bool(consumer.poll(0.2)))
        time.sleep(5.0)
        owner = next(mirror for mirror in mirrors if mirror.state() == "RUNNING")
        owner.process.kill()
        started = time.monotonic()
        producer.send("numbers", b"0").get(60)
        _wait_until(lambda: bool(consumer.poll(0.05)))
        return time.monotonic() - started


class _Mirror:
    """A process that shares the flow. Closing kills it with its Spark."""

    def __init__(self, folder: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/status"
        argv = [sys.executable, "-m", "kavka.cli.main", "connect-mirror-maker", str(folder / "mm2.properties")]
        argv += ["--master", f"local[{CORES}]", "--status", f"127.0.0.1:{port}"]
        environment = {
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m --conf spark.driver.host=127.0.0.1 pyspark-shell",
        }
        self.process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def state(self) -> str:
        try:
            with urllib.request.urlopen(self._url, timeout=5) as response:
                return next(str(flow["state"]) for flow in json.load(response) if flow["flow"] == "A->B")
        except OSError:
            return "no response"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The process has its own session, whose group its Spark belongs to.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _run_process(source: str, target: str, records: int, partitions: int) -> dict[str, float]:
    argv = [sys.executable, "-m", "bench.mirror", source, target, str(records), str(partitions)]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(argv)} failed: {process.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(lines[0][7:])
    return figures


# --- code that runs in a separate process


def measure(source: str, target: str, records: int, partitions: int) -> dict[str, float]:
    from kavka import Admin, NewTopic
    from kavka.pipeline.mirror.running import session
    from kavka.pipeline.spark import register

    spark = register(session(f"local[{CORES}]", {"spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}))
    with Admin(bootstrap_servers=source) as admin:
        for topic, count in (("warm", WARM_UP_RECORDS), ("large", records)):
            admin.create_topics([NewTopic(topic, partitions)])
            fill(source, topic, count)
    rates = [_source_rate(spark, source, topic, partitions, n) for topic, n in _rounds(records)]
    mirrored = [_mirror(spark, source, target, topic, n, partitions) for topic, n in _rounds(records)[:2]]
    spark.stop()
    return {"source": max(rates[1:]), **mirrored[-1]}


def _mirror(spark: Any, source: str, target: str, topic: str, count: int, partitions: int) -> dict[str, float]:
    """Return the records/s of the batches that had records, the number of these batches, and the
    lag."""
    from kavka.pipeline.mirror.running import Mirror
    from kavka.pipeline.mirror.settings import flows_of

    properties = {
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
    mirror = Mirror(flows_of(properties), spark)
    (flow,) = mirror.flows
    progress_by_batch: dict[int, Any] = {}
    mirror.start()
    try:
        _wait_until(lambda: _collect_progress(flow, progress_by_batch) and flow.status.records >= count)
        busy_batches = [p for p in progress_by_batch.values() if p["numInputRows"]]
        seconds = sum(p["durationMs"]["triggerExecution"] for p in busy_batches) / 1000
        lag = _lag(source, target, topic, partitions) if topic == "large" else 0.0
    finally:
        mirror.stop()
    return {"mirror": count / seconds, "batches": len(busy_batches), "lag": lag}


def _rounds(records: int) -> list[tuple[str, int]]:
    """Return the topic and the number of records of each run; the first run is the warm-up."""
    return [("warm", WARM_UP_RECORDS), ("large", records), ("large", records)]


def _source_rate(spark: Any, servers: str, topic: str, tasks: int, count: int) -> float:
    """Read the topic with the Spark source, discard the records, and return the records/s."""
    frame = (
        spark.read.format("kavka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("minPartitions", tasks)
        .load()
    )
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - started)


def _collect_progress(flow: Any, progress_by_batch: dict[int, Any]) -> bool:
    """Collect the progress of batches, since Spark keeps only the last hundred."""
    if flow._query is not None:
        progress_by_batch.update((p["batchId"], p) for p in flow._query.recentProgress)
    return True


def _sum_of_end_offsets(servers: str, topic: str, partitions: int) -> int:
    from kavka import Admin, TopicPartition
    from kavka.client.admin.types import OffsetSpec

    with Admin(bootstrap_servers=servers) as admin:
        offsets = admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)})
    return sum(result.offset for result in offsets.values())


def _lag(source: str, target: str, topic: str, partitions: int) -> float:
    """Return the seconds from the acknowledgement of the last record until it is in the target."""
    from kavka import Producer

    expected = _sum_of_end_offsets(target, f"A.{topic}", partitions)
    with Producer(bootstrap_servers=source, linger_ms=5) as producer:
        deadline = time.monotonic() + TRICKLE_DURATION_S
        while time.monotonic() < deadline:
            for _ in range(200):
                producer.send(topic, b"x" * 1000)
                expected += 1
            time.sleep(0.02)
    started = time.monotonic()
    _wait_until(lambda: _sum_of_end_offsets(target, f"A.{topic}", partitions) >= expected)
    return time.monotonic() - started


def _wait_until(condition: Callable[[], bool], timeout: float = 900.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the mirror did not copy all records within {timeout:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__" and sys.argv[1:] == ["takeover"]:
    print(f"takeover after kill -9: {takeover():.1f} s (session timeout {SESSION_TIMEOUT_S:g} s)")
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="kavka-bench-") as folder, contextlib.chdir(folder):
        os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
        arguments = sys.argv[1:]
        result = measure(arguments[0], arguments[1], int(arguments[2]), int(arguments[3]))
        print("RESULT " + json.dumps(result), flush=True)
