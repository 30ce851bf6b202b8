"""What a worker keeps, how connectors are shared out, and how long it tries again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from kavka.client.consumer.assignors import Subscription
from kavka.connect import ConnectError, RetriableError
from kavka.pipeline.connect.distributed import DistributedHerder, WorkerAssignor, shared_out
from kavka.pipeline.connect.herder import NotLeader
from kavka.pipeline.connect.retries import Retries, Stopped
from kavka.pipeline.connect.stores import (
    PAUSED,
    STARTED,
    STOPPED,
    ConfigStore,
    FileTable,
    MemoryTable,
    OffsetStore,
    Status,
    StatusStore,
)
from kavka.pipeline.connect.tasks import Worker, checkpoint_of


def test_configurations_are_kafka_connects_records() -> None:
    table = MemoryTable()
    store = ConfigStore(table)
    store.put("c", {"name": "c", "topic": "t"}, STARTED)
    assert json.loads(table.get("connector-c") or "") == {"properties": {"name": "c", "topic": "t"}}
    assert json.loads(table.get("commit-c") or "") == {"tasks": 1}
    store.put_target("c", STOPPED)
    assert json.loads(table.get("target-state-c") or "") == {"state": "PAUSED", "state.v2": "STOPPED"}
    assert store.target("c") == STOPPED
    table.put({"target-state-c": '{"state":"PAUSED"}'})
    assert store.target("c") == PAUSED
    assert store.names() == ["c"]
    store.delete("c")
    assert store.names() == [] and store.config("c") is None and store.target("c") == STARTED


def test_states_and_topics_of_connectors_are_kept_apart() -> None:
    table = MemoryTable()
    store = StatusStore(table)
    store.put("a", Status("RUNNING", "w:1"), Status("FAILED", "w:1", "why", 3))
    store.put("b", Status("PAUSED", "w:2"))
    assert store.task("a") == Status("FAILED", "w:1", "why", 3)
    assert store.task("b") is None
    store.add_topics("a", {"x", "y"})
    store.add_topics("b", {"x"})
    assert store.topics("a") == ["x", "y"]
    assert "status-topic-x:connector-a" in dict(table.items())
    store.reset_topics("a")
    assert (store.topics("a"), store.topics("b")) == ([], ["x"])
    store.delete("a")
    assert store.names() == ["b"]


def test_offsets_outlive_a_restart_and_are_kafka_connects_records(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "offsets"
    store = OffsetStore(FileTable(path))
    store.put("c", "table", {}, {"users": {"incrementing": 7}, "orders": {"incrementing": 1}})
    assert json.loads(path.read_text())['["c",{"table":"users"}]'] == '{"incrementing":7}'
    store.put_plan("c", 4, {}, {"users": {"incrementing": 9}}, done=False)
    again = OffsetStore(FileTable(path))
    assert again.offsets("c", "table") == {"users": {"incrementing": 7}, "orders": {"incrementing": 1}}
    assert again.offsets("other", "table") == {}
    plan = again.plan("c")
    assert plan is not None and (plan.number, plan.done, plan.id) == (4, False, store.identity("c"))
    again.put("c", "table", {"users": {"incrementing": 7}}, {})
    assert set(again.offsets("c", "table")) == {"orders"}
    again.reset("c")
    assert again.entries("c") == [] and again.plan("c") is None
    assert again.identity("c") != store.identity("c")


def test_batches_have_another_identity_after_another_worker_has_changed_the_offsets() -> None:
    table = MemoryTable()
    runs, leads = OffsetStore(table), OffsetStore(table)
    runs.put_plan("c", 0, {}, {"f": {"position": 3}}, done=True)
    first = runs.identity("c")
    assert runs.identity("c") == leads.identity("c") == first
    leads.reset("c")
    assert runs.plan("c") is None
    runs.put_plan("c", 0, {}, {"f": {"position": 3}}, done=False)
    assert runs.identity("c") != first, "batch 0 would be taken for the one that is written already"


def test_offsets_in_a_file_are_on_disk_with_its_name_when_they_are_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets"
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        is_folder = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        synced.append(("folder" if is_folder else "file", path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    FileTable(path).put({"a": "1"})
    assert synced == [("file", False), ("folder", True)]


def test_a_file_of_offsets_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("{")
    with pytest.raises(ConnectError, match="no file of offsets"):
        FileTable(tmp_path / "offsets")


def test_connectors_are_shared_out_evenly_and_stay_where_they_run() -> None:
    assert shared_out("abcd", {"w1": [], "w2": []}) == {"w1": ("a", "c"), "w2": ("b", "d")}
    assert shared_out("abc", {"w1": ["c"], "w2": ["a", "b"]}) == {"w1": ("c",), "w2": ("a", "b")}
    # A new worker gets its share, and no more moves than has to.
    found = shared_out("abcd", {"w1": ["a", "b", "c", "d"], "w2": []})
    assert found == {"w1": ("a", "b"), "w2": ("c", "d")}
    assert shared_out("ab", {"w1": ["a"]}) == {"w1": ("a", "b")}
    assert shared_out("a", {"w1": ["gone"], "w2": ["a"]}) == {"w1": (), "w2": ("a",)}
    assert shared_out("abcde", {"w1": ["a", "b", "c"], "w2": ["a"]})["w1"] == ("a", "b", "c")
    assert shared_out("abc", {}) == {}


def test_what_may_pass_is_tried_again_until_the_time_is_over() -> None:
    tries = []

    def work() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise RetriableError("away")
        return "done"

    assert Retries(60_000, 1, threading.Event()).call("it", work) == "done"
    tries.clear()
    with pytest.raises(RetriableError):
        Retries(0, 60_000, threading.Event()).call("it", work)
    assert len(tries) == 1

    def wrapped() -> None:
        raise RuntimeError("org.apache.spark.SparkException: … RetriableError: the database is away")

    with pytest.raises(ConnectError, match=r"Exceeded errors\.retry\.timeout"):
        Retries(20, 1, threading.Event()).call("it", wrapped)
    with pytest.raises(ValueError):
        Retries(-1, 1, threading.Event()).call("it", lambda: int("x"))


def test_a_task_that_is_stopped_waits_no_longer() -> None:
    stop = threading.Event()
    stop.set()

    def work() -> None:
        raise RetriableError("away")

    with pytest.raises(Stopped):
        Retries(-1, 60_000, stop).call("it", work)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "7", '{"properties": 3}', "null"])
def test_what_others_have_written_to_the_topics_counts_as_nothing(text: str) -> None:
    table = MemoryTable()
    keys = ("connector-c", "target-state-c", "status-connector-c", "status-task-c-0", "status-topic-t:connector-c")
    table.put(dict.fromkeys((*keys, "no key of ours", "7", '["c",{"kavka.batch":"plan"}]', '["c",3]'), text))
    assert ConfigStore(table).names() == [] and ConfigStore(table).target("c") == STARTED
    assert StatusStore(table).connector("c") is None and StatusStore(table).topics("c") == []
    if not text.startswith("{"):
        assert OffsetStore(table).entries("c") == [] and OffsetStore(table).plan("c") is None


def test_no_name_of_a_connector_leads_out_of_the_folder_of_checkpoints() -> None:
    assert checkpoint_of("/points/", "my connector") == "/points/my%20connector"
    for name in ("..", ".", "../other", "a/b", "/etc"):
        assert checkpoint_of("/points", name).startswith("/points/")
        assert Path(checkpoint_of("/points", name)).name not in ("..", ".", "other", "b", "etc")


def test_of_two_workers_with_the_same_address_only_one_runs_connectors(caplog: pytest.LogCaptureFixture) -> None:
    """On two machines, with listeners that only each machine itself reaches."""
    configs = ConfigStore(MemoryTable())
    for name in ("a", "b", "c"):
        configs.put(name, {"name": name}, STARTED)

    def herder(worker_id: str) -> DistributedHerder:
        worker = Worker(worker_id, {}, lambda: None, "points", OffsetStore(MemoryTable()))  # type: ignore[arg-type, return-value]
        settings = {"rebalance.timeout.ms": 1}
        return DistributedHerder(worker, configs, StatusStore(MemoryTable()), settings, f"http://{worker_id}")

    herders = {"m1": herder("localhost:8083"), "m2": herder("localhost:8083"), "m3": herder("other:8083")}
    members = {
        member: Subscription(frozenset(), WorkerAssignor(one).user_data(frozenset())) for member, one in herders.items()
    }
    # The second of the two leads, though it is not the first of the members.
    assignments = WorkerAssignor(herders["m2"]).assign({}, members)
    for member, one in herders.items():
        WorkerAssignor(one).on_assignment(assignments[member], 1)
    owned = {member: [name for name in "abc" if one.owns(name)] for member, one in herders.items()}
    assert owned["m1"] == [] and sorted(owned["m2"] + owned["m3"]) == ["a", "b", "c"]
    herders["m2"].lead()
    for member in ("m1", "m3"):
        with pytest.raises(NotLeader):
            herders[member].lead()
    assert [record.levelname for record in caplog.records if "rest.advertised.host.name" in record.message] == ["ERROR"]
