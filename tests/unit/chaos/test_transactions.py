"""The check of transactions reports every kind of violation."""

from __future__ import annotations

from kavka.records.builder import BatchBuilder
from kavka.records.control import end_marker
from kavka.records.record import Record
from tests.chaos.checker import Read
from tests.chaos.history import Violation
from tests.chaos.transactions import Outcomes, Transaction, check, committed_records, decode

ALL = [Transaction("a", number) for number in range(12)]


def kinds(violations: list[Violation]) -> set[str]:
    return {violation.kind for violation in violations}


def valid_outcomes() -> tuple[Outcomes, dict[int, list[Read]]]:
    """Return outcomes and records without violations. Every fourth transaction is aborted. Number 6
    is in doubt and stored."""
    outcomes = Outcomes()
    final: dict[int, list[Read]] = {0: [], 1: [], 2: []}
    for transaction in ALL:
        if transaction.number % 4 == 3:
            outcomes.note(transaction, "aborted")
            continue
        outcomes.note(transaction, "in_doubt" if transaction.number == 6 else "committed")
        for partition, value in transaction.values():
            final[partition].append((len(final[partition]), value))
    return outcomes, final


def without(final: dict[int, list[Read]], record: tuple[int, bytes]) -> dict[int, list[Read]]:
    return {partition: [read for read in reads if (partition, read[1]) != record] for partition, reads in final.items()}


def test_transactions_in_doubt_may_be_stored_or_missing() -> None:
    outcomes, final = valid_outcomes()
    assert check(outcomes, final) == []
    for record in ALL[6].values():
        final = without(final, record)
    assert check(outcomes, final) == []


def test_a_missing_record_of_a_committed_transaction_is_lost() -> None:
    outcomes, final = valid_outcomes()
    assert kinds(check(outcomes, without(final, ALL[4].values()[2]))) == {"lost"}


def test_a_partially_stored_transaction_in_doubt_is_torn() -> None:
    outcomes, final = valid_outcomes()
    assert kinds(check(outcomes, without(final, ALL[6].values()[0]))) == {"torn"}


def test_a_stored_aborted_transaction_is_reported() -> None:
    outcomes, final = valid_outcomes()
    outcomes.committed.discard(ALL[11])
    outcomes.aborted.discard(ALL[11])
    outcomes.note(ALL[11], "aborted")
    partition, value = ALL[11].values()[0]
    final[partition].append((100, value))
    assert kinds(check(outcomes, final)) == {"aborted"}


def test_a_record_stored_twice_is_doubled() -> None:
    outcomes, final = valid_outcomes()
    partition, value = ALL[10].values()[0]
    final[partition].append((100, value))
    assert kinds(check(outcomes, final)) == {"doubled"}


def test_transactions_out_of_order_are_reported() -> None:
    outcomes, final = valid_outcomes()
    final[0].reverse()
    assert kinds(check(outcomes, final)) == {"reordered"}


def test_records_that_no_producer_sent_are_foreign() -> None:
    outcomes, final = valid_outcomes()
    final[0].append((100, b"invalid"))
    assert kinds(check(outcomes, final)) == {"foreign"}
    outcomes, final = valid_outcomes()
    outcomes.committed.discard(ALL[0])
    assert kinds(check(outcomes, final)) == {"foreign"}
    assert decode(None) is None
    assert decode(b"a:1:99") is None


def batch(offset: int, producer_id: int, value: bytes, *, transactional: bool = True) -> bytes:
    builder = BatchBuilder(
        base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional
    )
    builder.append(Record(timestamp=1, key=None, value=value))
    return bytes(builder.build())


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    data = bytearray(end_marker(commit, producer_id, 0, 0, 1))
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def test_committed_records_are_read_from_the_bytes_of_a_log() -> None:
    log = (
        batch(0, 1, b"one")
        + batch(1, 2, b"two")
        + marker(2, 2, commit=False)
        + batch(3, 3, b"three")
        + marker(4, 1, commit=True)
        + batch(5, 1, b"open")
        + marker(6, 3, commit=True)
    )
    committed, open_transactions = committed_records(log)
    assert committed == [(0, b"one"), (3, b"three")]
    assert open_transactions == ["producer id 1 from offset 5"]
