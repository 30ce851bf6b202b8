"""What a flow writes: batches of records into the partitions of the same numbers, and then which offset became which.

The offset syncs of a batch are written when the batch is, with transactions when they are committed. A crash in between
leaves them out, and the next batch brings newer ones: until then groups are translated to where they were before.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from kavka.client.producer.producer import Producer
from kavka.client.producer.whole import BatchFuture
from kavka.common.errors import KafkaError
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.records import RUN_HEADER, OffsetSync, run_header
from kavka.pipeline.mirror.runs import MOST_NEW, Run, joined, thinned
from kavka.pipeline.mirror.source import SCHEMA
from kavka.pipeline.spark.errors import one_clear_line
from kavka.pipeline.spark.options import SinkOptions, sink_options
from kavka.pipeline.spark.rows import Future, Layout
from kavka.pipeline.spark.sink import task_attempt
from kavka.pipeline.spark.two_phase import Report, abort_reports, commit_stream, write_stream
from kavka.pipeline.spark.writing import write
from kavka.records.reader import read_records

log = logging.getLogger(__name__)

_SOURCE, _TOPIC, _PARTITION, _FIRST, _END, _RECORDS = range(len(SCHEMA.fields))
LAYOUT = Layout(None, _RECORDS, topic=_TOPIC, partition=_PARTITION)
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
    dropped: int = 0
    report: Report | None = None


class _Forgiving:
    """A future whose failure counts and is no more than that (`--abort.on.send.failure false`)."""

    def __init__(self, future: BatchFuture, moves: Moves) -> None:
        self._future = future
        self._moves = moves

    def done(self) -> bool:
        return self._future.done()

    def get(self, timeout: float | None = None) -> object:
        try:
            return self._future.get(timeout)
        except KafkaError as error:
            log.error("%d records were not stored and are left out: %s", self._future.count, error)
            self._moves.dropped += self._future.count
            return None


@dataclass
class Moves:
    """What one task sends."""

    forgiving: bool = False
    dropped: int = 0
    records: int = 0
    _sent: list[tuple[str, int, Sequence[int], BatchFuture]] = field(default_factory=list)
    """Topic of the source, partition, the offsets there, and what became of them."""

    def send(self, producer: Producer, rows: pa.RecordBatch, where: Layout) -> list[Future]:
        sources, topics, partitions, firsts, ends = (rows.column(index).to_pylist() for index in range(_RECORDS))
        column = rows.column(_RECORDS)
        out: list[Future] = []
        for index, topic in enumerate(topics):
            partition, first, end = partitions[index], firsts[index], ends[index]
            data = memoryview(column[index].as_buffer())
            future = producer.send_batch(topic, partition, data, first, end)
            self.records += future.count
            offsets: Sequence[int] = range(first, end)
            if future.count < end - first:
                # Compacted: which offsets have a record is in the records alone.
                offsets = [r.offset for r in read_records(data, verify_crc=False) if first <= r.offset < end]
            self._sent.append((sources[index], partition, offsets, future))
            out.append(_Forgiving(future, self) if self.forgiving else future)
        return out

    def runs(self) -> dict[tuple[str, int], list[Run]]:
        """When everything is done."""
        found: dict[tuple[str, int], list[Run]] = {}
        for topic, partition, offsets, future in self._sent:
            runs = found.setdefault((topic, partition), [])
            at = 0
            for downstream, count in future.offsets():
                if downstream >= 0:
                    runs += _runs_of(offsets[at : at + count], downstream)
                at += count
        return {partition: thinned(joined(runs), MOST_NEW) for partition, runs in found.items() if runs}


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
            moves = Moves(forgiving=not self._flow.abort_on_failure)
            report = None
            if options.exactly_once:
                report = write_stream(options, LAYOUT, iterator, task_attempt(options), moves.send)
            else:
                write(options, LAYOUT, iterator, moves.send)
            return Moved(moves.runs(), moves.records, moves.dropped, report)

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
