"""The source of a query with stateful tasks, as a data source of Spark.

It routes records to their tasks where they are read: it is `format("kavka")` and then
`routing_step`, in one Python process. Spark gets the packed rows for the tasks instead of the
records, which would pass the JVM twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from kavka.common.types import TopicPartition
from kavka.jobs import INITIAL
from kavka.pipeline.spark.errors import PipelineError, concise_errors
from kavka.pipeline.spark.offsets import Offsets, limit_by_time
from kavka.pipeline.spark.options import SourceOptions, source_options
from kavka.pipeline.spark.source import KavkaDataSource, KavkaStreamReader
from kavka.pipeline.streams.routing import PACKED, now_ms, routing_step, tick_batch
from kavka.pipeline.streams.sources import partitions_changed
from kavka.pipeline.streams.ticks import TICK, Ticks
from kavka.pipeline.streams.workers import Job


class Tick(InputPartition):
    """Has no records, but a row for every task (`ticks.py`)."""

    def __init__(self, time: int) -> None:
        self.time = time


class RoutedReader(KavkaStreamReader):
    def __init__(self, options: SourceOptions, job: Job) -> None:
        super().__init__(options)
        self._job = job
        has_tasks = not set(options.topics) <= self._global_topics()
        self._ticks = None if job.due_path is None or not has_tasks else Ticks(job.due_path)

    def __reduce__(self) -> tuple[Any, ...]:
        return RoutedReader, (self._options, self._job)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._ticks is None:
            return super().latestOffset(start, limit)
        last = int(start.get(TICK, 0))
        offsets = {name: value for name, value in start.items() if name != TICK}
        end = super().latestOffset(offsets, limit)
        tick = self._ticks.next(last, now_ms(), is_ending=self._target is not None)
        if end == offsets:
            if tick is None:
                return start
            # It is the begin of the previous batch.
            end.pop(INITIAL, None)
        return {**end, TICK: tick or last}

    def limited(self, begin: Offsets, end: Offsets, max_records: int) -> Offsets:
        """With several topics, older records come first, as in Kafka: a stream record is joined
        with the table as it was at its time, however large the backlog."""
        if len({tp.topic for tp in end}) == 1:
            return super().limited(begin, end, max_records)
        return limit_by_time(begin, end, max_records, self.cluster.of_times)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = super().partitions(start, end)
        tick = int(end.get(TICK, 0))
        return [*ranges, Tick(tick)] if tick > int(start.get(TICK, 0)) else ranges

    def _with_new_partitions(self, begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Global tables read new partitions. Tasks cannot, because keys have moved."""
        topics = {tp.topic for tp in begin} - self._global_topics()
        grown = min((tp for tp in end if tp not in begin and tp.topic in topics), default=None)
        if grown is not None:
            before, now = (sum(tp.topic == grown.topic for tp in tps) for tps in (begin, end))
            raise PipelineError(partitions_changed(grown.topic, before, now, self._job.settings))
        return super()._with_new_partitions(begin, end)

    def _global_topics(self) -> set[str]:
        return {topic for sub in self._job.plan.globals for topic in sub.topics}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Tick):
            return iter([tick_batch(self._job, partition.time)])
        return routing_step(self._job)(super().read(partition))


def routed_source(job: Job) -> type[DataSource]:
    """A data source for this job, named by its run. Spark pickles the job with it."""

    class Routed(KavkaDataSource):
        @classmethod
        def name(cls) -> str:
            return f"kavka-{job.run}"

        def schema(self) -> Any:
            return PACKED

        def streamReader(self, schema: Any) -> RoutedReader:
            with concise_errors():
                return RoutedReader(source_options(self.options, streaming=True), job)

    return Routed
