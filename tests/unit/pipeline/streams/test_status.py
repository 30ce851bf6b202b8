"""The status of an application, and its metrics for Prometheus."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from kavka.common.types import TopicPartition
from kavka.pipeline.streams import status as status_module
from kavka.pipeline.streams.settings import settings_of
from kavka.pipeline.streams.status import Status, registry_of, serve_status
from kavka.pipeline.streams.task_reports import TaskReport, TaskReports
from kavka.streams import StreamsException


def settings(**more: Any) -> Any:
    return settings_of({"application.id": "app", "bootstrap.servers": "x:1", **more})


def query() -> Any:
    first = SimpleNamespace(
        startOffset=None,
        endOffset='{"a": {"0": 7, "1": 3}, "$initial": {"a": {"0": 2, "1": 3}}}',
        latestOffset='{"a": {"0": 9, "1": 4, "2": 1}}',
    )
    later = SimpleNamespace(startOffset='{"b": {"0": 5}}', endOffset='{"b": {"0": 8, "1": 2}}', latestOffset=None)
    other = SimpleNamespace(startOffset="another source", endOffset="1", latestOffset="2")
    operators = [SimpleNamespace(numRowsTotal=6)]
    progress = SimpleNamespace(runId="run", batchId=4, batchDuration=500, stateOperators=operators)
    progress.sources = [first, later, other]
    return SimpleNamespace(lastProgress=progress)


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Status:
    reports = TaskReports()
    reports.receive([TaskReport("1_0", 0, None, 5, 1, 100).to_json(), TaskReport("1_1", 0, None, 2, 0, 50).to_json()])
    calls: list[Any] = []

    def lag_seconds(client: Any, next_offsets: dict[TopicPartition, int]) -> dict[TopicPartition, float]:
        assert not calls, "the lag is read again within five seconds"
        calls.append(next_offsets)
        assert next_offsets == {("a", 0): 7, ("a", 1): 3, ("a", 2): 0}
        return {TopicPartition("a", 0): 12.5}

    monkeypatch.setattr(status_module, "lag_seconds", lag_seconds)
    return Status(settings(), reports)


METRICS = {"commit-total": 5, "process-total": 40, "batch-latency-avg": 250.0, "failed-stream-threads": 1}


def test_a_status_counts_offsets_instead_of_rows_and_has_partitions_and_tasks(status: Status) -> None:
    snapshot = status.snapshot(query(), "RUNNING", lambda: METRICS)
    assert (snapshot["batch"], snapshot["rows_per_second"], snapshot["lag"], snapshot["state_rows"]) == (4, 20.0, 4, 6)
    assert (snapshot["lag_seconds"], snapshot["state_bytes"], snapshot["restores"]) == (12.5, 150, 1)
    assert (snapshot["records"], snapshot["batches"], snapshot["batch_seconds_avg"]) == (40, 5, 0.25)
    assert [task["task"] for task in snapshot["tasks"]] == ["1_0", "1_1"]
    assert snapshot["partitions"][0] == {"topic": "a", "partition": 0, "lag": 2, "lag_seconds": 12.5}
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert status.snapshot(query(), "RUNNING", lambda: pytest.fail("the checkpoint is read again")) == snapshot


def test_an_application_that_does_not_run_has_a_status(status: Status) -> None:
    snapshot = status.snapshot(None, "CREATED", dict)
    assert (snapshot["state"], snapshot["lag"], snapshot["partitions"]) == ("CREATED", 0, [])


def test_metrics_have_the_application_its_partitions_and_its_tasks(status: Status) -> None:
    text = registry_of(lambda: status.snapshot(query(), "RUNNING", lambda: METRICS)).render().decode()
    lines = text.splitlines()
    for line in (
        'kavka_streams_up{application_id="app"} 1.0',
        'kavka_streams_records{application_id="app"} 40.0',
        'kavka_streams_micro_batch_seconds{application_id="app"} 0.5',
        'kavka_streams_lag_records{application_id="app",partition="0",topic="a"} 2.0',
        'kavka_streams_lag_seconds{application_id="app",partition="0",topic="a"} 12.5',
        'kavka_streams_task_records{application_id="app",task="1_0"} 5.0',
        'kavka_streams_task_state_bytes{application_id="app",task="1_1"} 50.0',
        'kavka_streams_task_restores{application_id="app",task="1_0"} 1.0',
        'kavka_streams_state_bytes{application_id="app"} 150.0',
    ):
        assert line in lines, text


def test_metrics_are_served_at_the_listener() -> None:
    application: Any = SimpleNamespace(status=lambda: Status(settings(), TaskReports()).snapshot(None, "CREATED", dict))
    listener = serve_status(application, settings(**{"metrics.listener": "127.0.0.1:0"}))
    assert listener is not None
    try:
        with urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=10) as response:
            assert b'kavka_streams_up{application_id="app"} 0.0' in response.read()
        with urlopen(f"http://127.0.0.1:{listener.port}/status", timeout=10) as response:
            assert json.load(response)["state"] == "CREATED"
        taken = settings(**{"metrics.listener": f"127.0.0.1:{listener.port}"})
        with pytest.raises(StreamsException, match=r"^metrics.listener=127.0.0.1:.*in use"):
            serve_status(application, taken)
    finally:
        listener.close()
    assert serve_status(application, settings()) is None
    with pytest.raises(StreamsException, match=r"metrics.listener must be host:port"):
        serve_status(application, settings(**{"metrics.listener": "here"}))
