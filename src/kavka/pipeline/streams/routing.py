"""The tasks that read records: lanes of batches, stateless tasks, and the routing to stateful
tasks.

Between the steps of the query records travel packed: a row has many of them, marshalled, because a
row costs far more than a record. A row to a task is (origin topic, origin partition, first offset,
records), and each record is (topic, partition, offset, key, value, timestamp, headers) with the
name of the topic that the task's source reads. A row of parts (`parts.py`) has PARTS as its
partition. A row with the origin topic None has records for a topic, which only pass the task.
A row of results is a list of (topic, key, value, timestamp, headers, partition)."""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kavka.client.producer._append import murmur2
from kavka.pipeline.streams.batches import Columns, headers_of, listed, read, to_bytes, without_collector
from kavka.pipeline.streams.engine import Row, Sent, Sink, Task, node_serdes
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.lowering import WAYS, Lane
from kavka.pipeline.streams.parts import Parts
from kavka.pipeline.streams.processors import Headers
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.sink_partitions import sink_partitions
from kavka.pipeline.streams.ticks import TICK
from kavka.pipeline.streams.topology import ProcessorNode, Subtopology

if TYPE_CHECKING:
    from kavka.pipeline.streams.workers import Job

PACKED = "task int, data binary"
OUT_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("sent_at", pa.int64()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
PACKED_ARROW = pa.schema([("task", pa.int32()), ("data", pa.binary())])
PARTS = -1
# The records of a packed row, and their bytes: far below what Spark and Arrow allow for a cell.
CHUNK, CHUNK_BYTES = 20_000, 16 * 1024 * 1024
# So small that the columns of a piece are still in the processor's cache at the next step.
_PIECE, _PIECE_BYTES = 8192, 1024 * 1024
# A task passes parts on when it has so many.
_MAX_PARTS = 500_000

BatchStep = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Out:
    """Collects what tasks send."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.sent: list[Sent] = []

    def send(self, *record: *Sent) -> None:
        self.sent.append(record)

    def partitions(self, topic: str) -> int:
        own = self._job.partitions.get(topic)
        return sink_partitions(self._job.settings).of(topic) if own is None else own

    def take(self) -> list[Sent]:
        sent, self.sent = self.sent, []
        return sent


class _LaneRunner:
    """Runs the operators of a lane. A row that cannot be read goes to `per_record`, which handles
    it as every record without a lane."""

    def __init__(self, lane: Lane, settings: Settings, sink: Sink | None) -> None:
        self.lane, self.sink = lane, sink
        self._serdes = node_serdes(lane.source, settings)
        self.key_serde = self._serdes[0] if sink is None else sink.key_serde
        self._steps = [WAYS[type(node.operator)].batch(node.operator) for node in lane.nodes]

    def run(self, batch: pa.RecordBatch, per_record: Callable[[pa.RecordBatch], None]) -> Columns:
        with without_collector():
            columns, bad = read(*self._serdes, batch)
            if bad.any():
                per_record(batch.filter(pa.array(bad)))
            for step in self._steps:
                columns = step(columns)
        return columns

    def written(self, columns: Columns) -> tuple[pa.Array, pa.Array] | None:
        """Keys and values as the sink writes them; None if the sink must be asked for each
        record."""
        sink = self.sink
        assert sink is not None
        if sink.partitioner is not None:
            return None
        try:
            keys, values = to_bytes(sink.key_serde, columns.keys), to_bytes(sink.value_serde, columns.values)
        except StreamsException:
            return None
        sizes = pc.add(pc.fill_null(pc.binary_length(keys), 0), pc.fill_null(pc.binary_length(values), 0))
        largest = pc.max(sizes).as_py() or 0
        return (keys, values) if largest <= sink.max_size else None

    def send(self, columns: Columns, written: tuple[pa.Array, pa.Array] | None, out: Out) -> None:
        """Send the records to the sink. `written` is the result of `written`."""
        assert self.sink is not None
        headers = [()] * len(columns.times) if columns.headers is None else columns.headers
        if written is None:
            for record in zip(
                listed(columns.keys), listed(columns.values), columns.times.tolist(), headers, strict=True
            ):
                self.sink.process(*record)
            return
        keys, values = (cells.to_pylist() for cells in written)
        out.sent += zip(repeat(self.sink.full_topic), keys, values, columns.times.tolist(), headers, repeat(None))


def _runners(job: Job, tasks: Mapping[str, Task]) -> dict[str, _LaneRunner]:
    """By the full names of the topics."""
    runners = {}
    for topic, lane in job.lowered.lanes.items():
        name = job.full_name(topic)
        if isinstance(lane.end, ProcessorNode):
            runners[name] = _LaneRunner(lane, job.settings, None)
        elif name in tasks:
            runners[name] = _LaneRunner(lane, job.settings, tasks[name].sinks[lane.end.name])
    return runners


def _tasks(job: Job, subs: tuple[Subtopology, ...], out: Out) -> dict[str, Task]:
    """By the topics that they read."""
    tasks: dict[str, Task] = {}
    for sub in subs:
        task = Task(job.topology, sub, job.settings, out, now_ms)
        task.start()
        tasks.update(dict.fromkeys(task.sources, task))
    return tasks


def stateless_step(job: Job) -> BatchStep:
    """From the rows of the source to the rows of the sink."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = Out(job)
        tasks = _tasks(job, job.plan.stateless, out)
        runners = _runners(job, tasks)

        def per_record(topic: str, partition: int, batch: pa.RecordBatch) -> None:
            for row in _rows(topic, partition, batch):
                tasks[topic].process(row)

        for topic, partition, batch in _pieces(batches):
            runner = runners.get(topic)
            if runner is None:
                per_record(topic, partition, batch)
            else:
                columns = runner.run(batch, partial(per_record, topic, partition))
                written = runner.written(columns)
                if written is None:
                    runner.send(columns, None, out)
                elif len(columns.times):
                    assert runner.sink is not None
                    yield _out_batch(runner.sink.full_topic, *written, columns)
            if len(out.sent) >= CHUNK:
                yield batch_of(out.take())
        if out.sent:
            yield batch_of(out.take())

    return run


def routing_step(job: Job) -> BatchStep:
    """From the rows of the source to rows for tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        router = _Router(job)
        for topic, partition, batch in _pieces(batches):
            with without_collector():
                router.route(topic, partition, batch)
            if router.is_full:
                yield _packed(router.take())
            if router.is_full_of_parts:
                yield _packed(router.take_parts())
        yield _packed(router.take())
        yield _packed(router.take_parts())

    return run


# By task, origin topic and origin partition: the first offset, and the records.
_Packs = dict[tuple[int, str | None, int], tuple[int, list[Any]]]


class _Router:
    """Packs records for tasks."""

    def __init__(self, job: Job) -> None:
        plan = job.plan
        by_sub: dict[int, list[int]] = {}
        for slot in plan.tasks:
            by_sub.setdefault(slot.sub, []).append(slot.key)
        sources = [(sub, topic) for sub in plan.stateful for topic in sub.topics]
        self._direct = {job.full_name(topic): by_sub[sub.id] for sub, topic in sources if topic not in plan.shuffled}
        self._shuffled = {job.full_name(topic): by_sub[sub] for topic, sub in plan.shuffled.items()}
        self._global = {topic for sub in plan.globals for topic in sub.topics}
        self._all_tasks = [slot.key for slot in plan.tasks]
        self._out = Out(job)
        self._tasks = _tasks(job, plan.feeding, self._out)
        self._runners = _runners(job, self._tasks)
        # By topic and partition.
        self._parts: dict[tuple[str, int], Parts] = {}
        self._packs: _Packs = {}
        self._count = self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._count >= CHUNK or self._bytes >= CHUNK_BYTES

    @property
    def is_full_of_parts(self) -> bool:
        parts = self._parts.values()
        return sum(map(len, parts)) >= _MAX_PARTS or sum(each.key_bytes for each in parts) >= CHUNK_BYTES

    def route(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        """Route the records of a batch of one partition."""
        runner = self._runners.get(topic)
        self._bytes += batch.nbytes
        if runner is None:
            self._route_rows(topic, partition, batch)
            return
        columns = runner.run(batch, partial(self._route_rows, topic, partition))
        if runner.lane.aggregate is not None:
            if (topic, partition) not in self._parts:
                self._parts[topic, partition] = Parts(runner.lane.aggregate_step, runner.key_serde)
            self._parts[topic, partition].add(columns)
        else:
            runner.send(columns, runner.written(columns), self._out)
            self._pass_on(topic, partition, batch.column("offset")[0].as_py())

    def _route_rows(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        rows = list(_rows(topic, partition, batch))
        if not rows:
            return
        first = rows[0][2]
        if topic in self._direct:
            tasks = self._direct[topic]
            self._add(tasks[partition % len(tasks)], topic, partition, first, rows)
        elif topic in self._global:
            for task in self._all_tasks:
                self._add(task, topic, partition, first, rows)
        else:
            process = self._tasks[topic].process
            for row in rows:
                process(row)
            self._pass_on(topic, partition, first)

    def _pass_on(self, topic: str, partition: int, offset: int) -> None:
        """Pack what the stateless tasks have sent."""
        by_task: dict[tuple[int, str | None], list[Any]] = {}
        home = self._all_tasks[partition % len(self._all_tasks)]
        for sent in self._out.take():
            name, key, value, stamp, headers, chosen = sent
            tasks = self._shuffled.get(name)
            if tasks is None:
                by_task.setdefault((home, None), []).append(sent)
                continue
            number = _partition(key or b"", len(tasks)) if chosen is None else chosen
            record = (name, number, offset, key, value, stamp, headers)
            by_task.setdefault((tasks[number % len(tasks)], topic), []).append(record)
        for (task, origin), records in by_task.items():
            self._add(task, origin, partition, offset, records)

    def _add(self, task: int, topic: str | None, partition: int, offset: int, records: list[Any]) -> None:
        self._packs.setdefault((task, topic, partition), (offset, []))[1].extend(records)
        self._count += len(records)

    def take(self) -> _Packs:
        packs, self._packs, self._count, self._bytes = self._packs, {}, 0, 0
        return packs

    def take_parts(self) -> _Packs:
        """The parts, by the tasks that merge them."""
        packs: _Packs = {}
        for (topic, partition), parts in self._parts.items():
            sink = self._runners[topic].sink
            name = topic if sink is None else sink.full_topic
            tasks = self._direct[name] if sink is None else self._shuffled[name]
            for part in parts.take():
                number = partition % len(tasks) if sink is None else _partition(part[0], len(tasks))
                packs.setdefault((tasks[number], name, PARTS), (0, []))[1].append(part)
        return packs


def _partition(key: bytes, count: int) -> int:
    """The partition that Kafka's producers choose."""
    return (murmur2(key) & 0x7FFFFFFF) % count


# --- batches and rows


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Topic, partition, and a piece of its rows."""
    for batch in batches:
        size = min(_PIECE, max(1, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, size):
            yield from _by_partition(batch.slice(start, size))


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """A batch has the records of one partition, unless Spark has merged tasks."""
    topics, partitions = batch.column("topic"), batch.column("partition")
    if len(pc.unique(topics)) == 1 and len(pc.unique(partitions)) == 1:
        yield topics[0].as_py(), partitions[0].as_py(), batch
        return
    at = list(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))
    start = 0
    for index in range(1, len(at) + 1):
        if index == len(at) or at[index] != at[start]:
            yield *at[start], batch.slice(start, index - start)
            start = index


def _rows(topic: str, partition: int, batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of the source, of one partition."""
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return zip(
        repeat(topic, batch.num_rows),
        repeat(partition, batch.num_rows),
        *(batch.column(name).to_pylist() for name in ("offset", "key", "value")),
        (-1 if stamp is None else stamp // 1000 for stamp in stamps),
        headers_of(batch) or [()] * batch.num_rows,
        strict=True,
    )


def chunks_of(sent: list[Sent]) -> Iterator[list[Sent]]:
    """Sent records in lists that are small enough for a cell."""
    start = size = 0
    for index, (_, key, value, _, headers, _) in enumerate(sent):
        size += len(key or b"") + len(value or b"")
        if headers:
            size += sum(len(name) + len(data or b"") for name, data in headers)
        if index - start + 1 >= CHUNK or size >= CHUNK_BYTES:
            yield sent[start : index + 1]
            start, size = index + 1, 0
    if start < len(sent):
        yield sent[start:]


def batch_of(sent: list[Sent]) -> pa.RecordBatch:
    """The rows of the sink."""
    topics, keys, values, stamps, headers, partitions = zip(*sent, strict=True) if sent else ((),) * 6
    columns = [topics, keys, values, partitions, stamps, list(map(_header_cells, headers))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUT_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=OUT_ARROW)


def _out_batch(topic: str, keys: pa.Array, values: pa.Array, columns: Columns) -> pa.RecordBatch:
    count = len(columns.times)
    headers_type = OUT_ARROW.field("headers").type
    headers = columns.headers
    arrays = [
        pa.repeat(pa.scalar(topic), count),
        keys,
        values,
        pa.nulls(count, pa.int32()),
        pa.array(columns.times, pa.int64()),
        pa.nulls(count, headers_type) if headers is None else pa.array(map(_header_cells, headers), headers_type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=OUT_ARROW)


def _header_cells(headers: Headers) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": data} for name, data in headers] or None


def _packed(packs: _Packs) -> pa.RecordBatch:
    tasks = [task for task, _, _ in packs]
    data = [
        marshal.dumps((topic, partition, offset, records)) for (_, topic, partition), (offset, records) in packs.items()
    ]
    return pa.RecordBatch.from_arrays([pa.array(tasks, pa.int32()), pa.array(data, pa.binary())], schema=PACKED_ARROW)


def records_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the sink, from those or from the results of tasks."""
    for batch in batches:
        if batch.schema.names == OUT_ARROW.names:
            yield batch
            continue
        for data in batch.column(0).drop_null().to_pylist():
            with without_collector():
                records = batch_of(marshal.loads(data))
            yield records


def tick_batch(job: Job, time: int) -> pa.RecordBatch:
    """A row for every task, without records."""
    return _packed({(slot.key, TICK, 0): (time, []) for slot in job.plan.tasks})
