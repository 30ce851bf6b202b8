"""The herder, without Spark and a cluster: validation, plugins, configurations, states."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from kavka.common.types import TopicPartition
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.herder import Herder, RestError
from kavka.pipeline.connect.stores import Status
from kavka.pipeline.connect.tasks import FAILED, Outcome, failed_task
from tests.support.connect_app import SOURCE, idle_herder

GOLDEN = Path(__file__).parents[2] / "golden" / "connect-definitions-3.9.1.json"
# Known differences: Kafka numbers its exactly-once options from 2, and its source may read standard
# input.
EXCEPTIONS = {("file", "required"), ("transforms.a.type", "order"), ("transforms.a.type", "display_name")}


@pytest.fixture
def herder() -> Herder:
    return idle_herder()


def test_definitions_equal_those_of_kafka_connect(herder: Herder) -> None:
    config = {"connector.class": "FileStreamSource", "transforms": "a", "transforms.a.type": "nope"}
    configs = herder.validate("FileStreamSource", config)["configs"]
    definitions = {info["value"]["name"]: info["definition"] for info in configs}
    for expected in json.loads(GOLDEN.read_text()):
        name = expected["name"]
        for field, value in expected.items():
            if (name, field) in EXCEPTIONS or (field == "order" and expected["group"] == "Exactly Once Support"):
                continue
            assert definitions[name][field] == value, (name, field)


def test_a_wrong_class_or_type_is_rejected_as_in_kafka_connect(herder: Herder) -> None:
    with pytest.raises(RestError, match="Failed to find any class that implements Connector") as rejected:
        herder.create("c", {"connector.class": "no.Such"}, None)
    assert rejected.value.code == 400
    with pytest.raises(RestError, match="does not match request type") as rejected:
        herder.validate("FileStreamSink", SOURCE)
    assert rejected.value.code == 400
    with pytest.raises(RestError, match="contains no connector type"):
        herder.validate("FileStreamSink", {})


def test_a_connector_is_created_changed_and_deleted(herder: Herder) -> None:
    info = herder.create("c", SOURCE, "paused")
    assert info == {"name": "c", "config": {**SOURCE, "name": "c"}, "tasks": [], "type": "source"}
    assert herder.configs.target("c") == "PAUSED"
    with pytest.raises(RestError, match="already exists") as rejected:
        herder.create("c", SOURCE, None)
    assert rejected.value.code == 409
    assert herder.put_config("c", {**SOURCE, "topic": "u"})[0] is False
    assert herder.patch_config("c", {"tasks.max": "3", "topic": "v"})["config"]["topic"] == "v"
    assert "tasks.max" not in herder.patch_config("c", {"tasks.max": None})["config"]
    with pytest.raises(RestError, match="doesn't match connector name"):
        herder.put_config("c", {**SOURCE, "name": "d"})
    with pytest.raises(RestError, match="contains the following 1 error"):
        herder.put_config("c", {"connector.class": "FileStreamSource", "file": "f"})
    assert herder.config("c")["topic"] == "v"
    herder.delete("c")
    with pytest.raises(RestError, match="Connector c not found"):
        herder.info("c")


def test_offsets_are_changed_only_when_a_connector_is_stopped(herder: Herder) -> None:
    herder.create("c", SOURCE, "stopped")
    entries = {"offsets": [{"partition": {"filename": "f"}, "offset": None}]}
    with pytest.raises(RestError, match="must be in the STOPPED state"):
        herder.alter("c", entries)
    herder.statuses.put("c", Status("STOPPED", "w:1"))
    herder.worker.offsets.put("c", "filename", {}, {"f": {"position": 3}})
    assert herder.offsets("c") == {"offsets": [{"partition": {"filename": "f"}, "offset": {"position": 3}}]}
    assert "altered successfully" in herder.alter("c", entries)
    assert herder.offsets("c") == {"offsets": []}
    for invalid in (
        {},
        {"offsets": []},
        {"offsets": [{"partition": "f"}]},
        {"offsets": [{"partition": {"other": "f"}}]},
    ):
        with pytest.raises(RestError) as rejected:
            herder.alter("c", invalid)
        assert rejected.value.code == 400


def test_only_failed_instances_are_restarted_if_requested(herder: Herder) -> None:
    herder.create("c", SOURCE, None)
    running, failed = Status("RUNNING", "w:1"), Status("FAILED", "w:1", "why")
    herder.statuses.put("c", running, {0: running, 1: running})
    plan = herder.restart("c", include_tasks=True, only_failed=True)
    assert plan is not None and [task["state"] for task in plan["tasks"]] == ["RUNNING", "RUNNING"]
    assert herder.restart("c", include_tasks=False, only_failed=False) is None
    herder.statuses.put("c", running, {0: running, 1: failed})
    plan = herder.restart("c", include_tasks=True, only_failed=True)
    assert plan is not None
    assert [plan["connector"]["state"], *(task["state"] for task in plan["tasks"])] == [
        "RUNNING", "RUNNING", "RESTARTING",
    ]  # fmt: skip
    assert "trace" not in plan["tasks"][1]


def test_plugins_are_listed_with_their_options(herder: Herder) -> None:
    kinds = {plugin["type"] for plugin in herder.list_plugins(connectors_only=False)}
    assert kinds == {"source", "sink", "converter", "transformation", "predicate"}
    assert {plugin["type"] for plugin in herder.list_plugins(connectors_only=True)} == {"source", "sink"}
    cast = herder.plugin_options("org.apache.kafka.connect.transforms.Cast$Value")
    assert [option["name"] for option in cast][:1] == ["spec"]
    with pytest.raises(RestError, match="Unknown plugin"):
        herder.plugin_options("Nothing")


# ---- the tasks of a connector


class RunningTasks:
    """Tasks that run nothing."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.stopping = threading.Event()


def test_states_of_all_tasks_are_published_and_those_of_former_tasks_deleted(herder: Herder) -> None:
    herder.create("c", SOURCE, None)
    tasks = RunningTasks("c", 3)
    herder._tasks["c"] = tasks  # type: ignore[assignment]
    herder._put("c", Status("RUNNING", "w:1"))
    herder._on_task_count(tasks)  # type: ignore[arg-type]
    assert [task["id"] for task in herder.status("c")["tasks"]] == [0, 1, 2]
    assert herder.info("c")["tasks"] == [{"connector": "c", "task": number} for number in range(3)]
    assert [entry["config"]["task.class"] for entry in herder.tasks("c")] == ["FileStreamSource"] * 3
    tasks.count = 2
    herder._on_task_count(tasks)  # type: ignore[arg-type]
    assert [task["state"] for task in herder.status("c")["tasks"]] == ["RUNNING", "RUNNING"]
    with pytest.raises(RestError, match="No status found for task c-2"):
        herder.task_status("c", 2)
    herder._on_task_end(tasks, Outcome(FAILED, "the cause", 1))  # type: ignore[arg-type]
    assert herder.task_status("c", 1) == {"id": 1, "state": "FAILED", "worker_id": "w:1", "trace": "the cause"}
    other = herder.task_status("c", 0)
    assert other["state"] == "FAILED" and "because task c-1 failed" in other["trace"]
    herder.restart_task("c", 0)
    assert herder._restarts == {"c"}
    # The next start expects as many tasks as before, but no more than are allowed.
    assert herder._expected_tasks("c", {"tasks.max": "5"}) == 2
    assert [herder._expected_tasks("c", {"tasks.max": text}) for text in ("1", "none", "")] == [1, 1, 1]


@pytest.mark.parametrize(
    "error, count, number",
    [
        (ValueError("Job aborted due to stage failure: Task 1 in stage 5.0 failed 1 times"), 2, 1),
        (ValueError("Job aborted due to stage failure: Task 3 in stage 5.0 failed 1 times"), 2, 0),
        (ConnectError("a record was rejected").of_task(2), 3, 2),
        (ConnectError("no connection"), 3, 0),
        (ValueError("Subtask 1 in stage 5"), 3, 0),
        (ValueError("VALUE_CONVERTER for a-b.c-1 at offset 7 (x): no JSON"), 3, 2),
        (ConnectError("the record at offset 7 of a-b.c-1 was rejected: why"), 3, 2),
        (ConnectError("the record at offset 7 of a-b.c-11 was rejected: why"), 3, 0),
    ],
)
def test_the_failed_task_is_that_of_the_error(error: Exception, count: int, number: int) -> None:
    owners = {TopicPartition("a-b.c", 1): 2}
    assert failed_task(error, count, owners) == number
    outer = RuntimeError("the query failed")
    outer.__cause__ = error
    assert failed_task(outer, count, owners) == number


# ---- tasks that do not stop


class StuckTask:
    """A task whose connector never returns."""

    def __init__(self, originals: dict[str, str]) -> None:
        self.originals = originals
        self.is_stuck = True
        self.stopping = threading.Event()

    def stop(self, timeout: float | None = None) -> bool:
        return not self.is_stuck


class OwnsNothing(Herder):
    """Other workers own all connectors."""

    def owns(self, name: str) -> bool:
        return False


def add_stuck_task(herder: Herder, name: str) -> StuckTask:
    herder.create(name, SOURCE, None)
    task = StuckTask(herder.config(name))
    herder._tasks[name] = task  # type: ignore[assignment]
    herder._put(name, Status("RUNNING", "w:1"), {0: Status("RUNNING", "w:1")})
    return task


def test_a_connector_is_unassigned_only_after_its_task_has_ended(herder: Herder) -> None:
    herder.__class__ = OwnsNothing
    task = add_stuck_task(herder, "c")
    herder._reconcile()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "RUNNING"
    task.is_stuck = False
    herder._reconcile()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "UNASSIGNED"


def test_a_connector_is_stopped_only_after_its_task_has_ended(herder: Herder) -> None:
    task = add_stuck_task(herder, "c")
    herder.set_target("c", "STOPPED")
    herder._reconcile()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "RUNNING"
    with pytest.raises(RestError, match="must be in the STOPPED state"):
        herder.reset("c")
    task.is_stuck = False
    herder._reconcile()
    status = herder.statuses.connector("c")
    assert status is not None and (status.state, herder.statuses.tasks("c")) == ("STOPPED", {})


def test_a_task_that_stopped_too_late_is_started_again(herder: Herder, monkeypatch: pytest.MonkeyPatch) -> None:
    task = add_stuck_task(herder, "c")
    started: list[str] = []
    monkeypatch.setattr(herder, "_start", lambda name, config: started.append(name))
    task.stopping.set()
    herder._reconcile()
    assert started == []
    task.is_stuck = False
    herder._reconcile()
    assert started == ["c"]


def test_a_stuck_task_does_not_block_other_connectors(herder: Herder) -> None:
    add_stuck_task(herder, "a")
    herder.put_config("a", {**SOURCE, "topic": "u"})
    herder.create("b", SOURCE, "paused")
    herder._reconcile()
    status = herder.statuses.connector("b")
    assert status is not None and status.state == "PAUSED"
