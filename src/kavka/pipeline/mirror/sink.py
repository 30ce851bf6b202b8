"""Writes the records of a flow. A task fetches a range of a partition from the source and sends its
record batches, without decoding them, to the same partition of the target. The driver then writes
the offset syncs.

The offset syncs of a micro-batch are written after the micro-batch is stored, and after its
transactions are committed. A crash in between loses the syncs. Until the next micro-batch writes
newer syncs, offsets of groups are translated to earlier offsets.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from kavka.client.consumer.buffer import WholeBatch
from kavka.client.consumer.ranges import batch_range
from kavka.client.producer.producer import Producer
from kavka.client.producer.send_batch import BatchFuture
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.records import RUN_HEADER, OffsetSync, run_header
from kavka.pipeline.mirror.runs import MAX_NEW_RUNS, Run, join_runs, thin_runs
from kavka.pipeline.mirror.source import SCHEMA, read_options
from kavka.pipeline.spark.errors import PipelineError, concise_errors
from kavka.pipeline.spark.offsets import Range
from kavka.pipeline.spark.options import SinkOptions, sink_options
from kavka.pipeline.spark.reading import read_pieces
from kavka.pipeline.spark.rows import Future, Layout
from kavka.pipeline.spark.sink import task_attempt
from kavka.pipeline.spark.two_phase import Report, abort_reports, commit_stream, write_stream
from kavka.pipeline.spark.writing import write
from kavka.records.reader import read_records

logger = logging.getLogger(__name__)

LAYOUT = Layout(None, SCHEMA.names.index("range"))
# The number of sent batches above which `Transfer` processes completed batches.
_MAX_SENT_BATCHES = 256
# Error codes of a target that will never accept the records.
REJECTED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
_SYNC_TIMEOUT = 30.0


def write_options(flow: Flow) -> SinkOptions:
    return sink_options(
        {
            **{f"kafka.{name}": value for name, value in flow.producer.items()},
            "exactlyOnce": str(flow.exactly_once).lower(),
            "transactionalIdPrefix": f"kavka-mirror-{flow.source}-{flow.target}-",
        }
    )


@dataclass(frozen=True)
class Transferred(WriterCommitMessage):
    """The message from a task to the driver. `runs` are by (topic of the source, partition)."""

    runs: Mapping[tuple[str, int], Sequence[Run]]
    records: int
    report: Report | None = None


class _LoggedFailure:
    """A future that only logs its failure (`--abort.on.send.failure false`)."""

    def __init__(self, future: BatchFuture) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def get(self, timeout: float | None = None) -> object:
        try:
            return self._future.get(timeout)
        except KafkaError as error:
            logger.error("%d records were not written and are skipped: %s", self._future.count, error)
            return None


@dataclass
class Transfer:
    """The batches that one task sends. Owns the batches in flight and the runs of completed
    batches."""

    flow: Flow
    records: int = 0
    _runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    _sent: deque[tuple[tuple[str, int], Sequence[int], BatchFuture]] = field(default_factory=deque)
    """((topic of the source, partition), source offsets, future) in the order of sending."""

    def send(self, producer: Producer, rows: pa.RecordBatch, layout: Layout) -> list[Future]:
        """Fetch and send the ranges in the rows. Returns the future of the first batch and the
        futures of the batches in flight."""
        futures: list[Future] = []
        options = read_options(self.flow)
        for row in rows.to_pylist():
            offsets_range = Range(row["source"], row["partition"], row["first"], row["end"])
            for batches in read_pieces(options, offsets_range, batch_range, lambda batches: batches[-1].end):
                for batch in batches:
                    future = self._send(producer, offsets_range, row["topic"], batch)
                    if future.count and not futures:
                        futures.append(self._outcome(future))
                while len(self._sent) > _MAX_SENT_BATCHES and self._sent[0][2].done():
                    self._complete_oldest()
        return futures + [self._outcome(future) for _, _, future in self._sent]

    def _send(self, producer: Producer, offsets_range: Range, topic: str, batch: WholeBatch) -> BatchFuture:
        future = producer.send_batch(topic, offsets_range.partition, batch.data, batch.first, batch.end)
        self.records += future.count
        offsets: Sequence[int] = range(batch.first, batch.end)
        if future.count < len(offsets):
            # The batch was compacted. Decode it to learn which offsets exist.
            records = read_records(batch.data, verify_crc=False)
            offsets = [record.offset for record in records if batch.first <= record.offset < batch.end]
        self._sent.append(((offsets_range.topic, offsets_range.partition), offsets, future))
        return future

    def _outcome(self, future: BatchFuture) -> Future:
        return future if self.flow.abort_on_failure else _LoggedFailure(future)

    def _complete_oldest(self) -> None:
        """Add the runs of the oldest batch, which must be done."""
        partition, offsets, future = self._sent.popleft()
        self._outcome(future).get(0)
        runs = self._runs.setdefault(partition, [])
        index = 0
        for downstream, count in future.offsets():
            if downstream >= 0:
                runs += _runs_of(offsets[index : index + count], downstream)
            index += count
        if len(runs) > 2 * MAX_NEW_RUNS:
            self._runs[partition] = thin_runs(join_runs(runs), MAX_NEW_RUNS)

    def runs(self) -> dict[tuple[str, int], list[Run]]:
        """Return the runs of all batches by partition. All batches must be done."""
        while self._sent:
            self._complete_oldest()
        return {partition: thin_runs(join_runs(runs), MAX_NEW_RUNS) for partition, runs in self._runs.items() if runs}


def _runs_of(offsets: Sequence[int], downstream: int) -> list[Run]:
    if isinstance(offsets, range):
        return [Run(offsets[0], downstream, len(offsets))] if offsets else []
    return join_runs(Run(upstream, downstream + index, 1) for index, upstream in enumerate(offsets))


class MirrorStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a flow. Spark creates it for every batch and every commit, in any
    process."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with concise_errors():
            options = write_options(self._flow)
            transfer = Transfer(self._flow)
            report = None
            try:
                if options.exactly_once:
                    report = write_stream(options, LAYOUT, iterator, task_attempt(options), transfer.send)
                else:
                    write(options, LAYOUT, iterator, transfer.send)
                return Transferred(transfer.runs(), transfer.records, report)
            except KafkaError as error:
                if error.code not in REJECTED:
                    raise
                raise PipelineError(f"a record was not written: {error}") from None

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with concise_errors():
            transferred = [message for message in messages if isinstance(message, Transferred)]
            options = write_options(self._flow)
            commit_stream(options, batchId, [message.report for message in transferred if message.report is not None])
            if self._flow.emit_offset_syncs:
                emit_syncs(self._flow, {tp: runs for message in transferred for tp, runs in message.runs.items()})

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with concise_errors():
            reports = [
                message.report
                for message in messages
                if isinstance(message, Transferred) and message.report is not None
            ]
            abort_reports(write_options(self._flow), reports)


# --- offset syncs

# By process id and settings, in the process that commits.
_producers: dict[tuple[int, tuple[tuple[str, str], ...]], Producer] = {}


def emit_syncs(flow: Flow, runs: Mapping[tuple[str, int], Sequence[Run]]) -> None:
    """Write an offset sync for the last record of each run, with the number of preceding records. A
    failure is logged and does not stop the mirror."""
    if not runs:
        return
    settings = dict(flow.offset_syncs_settings)
    key = os.getpid(), tuple(sorted(settings.items()))
    try:
        producer = _producers.get(key)
        if producer is None:
            producer = _producers[key] = Producer({**settings, "linger.ms": "5", "max.block.ms": "10000"})
        for (topic, partition), partition_runs in runs.items():
            for run in partition_runs:
                sync = OffsetSync(topic, partition, run.end - 1, run.downstream + run.count - 1)
                headers = [(RUN_HEADER, run_header(run.count - 1))]
                producer.send(flow.offset_syncs_topic, sync.value(), sync.key(), 0, None, headers)
        producer.flush(_SYNC_TIMEOUT)
    except KafkaError as error:
        logger.warning("Cannot write offset syncs to %s: %s", flow.offset_syncs_topic, error)


@atexit.register
def _close_producers() -> None:
    for (process, _), producer in list(_producers.items()):
        if process == os.getpid():
            producer.close(1.0)
