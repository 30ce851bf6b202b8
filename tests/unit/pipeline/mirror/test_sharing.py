"""The assignment of flows to processes, and the time for which a process holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.client.consumer.assignors import Assignment, Subscription
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.mirror import sharing
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.sharing import FlowAssignor, FlowGroup
from kavka.pipeline.mirror.status import FAILED, RUNNING, UNASSIGNED, FlowStatus

SESSION_TIMEOUT_S = 9.0
HOLD_TIME_S = 6.0


def assign(**running: list[str]) -> dict[str, list[str]]:
    """Return the flows of each member after a rebalance, as the members decode them."""
    assignor = FlowAssignor(["A->C", "B->C"], list, lambda names: None)
    members = {name: Subscription(frozenset(), json.dumps(flows).encode()) for name, flows in running.items()}
    return {name: json.loads(item.user_data) for name, item in assignor.assign({}, members).items()}


def test_flows_are_spread_over_the_processes() -> None:
    assert assign(p=[]) == {"p": ["A->C", "B->C"]}
    assert sorted(assign(p=[], q=[]).values()) == [["A->C"], ["B->C"]]
    assert sorted(assign(p=[], q=[], r=[]).values()) == [[], ["A->C"], ["B->C"]]


def test_running_flows_stay_and_a_flow_that_moves_stops_first() -> None:
    assert assign(p=["B->C"], q=["A->C"]) == {"p": ["B->C"], "q": ["A->C"]}
    assert assign(p=["A->C", "B->C"], q=[]) == {"p": ["A->C"], "q": []}
    assert assign(p=["A->C"], q=[]) == {"p": ["A->C"], "q": ["B->C"]}


def test_user_data_of_other_programs_count_as_no_flows() -> None:
    assignor = FlowAssignor(["A->C"], list, lambda names: None)
    for data in (None, b"\xff", b"3", b'{"running": []}'):
        assigned = assignor.assign({}, {"m": Subscription(frozenset(), data)})
        assert json.loads(assigned["m"].user_data) == ["A->C"]


class FakeFlow:
    """Replaces a `RunningFlow`, which takes until `end` to stop."""

    def __init__(self, name: str) -> None:
        source, target = name.split("->")
        self.flow = Flow(source, target, {}, {}, {}, {}, sharing_group="g", session_timeout=SESSION_TIMEOUT_S)
        self.status = FlowStatus(name)
        self.is_active = False
        self.starts = 0

    def start(self) -> None:
        self.is_active, self.status.state = True, RUNNING
        self.starts += 1

    def end(self, state: str = "STOPPED") -> None:
        self.is_active, self.status.state = False, state


class World:
    """A group with a clock, and a consumer that the test controls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.heartbeat = -1.0
        self.generation = 1
        self.rebalances = 0
        monkeypatch.setattr(sharing.time, "monotonic", lambda: self.now)
        self.flows = [FakeFlow("A->C"), FakeFlow("B->C")]
        self.group = FlowGroup(self.flows)  # type: ignore[arg-type]
        self.assignor = FlowAssignor(
            [flow.flow.name for flow in self.flows], self.group._running, self.group._set_assignment
        )
        self.consumer: Any = SimpleNamespace(
            metrics=lambda: {"last-heartbeat-seconds-ago": -1.0 if self.heartbeat < 0 else self.now - self.heartbeat},
            group_metadata=lambda: SimpleNamespace(generation_id=self.generation),
            enforce_rebalance=self._rebalance,
        )

    def _rebalance(self, reason: str) -> None:
        self.rebalances += 1

    def join(self, *flows: str) -> list[str]:
        """The process joins and is assigned the flows. Returns the flows that it reported."""
        reported: list[str] = json.loads(self.assignor.user_data(frozenset()) or b"")
        self.assignor.on_assignment(Assignment((), json.dumps(flows).encode()), self.generation)
        return reported

    def turn(self, error: str | None = None) -> list[str]:
        """One turn of the group's thread. Returns the flows that the process holds."""
        self.group._renew(self.consumer)
        self.group._start_held(error)
        self.group._hand_over(self.consumer)
        return [flow.flow.name for flow in self.flows if self.group.holds(flow.flow.name)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(monkeypatch)


def test_assigned_flows_are_started(world: World) -> None:
    assert world.turn() == []
    assert [flow.status.state for flow in world.flows] == [UNASSIGNED, UNASSIGNED]
    world.join("A->C")
    assert world.turn() == ["A->C"]
    assert [flow.starts for flow in world.flows] == [1, 0]


def test_flows_are_held_for_two_thirds_of_the_session_after_the_last_heartbeat(world: World) -> None:
    world.join("A->C")
    world.now += 5
    world.heartbeat = world.now
    assert world.turn() == ["A->C"]
    world.now += HOLD_TIME_S - 0.1
    assert world.turn() == ["A->C"]
    world.now += 0.2
    assert world.turn() == []
    world.flows[0].end()
    # The coordinator responds again, in the same generation.
    world.heartbeat = world.now
    assert world.turn() == ["A->C"] and world.flows[0].starts == 2


def test_attempts_to_join_do_not_extend_the_session(world: World) -> None:
    world.join("A->C")
    world.now += HOLD_TIME_S + 0.1
    world.assignor.user_data(frozenset())
    assert world.turn() == []


def test_a_removed_process_holds_nothing_and_reports_nothing(world: World) -> None:
    world.join("A->C", "B->C")
    world.turn()
    world.generation = -1
    assert world.turn() == []
    # The flows have not stopped yet, and may already run elsewhere.
    assert all(flow.is_active for flow in world.flows)
    world.generation = 3
    assert world.join("B->C") == []


def test_a_flow_that_moves_is_reported_until_it_has_stopped(world: World) -> None:
    world.join("A->C", "B->C")
    world.turn()
    assert world.join("A->C") == ["A->C", "B->C"]
    assert world.turn() == ["A->C"] and not world.rebalances
    assert world.join("A->C") == ["A->C", "B->C"]
    world.flows[1].end()
    assert world.turn() == ["A->C"] and world.rebalances == 1
    assert world.join("A->C") == ["A->C"]
    assert world.flows[1].status.state == UNASSIGNED


def test_a_failed_flow_is_not_restarted_until_it_is_assigned_again(world: World) -> None:
    world.join("A->C")
    world.turn()
    world.flows[0].end(FAILED)
    world.turn()
    assert world.flows[0].starts == 1 and world.flows[0].status.state == FAILED
    world.join()
    world.turn()
    world.join("A->C")
    world.turn()
    assert world.flows[0].starts == 2


def test_an_error_of_the_group_is_in_the_status_of_unassigned_flows(world: World) -> None:
    world.turn("group g in C: not authorized")
    assert [flow.status.error for flow in world.flows] == ["group g in C: not authorized"] * 2


def test_a_stopping_process_holds_nothing(world: World) -> None:
    world.join("A->C")
    world.turn()
    world.group.stop()
    assert world.turn() == []


def test_a_consumer_that_cannot_be_created_fails_the_flows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Any) -> Any:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no such file")

    monkeypatch.setattr(sharing, "Consumer", fail)
    world.group._run()
    assert [(flow.status.state, flow.status.error) for flow in world.flows] == [(FAILED, "no such file")] * 2
