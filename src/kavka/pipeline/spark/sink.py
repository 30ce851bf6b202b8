"""What `df.write.format("kavka")` and `df.writeStream.format("kavka")` stand for."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kavka.pipeline.spark.errors import PipelineError, one_clear_line
from kavka.pipeline.spark.new_topics import before
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
from kavka.pipeline.spark.writing import write

# What Spark says about a task's query, among the properties of the job.
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """From a task to the driver. Without transactions there is nothing to tell but how many rows there were."""

    rows: int
    report: Report | None = None


def _reports(messages: list[WriterCommitMessage | None]) -> list[Report]:
    return [one.report for one in messages if isinstance(one, Written) and one.report is not None]


class KavkaWriter(DataSourceArrowWriter):
    """A batch. Made once, in the driver, and sent to the tasks and to where it is committed.

    With `queryId`, `runId` and `batchId` it is one of many, and may be run again after a crash with the same rows:
    exactly once holds for it as for a batch of a stream."""

    def __init__(self, options: SinkOptions, where: Layout) -> None:
        self._options = options
        self._where = where
        self._job = f"{options.id_prefix}{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with one_clear_line():
            batches = before(self._options, self._where, iterator)
            if not self._options.exactly_once:
                return Written(write(self._options, self._where, batches))
            context = _context()
            if self._options.batch_of is not None:
                report = write_stream(self._options, self._where, batches, self._named(context))
                return Written(report.entry.rows, report)
            attempt = Attempt(self._job, "", 0, context.partitionId(), context.attemptNumber())
            entry = write_transaction(self._options, self._where, batches, attempt)
            return Written(entry.rows, Report(attempt, entry))

    def _named(self, context: TaskContext) -> Attempt:
        assert self._options.batch_of is not None
        query, run, number = self._options.batch_of
        name = f"{self._options.id_prefix}{query}"
        return Attempt(name, run, number, context.partitionId(), context.attemptNumber())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with one_clear_line():
            if self._options.batch_of is not None:
                commit_stream(self._options, self._options.batch_of[2], _reports(messages))
                return
            commit_batch(self._options, _reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with one_clear_line():
            abort_reports(self._options, _reports(messages))


class KavkaStreamWriter(DataSourceStreamArrowWriter):
    """A stream. Made anew for every batch and every commit, wherever those happen: it holds nothing but options."""

    def __init__(self, options: SinkOptions, where: Layout) -> None:
        self._options = options
        self._where = where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with one_clear_line():
            batches = before(self._options, self._where, iterator)
            if not self._options.exactly_once:
                return Written(write(self._options, self._where, batches))
            report = write_stream(self._options, self._where, batches, task_attempt(self._options))
            return Written(report.entry.rows, report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with one_clear_line():
            commit_stream(self._options, batchId, _reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with one_clear_line():
            abort_reports(self._options, _reports(messages))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("the sink writes in tasks of Spark, and this is none")
    return context


def task_attempt(options: SinkOptions) -> Attempt:
    context = _context()
    query, run, batch = (context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
    if not query or not run or not batch:
        raise PipelineError("Spark does not say which query and batch this task is of: exactlyOnce=true needs to know")
    return Attempt(
        query=f"{options.id_prefix}{query}",
        run=run,
        batch=int(batch),
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        speculation=context.getLocalProperty("spark.speculation") == "true",
    )
