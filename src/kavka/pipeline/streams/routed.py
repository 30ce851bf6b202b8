"""The source of a query's stateful step: records are routed to their tasks where they are read.

The same as `format("kavka")` and then `routing_step`, in one Python process: what goes on to Spark
are the packed rows for the tasks, not the records, which would go to the JVM and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition

from kavka.pipeline.spark.errors import concise_errors
from kavka.pipeline.spark.options import SourceOptions, source_options
from kavka.pipeline.spark.source import KavkaDataSource, KavkaStreamReader
from kavka.pipeline.streams.summing import ROWS
from kavka.pipeline.streams.workers import PACKED, Job, batch_number, routing_step


class RoutedReader(KavkaStreamReader):
    def __init__(self, options: SourceOptions, job: Job) -> None:
        super().__init__(options)
        self._job = job

    def __reduce__(self) -> tuple[Any, ...]:
        return RoutedReader, (self._options, self._job)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return routing_step(self._job, batch_number())(super().read(partition))


def routed_source(job: Job) -> type[DataSource]:
    """A data source of this job's own: its name is that of the run, and Spark takes the job along
    with it."""

    class Routed(KavkaDataSource):
        @classmethod
        def name(cls) -> str:
            return f"kavka-{job.run}"

        def schema(self) -> Any:
            return ROWS if job.plan.summed else PACKED

        def streamReader(self, schema: Any) -> RoutedReader:
            with concise_errors():
                return RoutedReader(source_options(self.options, streaming=True), job)

    return Routed
