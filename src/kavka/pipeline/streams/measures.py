"""The metrics of a running application (`KafkaStreams.metrics()`).

Totals count from the start of the application, by the completed offsets of the checkpoint. Rates
and latencies are those of the micro-batches that Spark remembers: a hundred, or
`spark.sql.streaming.numRecentProgressUpdates`. Names have Kafka's meaning. A metric without a value
is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kavka.common.types import TopicPartition
from kavka.jobs import INITIAL, offsets_between
from kavka.pipeline.spark.files import AnyPath
from kavka.pipeline.spark.offsets import from_checkpoint
from kavka.pipeline.streams.progress import done, last_batch, source_lines

# Spark's names for the parts of a micro-batch.
_WHOLE, _WORK = "triggerExecution", "addBatch"
_COMMITS = ("walCommit", "commitOffsets")


class Totals:
    """Of one KafkaStreams. `begin` is called before its first query, then `has_begin` until it
    returns True."""

    def __init__(self, checkpoint: AnyPath) -> None:
        self._checkpoint = checkpoint
        self._batch = -1
        self._begin: Mapping[TopicPartition, int] | None = None
        self.failures = 0

    def begin(self) -> None:
        batch = last_batch(self._checkpoint)
        self._batch = -1 if batch is None else batch
        self._begin = None if batch is None else done(self._checkpoint)

    def has_begin(self) -> bool:
        """Whether the first offsets are known. Those of an application without state are in its
        first batch, which Spark deletes after a hundred others."""
        if self._begin is None:
            self._begin = _initial(self._checkpoint)
        return self._begin is not None

    def metrics(self) -> dict[str, float]:
        batch = last_batch(self._checkpoint)
        if batch is None or not self.has_begin():
            return {"commit-total": 0, "process-total": 0}
        begin = self._begin or {}
        records = sum(offset - begin.get(tp, 0) for tp, offset in done(self._checkpoint).items())
        return {"commit-total": batch - self._batch, "process-total": records}


def _initial(checkpoint: AnyPath) -> dict[TopicPartition, int] | None:
    offsets: dict[TopicPartition, int] = {}
    try:
        for line in source_lines(checkpoint, 0):
            offsets |= from_checkpoint(json.loads(line).get(INITIAL, {}))
    except (FileNotFoundError, ValueError):
        return None
    return offsets


def of_batches(progress: Sequence[Any]) -> dict[str, float]:
    """The metrics of the micro-batches of a query, oldest first."""
    batches = [each for each in progress if _WORK in each.durationMs]
    if not batches:
        return {}
    records = [
        sum(sum(offsets_between(source.startOffset, source.endOffset).values()) for source in batch.sources)
        for batch in batches
    ]
    # Progress without a batch counts as well: the rates of an idle stream decrease.
    seconds = max(0.001, _time(progress[-1]) + _spent(progress[-1], (_WHOLE,)) / 1000 - _time(batches[0]))
    return {
        "commit-rate": len(batches) / seconds,
        "process-rate": sum(records) / seconds,
        **_average_and_max("process-records", records),
        **_average_and_max("process-latency", [_spent(batch, (_WORK,)) for batch in batches]),
        **_average_and_max("commit-latency", [_spent(batch, _COMMITS) for batch in batches]),
        **_average_and_max("batch-latency", [_spent(batch, (_WHOLE,)) for batch in batches]),
    }


def of_the_last(progress: Sequence[Any]) -> dict[str, float]:
    """Lag and state of the last progress."""
    if not progress:
        return {}
    last = progress[-1]
    lags: dict[tuple[str, int], int] = {}
    for source in last.sources:
        lags |= offsets_between(source.endOffset, source.latestOffset)
    metrics: dict[str, float] = {
        f"records-lag:{{partition={partition}, topic={topic}}}": lag for (topic, partition), lag in sorted(lags.items())
    }
    if lags:
        metrics["records-lag-max"] = max(lags.values())
    if last.stateOperators:
        metrics["state-rows"] = sum(operator.numRowsTotal for operator in last.stateOperators)
        metrics["state-memory-bytes"] = sum(operator.memoryUsedBytes for operator in last.stateOperators)
    return metrics


def _time(progress: Any) -> float:
    return datetime.fromisoformat(progress.timestamp).timestamp()


def _spent(progress: Any, parts: Iterable[str]) -> int:
    """Milliseconds."""
    return sum(progress.durationMs.get(part, 0) for part in parts)


def _average_and_max(name: str, numbers: Sequence[float]) -> dict[str, float]:
    return {f"{name}-avg": sum(numbers) / len(numbers), f"{name}-max": max(numbers)}
