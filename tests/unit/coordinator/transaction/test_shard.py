"""Responses and records of a transaction shard: initialisation, partitions, ends, fencing,
expiry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
from kavka.coordinator.transaction.state import (
    COMPLETE_COMMIT,
    MAX_EPOCH,
    ONGOING,
    State,
)
from tests.unit.coordinator.transaction.harness import ID, TIMEOUT, A, B, Harness

V1, V2 = 0, 2


@pytest.fixture
def coordinator() -> Harness:
    return Harness()


def refused(code: ErrorCode, coordinator: Harness, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Check that the call is refused with `code`, writes nothing and changes nothing."""
    log, transactions = list(coordinator.log), dict(coordinator.shard.transactions)
    with pytest.raises(KafkaError) as raised:
        call(*args, **options)
    assert raised.value.code is code
    assert coordinator.log == log
    assert coordinator.shard.transactions == transactions


# ---- initialisation


def test_a_new_id_gets_a_new_producer_id_with_epoch_zero(coordinator: Harness) -> None:
    first, second = coordinator.init("one"), coordinator.init("two")
    assert (first.epoch, second.epoch) == (0, 0)
    assert first.producer_id != second.producer_id
    assert coordinator.shard.transactions["one"].state is State.EMPTY


def test_an_initialised_id_keeps_its_producer_id_and_fences_the_previous_producer(coordinator: Harness) -> None:
    previous = coordinator.init()
    current = coordinator.init(timeout=5000)
    assert current == ProducerIdAndEpoch(previous.producer_id, 1)
    assert coordinator.transaction.timeout_ms == 5000
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.add, previous, A)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, previous, True)
    coordinator.add(current, A)


def test_an_open_transaction_is_aborted_before_its_id_is_initialised_again(coordinator: Harness) -> None:
    previous = coordinator.init()
    coordinator.add(previous, A, B)
    response = coordinator.init()
    assert response.error is ErrorCode.CONCURRENT_TRANSACTIONS, "the client must retry"
    assert coordinator.state == "CompleteAbort"
    fenced = (previous.producer_id, previous.epoch + 1, False)
    assert coordinator.markers == {A: [fenced], B: [fenced]}
    assert coordinator.init() == ProducerIdAndEpoch(previous.producer_id, 2)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, previous, True)


def test_an_id_cannot_be_initialised_while_its_transaction_ends(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A)
    coordinator.hold_markers = True
    coordinator.end(producer, True)
    assert coordinator.state == "PrepareCommit"
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, coordinator, coordinator.init)
    coordinator.write_markers()
    assert coordinator.init().epoch == 1
    assert coordinator.markers[A] == [(producer.producer_id, 0, True)], "the commit is final"


@pytest.mark.parametrize("timeout", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(coordinator: Harness, timeout: int) -> None:
    refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT, coordinator, coordinator.init, timeout=timeout)
    assert coordinator.init(timeout=900_000).epoch == 0


def test_a_producer_that_continues_after_an_error_gets_the_next_epoch(coordinator: Harness) -> None:
    producer = coordinator.init()
    assert coordinator.init(expected=producer[:2]) == ProducerIdAndEpoch(producer.producer_id, 1)
    again = coordinator.init(expected=producer[:2])
    assert again == ProducerIdAndEpoch(producer.producer_id, 1), "a repeated request gets the same epoch"
    assert coordinator.init(expected=again[:2]).epoch == 2


def test_a_producer_that_continues_is_fenced_if_another_producer_has_its_id(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.init()
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.init, expected=producer[:2])
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.init, expected=(producer.producer_id + 77, 0))


def test_a_producer_whose_id_expired_continues_with_a_new_producer_id(coordinator: Harness) -> None:
    assert coordinator.init(expected=(5, 3)).epoch == 0


def test_initialisation_after_the_last_epoch_changes_the_producer_id(coordinator: Harness) -> None:
    previous = coordinator.at_epoch(MAX_EPOCH - 1)
    current = coordinator.init()
    assert current.producer_id != previous.producer_id
    assert current.epoch == 0


def test_a_producer_at_its_last_epoch_gets_the_same_new_id_when_it_retries(coordinator: Harness) -> None:
    previous = coordinator.at_epoch(MAX_EPOCH - 1)
    current = coordinator.init(expected=previous[:2])
    assert (current.producer_id != previous.producer_id, current.epoch) == (True, 0)
    assert coordinator.init(expected=previous[:2]) == current
    coordinator.init()
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.init, expected=previous[:2])


def test_fencing_at_the_last_epoch_uses_the_reserved_epoch(coordinator: Harness) -> None:
    producer = coordinator.at_epoch(MAX_EPOCH - 1)
    coordinator.add(producer, A)
    assert coordinator.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.markers[A] == [(producer.producer_id, MAX_EPOCH, False)]
    current = coordinator.init()
    assert (current.producer_id != producer.producer_id, current.epoch) == (True, 0)


def test_a_producer_fenced_at_the_last_epoch_is_not_treated_as_a_retry(coordinator: Harness) -> None:
    producer = coordinator.at_epoch(MAX_EPOCH - 1)
    coordinator.add(producer, A, version=V2)
    assert coordinator.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, producer, False, version=V2)


# ---- partitions


def test_a_transaction_opens_with_its_first_partition(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.advance(5)
    coordinator.add(producer, A)
    began = coordinator.clock.now_ms()
    assert (coordinator.state, coordinator.transaction.start_ms) == ("Ongoing", began)
    coordinator.advance(5)
    coordinator.add(producer, B)
    assert coordinator.transaction.partitions == {A, B}
    assert coordinator.transaction.start_ms == began, "the first partition starts the transaction"


def test_a_partition_of_the_transaction_is_written_only_once(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A, B)
    length = len(coordinator.log)
    coordinator.add(producer, B)
    assert len(coordinator.log) == length


def test_partitions_of_an_unknown_id_or_of_another_producer_are_refused(coordinator: Harness) -> None:
    producer = coordinator.init()
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    refused(unmapped, coordinator, coordinator.add, producer, A, transactional_id="another")
    refused(unmapped, coordinator, coordinator.add, ProducerIdAndEpoch(producer.producer_id + 1, 0), A)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.add, ProducerIdAndEpoch(producer.producer_id, 1), A)


@pytest.mark.parametrize("commit", [True, False])
def test_no_partition_is_added_while_the_last_transaction_ends(coordinator: Harness, commit: bool) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A)
    coordinator.hold_markers = True
    coordinator.end(producer, commit)
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, coordinator, coordinator.add, producer, B)
    with pytest.raises(KafkaError):
        coordinator.shard.missing_partitions(ID, producer.producer_id, producer.epoch, [A])
    coordinator.write_markers()
    coordinator.add(producer, B)
    assert coordinator.transaction.partitions == {B}, "the next transaction starts without partitions"


def test_missing_partitions_are_those_outside_the_transaction(coordinator: Harness) -> None:
    producer = coordinator.init()
    missing = coordinator.shard.missing_partitions
    assert missing(ID, producer.producer_id, 0, [A]) == {A}
    coordinator.add(producer, A)
    assert missing(ID, producer.producer_id, 0, [A, B]) == {B}
    for wrong in ((ID, 5, 0), (ID, producer.producer_id, 1), ("another", producer.producer_id, 0)):
        with pytest.raises(KafkaError):
            missing(*wrong, [A])
    coordinator.end(producer, True)
    assert missing(ID, producer.producer_id, 0, [A]) == {A}


# ---- ends in version 1


@pytest.mark.parametrize("commit", [True, False])
def test_every_partition_gets_its_marker(coordinator: Harness, commit: bool) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A, B)
    assert coordinator.end(producer, commit) == ProducerIdAndEpoch(producer.producer_id, 0)
    marker = (producer.producer_id, 0, commit)
    assert coordinator.markers == {A: [marker], B: [marker]}
    assert coordinator.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert coordinator.transaction.partitions == frozenset()


def test_the_same_producer_starts_the_next_transaction(coordinator: Harness) -> None:
    producer = coordinator.init()
    for commit in (True, False, True):
        coordinator.add(producer, A)
        coordinator.end(producer, commit)
    assert [committed for _, _, committed in coordinator.markers[A]] == [True, False, True]


def test_a_repeated_end_writes_the_markers_once(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A)
    coordinator.hold_markers = True
    coordinator.end(producer, True)
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, coordinator, coordinator.end, producer, True)
    refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, False)
    coordinator.write_markers()
    coordinator.end(producer, True)
    refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, False)
    assert len(coordinator.markers[A]) == 1


def test_an_end_without_a_transaction_is_refused(coordinator: Harness) -> None:
    producer = coordinator.init()
    for commit in (True, False):
        refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, commit)


@pytest.mark.parametrize("version", [V1, V2])
def test_the_end_of_an_unknown_id_or_by_another_producer_is_refused(coordinator: Harness, version: int) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A)
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    refused(unmapped, coordinator, coordinator.end, producer, True, transactional_id="another", version=version)
    refused(unmapped, coordinator, coordinator.end, ProducerIdAndEpoch(5, 0), True, version=version)
    wrong = ProducerIdAndEpoch(producer.producer_id, 1)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, wrong, True, version=version)
    wrong = ProducerIdAndEpoch(producer.producer_id, -1)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, wrong, True, version=version)


# ---- ends in version 2


@pytest.mark.parametrize("commit", [True, False])
def test_every_end_bumps_the_epoch_and_the_marker_has_the_new_epoch(coordinator: Harness, commit: bool) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A, version=V2)
    following = coordinator.end(producer, commit, version=V2)
    assert following == ProducerIdAndEpoch(producer.producer_id, 1)
    assert coordinator.markers[A] == [(producer.producer_id, 1, commit)]
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.add, producer, A, version=V2)
    coordinator.add(following, A, version=V2)


def test_a_repeated_end_gets_the_same_response_as_the_first(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A, version=V2)
    coordinator.hold_markers = True
    following = coordinator.end(producer, True, version=V2)
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, coordinator, coordinator.end, producer, True, version=V2)
    refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, False, version=V2)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, following, True, version=V2)
    coordinator.write_markers()
    assert coordinator.end(producer, True, version=V2) == following
    refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, False, version=V2)
    assert len(coordinator.markers[A]) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_a_fenced_producer_is_not_treated_as_repeated(coordinator: Harness, commit: bool) -> None:
    """The producer that fences it uses version 1, in which an end does not bump the epoch. So the
    epoch of the fenced producer looks like that of a repeated end."""
    previous = coordinator.init()
    current = coordinator.init()
    coordinator.add(current, A, version=V1)
    coordinator.hold_markers = True
    coordinator.end(current, commit, version=V1)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, previous, commit, version=V2)
    coordinator.write_markers()
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, previous, commit, version=V2)
    coordinator.restart()
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, previous, commit, version=V2)


# By state, whether the end is a commit, and whether it has the previous epoch: the error, None if
# the end bumps the epoch, or 0 if it gets the response of the first end.
PRODUCER_FENCED, INVALID_STATE = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
TABLE: dict[tuple[str, bool, bool], ErrorCode | int | None] = {
    ("Empty", False, True): PRODUCER_FENCED,
    ("Empty", False, False): None,
    ("Empty", True, True): PRODUCER_FENCED,
    ("Empty", True, False): INVALID_STATE,
    ("CompleteAbort", False, True): 0,
    ("CompleteAbort", False, False): None,
    ("CompleteAbort", True, True): INVALID_STATE,
    ("CompleteAbort", True, False): INVALID_STATE,
    ("CompleteCommit", False, True): INVALID_STATE,
    ("CompleteCommit", False, False): None,
    ("CompleteCommit", True, True): 0,
    ("CompleteCommit", True, False): INVALID_STATE,
}


@pytest.mark.parametrize(("case", "expected"), TABLE.items())
def test_an_end_without_an_open_transaction_follows_the_table(
    coordinator: Harness, case: tuple[str, bool, bool], expected: ErrorCode | int | None
) -> None:
    state, commit, repeated = case
    producer = coordinator.init()
    if state == "Empty":
        producer = coordinator.init()
    else:
        coordinator.add(producer, A, version=V2)
        producer = coordinator.end(producer, state == "CompleteCommit", version=V2)
    assert coordinator.state == state
    if repeated:
        producer = ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)
    epoch = coordinator.transaction.epoch
    if isinstance(expected, ErrorCode):
        refused(expected, coordinator, coordinator.end, producer, commit, version=V2)
    else:
        bump = 1 if expected is None else 0
        assert coordinator.end(producer, commit, version=V2).epoch == epoch + bump
        assert coordinator.transaction.epoch == epoch + bump


def test_an_abort_without_partitions_fences_records_in_flight(coordinator: Harness) -> None:
    producer = coordinator.init()
    following = coordinator.end(producer, False, version=V2)
    assert following.epoch == producer.epoch + 1
    assert coordinator.markers == {}
    assert coordinator.transaction.start_ms == coordinator.clock.now_ms()
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.add, producer, A, version=V2)


def test_an_end_at_the_last_epoch_changes_the_producer_id(coordinator: Harness) -> None:
    producer = coordinator.at_epoch(MAX_EPOCH - 1)
    coordinator.add(producer, A, version=V2)
    coordinator.hold_markers = True
    following = coordinator.end(producer, True, version=V2)
    assert (following.producer_id != producer.producer_id, following.epoch) == (True, 0)
    assert coordinator.transaction.producer_id == producer.producer_id, "until the markers are written"
    coordinator.restart()
    coordinator.hold_markers = False
    coordinator.restart()
    assert coordinator.markers[A][-1] == (producer.producer_id, MAX_EPOCH, True)
    assert (coordinator.transaction.producer_id, coordinator.transaction.epoch) == following[:2]
    assert coordinator.end(producer, True, version=V2) == following, "a repeated end has the previous id"
    refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, False, version=V2)
    coordinator.add(following, A, version=V2)
    refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, coordinator, coordinator.end, producer, True, version=V2)


# ---- timeouts and expiry


@pytest.mark.parametrize("version", [V1, V2])
def test_a_transaction_that_exceeds_its_timeout_is_aborted_and_its_producer_fenced(version: int) -> None:
    coordinator = Harness(version)
    producer = coordinator.init()
    coordinator.add(producer, A, version=version)
    coordinator.advance(TIMEOUT)
    assert coordinator.abort_timed_out() == 0
    coordinator.advance(1)
    assert coordinator.abort_timed_out() == 1
    assert coordinator.state == "CompleteAbort"
    assert coordinator.markers[A] == [(producer.producer_id, producer.epoch + 1, False)]
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.end, producer, True, version=V1)
    if version == V2:
        # In version 2 the epoch is that of a repeated abort, so a commit is refused.
        refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, True, version=V2)
    refused(ErrorCode.PRODUCER_FENCED, coordinator, coordinator.add, producer, A)
    assert coordinator.abort_timed_out() == 0


def test_only_open_transactions_time_out(coordinator: Harness) -> None:
    coordinator.init("empty")
    producer = coordinator.init()
    coordinator.add(producer, A)
    coordinator.hold_markers = True
    coordinator.end(producer, True)
    coordinator.advance(10 * TIMEOUT)
    assert coordinator.abort_timed_out() == 0, "a decided transaction does not time out"
    coordinator.write_markers()
    assert coordinator.state == "CompleteCommit"


def test_unused_ids_expire_with_a_tombstone() -> None:
    coordinator = Harness(expiration_ms=1000)
    coordinator.init("idle")
    coordinator.add(coordinator.init("open", timeout=TIMEOUT), A, transactional_id="open")
    coordinator.advance(999)
    assert not coordinator.shard.expire().records
    coordinator.init("fresh")
    coordinator.advance(1)
    coordinator.submit(coordinator.shard.expire())
    assert set(coordinator.shard.transactions) == {"open", "fresh"}
    assert coordinator.log[-1][1] is None
    coordinator.restart()
    assert set(coordinator.shard.transactions) == {"open", "fresh"}


# ---- failed writes and failed coordinators


def test_a_failed_write_changes_nothing(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A)
    coordinator.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    refused(unavailable, coordinator, coordinator.init, "current")
    refused(unavailable, coordinator, coordinator.init)
    refused(unavailable, coordinator, coordinator.add, producer, B)
    refused(unavailable, coordinator, coordinator.end, producer, True)
    assert coordinator.markers == {}
    coordinator.failure = None
    coordinator.end(producer, True)
    assert coordinator.markers[A] == [(producer.producer_id, 0, True)]


def test_markers_are_written_only_when_the_decision_is_committed(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A)
    coordinator.late = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError):
        coordinator.end(producer, True)
    assert coordinator.state == "PrepareCommit"
    assert coordinator.markers == {}, "the decision could still be lost"
    refused(ErrorCode.INVALID_TXN_STATE, coordinator, coordinator.end, producer, False)
    coordinator.late = None
    coordinator.advance(1000)
    assert coordinator.markers[A] == [(producer.producer_id, 0, True)]
    assert coordinator.state == "CompleteCommit"


def test_a_new_coordinator_completes_decided_transactions(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A, B)
    coordinator.hold_markers = True
    coordinator.end(producer, False)
    coordinator.hold_markers = False
    coordinator.restart()
    marker = (producer.producer_id, 0, False)
    assert coordinator.markers == {A: [marker], B: [marker]}
    assert coordinator.state == "CompleteAbort"
    coordinator.restart()
    assert coordinator.markers == {A: [marker], B: [marker]}, "completed transactions get no more markers"


def test_a_new_coordinator_loads_open_transactions(coordinator: Harness) -> None:
    producer = coordinator.init()
    coordinator.add(producer, A, B, version=V2)
    transaction = coordinator.transaction
    coordinator.restart()
    assert coordinator.transaction == transaction
    coordinator.end(producer, True, version=V2)
    assert set(coordinator.markers) == {A, B}


@pytest.mark.parametrize("level", [1, 2])
def test_records_have_the_old_version_until_all_brokers_read_the_new_version(level: int) -> None:
    coordinator = Harness(version=0)
    producer = coordinator.init()
    coordinator.add(producer, A)
    assert all(value is not None and value[:2] == b"\0\0" for _, value in coordinator.log)
    coordinator.version = level
    coordinator.end(producer, True)
    assert coordinator.log[-1][1][:2] == b"\0\1"  # type: ignore[index]
    coordinator.restart()
    assert coordinator.transaction.state is COMPLETE_COMMIT


# ---- queries


def test_transactions_are_listed_by_state_producer_age_and_name(coordinator: Harness) -> None:
    first = coordinator.init("first")
    coordinator.add(first, A, transactional_id="first")
    coordinator.advance(500)
    second = coordinator.init("second")
    coordinator.add(second, A, transactional_id="second")
    coordinator.init("third")

    def listed(*args: Any) -> set[str]:
        return {name for name, _ in coordinator.shard.list(*args)}

    assert listed() == {"first", "second", "third"}
    assert listed([second.producer_id]) == {"second"}
    assert listed([], frozenset({ONGOING})) == {"first", "second"}
    assert listed([], frozenset()) == set()
    assert listed([], frozenset({ONGOING}), 400) == {"first"}
    assert listed([], None, -1, lambda name: name.startswith("t")) == {"third"}


def test_an_unknown_id_cannot_be_described(coordinator: Harness) -> None:
    refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, coordinator, coordinator.shard.describe, ID)
    coordinator.init()
    assert coordinator.shard.describe(ID) is coordinator.transaction
