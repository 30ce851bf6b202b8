"""The stores of a worker, the assignment of connectors, and retries."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from kavka.client.consumer.assignors import Subscription
from kavka.connect import ConnectError, RetriableError
from kavka.pipeline.connect.distributed import Assignments, DistributedHerder, WorkerAssignor, assign_connectors
from kavka.pipeline.connect.herder import WrongWorker
from kavka.pipeline.connect.retries import Retries, TaskStopped
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
from tests.support.processes import wait_until


def test_configurations_have_kafka_connects_format() -> None:
    table = MemoryTable()
    store = ConfigStore(table)
    store.put("c", {"name": "c", "topic": "t"}, STARTED)
    assert json.loads(table.get("connector-c") or "") == {"properties": {"name": "c", "topic": "t"}}
    store.put_task_configs("c", [{"task.class": "y"}, {"task.class": "y"}])
    assert json.loads(table.get("commit-c") or "") == {"tasks": 2}
    store.put_task_configs("c", [{"task.class": "x"}])
    assert json.loads(table.get("task-c-0") or "") == {"properties": {"task.class": "x"}}
    assert json.loads(table.get("commit-c") or "") == {"tasks": 1}
    assert store.task_configs("c") == [{"task.class": "x"}] and store.task_configs("d") == []
    table.put({"commit-c": '{"tasks":3}'})
    assert store.task_configs("c") == []
    store.put_target("c", STOPPED)
    assert json.loads(table.get("target-state-c") or "") == {"state": "PAUSED", "state.v2": "STOPPED"}
    assert store.target("c") == STOPPED
    table.put({"target-state-c": '{"state":"PAUSED"}'})
    assert store.target("c") == PAUSED
    assert store.names() == ["c"]
    store.delete("c")
    assert store.names() == [] and store.config("c") is None and store.target("c") == STARTED


def test_states_and_topics_are_stored_per_connector() -> None:
    table = MemoryTable()
    store = StatusStore(table)
    failed, running = Status("FAILED", "w:1", "why", 3), Status("RUNNING", "w:1")
    # Earlier versions have only task 0.
    table.put({"status-task-a-0": '{"state":"FAILED","trace":"why","worker_id":"w:1","generation":3}'})
    assert store.tasks("a") == {0: failed}
    store.put("a", running, dict.fromkeys(range(11), running) | {1: failed})
    store.put("a-1", running, {0: running})
    store.put("b", Status("PAUSED", "w:2"))
    assert list(store.tasks("a")) == list(range(11)) and store.tasks("a")[1] == failed
    assert store.tasks("b") == {}
    store.put("a", tasks={0: running})
    assert (store.tasks("a"), store.tasks("a-1")) == ({0: running}, {0: running})
    store.delete("a-1")
    store.add_topics("a", {"x", "y"})
    store.add_topics("b", {"x"})
    assert store.topics("a") == ["x", "y"]
    assert "status-topic-x:connector-a" in dict(table.items())
    store.reset_topics("a")
    assert (store.topics("a"), store.topics("b")) == ([], ["x"])
    store.delete("a")
    assert store.names() == ["b"]


def test_offsets_survive_a_restart_and_have_kafka_connects_format(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "offsets"
    store = OffsetStore(FileTable(path))
    store.put("c", "table", {}, {"users": {"incrementing": 7}, "orders": {"incrementing": 1}})
    assert json.loads(path.read_text())['["c",{"table":"users"}]'] == '{"incrementing":7}'
    store.put("c", "table", {}, {"users": {"incrementing": 7, "kavka.ranges": []}})
    store.put_plan("c", 4, {}, {"users": {"incrementing": 9}}, done=False, tasks=2)
    reopened = OffsetStore(FileTable(path))
    assert reopened.offsets("c", "table") == {"users": {"incrementing": 7}, "orders": {"incrementing": 1}}
    assert reopened.offsets("other", "table") == {}
    plan = reopened.plan("c")
    assert plan is not None and (plan.number, plan.done, plan.tasks) == (4, False, 2) and plan.id == store.identity("c")
    reopened.put("c", "table", {"users": {"incrementing": 7}}, {})
    assert set(reopened.offsets("c", "table")) == {"orders"}
    reopened.reset("c")
    assert reopened.entries("c") == [] and reopened.plan("c") is None
    assert reopened.identity("c") != store.identity("c")


def test_plans_get_a_new_id_after_another_worker_changed_the_offsets() -> None:
    table = MemoryTable()
    owner, leader = OffsetStore(table), OffsetStore(table)
    owner.put_plan("c", 0, {}, {"f": {"position": 3}}, done=True)
    first_id = owner.identity("c")
    assert owner.identity("c") == leader.identity("c") == first_id
    leader.reset("c")
    assert owner.plan("c") is None
    owner.put_plan("c", 0, {}, {"f": {"position": 3}}, done=False)
    assert owner.identity("c") != first_id, "batch 0 would be mistaken for the batch that is already written"


def test_put_syncs_the_file_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "offsets"
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        is_folder = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        synced.append(("folder" if is_folder else "file", path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    FileTable(path).put({"a": "1"})
    assert synced == [("file", False), ("folder", True)]


def test_an_invalid_offset_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("{")
    with pytest.raises(ConnectError, match="is not an offset file"):
        FileTable(tmp_path / "offsets")


def test_connectors_are_balanced_and_stay_in_place() -> None:
    assert assign_connectors("abcd", {"w1": [], "w2": []}) == {"w1": ("a", "c"), "w2": ("b", "d")}
    assert assign_connectors("abc", {"w1": ["c"], "w2": ["a", "b"]}) == {"w1": ("c",), "w2": ("a", "b")}
    # Only the connectors that a new worker is assigned move.
    assignments = assign_connectors("abcd", {"w1": ["a", "b", "c", "d"], "w2": []})
    assert assignments == {"w1": ("a", "b"), "w2": ("c", "d")}
    assert assign_connectors("ab", {"w1": ["a"]}) == {"w1": ("a", "b")}
    assert assign_connectors("a", {"w1": ["removed"], "w2": ["a"]}) == {"w1": (), "w2": ("a",)}
    assert assign_connectors("abcde", {"w1": ["a", "b", "c"], "w2": ["a"]})["w1"] == ("a", "b", "c")
    assert assign_connectors("abc", {}) == {}


def test_retriable_errors_are_retried_until_the_timeout() -> None:
    attempts = []

    def work() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise RetriableError("unavailable")
        return "done"

    assert Retries(60_000, 1, threading.Event()).call("Reading c", work) == "done"
    attempts.clear()
    with pytest.raises(RetriableError):
        Retries(0, 60_000, threading.Event()).call("Reading c", work)
    assert len(attempts) == 1

    def wrapped() -> None:
        raise RuntimeError("org.apache.spark.SparkException: … RetriableError: the database is unavailable")

    with pytest.raises(ConnectError, match=r"Exceeded errors\.retry\.timeout"):
        Retries(20, 1, threading.Event()).call("Reading c", wrapped)
    with pytest.raises(ValueError):
        Retries(-1, 1, threading.Event()).call("Reading c", lambda: int("x"))


def test_stopping_a_task_ends_the_retries() -> None:
    stop = threading.Event()
    stop.set()

    def work() -> None:
        raise RetriableError("unavailable")

    with pytest.raises(TaskStopped):
        Retries(-1, 60_000, stop).call("Reading c", work)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "7", '{"properties": 3}', "null"])
def test_invalid_records_in_the_topics_are_ignored(text: str) -> None:
    table = MemoryTable()
    keys = ("connector-c", "target-state-c", "status-connector-c", "status-task-c-0", "status-topic-t:connector-c")
    table.put(dict.fromkeys((*keys, "unknown", "7", '["c",{"kavka.batch":"plan"}]', '["c",3]'), text))
    assert ConfigStore(table).names() == [] and ConfigStore(table).target("c") == STARTED
    assert StatusStore(table).connector("c") is None and StatusStore(table).topics("c") == []
    if not text.startswith("{"):
        assert OffsetStore(table).entries("c") == [] and OffsetStore(table).plan("c") is None


def test_checkpoints_stay_in_their_folder_for_any_name() -> None:
    assert checkpoint_of("/points/", "my connector") == "/points/my%20connector"
    for name in ("..", ".", "../other", "a/b", "/etc"):
        assert checkpoint_of("/points", name).startswith("/points/")
        assert Path(checkpoint_of("/points", name)).name not in ("..", ".", "other", "b", "etc")


def test_only_one_of_two_workers_with_the_same_address_runs_connectors(caplog: pytest.LogCaptureFixture) -> None:
    """Workers on two machines have the same address if both listen on localhost."""
    configs = ConfigStore(MemoryTable())
    for name in ("a", "b", "c"):
        configs.put(name, {"name": name}, STARTED)

    def herder(worker_id: str) -> DistributedHerder:
        worker = Worker(worker_id, {}, lambda: None, "points", OffsetStore(MemoryTable()))  # type: ignore[arg-type, return-value]
        settings = {"rebalance.timeout.ms": 1, "session.timeout.ms": 600_000}
        return DistributedHerder(worker, configs, StatusStore(MemoryTable()), settings, f"http://{worker_id}")

    herders = {"m1": herder("localhost:8083"), "m2": herder("localhost:8083"), "m3": herder("other:8083")}
    members = {
        member: Subscription(frozenset(), WorkerAssignor(herder_).user_data(frozenset()))
        for member, herder_ in herders.items()
    }
    # The second worker with this address is the leader, and runs the connectors.
    assignments = WorkerAssignor(herders["m2"]).assign({}, members)
    for member, herder_ in herders.items():
        WorkerAssignor(herder_).on_assignment(assignments[member], 1)
    owned = {member: [name for name in "abc" if herder_.owns(name)] for member, herder_ in herders.items()}
    assert owned["m1"] == [] and sorted(owned["m2"] + owned["m3"]) == ["a", "b", "c"]
    herders["m2"].require_leader()
    for member in ("m1", "m3"):
        with pytest.raises(WrongWorker):
            herders[member].require_leader()
    assert [record.levelname for record in caplog.records if "rest.advertised.host.name" in record.message] == ["ERROR"]


class Coordinator:
    """The consumer of a worker: the age of its last heartbeat and its generation."""

    def __init__(self) -> None:
        self.age, self.generation = 0.0, 1

    def metrics(self) -> dict[str, float]:
        return {"last-heartbeat-seconds-ago": self.age}

    def group_metadata(self) -> SimpleNamespace:
        return SimpleNamespace(generation_id=self.generation)


class StoppableTask:
    """A connector that records that it was stopped."""

    name = "c"

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def stop(self, timeout: float | None = None) -> bool:
        self.stopping.set()
        return True


def test_a_worker_without_heartbeats_holds_no_connectors() -> None:
    worker = Worker("w:1", {}, lambda: None, "points", OffsetStore(MemoryTable()))  # type: ignore[arg-type, return-value]
    configs, statuses = ConfigStore(MemoryTable()), StatusStore(MemoryTable())
    configs.put("c", {"name": "c"}, STARTED)
    statuses.put("c", Status("RUNNING", "w:1"))
    settings = {"rebalance.timeout.ms": 1, "session.timeout.ms": 600_000}
    herder = DistributedHerder(worker, configs, statuses, settings, "http://w:1")
    coordinator, task = Coordinator(), StoppableTask()

    def renew() -> bool:
        herder._renew(coordinator)  # type: ignore[arg-type]
        return herder.owns("c")

    assert not renew()
    herder.on_join()
    herder.set_assignments(Assignments("w:1", 1, {"w:1": "http://w:1"}, {"w:1": ("c",)}))
    herder._tasks["c"] = task  # type: ignore[assignment]
    assert renew() and not task.stopping.is_set()
    herder._expires = 0.0
    # Two thirds of the session timeout.
    coordinator.age = 401.0
    assert not renew()
    wait_until(task.stopping.is_set, timeout=10, what="the connector is stopped", interval=0.01)
    with pytest.raises(WrongWorker):
        herder.require_leader()
    herder._unassign("c")
    assert statuses.connector("c") == Status("RUNNING", "w:1"), "another worker may run it"
    # The coordinator responds again before the end of the session.
    coordinator.age = 399.0
    assert renew()
    # The group has removed the worker.
    coordinator.age, coordinator.generation = 0.0, -1
    assert not renew()
    coordinator.generation = 2
    assert not renew()
