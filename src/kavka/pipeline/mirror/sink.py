"""What a flow writes: stretches of partitions, fetched from the source and sent to the partitions of the same numbers
of the target, batch by batch and unopened; and then which offset became which.

The offset syncs of a batch of the stream are written when it is done, with transactions when they are committed. A
crash in between leaves them out, and the next batch brings newer ones: until then groups are translated to where they
were before.
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
from kavka.client.producer.whole import BatchFuture
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.records import RUN_HEADER, OffsetSync, run_header
from kavka.pipeline.mirror.runs import MOST_NEW, Run, joined, thinned
from kavka.pipeline.mirror.source import SCHEMA, read_options
from kavka.pipeline.spark.errors import PipelineError, one_clear_line
from kavka.pipeline.spark.offsets import Range
from kavka.pipeline.spark.options import SinkOptions, sink_options
from kavka.pipeline.spark.reading import in_pieces
from kavka.pipeline.spark.rows import Future, Layout
from kavka.pipeline.spark.sink import task_attempt
from kavka.pipeline.spark.two_phase import Report, abort_reports, commit_stream, write_stream
from kavka.pipeline.spark.writing import write
from kavka.records.reader import read_records

log = logging.getLogger(__name__)

LAYOUT = Layout(None, SCHEMA.names.index("range"))
# Of batches that are on their way: beyond this many, those that are done are taken off before the next is sent.
_MANY = 256
# What the target says of records that it will never take.
REFUSED = frozenset(
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
class Moved(WriterCommitMessage):
    """From a task to the driver: which records went where, by (topic of the source, partition)."""

    runs: Mapping[tuple[str, int], Sequence[Run]]
    records: int
    report: Report | None = None


class _Forgiving:
    """A future whose failure is told and no more than that (`--abort.on.send.failure false`)."""

    def __init__(self, future: BatchFuture) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def get(self, timeout: float | None = None) -> object:
        try:
            return self._future.get(timeout)
        except KafkaError as error:
            log.error("%d records were not written and are left out: %s", self._future.count, error)
            return None


@dataclass
class Moves:
    """What one task sends."""

    flow: Flow
    records: int = 0
    _runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    _sent: deque[tuple[tuple[str, int], Sequence[int], BatchFuture]] = field(default_factory=deque)
    """Topic of the source and partition, the offsets there, and what becomes of them; in order."""

    def send(self, producer: Producer, rows: pa.RecordBatch, where: Layout) -> list[Future]:
        """Fetch and send the stretches that the rows stand for. What is left to wait for: the first batch, and the
        last ones."""
        out: list[Future] = []
        options = read_options(self.flow)
        for row in rows.to_pylist():
            wanted = Range(row["source"], row["partition"], row["first"], row["end"])
            for batches in in_pieces(options, wanted, batch_range, lambda found: found[-1].end):
                for batch in batches:
                    future = self._send(producer, wanted, row["topic"], batch)
                    if future.count and not out:
                        out.append(self._outcome(future))
                while len(self._sent) > _MANY and self._sent[0][2].done():
                    self._settle()
        return out + [self._outcome(future) for _, _, future in self._sent]

    def _send(self, producer: Producer, wanted: Range, topic: str, batch: WholeBatch) -> BatchFuture:
        future = producer.send_batch(topic, wanted.partition, batch.data, batch.first, batch.end)
        self.records += future.count
        offsets: Sequence[int] = range(batch.first, batch.end)
        if future.count < len(offsets):
            # Compacted: which offsets have a record is in the records alone.
            found = read_records(batch.data, verify_crc=False)
            offsets = [record.offset for record in found if batch.first <= record.offset < batch.end]
        self._sent.append(((wanted.topic, wanted.partition), offsets, future))
        return future

    def _outcome(self, future: BatchFuture) -> Future:
        return future if self.flow.abort_on_failure else _Forgiving(future)

    def _settle(self) -> None:
        """Of the oldest, which is done."""
        partition, offsets, future = self._sent.popleft()
        self._outcome(future).get(0)
        runs = self._runs.setdefault(partition, [])
        at = 0
        for downstream, count in future.offsets():
            if downstream >= 0:
                runs += _runs_of(offsets[at : at + count], downstream)
            at += count
        if len(runs) > 2 * MOST_NEW:
            self._runs[partition] = thinned(joined(runs), MOST_NEW)

    def runs(self) -> dict[tuple[str, int], list[Run]]:
        """When everything is done."""
        while self._sent:
            self._settle()
        return {partition: thinned(joined(runs), MOST_NEW) for partition, runs in self._runs.items() if runs}


def _runs_of(offsets: Sequence[int], downstream: int) -> list[Run]:
    if isinstance(offsets, range):
        return [Run(offsets[0], downstream, len(offsets))] if offsets else []
    return joined(Run(upstream, downstream + index, 1) for index, upstream in enumerate(offsets))


class MirrorStreamWriter(DataSourceStreamArrowWriter):
    """Made anew for every batch and every commit, wherever those happen."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with one_clear_line():
            options = write_options(self._flow)
            moves = Moves(self._flow)
            report = None
            try:
                if options.exactly_once:
                    report = write_stream(options, LAYOUT, iterator, task_attempt(options), moves.send)
                else:
                    write(options, LAYOUT, iterator, moves.send)
                return Moved(moves.runs(), moves.records, report)
            except KafkaError as error:
                if error.code not in REFUSED:
                    raise
                raise PipelineError(f"a record was not written: {error}") from None

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with one_clear_line():
            moved = [one for one in messages if isinstance(one, Moved)]
            options = write_options(self._flow)
            commit_stream(options, batchId, [one.report for one in moved if one.report is not None])
            if self._flow.emit_offset_syncs:
                emit_syncs(self._flow, {tp: runs for one in moved for tp, runs in one.runs.items()})

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with one_clear_line():
            reports = [one.report for one in messages if isinstance(one, Moved) and one.report is not None]
            abort_reports(write_options(self._flow), reports)


# --- offset syncs, in the process that commits

_producers: dict[tuple[int, tuple[tuple[str, str], ...]], Producer] = {}


def emit_syncs(flow: Flow, runs: Mapping[tuple[str, int], Sequence[Run]]) -> None:
    """The last record of each run, with how many are before it. That it fails is no reason to stop the mirror."""
    if not runs:
        return
    settings = dict(flow.offset_syncs_settings)
    key = os.getpid(), tuple(sorted(settings.items()))
    try:
        producer = _producers.get(key)
        if producer is None:
            producer = _producers[key] = Producer({**settings, "linger.ms": "5", "max.block.ms": "10000"})
        for (topic, partition), some in runs.items():
            for run in some:
                sync = OffsetSync(topic, partition, run.end - 1, run.downstream + run.count - 1)
                headers = [(RUN_HEADER, run_header(run.count - 1))]
                producer.send(flow.offset_syncs_topic, sync.value(), sync.key(), 0, None, headers)
        producer.flush(_SYNC_TIMEOUT)
    except KafkaError as error:
        log.warning("Which offsets became which could not be told to %s: %s", flow.offset_syncs_topic, error)


@atexit.register
def _close_all() -> None:
    for (process, _), producer in list(_producers.items()):
        if process == os.getpid():
            producer.close(1.0)
