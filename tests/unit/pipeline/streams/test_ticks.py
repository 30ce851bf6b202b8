"""Wall-clock punctuators: when the source has a tick, and what tasks report."""

from __future__ import annotations

import json
import marshal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kavka.common.types import TopicPartition
from kavka.pipeline.spark.options import source_options
from kavka.pipeline.streams import routed_source
from kavka.pipeline.streams.plan import make_plan
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.stateful_step import TaskProcessor
from kavka.pipeline.streams.task_reports import TaskReport, TaskReports
from kavka.pipeline.streams.ticks import TICK, Due, DueFile, Ticks, read_due
from kavka.pipeline.streams.workers import Job
from kavka.streams import PunctuationType, Record, Serdes, Stores, Topology
from tests.unit.pipeline.streams.test_state import Handle

A0 = TopicPartition("a", 0)


class Counter:
    """Counts records, and sends the count every second of wall-clock time."""

    def init(self, context: Any) -> None:
        self.context, self.store = context, context.get_state_store("counts")
        context.schedule(1000, PunctuationType.WALL_CLOCK_TIME, self.punctuate)

    def process(self, record: Record) -> None:
        self.store.put("n", (self.store.get("n") or 0) + 1)

    def punctuate(self, time: int) -> None:
        self.context.forward(Record("n", str(self.store.get("n")), time))


def topology() -> Topology:
    store = Stores.persistent_key_value_store("counts")
    return (
        Topology()
        .add_source("source", "a")
        .add_processor("counter", Counter, "source")
        .add_state_store(Stores.key_value_store_builder(store, Serdes.String(), Serdes.Long()), "counter")
        .add_sink("sink", "out", "counter")
    )


@pytest.fixture
def due_file() -> Any:
    file = DueFile()
    yield file
    file.remove()


def job(folder: Path, due_path: Path) -> Job:
    settings = settings_of({"application.id": "app", "bootstrap.servers": "x:1"})
    plan = make_plan(topology(), {"a": 2})
    made = Job(topology(), settings, plan, {}, "run", False, "id", folder)
    made.due_path = due_path
    return made


def test_a_query_starts_with_a_tick_and_then_rests_until_a_punctuator_is_due(due_file: DueFile) -> None:
    ticks = Ticks(due_file.path)
    assert ticks.next(0, 1000, False) == 1000
    assert ticks.next(1000, 2000, False) is None
    due_file.write(Due(1000, None))
    assert ticks.next(1000, 100_000, False) is None
    due_file.write(Due(1000, 5000))
    assert ticks.next(1000, 4999, False) is None
    assert ticks.next(1000, 5000, True) is None
    assert ticks.next(1000, 5000, False) == 5000
    # The report of that tick has not arrived, and then is lost.
    assert ticks.next(5000, 6000, False) is None
    assert ticks.next(5000, 65_001, False) == 65_001


def test_a_clock_that_was_set_back_does_not_repeat_a_tick(due_file: DueFile) -> None:
    assert Ticks(due_file.path).next(9000, 1000, False) == 9001


def test_the_earliest_punctuator_of_all_tasks_is_due(tmp_path: Path) -> None:
    reports = TaskReports()
    path = reports.due_path
    assert read_due(path) is None
    reports.receive([TaskReport("0_0", 100, 900, 5, 1, 10).to_json(), TaskReport("0_1", 100, 500).to_json()])
    assert read_due(path) == Due(100, 500)
    reports.receive([TaskReport("0_1", 0, None, 2, 0, 7).to_json()])
    assert read_due(path) == Due(100, 900)
    reports.receive([TaskReport("0_0", 900, None, 1, 1, 30).to_json()])
    assert read_due(path) == Due(900, None)
    assert [(report.records, report.restores, report.state_bytes) for report in reports.all()] == [
        (6, 2, 30),
        (2, 0, 7),
    ]
    reports.close()
    assert not path.parent.exists()


def test_reports_of_other_queries_do_not_count() -> None:
    reports = TaskReports()
    reports._query = "app-1"
    row = {"reports": [TaskReport("0_0", 1).to_json()]}
    reports.progressed(SimpleNamespace(name="app-2", observedMetrics={"kavka-tasks": row}))
    reports.progressed(SimpleNamespace(name="app-1", observedMetrics={}))
    assert reports.all() == []
    reports.progressed(SimpleNamespace(name="app-1", observedMetrics={"kavka-tasks": row}))
    assert [report.task for report in reports.all()] == ["0_0"]


class Cluster:
    """A partition that ends at 5."""

    topic_ids: dict[str, str] = {}

    def partitions(self) -> list[TopicPartition]:
        return [A0]

    def resolve(self, *_: Any) -> dict[TopicPartition, int]:
        return {A0: 5}

    def ends(self, *, missing_is_empty: bool) -> dict[TopicPartition, int]:
        return {A0: 5}


def test_a_tick_is_a_separate_batch_and_is_repeated_by_its_offsets(
    tmp_path: Path, due_file: DueFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = source_options({"kafka.bootstrap.servers": "x:1", "subscribe": "a"}, streaming=True)
    reader = routed_source.RoutedReader(options, job(tmp_path, due_file.path))
    cluster: Any = Cluster()
    reader._cluster = cluster
    clock = iter([100, 101, 102, 103])
    monkeypatch.setattr(routed_source, "now_ms", lambda: next(clock))
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadAllAvailable())
    assert first == {"a": {"0": 5}, "$initial": start, TICK: 100}
    (tick,) = reader.partitions(start, first)
    rows = [marshal.loads(data.as_py()) for batch in reader.read(tick) for data in batch.column("data")]
    assert rows == [(TICK, 0, 100, [])] * 2
    assert reader.latestOffset(first, ReadAllAvailable()) is first
    due_file.write(Due(100, 102))
    second = reader.latestOffset(first, ReadAllAvailable())
    assert second == {"a": {"0": 5}, TICK: 102}
    assert [part.time for part in reader.partitions(first, second)] == [102]
    assert reader.partitions(second, second) == []


def test_a_task_punctuates_with_the_time_of_the_tick(tmp_path: Path) -> None:
    made = job(tmp_path, tmp_path / "due")
    key = made.plan.tasks[0].key
    processor = TaskProcessor(made)
    processor.init(Handle())  # type: ignore[arg-type]

    def run(*packs: Any) -> tuple[list[Any], TaskReport]:
        rows = [SimpleNamespace(data=marshal.dumps(pack)) for pack in packs]
        results = list(processor.handleInputRows((key,), iter(rows), None))  # type: ignore[arg-type]
        sent = [record[2:4] for row in results if row.data is not None for record in marshal.loads(row.data)]
        return sent, TaskReport(**json.loads(results[-1].report))

    sent, report = run((TICK, 0, 100, []))
    assert sent == []
    assert report.due is not None
    due = report.due
    record = ("a", 0, 0, b"k", b"v", 7, ())
    sent, report = run(("a", 0, 0, [record]))
    assert (sent, report.tick, report.due, report.records) == ([], 0, due, 1)
    sent, report = run((TICK, 0, due + 5, []))
    assert (sent, report.tick, report.due, report.records) == ([(b"1", due + 5)], due + 5, due + 1000, 0)
