"""The transitions of a transaction."""

from __future__ import annotations

import pytest

from kavka.coordinator.transaction import state
from kavka.coordinator.transaction.state import AT_REST, DEAD, ENDING, STATE_NUMBERS, TRANSITIONS, State, Transaction

# The names of Kafka by the numbers in the log.
KAFKA_STATES = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}


def test_states_have_the_names_and_numbers_of_kafka() -> None:
    assert {number: state.value for state, number in STATE_NUMBERS.items()} == KAFKA_STATES


def test_a_decision_leads_only_to_its_completion() -> None:
    assert TRANSITIONS[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert TRANSITIONS[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}


def test_only_an_open_transaction_can_be_committed() -> None:
    assert [s for s in State if State.PREPARE_COMMIT in TRANSITIONS[s]] == [State.ONGOING]


def test_only_transactions_at_rest_can_be_removed() -> None:
    assert {s for s in State if DEAD in TRANSITIONS[s]} == AT_REST
    assert TRANSITIONS[DEAD] == frozenset()


@pytest.mark.parametrize("origin", list(State))
@pytest.mark.parametrize("to", list(State))
def test_transitions_outside_the_table_are_refused(origin: State, to: State) -> None:
    transaction = Transaction(1, 0, state=origin)
    if to in TRANSITIONS[origin]:
        assert state.move(transaction, to, 7).state is to
    else:
        with pytest.raises(ValueError, match=f"from {origin.value} to {to.value}"):
            state.move(transaction, to, 7)


@pytest.mark.parametrize("origin", list(State))
def test_the_completion_matches_the_decision(origin: State) -> None:
    transaction = Transaction(1, 0, state=origin)
    if origin in ENDING:
        assert state.complete(transaction, 7).state.value == origin.value.replace("Prepare", "Complete")
    else:
        with pytest.raises(ValueError, match="cannot change"):
            state.complete(transaction, 7)
