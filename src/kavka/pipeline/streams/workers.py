"""What Spark's Python workers run: the stateless steps, the tasks, and what goes between them.

Between the steps records travel packed: one row holds many, marshalled, since a row costs far more
than a record. A row to a task is (origin topic, origin partition, first offset, records), each
record (topic, partition, offset, key, value, timestamp, headers) with the name of the topic that
the task's source reads. A row of results is a list of (topic, key, value, timestamp, headers,
partition). A record to no task but a topic, in a row to a task, has the origin topic None. What was
counted on the way (`combining.py`) has the topic that is counted as its origin.
"""

from __future__ import annotations

import heapq
import marshal
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from kavka.client.producer._append import murmur2
from kavka.pipeline.spark.sink import BATCH_ID
from kavka.pipeline.streams import plain_data
from kavka.pipeline.streams.combining import Counts, combinable, count, counted_alone
from kavka.pipeline.streams.engine import WALL_CLOCK_TIME, Headers, Task
from kavka.pipeline.streams.lane import Lane, lane_of
from kavka.pipeline.streams.local_state import LocalState, boot_id
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.sink_partitions import sink_partitions
from kavka.pipeline.streams.state_log import SEGMENT, LogPosition, StateLog
from kavka.pipeline.streams.state_map import OpenMap
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.summing import rows_of, totals
from kavka.pipeline.streams.topology import Subtopology, Topology

PACKED = "task int, data binary"
RESULT = "data binary"
OUT = (
    "topic string, key binary, value binary, partition int, sent_at bigint, "
    "headers array<struct<key:string,value:binary>>"
)
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
_CHUNK = 20_000
_PIECE = 8192
# Keys that a task counts before it passes the numbers on.
_MOST_COUNTED = 500_000

Sent = tuple[str, bytes | None, bytes | None, int, Headers, int | None]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Job:
    """All that a worker needs to know; pickled with the query. `partitions` are those of the
    application's own topics, `folder` is the application's if all workers are on its machine."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        plan: Plan,
        partitions: Mapping[str, int],
        run: str,
        caching: bool,
        state_id: str,
        folder: Path | None,
    ) -> None:
        self.topology, self.settings, self.plan = topology, settings, plan
        self.partitions = dict(partitions)
        self.run, self.caching = run, caching
        self._state_id, self._folder = state_id, folder
        combined = combinable(topology, plan, settings, caching)
        self.combined = {self.full_name(topic) for topic in combined}
        self.counts_only = counted_alone(plan, combined)

    def full_name(self, topic: str) -> str:
        return f"{self.settings.application_id}-{topic}" if topic in self.topology.internal_topics else topic

    def task_folder(self, key: int) -> Path:
        """Where the state of a task is on the disk of the machine that runs it: in the folder of
        the application if Spark runs on this machine alone, otherwise in the executor's."""
        folder = self._folder
        if folder is None:
            scratch = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
            folder = Path(scratch.split(",")[0]) / f"kavka-streams-{os.getuid()}"
        return folder / "local" / self._state_id / boot_id() / f"task-{key}"


def batch_number() -> int:
    """The number of the micro-batch that this process works on."""
    context = TaskContext.get()
    return int((None if context is None else context.getLocalProperty(BATCH_ID)) or 0)


class _Out:
    """Collects what tasks send."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.sent: list[Sent] = []

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        self.sent.append((topic, key, value, timestamp, headers, partition))

    def partitions(self, topic: str) -> int:
        own = self._job.partitions.get(topic)
        return sink_partitions(self._job.settings).of(topic) if own is None else own


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """(topic, partition, offset, key, value, timestamp, headers) of the source's rows."""
    column = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    stamps = column["timestamp"].cast(pa.int64()).to_pylist()
    headers = [
        tuple((one["key"], one["value"]) for one in some) if some else () for some in column["headers"].to_pylist()
    ]
    return zip(
        column["topic"].to_pylist(),
        column["partition"].to_pylist(),
        column["offset"].to_pylist(),
        column["key"].to_pylist(),
        column["value"].to_pylist(),
        (-1 if one is None else one // 1000 for one in stamps),
        headers,
        strict=True,
    )


def _batch_of(sent: list[Sent]) -> pa.RecordBatch:
    topics, keys, values, stamps, headers, partitions = zip(*sent, strict=True) if sent else ((),) * 6
    columns = [
        topics,
        keys,
        values,
        partitions,
        stamps,
        [[{"key": name, "value": data} for name, data in some] or None for some in headers],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUT_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=OUT_ARROW)


def _tasks(job: Job, subs: tuple[Subtopology, ...], out: _Out) -> dict[str, Task]:
    """By the topics they read."""
    found: dict[str, Task] = {}
    for sub in subs:
        task = Task(job.topology, sub, job.settings, out, now_ms)
        task.start()
        found.update(dict.fromkeys(task.sources, task))
    return found


def stateless_step(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """From the source's rows to the sink's."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = _Out(job)
        tasks = _tasks(job, job.plan.stateless, out)
        for batch in batches:
            for row in _rows(batch):
                tasks[row[0]].process(*row)
                if len(out.sent) >= _CHUNK:
                    yield _batch_of(out.sent)
                    out.sent = []
        if out.sent:
            yield _batch_of(out.sent)

    return run


def routing_step(job: Job, number: int = 0) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """From the source's rows of the micro-batch of that number to rows for tasks, or for Spark to
    add up."""
    plan = job.plan
    by_sub: dict[int, list[int]] = {}
    for slot in plan.tasks:
        by_sub.setdefault(slot.sub, []).append(slot.key)
    direct = {
        job.full_name(topic): by_sub[sub.id]
        for sub in plan.stateful
        for source in sub.sources
        for topic in source.topics
        if topic not in plan.shuffled
    }
    shuffled = {job.full_name(topic): by_sub[sub] for topic, sub in plan.shuffled.items()}
    everywhere = {topic for sub in plan.globals for source in sub.sources for topic in source.topics}
    all_keys = [slot.key for slot in plan.tasks]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = _Out(job)
        tasks = _tasks(job, plan.feeding, out)
        counts = {topic: Counts() for topic in job.combined}
        lanes = _lanes(job, tasks)
        packs: dict[tuple[int, str | None, int], list[Any]] = {}
        count = 0

        def add(key: int, topic: str | None, partition: int, offset: int, record: Any) -> None:
            pack = packs.get((key, topic, partition))
            if pack is None:
                packs[key, topic, partition] = [offset, [record]]
            else:
                pack[1].append(record)

        def pass_on(topic: str, partition: int, offset: int) -> None:
            """What the tasks here have sent."""
            nonlocal count
            for name, key, value, stamp, headers, chosen in out.sent:
                to = shuffled.get(name)
                if to is None:
                    home = all_keys[partition % len(all_keys)]
                    add(home, None, partition, offset, (name, key, value, stamp, headers, chosen))
                    continue
                if name in counts:
                    counts[name].add(key or b"", stamp, headers)
                    continue
                number = (murmur2(key or b"") & 0x7FFFFFFF) % len(to) if chosen is None else chosen
                record = (name, number, offset, key, value, stamp, headers)
                add(to[number % len(to)], topic, partition, offset, record)
                count += 1
            out.sent.clear()

        def counted() -> Iterator[pa.RecordBatch]:
            for name, found in counts.items():
                home = partial(_home, shuffled[name])
                if plan.summed:
                    yield rows_of(found.take(), home, number)
                    continue
                parts: dict[int, list[Any]] = {}
                for one in found.take():
                    parts.setdefault(home(one[0]), []).append(one)
                if parts:
                    yield _packed({(task, name, 0): [0, records] for task, records in parts.items()})

        for batch in _in_pieces(batches):
            for topic, partition, part in _of_one_partition(batch):
                if topic in lanes and lanes[topic][0].run(part, counts[lanes[topic][1]]):
                    pass_on(topic, partition, 0)
                else:
                    for row in _rows(part):
                        offset = row[2]
                        count += 1
                        if topic in direct:
                            keys = direct[topic]
                            add(keys[partition % len(keys)], topic, partition, offset, row)
                        elif topic in everywhere:
                            for home in all_keys:
                                add(home, topic, partition, offset, row)
                        else:
                            tasks[topic].process(*row)
                            pass_on(topic, partition, offset)
                        if count >= _CHUNK:
                            yield _packed(packs)
                            packs.clear()
                            count = 0
                if sum(map(len, counts.values())) >= _MOST_COUNTED:
                    yield from counted()
        if packs:
            yield _packed(packs)
        yield from counted()

    return run


def _home(tasks: list[int], key: bytes) -> int:
    """Of the tasks of all partitions, that of a key."""
    return tasks[(murmur2(key) & 0x7FFFFFFF) % len(tasks)]


def _lanes(job: Job, tasks: Mapping[str, Task]) -> dict[str, tuple[Lane, str]]:
    """For topics whose records are counted and nothing else: the lane to take, and what it leads
    to."""
    sinks = {
        sink.name: job.full_name(sink.topic)
        for sub in job.plan.feeding
        for sink in sub.sinks
        if isinstance(sink.topic, str) and job.full_name(sink.topic) in job.combined
    }
    found = {topic: lane_of(task, topic, sinks) for topic, task in tasks.items()}
    return {topic: one for topic, one in found.items() if one is not None}


def _in_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So small that what the steps make of a piece is still in the processor's cache when the next
    step looks at it."""
    for batch in batches:
        for start in range(0, batch.num_rows, _PIECE):
            yield batch.slice(start, _PIECE)


def _of_one_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Topic, partition and rows. A batch is of one partition, unless Spark has put tasks
    together."""
    if not batch.num_rows:
        return
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


def _packed(packs: Mapping[tuple[int, str | None, int], list[Any]]) -> pa.RecordBatch:
    keys = [key for key, _, _ in packs]
    data = [
        marshal.dumps((topic, partition, offset, records)) for (_, topic, partition), (offset, records) in packs.items()
    ]
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int32()), pa.array(data, pa.binary())], schema=PACKED_ARROW)


def unpacking_step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From the tasks' results to the sink's rows."""
    for batch in batches:
        for data in batch.column(0).to_pylist():
            yield _batch_of(marshal.loads(data))


def telling_step(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """From what Spark has added up to the sink's rows: what the tasks do after they have
    counted."""
    slots = {slot.key: slot for slot in job.plan.tasks}
    subs = {sub.id: sub for sub in job.plan.stateful}

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = _Out(job)

        @cache
        def counting(key: int) -> tuple[Callable[[bytes], Any], Callable[..., None]]:
            task = Task(job.topology, subs[slots[key].sub], job.settings, out, now_ms, slots[key].partition)
            task.start()
            (source,) = task.sources.values()
            (counter,) = source.children
            return source._key.deserialize, counter.forward

        for batch in batches:
            for task, key, number, timestamp, headers in totals(batch):
                read, tell = counting(task)
                tell(read(key), Change(number), timestamp, headers)
                if len(out.sent) >= _CHUNK:
                    yield _batch_of(out.sent)
                    out.sent = []
        if out.sent:
            yield _batch_of(out.sent)

    return run


# --- tasks


class _Running:
    """A task, the copies of global stores that it has, and where what they send goes."""

    def __init__(self, job: Job, key: int, open_map: OpenMap) -> None:
        slot = next(one for one in job.plan.tasks if one.key == key)
        sub = next(one for one in job.plan.stateful if one.id == slot.sub)
        self.out = _Out(job)
        self._combined = job.combined
        global_stores: dict[str, Store] = {}
        self.globals: dict[str, Task] = {}
        for one in job.plan.globals:
            task = Task(job.topology, one, job.settings, self.out, now_ms, open_map=open_map)
            global_stores.update(task.stores)
            self.globals.update(dict.fromkeys(task.sources, task))
        self.task = Task(
            job.topology,
            sub,
            job.settings,
            self.out,
            now_ms,
            slot.partition,
            caching=job.caching,
            global_stores=global_stores,
            open_map=open_map,
        )

    def start(self, meta: dict[str, Any] | None) -> None:
        for task in dict.fromkeys(self.globals.values()):
            task.start()
        self.task.start(meta)

    def run(self, packs: list[Any]) -> None:
        """Global tables first, then records in the order of their times, each partition's in its
        own order."""
        queues: dict[tuple[str, int], list[Any]] = {}
        counted: dict[str, list[Any]] = {}
        for topic, partition, _, records in sorted(packs, key=lambda pack: pack[2]):
            if topic is None:
                self.out.sent += records
            elif topic in self._combined:
                counted.setdefault(topic, []).extend(records)
            else:
                queues.setdefault((topic, partition), []).extend(records)
        for at in [one for one in queues if one[0] in self.globals]:
            for record in queues.pop(at):
                self.globals[at[0]].process(*record)
        process = self.task.process
        for record in _in_time(list(queues.values())):
            process(*record)
        for topic, records in counted.items():
            count(self.task, topic, records)

    def close(self) -> None:
        for task in (self.task, *dict.fromkeys(self.globals.values())):
            task.close()


def _in_time(queues: list[list[Any]]) -> Iterator[Any]:
    """As Kafka's tasks choose: always from the partition whose next record is the oldest."""
    if len(queues) == 1:
        yield from queues[0]
        return
    heads = [(queue[0][5], number, 0) for number, queue in enumerate(queues)]
    heapq.heapify(heads)
    while heads:
        _, number, index = heads[0]
        queue = queues[number]
        yield queue[index]
        if index + 1 < len(queue):
            heapq.heapreplace(heads, (queue[index + 1][5], number, index + 1))
        else:
            heapq.heappop(heads)


# By folder: the states that this process has opened, and the tasks that it has run, with the token
# of the version that they belong to.
_states: dict[Path, LocalState] = {}
_running: dict[Path, tuple[str, bytes, _Running]] = {}


class TaskProcessor(StatefulProcessor):
    """Spark's stateful step. The state of a task is on the disk of its executor (`local_state.py`).
    Spark has the durable copy: `log`, the changes of all micro-batches (`state_log.py`), and
    `meta`, the token of the version, the timer that is set, the position of the log, and what the
    task remembers beside its stores."""

    def __init__(self, job: Job, timers: bool) -> None:
        self._job, self._timers = job, timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._meta = handle.getValueState("meta", "data binary")
        self._log = handle.getMapState("log", *SEGMENT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self._micro_batch(key[0], [marshal.loads(row.data) for row in rows])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        return self._micro_batch(key[0], None)

    def close(self) -> None:
        """Spark's processors have it; tasks live on in the process."""

    def _micro_batch(self, key: int, packs: list[Any] | None) -> Iterator[Row]:
        """Run the task with these packs; with None, for its timer alone. The version on disk is
        committed before Spark's: a micro-batch that fails after that is rolled back by the next."""
        folder = self._job.task_folder(key)
        state = _states.get(folder)
        if state is None:
            state = _states[folder] = LocalState(folder)
        try:
            running, timer, log = self._resume(key, folder, state)
            if packs is not None:
                running.run(packs)
            if self._timers:
                running.task.punctuate(WALL_CLOCK_TIME, now_ms())
            running.task.flush()
            log.append(state)
            due = running.task.next_wall_clock() if self._timers else None
            if due is not None and (packs is None or not timer or due < timer):
                self._handle.registerTimer(due)
                timer = due
            token = uuid.uuid4().bytes
            meta = plain_data.dumps(running.task.meta())
            self._meta.update((plain_data.dumps((token, timer, astuple(log.position), meta)),))
            state.commit(token, batch_number(), meta)
        except BaseException:
            _running.pop(folder, None)
            state.abort()
            raise
        _running[folder] = (self._job.run, token, running)
        sent, running.out.sent = running.out.sent, []
        for start in range(0, len(sent), _CHUNK):
            yield Row(data=marshal.dumps(sent[start : start + _CHUNK]))

    def _resume(self, key: int, folder: Path, state: LocalState) -> tuple[_Running, int, StateLog]:
        held = self._meta.get()
        token, timer, position, meta = (None, 0, (), None) if held is None else plain_data.loads(bytes(held[0]))
        log = StateLog(self._log, LogPosition(*position))
        if not state.begin(token):
            log.replay(state)
        cached = _running.pop(folder, None)
        if cached is not None:
            if cached[:2] == (self._job.run, token):
                return cached[2], timer, log
            cached[2].close()
        running = _Running(self._job, key, state.map)
        running.start(None if meta is None else plain_data.loads(meta))
        return running, timer, log
