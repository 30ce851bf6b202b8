"""The stateful tasks in Spark's Python workers, and the job that all workers get."""

from __future__ import annotations

import heapq
import marshal
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row

from kavka.pipeline.spark import versions
from kavka.pipeline.streams import plain_data
from kavka.pipeline.streams.engine import Task
from kavka.pipeline.streams.local_state import LocalState, boot_id, executor_folder
from kavka.pipeline.streams.lowering import lower
from kavka.pipeline.streams.parts import Part
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.processors import WALL_CLOCK_TIME
from kavka.pipeline.streams.routing import PARTS, Out, chunks_of, now_ms
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.state_log import LogPosition, StateLog
from kavka.pipeline.streams.state_map import OpenMap
from kavka.pipeline.streams.stores import Store
from kavka.pipeline.streams.task_reports import TaskReport
from kavka.pipeline.streams.ticks import TICK
from kavka.pipeline.streams.topology import Topology


@dataclass(eq=False)
class Job:
    """The job of all workers, pickled with the query. `partitions` are those of the application's
    topics, `folder` has the state if all workers are on this machine, `claim` is the driver's
    (`fencing.py`)."""

    topology: Topology
    settings: Settings
    plan: Plan
    partitions: Mapping[str, int]
    run: str
    caching: bool
    state_id: str
    folder: Path | None
    claim: str | None = None
    due_path: Path | None = None
    """The file in which the driver writes when the next punctuator is due, if there are any."""

    def __post_init__(self) -> None:
        self.lowered = lower(self.topology, self.plan, self.settings)
        plan, lanes = self.plan, self.lowered.lanes
        read = [topic for sub in (*plan.feeding, *plan.stateful) for topic in sub.topics if topic not in plan.shuffled]
        self.merges_parts = bool(read) and all(topic in lanes and lanes[topic].aggregate is not None for topic in read)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, versions.pickled(self.__dict__)

    @property
    def is_local(self) -> bool:
        """Whether all workers are on this machine."""
        return self.folder is not None

    def full_name(self, topic: str) -> str:
        return f"{self.settings.application_id}-{topic}" if topic in self.topology.internal_topics else topic

    @property
    def query_name(self) -> str:
        return f"{self.settings.application_id}-{self.run[:8]}"

    def task_folder(self, key: int) -> Path:
        """Where the state of a task is on the disk of the machine that runs it: in the folder of
        the application if Spark runs on this machine alone, otherwise in the executor's."""
        return (self.folder or executor_folder()) / "local" / self.state_id / boot_id() / f"task-{key}"


# The last job that this process has loaded: Spark sends it again with every task.
_loaded: dict[bytes, Job] = {}


def _restored(built_by: versions.Versions, data: bytes) -> Job:
    if data not in _loaded:
        _loaded.clear()
        job = _loaded[data] = Job.__new__(Job)
        job.__dict__.update(versions.unpickled(built_by, data))
    return _loaded[data]


def batch_number() -> int:
    """The number of the micro-batch that this process works on."""
    from kavka.pipeline.spark.sink import BATCH_ID

    context = TaskContext.get()
    return int((None if context is None else context.getLocalProperty(BATCH_ID)) or 0)


class _Running:
    """A task, its copies of global stores, and the records that they send."""

    def __init__(self, job: Job, key: int, open_map: OpenMap) -> None:
        slot = next(slot for slot in job.plan.tasks if slot.key == key)
        sub = next(sub for sub in job.plan.stateful if sub.id == slot.sub)
        self.out = Out(job)
        global_stores: dict[str, Store] = {}
        self.globals: dict[str, Task] = {}
        for global_sub in job.plan.globals:
            task = Task(job.topology, global_sub, job.settings, self.out, now_ms, open_map=open_map)
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

        merging = {lane.aggregate.name for lane in job.lowered.lanes.values() if lane.aggregate is not None}
        self._merging: list[Any] = [node for node in self.task.nodes if node.name in merging]

    def start(self, meta: dict[str, Any] | None) -> None:
        for task in dict.fromkeys(self.globals.values()):
            task.start()
        self.task.start(meta)

    def run(self, packs: list[Any]) -> None:
        """Global tables first, then records in the order of their times, each partition's in its
        own order."""
        queues: dict[tuple[str, int], list[Any]] = {}
        parts: dict[str, list[Part]] = {}
        for topic, partition, _, records in sorted(packs, key=lambda pack: pack[2]):
            if topic is None:
                self.out.sent += records
            elif topic == TICK:
                continue
            elif partition == PARTS:
                parts.setdefault(topic, []).extend(records)
            else:
                queues.setdefault((topic, partition), []).extend(records)
        for topic, partition in [queue for queue in queues if queue[0] in self.globals]:
            for record in queues.pop((topic, partition)):
                self.globals[topic].process(record)
        process = self.task.process
        for record in _in_time(list(queues.values())):
            process(record)
        for topic in parts:
            self._merge(topic, parts[topic])

    def _merge(self, topic: str, parts: list[Part]) -> None:
        """Merge parts into the aggregate that reads the topic, in the order of their windows."""
        source, (aggregate,) = self.task.sources[topic], self._merging
        self.task.stream_time = max(self.task.stream_time, *(part[3] for part in parts))
        for key, *part in sorted(parts, key=lambda part: part[1] or 0):
            aggregate.add_part(source.key_serde.deserialize(key), *part)

    def close(self) -> None:
        for task in (self.task, *dict.fromkeys(self.globals.values())):
            task.close()


def _in_time(queues: list[list[Any]]) -> Iterator[Any]:
    """Records in Kafka's order: from the partition whose next record is the oldest."""
    heads = [(queue[0][5], number, 0) for number, queue in enumerate(queues)]
    heapq.heapify(heads)
    while heads:
        _, number, index = heapq.heappop(heads)
        if not heads:
            yield from islice(queues[number], index, None)
            return
        limit = heads[0]
        for record in islice(queues[number], index, None):
            if (record[5], number) > limit:
                heapq.heappush(heads, (record[5], number, index))
                break
            yield record
            index += 1


# By folder: the states that this process has opened, and the tasks that it has run, with the token
# of the version that they belong to.
_states: dict[Path, LocalState] = {}
_running: dict[Path, tuple[str, bytes, _Running]] = {}


class MicroBatch:
    """One task of a micro-batch. The state of a task is on the disk of its executor
    (`local_state.py`). Spark has the durable copy: `log`, the changes of all micro-batches
    (`state_log.py`), and `meta`, the token of the version, the position of the log, and what the
    task remembers beside its stores."""

    def __init__(self, job: Job, meta: Any, log: Any) -> None:
        self._job, self._meta, self._log = job, meta, log

    def run(self, key: int, packs: list[Any]) -> Iterator[Row]:
        """Run the task with these packs. The version on disk is committed before Spark's: a
        micro-batch that fails after that is rolled back by the next."""
        folder = self._job.task_folder(key)
        state = _states.get(folder)
        if state is None:
            state = _states[folder] = LocalState(folder)
        try:
            running, log, restores = self._resume(key, folder, state)
            running.run(packs)
            tick = max((pack[2] for pack in packs if pack[0] == TICK), default=0)
            if tick:
                running.task.punctuate(WALL_CLOCK_TIME, tick)
            running.task.flush()
            log.append(state)
            token = uuid.uuid4().bytes
            meta = plain_data.dumps(running.task.meta())
            self._meta.update((plain_data.dumps((token, astuple(log.position), meta)),))
            state.commit(token, batch_number(), meta)
        except BaseException:
            _running.pop(folder, None)
            state.abort()
            raise
        _running[folder] = (self._job.run, token, running)
        for sent in chunks_of(running.out.take()):
            yield Row(data=marshal.dumps(sent), report=None)
        records = sum(len(pack[3]) for pack in packs if pack[0] is not None)
        task, size = running.task, log.position.live
        report = TaskReport(task.task_id, tick, task.next_wall_clock(), records, restores, size)
        yield Row(data=None, report=report.to_json())

    def _resume(self, key: int, folder: Path, state: LocalState) -> tuple[_Running, StateLog, int]:
        """The task, its log, and how often its state was restored: once or not at all."""
        stored = self._meta.get()
        token, position, meta = (None, (), None) if stored is None else plain_data.loads(bytes(stored[0]))
        log = StateLog(self._log, LogPosition(*position))
        has_state = state.begin(token)
        restores = int(not has_state and token is not None)
        if not has_state:
            log.replay(state)
        cached = _running.pop(folder, None)
        if cached is not None:
            if cached[:2] == (self._job.run, token):
                return cached[2], log, restores
            cached[2].close()
        running = _Running(self._job, key, state.map)
        running.start(None if meta is None else plain_data.loads(meta))
        return running, log, restores
