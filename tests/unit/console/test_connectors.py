"""The operations on connectors, against a worker without Kafka. No result contains a password."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.common.secret_settings import HIDDEN
from kavka.console import connector_forms
from kavka.console.errors import Refused
from kavka.console.pages import connectors
from kavka.console.registry import OPERATIONS, audited_arguments
from tests.support.fake_connect import PASSWORD, FakeConnect, fake_connect


@pytest.fixture
def worker() -> Iterator[tuple[FakeConnect, Any]]:
    with fake_connect() as (fake, address):
        settings = SimpleNamespace(own={"connect.url": address})
        yield fake, SimpleNamespace(cluster=SimpleNamespace(name="default", settings=settings), require=lambda *_: None)


def call(name: str, context: Any, **inputs: Any) -> Any:
    operation = OPERATIONS[name]
    return asyncio.run(operation.function(context, **operation.arguments({}, inputs)))


def test_passwords_and_traces_with_passwords_are_not_shown(worker):
    fake, context = worker
    broken = call("describe_connector", context, connector="broken")
    assert broken.config["db.password"] == HIDDEN
    assert "Caused by: IOException: no disk" in broken.traces["0"]
    assert PASSWORD not in repr(broken)
    files = call("describe_connector", context, connector="files")
    # Its type is password, its name says nothing.
    assert files.config["db.pin"] == HIDDEN
    assert [task.id for task in files.connector.tasks] == [0, 1]
    fake.configs["broken"]["db.pin"] = "no disk"
    assert "no disk" not in repr(call("describe_connector", context, connector="broken"))


def test_without_the_plugin_no_unknown_setting_is_shown(worker, monkeypatch):
    fake, context = worker
    respond = fake.respond
    monkeypatch.setattr(
        fake, "respond", lambda method, path, body: (404, {}) if "/validate" in path else respond(method, path, body)
    )
    assert call("describe_connector", context, connector="files").config == {
        "name": "files", "connector.class": "shop.Lines", "topic": HIDDEN, "db.pin": HIDDEN,
    }  # fmt: skip


def test_the_form_has_required_fields_first_and_no_passwords(worker):
    fake, context = worker
    (workers,) = connectors.connect_clusters(context)
    config = {**fake.configs["files"], "transforms": "a\\b"}
    form = connector_forms.form_of(asyncio.run(workers.validate(config)), config)
    assert {group: [field.name for field in fields] for group, fields in form.groups.items()} == {
        "Required": ["topic"], "Common": ["tasks.max"], "Database": ["db.pin", "db.compress"],
    }  # fmt: skip
    pin = form.groups["Database"][0]
    assert (pin.value, pin.secret, pin.help) == (HIDDEN, True, "About db.pin.")
    assert form.rest == "transforms=a\\\\b"
    assert connector_forms.submitted({}, form.rest) == {"transforms": "a\\b"}


def test_a_connector_is_created_from_fields_or_json_after_a_check(worker):
    fake, context = worker
    fields = {"config.connector.class": ["shop.Lines"], "config.name": ["new"], "config.topic": [""]}
    with pytest.raises(Refused) as refused:
        call("create_connector", context, **fields)
    assert refused.value.fields == {"config.topic": "Missing required configuration topic"}
    done = call("create_connector", context, **{**fields, "config.topic": ["t"], "more": ["transforms=a"]})
    assert done.location.startswith("/c/default/pipelines/connector?connector=new&at=")
    assert fake.configs["new"] == {"connector.class": "shop.Lines", "name": "new", "topic": "t", "transforms": "a"}
    raw = json.dumps({"name": "raw", "connector.class": "shop.Lines", "topic": "t", "tasks.max": 2, "x": True})
    call("create_connector", context, config=[raw])
    assert (fake.configs["raw"]["tasks.max"], fake.configs["raw"]["x"]) == ("2", "true")
    with pytest.raises(Refused, match="already exists"):
        call("create_connector", context, config=[raw])


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        ('{"name": "x"}', "", "connector.class is missing"),
        ('{"name": {}}', "", "values must be texts"),
        ("[1]", "", "must be an object"),
        ("{", "", "must be an object in JSON"),
        ('{"connector.class": "L", "topic": "a"}', "topic=b", "topic is set twice"),
        ('{"connector.class": "L", "topic": "a", "db.pin": "[hidden]"}', "", "enter the complete value"),
        (
            '{"connector.class": "L", "topic": "a", "name": "x", "tasks.max": "y", "db.pin": "4711"}',
            "",
            "after \\[hidden\\]",
        ),
    ],
)
def test_a_bad_configuration_is_rejected_without_a_request(worker, config, more, message):
    fake, context = worker
    with pytest.raises(Refused, match=message):
        call("create_connector", context, config=[config], more=[more])
    assert fake.requests == []


def test_a_change_keeps_hidden_values_and_rejects_an_outdated_page(worker):
    fake, context = worker
    files = call("describe_connector", context, connector="files")
    config = {**files.config, "topic": "other"}
    call("check_connector", context, connector="files", config=config, seen=files.seen)
    assert fake.requests == []
    call("change_connector", context, connector="files", config=config, seen=files.seen)
    assert (fake.configs["files"]["topic"], fake.configs["files"]["db.pin"]) == ("other", "4711")
    with pytest.raises(Refused, match="has changed"):
        call("change_connector", context, connector="files", config=config, seen=files.seen)
    with pytest.raises(Refused, match="cannot be renamed"):
        call("change_connector", context, connector="files", config={**config, "name": "y"})


def test_commands_restarts_offsets_and_deletion(worker):
    fake, context = worker
    for what in ("pause", "resume", "restart", "restart-connector", "restart-failed", "stop"):
        call("control_connector", context, connector="files", what=what)
    call("restart_task", context, connector="files", task="1")
    assert fake.requests == [
        "PUT /connectors/files/pause",
        "PUT /connectors/files/resume",
        "POST /connectors/files/restart?includeTasks=true&onlyFailed=false",
        "POST /connectors/files/restart?includeTasks=false&onlyFailed=false",
        "POST /connectors/files/restart?includeTasks=true&onlyFailed=true",
        "PUT /connectors/files/stop",
        "POST /connectors/files/tasks/1/restart",
    ]
    entries = [{"partition": {"file": "in"}, "offset": {"position": 1}}]
    with pytest.raises(Refused, match="STOPPED"):
        call("alter_connector_offsets", context, connector="files", offsets=json.dumps(entries))
    fake.states["files"] = "STOPPED"
    seen = call("connector_offsets", context, connector="files").seen
    call("alter_connector_offsets", context, connector="files", offsets=json.dumps(entries), seen=seen)
    assert fake.offset_entries == entries
    for bad in ("x", "[]", "{}", '[{"partition": {}}]'):
        with pytest.raises(Refused):
            call("alter_connector_offsets", context, connector="files", offsets=bad)
    with pytest.raises(Refused, match="has changed"):
        call("reset_connector_offsets", context, connector="files", confirm="files", seen=seen)
    call("reset_connector_offsets", context, connector="files", confirm="files")
    assert fake.offset_entries == []
    with pytest.raises(Refused, match="type 'files'"):
        call("delete_connector", context, connector="files", confirm="broken")
    call("delete_connector", context, connector="files", confirm="files")
    assert "files" not in fake.configs


def test_requests_go_to_configured_workers_only(worker):
    _, context = worker
    with pytest.raises(Refused, match="no such Connect workers"):
        call("connector_offsets", context, connector="files", at="http://127.0.0.1:1")
    context.cluster.settings.own["connect.url"] += " http://127.0.0.1:1"
    with pytest.raises(Refused, match="choose one of"):
        call("connector_offsets", context, connector="files")


def test_the_audit_log_has_the_names_of_settings_without_values():
    operation = OPERATIONS["create_connector"]
    arguments = operation.arguments({}, {"config": {"db.pin": "4711"}, "more": "x.password=4711"})
    audited = audited_arguments(operation, arguments)
    assert audited == {"config": {"db.pin": "(hidden)"}, "more": "(hidden)"}
