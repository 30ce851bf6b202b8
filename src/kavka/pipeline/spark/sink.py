"""The Spark sink `kavka`: `df.write.format("kavka")` and `df.writeStream.format("kavka")`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kavka.pipeline.spark.errors import PipelineError, concise_errors
from kavka.pipeline.spark.new_topics import creating_topics
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Layout
from kavka.pipeline.spark.two_phase import (
    Attempt,
    Report,
    abort_reports,
    commit_batch,
    commit_stream,
    write_stream,
)
from kavka.pipeline.spark.two_phase import write as write_transaction
from kavka.pipeline.spark.writing import SinkErrors, write

# Properties of a Spark job that identify the query of a task.
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The message from a task to the driver. `report` is None without transactions."""

    rows: int
    report: Report | None = None


def _reports(messages: list[WriterCommitMessage | None]) -> list[Report]:
    return [message.report for message in messages if isinstance(message, Written) and message.report is not None]


class KavkaWriter(DataSourceArrowWriter):
    """Writes a batch. The driver creates it and sends it to the tasks and to the process that
    commits.

    With `queryId`, `runId` and `batchId` the batch belongs to a query and may run again after a
    crash with the same rows. It is then written exactly once, like a batch of a stream.
    """

    def __init__(self, options: SinkOptions, layout: Layout, errors: SinkErrors | None = None) -> None:
        self._options = options
        self._layout = layout
        self._errors = errors
        self._job = f"{options.id_prefix}{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with concise_errors():
            batches = creating_topics(self._options, self._layout, iterator)
            if not self._options.exactly_once:
                return Written(write(self._options, self._layout, batches, errors=self._errors))
            context = _context()
            if self._options.batch_of is not None:
                attempt = self._query_attempt(context)
                report = write_stream(self._options, self._layout, batches, attempt, errors=self._errors)
                return Written(report.entry.rows, report)
            attempt = Attempt(self._job, "", 0, context.partitionId(), context.attemptNumber())
            entry = write_transaction(self._options, self._layout, batches, attempt)
            return Written(entry.rows, Report(attempt, entry))

    def _query_attempt(self, context: TaskContext) -> Attempt:
        assert self._options.batch_of is not None
        query, run, number = self._options.batch_of
        name = f"{self._options.id_prefix}{query}"
        return Attempt(name, run, number, context.partitionId(), context.attemptNumber())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with concise_errors():
            if self._options.batch_of is not None:
                commit_stream(self._options, self._options.batch_of[2], _reports(messages))
                return
            commit_batch(self._options, _reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with concise_errors():
            abort_reports(self._options, _reports(messages))


class KavkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream. It has no state except the options, because Spark creates it for every batch
    and every commit, in any process."""

    def __init__(self, options: SinkOptions, layout: Layout, errors: SinkErrors | None = None) -> None:
        self._options = options
        self._layout = layout
        self._errors = errors

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with concise_errors():
            batches = creating_topics(self._options, self._layout, iterator)
            if not self._options.exactly_once:
                return Written(write(self._options, self._layout, batches, errors=self._errors))
            attempt = task_attempt(self._options)
            report = write_stream(self._options, self._layout, batches, attempt, errors=self._errors)
            return Written(report.entry.rows, report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with concise_errors():
            commit_stream(self._options, batchId, _reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with concise_errors():
            abort_reports(self._options, _reports(messages))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("the sink must run in a Spark task")
    return context


def task_attempt(options: SinkOptions) -> Attempt:
    context = _context()
    query, run, batch = (context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
    if not query or not run or not batch:
        raise PipelineError("Spark does not provide the query and batch of this task, which exactlyOnce=true requires")
    return Attempt(
        query=f"{options.id_prefix}{query}",
        run=run,
        batch=int(batch),
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        speculation=context.getLocalProperty("spark.speculation") == "true",
    )
