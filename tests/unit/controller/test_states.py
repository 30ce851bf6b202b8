"""The transition tables of the controller are those of Kafka, and are in the docs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from kavka.controller.partition_states import PARTITION_TRANSITIONS, PartitionState
from kavka.controller.replica_states import REPLICA_TRANSITIONS, ReplicaState
from kavka.controller.states import IllegalTransition, Transition, TransitionTable

P, R = PartitionState, ReplicaState

# Kafka's validPreviousStates, target by target.
PARTITION_SOURCES = {
    P.NON_EXISTENT: {P.OFFLINE},
    P.NEW: {P.NON_EXISTENT},
    P.ONLINE: {P.NEW, P.ONLINE, P.OFFLINE},
    P.OFFLINE: {P.NEW, P.ONLINE, P.OFFLINE},
}
REPLICA_SOURCES = {
    R.NEW: {R.NON_EXISTENT},
    R.ONLINE: {R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE},
    R.OFFLINE: {R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE},
    R.DELETION_STARTED: {R.OFFLINE},
    R.DELETION_SUCCESSFUL: {R.DELETION_STARTED},
    R.DELETION_INELIGIBLE: {R.OFFLINE, R.DELETION_STARTED},
    R.NON_EXISTENT: {R.DELETION_SUCCESSFUL},
}


@pytest.mark.parametrize(
    ("table", "states", "sources"),
    [(PARTITION_TRANSITIONS, PartitionState, PARTITION_SOURCES), (REPLICA_TRANSITIONS, ReplicaState, REPLICA_SOURCES)],
    ids=["partition", "replica"],
)
def test_the_tables_allow_the_same_transitions_as_kafka(table: Any, states: type[Enum], sources: Any) -> None:
    for source in states:
        for target in states:
            is_allowed = any((row.source, row.target) == (source, target) for row in table.rows)
            assert is_allowed == (source in sources[target]), (source, target)


def test_the_error_of_an_illegal_transition_contains_subject_and_states() -> None:
    with pytest.raises(IllegalTransition, match="t-0 cannot go from NonExistentPartition to OnlinePartition"):
        PARTITION_TRANSITIONS.action("t-0", P.NON_EXISTENT, P.ONLINE)


def test_a_table_is_drawn_as_a_diagram() -> None:
    diagram = REPLICA_TRANSITIONS.diagram()
    assert diagram.startswith("stateDiagram-v2\n")
    assert "OfflineReplica --> ReplicaDeletionStarted: its topic is being deleted" in diagram
    assert len(diagram.splitlines()) == 1 + len(REPLICA_TRANSITIONS.rows)


def test_a_transition_is_in_a_table_once() -> None:
    row = PARTITION_TRANSITIONS.rows[0]
    with pytest.raises(ValueError, match="twice"):
        TransitionTable((row, Transition(row.source, row.target, row.action, "again")))


def test_the_docs_contain_the_tables() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "controller.md").read_text()
    for table in (PARTITION_TRANSITIONS, REPLICA_TRANSITIONS):
        assert table.diagram() in docs
        for row in table.rows:
            assert f"| {row.source.value} | {row.target.value} | {row.when} | {row.action.value} |" in docs
