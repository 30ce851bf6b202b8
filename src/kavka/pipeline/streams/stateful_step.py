"""Spark's stateful step. The process in which Spark plans its state loads this module, and neither
the job nor the modules that run it."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from pyspark.sql import Row

    from kavka.pipeline.streams.workers import Job

# A row of results, or a report of the task (`task_reports.py`).
RESULT = "data binary, report string"
# The key and the value of the log's map state.
SEGMENT = "number bigint", "changes binary"


class TaskProcessor(StatefulProcessor):
    def __init__(self, job: Job) -> None:
        self._job = pickle.dumps(job)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", "data binary")
        self._log = handle.getMapState("log", *SEGMENT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        from kavka.pipeline.streams.batches import without_collector
        from kavka.pipeline.streams.workers import MicroBatch

        micro_batch = MicroBatch(pickle.loads(self._job), self._meta, self._log)
        with without_collector():
            yield from micro_batch.run(key[0], [marshal.loads(row.data) for row in rows])

    def close(self) -> None:
        """Has no effect: the process keeps its tasks for the next micro-batch."""
