"""The driver of an exactly-once sink: its commits, and the commits that it rejects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kavka.client.admin.base import AdminError
from kavka.client.types import PreparedTransaction
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.spark import two_phase
from kavka.pipeline.spark.decisions import Decision, TaskEntry
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import sink_options
from kavka.pipeline.spark.two_phase import Attempt, Driver, Report

OPTIONS = sink_options({"kafka.bootstrap.servers": "localhost:1", "topic": "t", "exactlyOnce": "true"})


class Cluster:
    """Replaces the admin client and the decision writer, and records their calls in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.closed: set[str] = set()
        self.aborted: set[str] = set()

    def describe_transactions(self, names: Any) -> dict[str, Any]:
        self.calls.append(("describe", sorted(names)))
        return {
            name: SimpleNamespace(
                state="CompleteAbort" if name in self.closed else "Ongoing", producer_id=1, producer_epoch=0
            )
            for name in names
        }

    def end_transactions(self, prepared: Any, commit: bool = True) -> None:
        names = [transaction.transactional_id for transaction in prepared]
        self.calls.append(("commit" if commit else "abort", names))
        lost = {name: KafkaError(ErrorCode.PRODUCER_FENCED) for name in names if commit and name in self.aborted}
        if lost:
            raise AdminError(lost, {})

    def list_transactions(self, states: Any) -> list[Any]:
        return [SimpleNamespace(transactional_id=name) for name in ("q-driver", "q-0-3", "other-0-0")]

    def fence_producers(self, names: Any) -> None:
        self.calls.append(("fence", list(names)))

    def write(self, decision: Decision) -> None:
        self.calls.append(("decide", decision))


def driver_with(last: Decision | None = None) -> tuple[Driver, Cluster]:
    cluster = Cluster()
    driver = object.__new__(Driver)
    driver.__dict__.update(
        run="run", _options=OPTIONS, _query="q", _admin=cluster, _writer=cluster, _last=last, _is_first=True
    )
    return driver, cluster


def report(
    task: int, batch: int = 5, rows: int = 3, decision_id: str | None = None, is_committed: bool = False
) -> Report:
    prepared = PreparedTransaction(f"q-{task}-0", 1, 0, True) if rows else None
    entry = TaskEntry(task, rows, rows * 10, prepared, ("t", 0, 7) if rows else None)
    return Report(Attempt("q", "run", batch, task, 0), entry, decision_id, is_committed)


def decided(batch: int, *reports: Report) -> Decision:
    return Decision(
        "q", "previous run", batch, f"decision-{batch}", {report.entry.task: report.entry for report in reports}
    )


def steps(cluster: Cluster) -> list[str]:
    return [name for name, _ in cluster.calls]


def test_commit_checks_decides_commits_and_aborts_other_transactions() -> None:
    driver, cluster = driver_with(decided(4, report(0)))
    driver.commit(5, [report(0), report(1), report(2, rows=0)])
    assert steps(cluster) == ["describe", "decide", "commit", "fence"]
    decision = cluster.calls[1][1]
    assert (decision.batch, decision.run, sorted(decision.tasks)) == (5, "run", [0, 1, 2])
    assert cluster.calls[2][1] == ["q-0-0", "q-1-0"]
    assert cluster.calls[3][1] == ["q-0-3"]
    driver.commit(6, [report(0, 6)])
    assert steps(cluster)[4:] == ["describe", "decide", "commit"]


def test_a_committed_transaction_stays_in_the_new_decision() -> None:
    driver, cluster = driver_with(decided(5, report(0), report(1)))
    driver.commit(5, [report(0, decision_id="decision-5", is_committed=True), report(1, decision_id="decision-5")])
    assert cluster.calls[2] == ("commit", ["q-1-0"])
    assert sorted(cluster.calls[1][1].tasks) == [0, 1]


def test_a_completely_committed_batch_needs_no_decision() -> None:
    driver, cluster = driver_with(decided(5, report(0)))
    driver.commit(5, [report(0, decision_id="decision-5", is_committed=True)])
    assert steps(cluster) == ["fence"]


@pytest.mark.parametrize(
    ("last", "reports", "message"),
    [
        (decided(6, report(0)), [report(0)], "another driver has decided on batch 6 of this query"),
        (decided(5, report(0)), [report(0)], "another driver decided on batch 5 while this one ran it"),
        (None, [report(0, decision_id="x")], "another driver decided on batch 5"),
        (
            decided(5, report(0), report(1)),
            [report(0, decision_id="decision-5")],
            "differs now that it runs again: it had 2 tasks, and now has 1",
        ),
    ],
)
def test_a_commit_against_the_decision_of_another_driver_is_rejected(
    last: Decision | None, reports: list[Report], message: str
) -> None:
    driver, cluster = driver_with(last)
    with pytest.raises(PipelineError, match=message):
        driver.commit(5, reports)
    assert cluster.calls == [("abort", ["q-0-0"])]


def test_an_aborted_transaction_prevents_the_decision() -> None:
    driver, cluster = driver_with()
    cluster.closed = {"q-1-0"}
    with pytest.raises(PipelineError, match="the transaction of task 1 was aborted before it could be committed"):
        driver.commit(5, [report(0), report(1)])
    assert steps(cluster) == ["describe", "abort"]


def test_a_transaction_aborted_after_the_decision_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, cluster = driver_with()
    cluster.aborted = {"q-0-0", "q-1-0"}
    monkeypatch.setattr(two_phase, "_is_committed_in_log", lambda options, entry: entry.task == 0)
    with pytest.raises(PipelineError, match=r"the transactions of tasks 1 were aborted .* restart the query"):
        driver.commit(5, [report(0), report(1), report(2)])


def test_a_task_finds_the_decision_of_its_batch_and_rejects_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queries: list[str] = []

    class Decisions:
        def __init__(self, options: Any) -> None:
            pass

        def last(self, query: str) -> Decision:
            queries.append(query)
            return decided(5, report(0))

    monkeypatch.setattr(two_phase, "Decisions", Decisions)
    monkeypatch.setattr(two_phase, "_decisions_by_query", {})
    find = two_phase._decision_for
    assert find(OPTIONS, Attempt("q", "run", 5, 0, 0)) == decided(5, report(0))
    assert find(OPTIONS, Attempt("q", "run", 6, 0, 0)) is None
    assert queries == ["q"]
    with pytest.raises(PipelineError, match="the checkpoint is older than the data in the topics"):
        find(OPTIONS, Attempt("q", "next run", 3, 0, 0))
    assert queries == ["q", "q"]
