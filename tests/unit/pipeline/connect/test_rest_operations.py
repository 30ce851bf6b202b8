"""`GET /health`, `GET /metrics` and the levels of loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kavka.common.types import TopicPartition
from kavka.pipeline.connect import loggers, rest
from kavka.pipeline.connect.distributed import Assignments, DistributedHerder
from kavka.pipeline.connect.herder import Herder
from kavka.pipeline.connect.metrics import INPUT, Measures
from kavka.pipeline.connect.stores import ConfigStore, MemoryTable, Status, StatusStore
from kavka.pipeline.connect.tasks import Task
from tests.support.connect_app import ApiClient, idle_herder

NAME = "kavka.test_levels"


@pytest.fixture
def herder() -> Herder:
    return idle_herder()


@pytest.fixture(autouse=True)
def reset_level() -> Iterator[None]:
    yield
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def test_a_worker_is_healthy_while_its_herder_responds(herder: Herder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_HEALTH_TIMEOUT_S", 0.01)
    api = ApiClient(herder)
    status, body = api("GET", "/health")
    assert (status, body["status"]) == (500, "unhealthy")
    assert body["message"].startswith("Worker was unable to handle this request and may be unable to handle other")
    monkeypatch.setattr(type(herder), "is_ready", False)
    status, body = api("GET", "/health")
    assert (status, body["status"]) == (503, "starting")
    assert body["message"].startswith("Worker is still starting up.")
    monkeypatch.setattr(rest, "_HEALTH_TIMEOUT_S", 30.0)
    herder.start()
    try:
        assert api("GET", "/health") == (
            200, {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}
        )  # fmt: skip
    finally:
        herder.close()


def test_a_worker_of_a_group_is_starting_until_it_has_joined() -> None:
    configs, statuses = ConfigStore(MemoryTable()), StatusStore(MemoryTable())
    settings = {"rebalance.timeout.ms": 1, "session.timeout.ms": 10_000}
    herder = DistributedHerder(idle_herder().worker, configs, statuses, settings, "http://w:1")
    assert not herder.is_ready and "not a member" in str(herder.health(0.0))
    herder.set_assignments(Assignments("w:1", 1))
    assert herder.is_ready and "does not respond" in str(herder.health(0.01))
    herder.set_assignments(Assignments())
    assert herder.is_ready and "not a member" in str(herder.health(0.0))
    herder.set_cluster_level(NAME, "DEBUG")
    assert logging.getLogger(NAME).level == logging.NOTSET


def test_a_level_is_set_on_the_worker_or_on_all_workers(herder: Herder) -> None:
    api = ApiClient(herder)
    path, debug = f"/admin/loggers/{NAME}", {"level": "debug"}
    assert api("PUT", path, debug, "scope=worker") == (200, [NAME])
    level = api("GET", path)[1]
    assert level["level"] == "DEBUG" and level["last_modified"] > 1_700_000_000_000
    assert api("GET", "/admin/loggers")[1][NAME] == level
    # As in Kafka Connect, an unknown scope is that of the worker.
    assert api("PUT", path, {"level": "WARN"}, "scope=world") == (200, [NAME])
    assert api("PUT", path, {"level": "ERROR"}, "scope=cluster") == (204, None)
    assert api("GET", path)[1]["level"] == "ERROR"


def test_the_record_of_a_level_is_applied_by_every_worker(caplog: pytest.LogCaptureFixture) -> None:
    table = MemoryTable()
    ConfigStore(table).put_log_level(NAME, "DEBUG")
    assert table.items() == [(f"logger-cluster-{NAME}", '{"level":"DEBUG"}')]
    for key, value in table.items():
        loggers.apply_record(key, value)
    assert logging.getLogger(NAME).level == logging.DEBUG
    loggers.apply_record("connector-x", '{"level":"ERROR"}')
    for invalid in (None, "{", "[]", "null", '{"level":"LOUD"}', '{"level":7}', "{}"):
        loggers.apply_record(f"logger-cluster-{NAME}", invalid)
    assert logging.getLogger(NAME).level == logging.DEBUG
    assert len([record for record in caplog.records if "invalid record" in record.message]) == 7


def progress(batch: int, records: int, latest: int, **more: Any) -> Any:
    observed = {INPUT: SimpleNamespace(asDict=lambda: {"records": records, "bytes": 10 * records})}
    source = SimpleNamespace(
        endOffset='{"t":{"0":5,"1":7}}', latestOffset=f'{{"t":{{"0":{latest},"1":7}},"$ids":{{}}}}'
    )
    report = {"numInputRows": 99, "durationMs": {"triggerExecution": 1500}, "observedMetrics": observed}
    return SimpleNamespace(batchId=batch, sources=[source], **{**report, **more})


def test_metrics_have_the_measures_of_local_connectors(herder: Herder, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = Measures()
    measures.add_progress(progress(0, 4, 25))
    measures.add_progress(progress(1, 0, 9, observedMetrics={INPUT: SimpleNamespace(asDict=lambda: {"bytes": None})}))
    measures.failed += 2
    assert measures.lag == {TopicPartition("t", 0): 4, TopicPartition("t", 1): 0}
    herder.configs.put("c", {"connector.class": "FileStreamSink", "name": "c", "topics": "t"})
    running = Status("RUNNING", "w:1")
    monkeypatch.setattr(herder, "task_states", lambda name: [running.state, running.state])
    monkeypatch.setattr(herder, "local_tasks", lambda: [cast(Task, SimpleNamespace(name="c", measures=measures))])
    api = ApiClient(herder)
    status, text = api("GET", "/metrics")
    assert status == 200 and api.headers["content-type"].startswith("text/plain")
    lines = text.splitlines()
    for line in (
        'kavka_connect_records{connector="c"} 4.0',
        'kavka_connect_bytes{connector="c"} 40.0',
        'kavka_connect_failed_records{connector="c"} 2.0',
        'kavka_connect_batches{connector="c"} 2.0',
        'kavka_connect_batch_seconds{connector="c"} 3.0',
        'kavka_connect_last_batch_seconds{connector="c"} 1.5',
        'kavka_connect_lag{connector="c",partition="0",topic="t"} 4.0',
        'kavka_connect_tasks{connector="c",state="RUNNING"} 2.0',
    ):
        assert line in lines, text


def test_a_report_without_the_observation_is_that_of_a_source() -> None:
    measures = Measures()
    measures.add_progress(progress(0, 4, 25, observedMetrics={}))
    assert (measures.records, measures.bytes, measures.lag) == (99, 0, {})
