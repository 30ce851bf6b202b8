"""The measures of tasks, and `GET /metrics` for Prometheus.

The gauges have the values since the start of a task on this worker. Batches of a Spark query are
measured from its progress reports, and a report that another one replaces within 0.2 s is skipped
except for its records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kavka.common.metrics import Registry
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.offsets import from_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kavka.pipeline.connect.herder import Herder

INPUT = "connect-input"
"""The name of Spark's observation of the records that a sink reads."""


@dataclass
class Measures:
    """The measures of one task. The thread of the task writes them, and scrapes read them, so
    `lag` is replaced and never modified."""

    records: int = 0
    bytes: int = 0
    """Keys and values of a sink, without headers."""
    failed: int = 0
    """Records that were dropped or sent to the dead-letter topic."""
    batches: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0
    lag: dict[TopicPartition, int] = field(default_factory=dict)
    """Records of a sink's topics after the last batch, as of its start."""

    def add_batch(self, seconds: float, records: int, size: int = 0) -> None:
        self.batches += 1
        self.records += records
        self.bytes += size
        self.seconds += seconds
        self.last_seconds = seconds

    def add_progress(self, progress: Any) -> None:
        """Adds a progress report of Spark."""
        observed = (progress.observedMetrics or {}).get(INPUT)
        counts = {} if observed is None else observed.asDict()
        records = progress.numInputRows if observed is None else counts.get("records") or 0
        duration_ms = (progress.durationMs or {}).get("triggerExecution", 0)
        self.add_batch(duration_ms / 1000, int(records), int(counts.get("bytes") or 0))
        if observed is not None:
            self.lag = _lag(progress.sources[0])


def observe_input(frame: DataFrame) -> DataFrame:
    """Returns the rows of the Spark source `kavka` with the observation INPUT."""
    from pyspark.sql import functions as F

    size = sum((F.coalesce(F.octet_length(name), F.lit(0)).cast("bigint") for name in ("key", "value")), F.lit(0))
    return frame.observe(INPUT, F.count(F.lit(1)).alias("records"), F.sum(size).alias("bytes"))


def _lag(source: Any) -> dict[TopicPartition, int]:
    end, latest = (json.loads(text or "null") or {} for text in (source.endOffset, source.latestOffset))
    positions = from_checkpoint(end)
    return {tp: max(0, last - positions.get(tp, last)) for tp, last in from_checkpoint(latest).items()}


def registry_of(herder: Herder) -> Registry:
    """Returns the metrics of the connectors that this worker runs."""
    registry = Registry()

    def gauge(name: str, help: str, value: Callable[[Measures], float]) -> None:
        def read() -> Iterable[tuple[tuple[str, ...], float]]:
            return [((task.name,), value(task.measures)) for task in herder.local_tasks()]

        registry.gauge(name, help, ("connector",), read)

    gauge("kavka_connect_records", "Records read by a sink or a streaming source.", lambda m: m.records)
    gauge("kavka_connect_bytes", "Bytes of the keys and values that a sink read.", lambda m: m.bytes)
    gauge("kavka_connect_failed_records", "Records that were dropped, or sent to the dead-letter topic.",
          lambda m: m.failed)  # fmt: skip
    gauge("kavka_connect_batches", "Batches that were written.", lambda m: m.batches)
    gauge("kavka_connect_batch_seconds", "Time of all batches.", lambda m: m.seconds)
    gauge("kavka_connect_last_batch_seconds", "Time of the last batch.", lambda m: m.last_seconds)
    registry.gauge(
        "kavka_connect_lag", "Records of a sink's topics after its last batch.", ("connector", "topic", "partition"),
        lambda: [((task.name, tp.topic, str(tp.partition)), records)
                 for task in herder.local_tasks() for tp, records in task.measures.lag.items()],
    )  # fmt: skip
    registry.gauge(
        "kavka_connect_tasks", "Tasks of the connectors of this worker, by state.", ("connector", "state"),
        lambda: _tasks_by_state(herder),
    )  # fmt: skip
    return registry


def _tasks_by_state(herder: Herder) -> list[tuple[tuple[str, str], float]]:
    counts: dict[tuple[str, str], float] = {}
    for task in herder.local_tasks():
        for status in herder.task_states(task.name):
            counts[task.name, status] = counts.get((task.name, status), 0) + 1
    return list(counts.items())
