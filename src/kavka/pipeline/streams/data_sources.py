"""The source and the sink of a query with stateful tasks, as Spark's data sources.

The source routes records to their tasks where they are read. It is `format("kavka")` and then
`routing_step`, in one Python process. Spark gets the packed rows for the tasks instead of the
records, which would pass the JVM twice.

The sink unpacks the results of tasks, for the same reason. It calls the application's production
exception handler, unless that is the default, for each record that it could not write. With
transactions it does not: a record that fails aborts the transaction, so the micro-batch is repeated
if the error is retriable, and otherwise the application ends. Records that cannot be serialized or
are too large do not reach the sink (`engine.Sink`), and are handled with transactions as well.
RETRY ends the query with RetryProductionException. The application starts it again from the last
completed micro-batch, as Kafka does with a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit

from kavka.client.producer.record import ProducerRecord
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.jobs import INITIAL
from kavka.pipeline.spark.errors import PipelineError, concise_errors
from kavka.pipeline.spark.offsets import Offsets, limit_by_time
from kavka.pipeline.spark.options import SourceOptions, source_options
from kavka.pipeline.spark.sink import KavkaStreamWriter
from kavka.pipeline.spark.source import KavkaDataSource, KavkaStreamReader
from kavka.pipeline.streams.error_handlers import CONTINUE, RETRY, ErrorHandler, ErrorHandlerContext, is_retriable
from kavka.pipeline.streams.errors import RetryProductionException
from kavka.pipeline.streams.routing import OUT_ARROW, PACKED, now_ms, routing_step, tick_batch, unpacked
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


class ProductionErrors:
    """Calls the handler for records that the sink could not write. The source record is unknown, so
    the context is empty."""

    def __init__(self, handler: ErrorHandler) -> None:
        self._handler = handler
        self.is_per_record = not handler.fails

    def failed(self, record: ProducerRecord[bytes, bytes], error: KafkaError) -> Sequence[ProducerRecord[bytes, bytes]]:
        response = self._handler(ErrorHandlerContext(None, None), record, error)
        if response.result == CONTINUE:
            return response.dead_letter_queue_records
        if response.result == RETRY:
            raise RetryProductionException(f"a record to {record.topic} was not written: {error}")
        raise PipelineError(f"a record to {record.topic} was not written: {error}")

    def end(self, error: KafkaError) -> NoReturn:
        kind = RetryProductionException if is_retriable(error) else PipelineError
        raise kind(f"a record was not written: {error}")


class ResultsWriter(KavkaStreamWriter):
    """Writes the packed results of tasks."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(unpacked(iterator))


def streams_sink(run: str, handler: ErrorHandler) -> type[DataSource]:
    """A data source named by the run. Spark pickles the handler with it."""

    class StreamsSink(KavkaDataSource):
        @classmethod
        def name(cls) -> str:
            return f"kavka-sink-{run}"

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            with concise_errors():
                if "report" in schema.names:
                    return ResultsWriter(*self._sink(from_arrow_schema(OUT_ARROW)), ProductionErrors(handler))
                return KavkaStreamWriter(*self._sink(schema), ProductionErrors(handler))

    return StreamsSink
