"""The jobs of a flow: their errors are in its status, and a failed job does not stop the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.client.admin.base import AdminError
from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror import housekeeping
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.housekeeping import Housekeeping, Job
from kavka.pipeline.mirror.running import RunningFlow
from kavka.pipeline.mirror.status import DEGRADED, FAILED, RUNNING, UNASSIGNED
from kavka.pipeline.mirror.topics import TopicSync
from tests.support.processes import wait_until

FLOW = Flow("A", "B", {}, {}, {}, {}, delete_topics=True, sync_configs=False, replication_factor=1)
TIMEOUT_S = 20.0


def run(*works: Callable[[], object], times: int = 1) -> Housekeeping:
    keeper = Housekeeping(FLOW)
    jobs = [Job(f"job {n}", 60.0, work) for n, work in enumerate(works)]
    for _ in range(times):
        for job in jobs:
            job.due = 0.0
        keeper._run_due(jobs)
    return keeper


def fail(error: Exception) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


def test_an_unexpected_error_of_a_job_is_shown_and_the_other_jobs_run() -> None:
    done: list[str] = []
    keeper = run(fail(ValueError("a bug")), lambda: done.append("second"), times=2)
    assert keeper.error == "job 0: a bug" and done == ["second"] * 2
    assert not keeper.ready.is_set()


def test_the_error_of_a_job_is_shown_until_the_job_succeeds() -> None:
    keeper = Housekeeping(FLOW)
    outcomes = iter([KafkaError(ErrorCode.NETWORK_EXCEPTION, "away"), None])

    def work() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    jobs = [Job("failing", 60.0, work), Job("other", 0.0, lambda: None)]
    keeper._run_due(jobs)
    assert keeper.error == "failing: away"
    jobs[1].due = 0.0
    keeper._run_due(jobs)
    assert keeper.error == "failing: away"
    jobs[0].due = 0.0
    keeper._run_due(jobs)
    assert keeper.error is None and keeper.ready.is_set()


def test_the_parts_that_failed_are_shown_and_the_flow_may_start() -> None:
    keeper = Housekeeping(FLOW)
    keeper._run_due([Job("topics", 60.0, lambda: [keeper.report(f"no topic {n}") for n in range(5)])])
    assert keeper.error == "topics: no topic 0, no topic 1, no topic 2, 2 more errors"
    assert keeper.ready.is_set()


def test_jobs_do_not_run_while_another_process_has_the_flow() -> None:
    keeper = Housekeeping(FLOW, lambda: False)
    keeper._run_due([Job("topics", 60.0, fail(AssertionError("it ran")))])
    assert keeper.error is None


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A flow that only writes heartbeats, between clusters that a test controls: `error` is raised
    by the job, `settings_error` when the clients are created."""
    world = SimpleNamespace(error=None, settings_error=None)

    def admin(settings: Any) -> Any:
        if world.settings_error is not None:
            raise world.settings_error
        return contextlib.nullcontext()

    def beat() -> None:
        if world.error is not None:
            raise world.error

    class Jobs:
        def __init__(self, *_: Any) -> None:
            self.all = [Job("heartbeats", 0.01, beat)]

        def close(self) -> None:
            pass

    monkeypatch.setattr(housekeeping, "Admin", admin)
    monkeypatch.setattr(housekeeping, "Jobs", Jobs)
    monkeypatch.setattr(housekeeping, "_RETRY_DELAY", 0.01)
    world.flow = RunningFlow(Flow("A", "B", {}, {}, {}, {}, enabled=False), None)
    yield world
    world.flow.stop()
    world.flow.join(TIMEOUT_S)


def wait_for_state(flow: RunningFlow, state: str) -> None:
    wait_until(lambda: flow.status.state == state, timeout=TIMEOUT_S, what=state)


def test_an_error_of_the_housekeeping_is_in_the_state_of_the_flow(heartbeats: Any) -> None:
    heartbeats.flow.start()
    wait_for_state(heartbeats.flow, RUNNING)
    heartbeats.error = ValueError("a bug")
    wait_for_state(heartbeats.flow, DEGRADED)
    assert heartbeats.flow.status.error == "heartbeats: a bug"
    heartbeats.error = None
    wait_for_state(heartbeats.flow, RUNNING)
    wait_until(lambda: heartbeats.flow.status.error is None, timeout=TIMEOUT_S, what="no error")


def test_clients_that_cannot_connect_are_created_again(heartbeats: Any) -> None:
    heartbeats.settings_error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "away")
    heartbeats.flow.start()
    wait_until(
        lambda: "away" in (heartbeats.flow.status.error or ""), timeout=TIMEOUT_S, what="the error in the status"
    )
    heartbeats.settings_error = None
    wait_for_state(heartbeats.flow, RUNNING)


def test_settings_that_a_client_refuses_fail_the_flow(heartbeats: Any) -> None:
    heartbeats.settings_error = ConfigError("ssl.keystore.location", "no such file")
    heartbeats.flow.start()
    wait_for_state(heartbeats.flow, FAILED)
    assert "no such file" in heartbeats.flow.status.error


class Cluster:
    """Replaces an admin client. `hidden` topics exist, but may not be described."""

    def __init__(self, *topics: str) -> None:
        self.topics, self.hidden = set(topics), set[str]()

    def list_topics(self) -> list[str]:
        return sorted(self.topics - self.hidden)

    def describe_topics(self, names: list[str]) -> dict[str, Any]:
        errors = {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for name in names if name not in self.topics}
        errors |= {name: ErrorCode.TOPIC_AUTHORIZATION_FAILED for name in names if name in self.hidden}
        results = {name: SimpleNamespace(partitions=[0]) for name in names if name not in errors}
        if errors:
            raise AdminError({name: KafkaError(code) for name, code in errors.items()}, results)
        return results

    def create_topics(self, topics: list[Any]) -> None:
        self.topics |= {topic.name for topic in topics}

    def delete_topics(self, names: list[str]) -> None:
        self.describe_topics(names)
        self.topics -= set(names)


def topic_sync(source: Cluster, target: Cluster, **settings: Any) -> TopicSync:
    fields = {**vars(FLOW), **settings}
    return TopicSync(Flow(**fields), source, target)  # type: ignore[arg-type]


def test_a_topic_that_was_deleted_in_the_source_is_deleted_after_two_refreshes() -> None:
    source, target = Cluster("orders", "stock"), Cluster("A.old", "own")
    sync = topic_sync(source, target)
    sync.refresh()
    source.topics.discard("orders")
    sync.refresh()
    assert "A.orders" in target.topics
    sync.refresh()
    # The mirror has not seen `old` in the source, so `A.old` stays.
    assert target.topics == {"A.stock", "A.old", "own"}


def test_a_topic_that_appears_again_or_may_not_be_seen_is_not_deleted() -> None:
    source, target = Cluster("orders", "stock"), Cluster()
    sync = topic_sync(source, target)
    sync.refresh()
    for _ in range(3):
        source.topics.discard("orders")
        sync.refresh()
        source.topics.add("orders")
        sync.refresh()
    source.hidden = {"stock"}
    for _ in range(3):
        sync.refresh()
    assert target.topics == {"A.orders", "A.stock"}


def test_topics_are_not_deleted_by_default() -> None:
    source, target = Cluster("orders"), Cluster()
    sync = topic_sync(source, target, delete_topics=False)
    sync.refresh()
    source.topics.clear()
    for _ in range(3):
        sync.refresh()
    assert target.topics == {"A.orders"}


def test_a_flow_that_is_not_held_any_more_has_not_ended(heartbeats: Any) -> None:
    is_held = [True]
    flow = RunningFlow(heartbeats.flow.flow, None, lambda: is_held[0])
    flow.start()
    wait_for_state(flow, RUNNING)
    is_held[0] = False
    wait_until(lambda: not flow.is_active, timeout=TIMEOUT_S, what="the end of its threads")
    assert flow.status.state == UNASSIGNED
    assert not flow.has_ended
    flow.stop()
    flow.join(TIMEOUT_S)
    assert flow.has_ended
