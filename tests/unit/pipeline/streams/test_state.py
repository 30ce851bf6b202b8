"""The state of tasks on disk and in Spark, with Spark replaced by dictionaries."""

from __future__ import annotations

import marshal
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.pipeline.streams import workers
from kavka.pipeline.streams.layout import fit, read_layout, write_layout
from kavka.pipeline.streams.plan import Plan, make_plan, source_topics
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.stateful_step import TaskProcessor
from kavka.streams import (
    Consumed,
    JoinWindows,
    Materialized,
    Record,
    Serde,
    Serdes,
    Stores,
    StreamJoined,
    StreamsBuilder,
    StreamsException,
    Topology,
)

SETTINGS = settings_of({"application.id": "app", "bootstrap.servers": "localhost:9"})


class ValueState:
    def __init__(self) -> None:
        self.value: tuple[bytes] | None = None

    def get(self) -> tuple[bytes] | None:
        return self.value

    def update(self, value: tuple[bytes]) -> None:
        self.value = value


class MapState(dict[tuple[int], tuple[bytes]]):
    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:
        return self.get(key)

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:
        self[key] = value

    def removeKey(self, key: tuple[int]) -> None:
        del self[key]


class Handle:
    """Spark's handle of the state of one task."""

    def __init__(self) -> None:
        self.meta, self.log = ValueState(), MapState()

    def getValueState(self, name: str, schema: str) -> ValueState:
        return self.meta

    def getMapState(self, name: str, key: str, value: str) -> MapState:
        return self.log


def start(topology: Topology, folder: Path) -> Plan:
    """Write the layout, as the start of an application does, and return the plan."""
    plan = make_plan(topology, dict.fromkeys(source_topics(topology), 1))
    plan, layout = fit(topology, plan, read_layout(folder))
    write_layout(folder, layout)
    return plan


def run(
    topology: Topology, plan: Plan, handle: Handle, folder: Path, records: list[tuple[Any, ...]], run_id: str = "run"
) -> list[Any]:
    """Process a micro-batch without the cached tasks of earlier micro-batches, and return the
    records that the task sends. The input records are (topic, key, value, timestamp)."""
    workers._running.clear()
    job = workers.Job(topology, SETTINGS, plan, {}, run_id, False, "id", folder)
    processor = TaskProcessor(job)
    processor.init(handle)  # type: ignore[arg-type]
    rows = [(topic, 0, number, *record, ()) for number, (topic, *record) in enumerate(records)]
    packs = [SimpleNamespace(data=marshal.dumps((row[0], 0, row[2], [row]))) for row in rows]
    (task,) = plan.tasks
    results = processor.handleInputRows((task.key,), iter(packs), None)  # type: ignore[arg-type]
    return [sent for row in results if row.data is not None for sent in marshal.loads(row.data)]


def restores(folder: Path) -> int:
    """Return how often the state on disk was restored from Spark's state."""
    (state,) = (state for path, state in workers._states.items() if path.is_relative_to(folder))
    return state.restores


class UpdateBoth:
    """Puts each value into `left`, and in upper case into `right`, and forwards the previous values
    of both stores."""

    def init(self, context: Any) -> None:
        self.context = context
        self.left, self.right = context.get_state_store("left"), context.get_state_store("right")

    def process(self, record: Record) -> None:
        old = f"{self.left.get(record.key)} {self.right.get(record.key)}"
        self.left.put(record.key, record.value)
        self.right.put(record.key, record.value.upper())
        self.context.forward(record.with_value(old))


def two_stores(*order: str) -> Topology:
    topology = Topology().add_source("source", "in").add_processor("both", UpdateBoth, "source")
    topology.add_sink("sink", "out", "both")
    for name in order:
        supplier = Stores.persistent_key_value_store(name)
        topology.add_state_store(Stores.key_value_store_builder(supplier, Serdes.String(), Serdes.String()))
    return topology.connect_processor_and_state_stores("both", *order)


def values(sent: list[Any]) -> list[bytes]:
    return [record[2] for record in sent]


def test_state_belongs_to_the_name_of_a_store_in_whatever_order_stores_are_connected(tmp_path: Path) -> None:
    handle = Handle()
    first, second = two_stores("left", "right"), two_stores("right", "left")
    assert values(run(first, start(first, tmp_path), handle, tmp_path, [("in", b"k", b"a", 1)])) == [b"None None"]
    for number, topology in enumerate((second, first, second)):
        record = ("in", b"k", "bcd"[number].encode(), 2)
        before = "abc"[number]
        sent = run(topology, start(topology, tmp_path), handle, tmp_path, [record])
        assert values(sent) == [f"{before} {before.upper()}".encode()]


def test_state_on_a_lost_disk_is_restored_from_the_log(tmp_path: Path) -> None:
    topology, handle = two_stores("left", "right"), Handle()
    plan = start(topology, tmp_path / "one")
    for number in range(5):
        run(topology, plan, handle, tmp_path / "one", [("in", b"k%d" % number, b"a", 1), ("in", b"k", b"b", 1)])
    assert restores(tmp_path / "one") == 0
    sent = run(topology, plan, handle, tmp_path / "two", [("in", b"k3", b"c", 2), ("in", b"k", b"c", 2)])
    assert values(sent) == [b"a A", b"b B"]
    assert restores(tmp_path / "two") == 1
    # The first disk has an old version now.
    assert values(run(topology, plan, handle, tmp_path / "one", [("in", b"k3", b"d", 3)])) == [b"c C"]
    assert restores(tmp_path / "one") == 1


def test_a_micro_batch_that_spark_did_not_commit_leaves_no_changes(tmp_path: Path) -> None:
    topology, handle = two_stores("left", "right"), Handle()
    plan = start(topology, tmp_path)
    run(topology, plan, handle, tmp_path, [("in", b"k", b"a", 1)])
    committed = handle.meta.value, dict(handle.log)
    for value in (b"lost", b"lost too"):
        run(topology, plan, handle, tmp_path, [("in", b"k", value, 2), ("in", b"new", value, 2)])
        handle.meta.value = committed[0]
        handle.log.clear()
        handle.log.update(committed[1])
    assert values(run(topology, plan, handle, tmp_path, [("in", b"k", b"b", 2), ("in", b"new", b"b", 2)])) == [
        b"a A",
        b"None None",
    ]
    assert restores(tmp_path) == 0


def test_a_micro_batch_that_fails_leaves_no_changes(tmp_path: Path) -> None:
    topology, handle = two_stores("left", "right"), Handle()
    plan = start(topology, tmp_path)
    run(topology, plan, handle, tmp_path, [("in", b"k", b"a", 1)])
    with pytest.raises(AttributeError):
        run(topology, plan, handle, tmp_path, [("in", b"k", b"lost", 2), ("in", b"k", None, 2)])
    assert values(run(topology, plan, handle, tmp_path, [("in", b"k", b"b", 2)])) == [b"a A"]
    assert restores(tmp_path) == 0


def test_the_log_is_cleaned_while_most_of_its_entries_are_obsolete(tmp_path: Path) -> None:
    topology, handle = two_stores("left", "right"), Handle()
    plan = start(topology, tmp_path / "one")
    value = b"x" * 200_000
    for number in range(40):
        run(topology, plan, handle, tmp_path / "one", [("in", b"k%d" % (number % 3), value + b"%d" % number, 1)])
    live = 3 * 2 * len(value)
    assert sum(len(segment) for (segment,) in handle.log.values()) < 2 * live + (2 << 20)
    sent = run(topology, plan, handle, tmp_path / "two", [("in", b"k%d" % number, b"a", 2) for number in range(3)])
    assert [record[2].split(b" ")[0][-2:] for record in sent] == [b"39", b"37", b"38"]


def test_edits_that_keep_the_stores_keep_the_state(tmp_path: Path) -> None:
    def topology(edited: bool) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        if edited:
            builder.stream("other").group_by_key().count(Materialized.as_("others")).to_stream().to("others")
            stream = stream.peek(lambda key, value: None)
            stream.filter(lambda key, value: value == "b").to("branch")
        counts = stream.group_by_key().count(Materialized.as_("counts")).to_stream()
        counts.map_values(str).to("out")
        return builder.build()

    first, handle = topology(False), Handle()
    plan = start(first, tmp_path)
    run(first, plan, handle, tmp_path, [("in", b"k", b"a", 1), ("in", b"k", b"a", 1)])
    second = topology(True)
    edited = start(second, tmp_path)
    assert len(edited.tasks) == 2
    task = next(task for task in edited.tasks if task.key == plan.tasks[0].key)
    assert [sub.stores for sub in edited.stateful if sub.id == task.sub] == [("counts",)]
    sent = run(second, replace(edited, tasks=(task,)), handle, tmp_path, [("in", b"k", b"b", 2)], "next")
    assert [(record[0], record[2]) for record in sent] == [("branch", b"b"), ("out", b"3")]
    with pytest.raises(StreamsException, match="the store others was removed"):
        start(first, tmp_path)


def test_stores_of_the_dsl_and_global_stores_are_restored_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = StreamsBuilder()
    table, names = builder.table("users"), builder.global_table("names")
    stream = builder.stream("in").join(table, lambda value, user: f"{value} {user}")
    stream.join(names, lambda key, value: key, lambda value, name: f"{value} {name}").to("out")
    topology, handle = builder.build(), Handle()
    plan = start(topology, tmp_path)
    run(topology, plan, handle, tmp_path, [("users", b"k", b"user", 1), ("names", b"k", b"name", 1)])
    plan = start(topology, tmp_path)
    assert values(run(topology, plan, handle, tmp_path, [("in", b"k", b"a", 2)])) == [b"a user name"]
    assert not caplog.records


class MaliciousPickle:
    """Creates a file when it is unpickled. Another program could leave it in the state."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_the_metadata_of_a_task_runs_no_code_when_it_is_read(tmp_path: Path) -> None:
    topology, handle, mark = two_stores("left", "right"), Handle(), tmp_path / "mark"
    plan = start(topology, tmp_path)
    handle.meta.update((pickle.dumps((b"token", 0, (), MaliciousPickle(mark))),))
    with pytest.raises(StreamsException, match=r"plain data.*clean_up\(\)"):
        run(topology, plan, handle, tmp_path, [("in", b"k", b"a", 1)])
    assert not mark.exists()
    handle.meta.update((b"\x80\x05garbage",))
    with pytest.raises(StreamsException, match=r"cannot be read.*clean_up\(\)"):
        run(topology, plan, handle, tmp_path, [("in", b"k", b"a", 1)])


def outer_join(value_serde: Serde | None = None) -> Topology:
    builder = StreamsBuilder()
    windows = JoinWindows.of_time_difference_with_no_grace(10)
    value_serde = value_serde or Serdes.Long()
    consumed = Consumed.with_(Serdes.String(), value_serde)
    joined = StreamJoined.with_(Serdes.String(), value_serde, Serdes.String())
    left, right = builder.stream("in", consumed), builder.stream("other")
    left.outer_join(right, lambda left, right: f"{left} {right}", windows, joined).to("out")
    return builder.build()


def long(number: int) -> bytes:
    return number.to_bytes(8)


def pending(handle: Handle) -> dict[bytes, bytes]:
    logged: dict[bytes, bytes] = {}
    for _, (segment,) in sorted(handle.log.items()):
        for name, entries in marshal.loads(segment).items():
            if "OUTERSHARED" in name:
                logged.update(entries)
    return {key: value for key, value in logged.items() if value is not None}


def test_pending_records_of_an_outer_join_are_stored_as_bytes_of_their_serdes(tmp_path: Path) -> None:
    topology, handle = outer_join(), Handle()
    plan = start(topology, tmp_path)
    records = [("in", b"k", long(1), 5), ("in", b"k", long(2), 5), ("other", b"q", b"x", 6)]
    assert not run(topology, plan, handle, tmp_path, records)
    assert sorted(map(pickle.loads, pending(handle).values())) == [
        [(long(1), ()), (long(2), ())],
        [(b"x", ())],
    ]
    sent = run(topology, plan, handle, tmp_path, [("in", b"z", long(3), 100)])
    assert values(sent) == [b"1 None", b"2 None", b"None x"]
    assert [record[1] for record in sent] == [b"k", b"k", b"q"]


def test_pending_records_whose_serializer_returns_bytearrays_are_read(tmp_path: Path) -> None:
    serde = Serdes.serde_from(lambda number: bytearray(long(number)), int.from_bytes, "long")
    topology, handle = outer_join(serde), Handle()
    plan = start(topology, tmp_path)
    run(topology, plan, handle, tmp_path, [("in", b"k", long(1), 5)])
    assert values(run(topology, plan, handle, tmp_path, [("in", b"z", long(3), 100)])) == [b"1 None"]


def test_a_state_is_read_while_the_task_runs(tmp_path: Path) -> None:
    topology, handle = two_stores("left", "right"), Handle()
    plan = start(topology, tmp_path)
    run(topology, plan, handle, tmp_path, [("in", b"k", b"a", 1)])
    (folder,) = (path for path in workers._states if path.is_relative_to(tmp_path))
    # Read in another process: this process has the LMDB environment open already.
    script = (
        "import sys; from pathlib import Path; from kavka.pipeline.streams.local_state import StateFile\n"
        "first, second = StateFile.open(Path(sys.argv[1])), StateFile.open(Path(sys.argv[1]))\n"
        "print([file.version(0).map(name).get(b'k') for file in (first, second) for name in ('left', 'right')])\n"
        "print(first.version(-1).map('left').get(b'k'), first.version(0).map('other').get(b'k'))"
    )
    command = [sys.executable, "-c", script, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[b'a', b'A', b'a', b'A']", "None None"]
