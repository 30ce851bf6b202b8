"""What a worker answers without Spark and without a cluster: validate, plugins, configurations, states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kavka.pipeline.connect.herder import Herder, RestError
from kavka.pipeline.connect.stores import Status
from tests.support.connect_app import SOURCE, idle_herder

GOLDEN = Path(__file__).parents[2] / "golden" / "connect-definitions-3.9.1.json"
# Where a place differs: Kafka counts its exactly-once options from 2, and its file may be the standard input.
ELSEWHERE = {("file", "required"), ("transforms.a.type", "order"), ("transforms.a.type", "display_name")}


@pytest.fixture
def herder() -> Herder:
    return idle_herder()


def test_definitions_are_those_of_apaches_worker(herder: Herder) -> None:
    given = {"connector.class": "FileStreamSource", "transforms": "a", "transforms.a.type": "nope"}
    ours = {one["value"]["name"]: one["definition"] for one in herder.validate("FileStreamSource", given)["configs"]}
    for theirs in json.loads(GOLDEN.read_text()):
        name = theirs["name"]
        for part, value in theirs.items():
            if (name, part) in ELSEWHERE or (part == "order" and theirs["group"] == "Exactly Once Support"):
                continue
            assert ours[name][part] == value, (name, part)


def test_a_wrong_class_and_a_wrong_type_are_told_as_kafka_connect_does(herder: Herder) -> None:
    with pytest.raises(RestError, match="Failed to find any class that implements Connector") as found:
        herder.create("c", {"connector.class": "no.Such"}, None)
    assert found.value.code == 400
    with pytest.raises(RestError, match="does not match request type") as found:
        herder.validate("FileStreamSink", SOURCE)
    assert found.value.code == 400
    with pytest.raises(RestError, match="contains no connector type"):
        herder.validate("FileStreamSink", {})


def test_a_connector_is_made_changed_and_deleted(herder: Herder) -> None:
    made = herder.create("c", SOURCE, "paused")
    assert made == {"name": "c", "config": {**SOURCE, "name": "c"}, "tasks": [], "type": "source"}
    assert herder.configs.target("c") == "PAUSED"
    with pytest.raises(RestError, match="already exists") as found:
        herder.create("c", SOURCE, None)
    assert found.value.code == 409
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
    for wrong in ({}, {"offsets": []}, {"offsets": [{"partition": "f"}]}, {"offsets": [{"partition": {"other": "f"}}]}):
        with pytest.raises(RestError) as found:
            herder.alter("c", wrong)
        assert found.value.code == 400


def test_only_what_failed_is_restarted_where_that_is_asked_for(herder: Herder) -> None:
    herder.create("c", SOURCE, None)
    running, failed = Status("RUNNING", "w:1"), Status("FAILED", "w:1", "why")
    herder.statuses.put("c", running, running)
    plan = herder.restart("c", include_tasks=True, only_failed=True)
    assert plan is not None and plan["tasks"][0]["state"] == "RUNNING"
    assert herder.restart("c", include_tasks=False, only_failed=False) is None
    herder.statuses.put("c", running, failed)
    plan = herder.restart("c", include_tasks=True, only_failed=True)
    assert plan is not None
    assert (plan["connector"]["state"], plan["tasks"][0]["state"]) == ("RUNNING", "RESTARTING")
    assert "trace" not in plan["tasks"][0]


def test_all_plugins_are_listed_with_their_options(herder: Herder) -> None:
    kinds = {one["type"] for one in herder.list_plugins(connectors_only=False)}
    assert kinds == {"source", "sink", "converter", "transformation", "predicate"}
    assert {one["type"] for one in herder.list_plugins(connectors_only=True)} == {"source", "sink"}
    cast = herder.plugin_options("org.apache.kafka.connect.transforms.Cast$Value")
    assert [one["name"] for one in cast][:1] == ["spec"]
    with pytest.raises(RestError, match="Unknown plugin"):
        herder.plugin_options("Nothing")


# ---- tasks that do not stop


class StuckTask:
    """What it calls never returns."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.stuck = True

    def stop(self, timeout: float | None = None) -> bool:
        return not self.stuck


class Elsewhere(Herder):
    """Others own everything."""

    def owns(self, name: str) -> bool:
        return False


def stuck(herder: Herder, name: str) -> StuckTask:
    herder.create(name, SOURCE, None)
    task = StuckTask(herder.config(name))
    herder._tasks[name] = task  # type: ignore[assignment]
    herder._put(name, Status("RUNNING", "w:1"), Status("RUNNING", "w:1"))
    return task


def test_a_connector_is_not_given_to_others_before_its_task_has_ended(herder: Herder) -> None:
    herder.__class__ = Elsewhere
    task = stuck(herder, "c")
    herder._step()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "RUNNING"
    task.stuck = False
    herder._step()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "UNASSIGNED"


def test_a_connector_is_not_said_to_be_stopped_before_its_task_has_ended(herder: Herder) -> None:
    task = stuck(herder, "c")
    herder.set_target("c", "STOPPED")
    herder._step()
    status = herder.statuses.connector("c")
    assert status is not None and status.state == "RUNNING"
    with pytest.raises(RestError, match="must be in the STOPPED state"):
        herder.reset("c")
    task.stuck = False
    herder._step()
    status = herder.statuses.connector("c")
    assert status is not None and (status.state, herder.statuses.task("c")) == ("STOPPED", None)


def test_a_task_that_does_not_stop_does_not_keep_other_connectors_from_running(herder: Herder) -> None:
    stuck(herder, "a")
    herder.put_config("a", {**SOURCE, "topic": "u"})
    herder.create("b", SOURCE, "paused")
    herder._step()
    status = herder.statuses.connector("b")
    assert status is not None and status.state == "PAUSED"
