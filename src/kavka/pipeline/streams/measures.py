"""What an application can be asked about itself while it runs: `KafkaStreams.metrics()`.

Totals count from where it was when it was started, by what the checkpoint says is done. Rates and
latencies are those of the micro-batches that Spark remembers: a hundred, or
`spark.sql.streaming.numRecentProgressUpdates`. Kafka's names stand for what they mean in Kafka;
where nothing is known of something, its name is left out.
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

# What Spark calls the parts of a micro-batch.
_WHOLE, _WORK = "triggerExecution", "addBatch"
_COMMITS = ("walCommit", "commitOffsets")


class Measures:
    """Of one KafkaStreams. `begin` is called before its first query; `knows_beginning` until it
    says so."""

    def __init__(self, checkpoint: AnyPath) -> None:
        self._checkpoint = checkpoint
        self._batch = -1
        self._began: Mapping[TopicPartition, int] | None = None
        self.failures = 0

    def begin(self) -> None:
        batch = last_batch(self._checkpoint)
        self._batch = -1 if batch is None else batch
        self._began = None if batch is None else done(self._checkpoint)

    def knows_beginning(self) -> bool:
        """An application without state begins where its first batch says. Spark forgets that after
        a hundred others."""
        if self._began is None:
            self._began = _initial(self._checkpoint)
        return self._began is not None

    def totals(self) -> dict[str, float]:
        batch = last_batch(self._checkpoint)
        if batch is None or not self.knows_beginning():
            return {"commit-total": 0, "process-total": 0}
        began = self._began or {}
        records = sum(offset - began.get(tp, 0) for tp, offset in done(self._checkpoint).items())
        return {"commit-total": batch - self._batch, "process-total": records}


def _initial(checkpoint: AnyPath) -> dict[TopicPartition, int] | None:
    found: dict[TopicPartition, int] = {}
    try:
        for line in source_lines(checkpoint, 0):
            found |= from_checkpoint(json.loads(line).get(INITIAL, {}))
    except (FileNotFoundError, ValueError):
        return None
    return found


def of_batches(progress: Sequence[Any]) -> dict[str, float]:
    """Of what Spark remembers of a query, oldest first."""
    batches = [one for one in progress if _WORK in one.durationMs]
    if not batches:
        return {}
    records = [
        sum(sum(offsets_between(source.startOffset, source.endOffset).values()) for source in one.sources)
        for one in batches
    ]
    # Triggers without a batch are told, too: a stream that rests gets slower.
    seconds = max(0.001, _at(progress[-1]) + _spent(progress[-1], (_WHOLE,)) / 1000 - _at(batches[0]))
    return {
        "commit-rate": len(batches) / seconds,
        "process-rate": sum(records) / seconds,
        **_average_and_most("process-records", records),
        **_average_and_most("process-latency", [_spent(one, (_WORK,)) for one in batches]),
        **_average_and_most("commit-latency", [_spent(one, _COMMITS) for one in batches]),
        **_average_and_most("batch-latency", [_spent(one, (_WHOLE,)) for one in batches]),
    }


def of_the_last(progress: Sequence[Any]) -> dict[str, float]:
    """Lag and state, as the last progress has them."""
    if not progress:
        return {}
    last = progress[-1]
    lags: dict[tuple[str, int], int] = {}
    for source in last.sources:
        lags |= offsets_between(source.endOffset, source.latestOffset)
    told: dict[str, float] = {
        f"records-lag:{{partition={partition}, topic={topic}}}": lag for (topic, partition), lag in sorted(lags.items())
    }
    if lags:
        told["records-lag-max"] = max(lags.values())
    if last.stateOperators:
        told["state-rows"] = sum(one.numRowsTotal for one in last.stateOperators)
        told["state-memory-bytes"] = sum(one.memoryUsedBytes for one in last.stateOperators)
    return told


def _at(progress: Any) -> float:
    return datetime.fromisoformat(progress.timestamp).timestamp()


def _spent(progress: Any, parts: Iterable[str]) -> int:
    """Milliseconds."""
    return sum(progress.durationMs.get(part, 0) for part in parts)


def _average_and_most(name: str, numbers: Sequence[float]) -> dict[str, float]:
    return {f"{name}-avg": sum(numbers) / len(numbers), f"{name}-max": max(numbers)}
