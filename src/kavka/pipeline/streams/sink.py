"""The sink of a query, as a data source of Spark. It unpacks the results of tasks, which would pass
the JVM once more otherwise.

It calls the application's production exception handler, unless that is the default, for each
record that it could not write. With transactions it does not: a record that fails aborts the
transaction, so the micro-batch is repeated if the error is retriable, and otherwise the application
ends. Records that cannot be serialized or are too large do not reach the sink (`engine.Sink`), and
are handled with transactions as well. RETRY ends the query with RetryProductionException. The
application starts it again from the last completed micro-batch, as Kafka does with a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from kavka.client.producer.record import ProducerRecord
from kavka.common.errors import KafkaError
from kavka.pipeline.spark.errors import PipelineError, concise_errors
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Layout
from kavka.pipeline.spark.sink import KavkaStreamWriter
from kavka.pipeline.spark.source import KavkaDataSource
from kavka.pipeline.streams.error_handlers import CONTINUE, RETRY, ErrorHandler, ErrorHandlerContext, is_retriable
from kavka.pipeline.streams.errors import RetryProductionException
from kavka.pipeline.streams.routing import OUT_ARROW, records_of


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


class StreamsWriter(KavkaStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(records_of(iterator))


def streams_sink(run: str, handler: ErrorHandler) -> type[DataSource]:
    """A data source named by the run. Spark pickles the handler with it."""

    class StreamsSink(KavkaDataSource):
        @classmethod
        def name(cls) -> str:
            return f"kavka-sink-{run}"

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            with concise_errors():
                return StreamsWriter(*self._sink(schema), ProductionErrors(handler))

        def _sink(self, schema: Any) -> tuple[SinkOptions, Layout]:
            """The layout of the records, which are packed if the query has tasks."""
            return super()._sink(from_arrow_schema(OUT_ARROW))

    return StreamsSink
