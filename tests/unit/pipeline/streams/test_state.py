"""The state of tasks in Spark, with Spark replaced by dictionaries: what a start after another one
finds there."""

from __future__ import annotations

import json
import logging
import marshal
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.pipeline.streams import workers
from kavka.pipeline.streams.kept import keep, kept, layout_of
from kavka.pipeline.streams.plan import Plan, make_plan, source_topics
from kavka.pipeline.streams.settings import settings_of
from kavka.streams import (
    Consumed,
    JoinWindows,
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


class MapState(dict[bytes, bytes]):
    def iterator(self) -> Any:
        return (((key,), (value,)) for key, value in self.items())


class Handle:
    """Spark's handle of the state of one task."""

    def __init__(self) -> None:
        self.meta, self.stores = ValueState(), MapState()

    def getValueState(self, name: str, schema: str) -> ValueState:
        return self.meta

    def getMapState(self, name: str, key: str, value: str) -> MapState:
        return self.stores


@pytest.fixture(autouse=True)
def state_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def put_all(state: MapState, entries: Any) -> None:
        for key, value in entries:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value

    monkeypatch.setattr(workers, "put_all", put_all)


def started(topology: Topology, folder: Path) -> Plan:
    """What a start plans, with the files that it leaves."""
    before = kept(folder)
    plan = make_plan(topology, dict.fromkeys(source_topics(topology), 1), 1)
    keep(folder, {**plan.fingerprint(topology), "summed": False}, before, plan.in_users_order())
    return replace(plan, layout=layout_of(before) or plan.layout)


def run(topology: Topology, plan: Plan, handle: Handle, records: list[tuple[Any, ...]]) -> list[Any]:
    """One micro-batch of a new process: the records of topic `in`, and what the task sends."""
    workers._left.clear()
    processor = workers.TaskProcessor(workers.Job(topology, SETTINGS, plan, {}, "run", False), False)
    processor.init(handle)  # type: ignore[arg-type]
    rows = [(topic, 0, number, *record, ()) for number, (topic, *record) in enumerate(records)]
    packs = [SimpleNamespace(data=marshal.dumps((row[0], 0, row[2], [row]))) for row in rows]
    (task,) = plan.tasks
    results = processor.handleInputRows((task.key,), iter(packs), None)  # type: ignore[arg-type]
    return [sent for row in results for sent in marshal.loads(row.data)]


class Both:
    """Keeps each value in `left` and its capitals in `right`, and sends what both had before."""

    def init(self, context: Any) -> None:
        self.context = context
        self.left, self.right = context.get_state_store("left"), context.get_state_store("right")

    def process(self, record: Record) -> None:
        old = f"{self.left.get(record.key)} {self.right.get(record.key)}"
        self.left.put(record.key, record.value)
        self.right.put(record.key, record.value.upper())
        self.context.forward(record.with_value(old))


def two_stores(*order: str) -> Topology:
    topology = Topology().add_source("source", "in").add_processor("both", Both, "source").add_sink("s", "out", "both")
    for name in order:
        supplier = Stores.persistent_key_value_store(name)
        topology.add_state_store(Stores.key_value_store_builder(supplier, Serdes.String(), Serdes.String()))
    return topology.connect_processor_and_state_stores("both", *order)


def values(sent: list[Any]) -> list[bytes]:
    return [one[2] for one in sent]


def test_state_belongs_to_the_name_of_a_store_in_whatever_order_stores_are_connected(tmp_path: Path) -> None:
    handle = Handle()
    first, second = two_stores("left", "right"), two_stores("right", "left")
    assert values(run(first, started(first, tmp_path), handle, [("in", b"k", b"a", 1)])) == [b"None None"]
    for number, topology in enumerate((second, first, second)):
        record = ("in", b"k", "bcd"[number].encode(), 2)
        before = "abc"[number]
        sent = run(topology, started(topology, tmp_path), handle, [record])
        assert values(sent) == [f"{before} {before.upper()}".encode()]


def test_state_that_an_earlier_version_wrote_opens_in_the_order_in_which_stores_are_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = Handle()
    topology = two_stores("right", "left")
    run(topology, started(topology, tmp_path), handle, [("in", b"k", b"a", 1)])
    file = tmp_path / "topology.json"
    written = json.loads(file.read_text())
    del written["layout"]
    file.write_text(json.dumps(written))
    with caplog.at_level(logging.WARNING):
        sent = run(topology, started(topology, tmp_path), handle, [("in", b"k", b"b", 1)])
    assert values(sent) == [b"a A"]
    assert "right, left" in caplog.text and "clean_up()" in caplog.text
    # From then on the order is known.
    other = two_stores("left", "right")
    assert values(run(other, started(other, tmp_path), handle, [("in", b"k", b"c", 1)])) == [b"b B"]


def test_stores_of_the_dsl_and_global_stores_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    table, names = builder.table("users"), builder.global_table("names")
    stream = builder.stream("in").join(table, lambda value, user: f"{value} {user}")
    stream.join(names, lambda key, value: key, lambda value, name: f"{value} {name}").to("out")
    topology, handle = builder.build(), Handle()
    plan = started(topology, tmp_path)
    run(topology, plan, handle, [("users", b"k", b"user", 1), ("names", b"k", b"name", 1)])
    plan = started(topology, tmp_path)
    assert values(run(topology, plan, handle, [("in", b"k", b"a", 2)])) == [b"a user name"]
    assert not caplog.records


class Evil:
    """What somebody else might leave in a state."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_what_a_task_remembers_runs_no_code_when_it_is_read(tmp_path: Path) -> None:
    topology, handle, mark = two_stores("left", "right"), Handle(), tmp_path / "mark"
    plan = started(topology, tmp_path)
    handle.meta.update((pickle.dumps((b"token", 0, Evil(mark))),))
    with pytest.raises(StreamsException, match=r"plain data.*clean_up\(\)"):
        run(topology, plan, handle, [("in", b"k", b"a", 1)])
    assert not mark.exists()
    handle.meta.update((b"\x80\x05garbage",))
    with pytest.raises(StreamsException, match=r"cannot be read.*clean_up\(\)"):
        run(topology, plan, handle, [("in", b"k", b"a", 1)])


def outer_join(value_serde: Serde | None = None) -> Topology:
    builder = StreamsBuilder()
    windows = JoinWindows.of_time_difference_with_no_grace(10)
    value_serde = value_serde or Serdes.Long()
    consumed = Consumed.with_(Serdes.String(), value_serde)
    how = StreamJoined.with_(Serdes.String(), value_serde, Serdes.String())
    left, right = builder.stream("in", consumed), builder.stream("other")
    left.outer_join(right, lambda one, two: f"{one} {two}", windows, how).to("out")
    return builder.build()


def long(number: int) -> bytes:
    return number.to_bytes(8)


def pending(handle: Handle, plan: Plan) -> dict[bytes, bytes]:
    (layout,) = plan.layout.values()
    prefix = next(number for number, name in enumerate(layout) if "OUTERSHARED" in name).to_bytes(2)
    return {key: value for key, value in handle.stores.items() if key.startswith(prefix)}


def test_pending_records_of_an_outer_join_are_kept_as_bytes_of_their_serdes(tmp_path: Path) -> None:
    topology, handle = outer_join(), Handle()
    plan = started(topology, tmp_path)
    records = [("in", b"k", long(1), 5), ("in", b"k", long(2), 5), ("other", b"q", b"x", 6)]
    assert not run(topology, plan, handle, records)
    assert sorted(map(pickle.loads, pending(handle, plan).values())) == [
        [(long(1), ()), (long(2), ())],
        [(b"x", ())],
    ]
    sent = run(topology, plan, handle, [("in", b"z", long(3), 100)])
    assert values(sent) == [b"1 None", b"2 None", b"None x"]
    assert [one[1] for one in sent] == [b"k", b"k", b"q"]


def test_pending_records_of_a_serde_that_makes_bytearrays_are_read(tmp_path: Path) -> None:
    serde = Serdes.serde_from(lambda number: bytearray(long(number)), int.from_bytes, "long")
    topology, handle = outer_join(serde), Handle()
    plan = started(topology, tmp_path)
    run(topology, plan, handle, [("in", b"k", long(1), 5)])
    assert values(run(topology, plan, handle, [("in", b"z", long(3), 100)])) == [b"1 None"]


def test_pending_records_that_an_earlier_version_kept_are_read(tmp_path: Path) -> None:
    topology, handle, mark = outer_join(), Handle(), tmp_path / "mark"
    plan = started(topology, tmp_path)
    run(topology, plan, handle, [("in", b"k", long(1), 5)])
    ((entry, _),) = pending(handle, plan).items()
    handle.stores[entry] = pickle.dumps(("k", [(1, (("h", b"v"),))]))
    run(topology, plan, handle, [("in", b"k", long(2), 5)])
    sent = run(topology, plan, handle, [("in", b"z", long(3), 100)])
    assert [(one[2], one[4]) for one in sent] == [(b"1 None", (("h", b"v"),)), (b"2 None", ())]
    handle.stores[entry] = pickle.dumps(("k", [(Evil(mark), ())]))
    with pytest.raises(StreamsException, match=r"plain data.*clean_up\(\)"):
        run(topology, plan, handle, [("in", b"z", long(3), 200)])
    assert not mark.exists()
