"""[pure] All transactional ids of one partition of `__transaction_state`.

Only the replay of records changes a shard. An operation returns the next record of a transactional
id. The runtime replays the record at once and responds when it is committed. When a decision to end
a transaction is committed, `OnPrepared` is called. It writes the markers and then calls `complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from kavka.coordinator.operations import NOTHING, Journal, OnAppend, Outcome, Timers, put_or_drop
from kavka.coordinator.transaction import records, state
from kavka.coordinator.transaction.config import TransactionConfig
from kavka.coordinator.transaction.records import FLEXIBLE_VALUE, OLD_VALUE, TransactionRecord
from kavka.coordinator.transaction.state import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DEAD,
    EMPTY,
    ENDING,
    EPOCH_BUMP_VERSION,
    MAX_EPOCH,
    ONGOING,
    PREPARE_COMMIT,
    Transaction,
)

# Delay before a decision that was not committed in time is written again.
RETRY_MS = 1000

# Called with the transactional id and the transaction when the decision to end it is committed.
OnPrepared = Callable[[str, Transaction], None]


class Producer(NamedTuple):
    """The producer id and epoch for the producer to use. If there is an `error`, it must retry."""

    producer_id: int
    epoch: int
    error: ErrorCode = ErrorCode.NONE


class NeedsProducerId(Exception):
    """The operation needs a new producer id. The caller must repeat it with one."""


@dataclass(eq=False, repr=False)
class TransactionShard:
    """Owns the transactions of one partition. The runtime's host is the only caller. `_version`
    returns the current transaction version of the cluster."""

    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    _clock: Clock
    _timers: Timers
    _config: TransactionConfig
    _on_prepared: OnPrepared
    _version: Callable[[], int] = lambda: EPOCH_BUMP_VERSION
    journal: Journal = field(init=False, default_factory=Journal)
    transactions: dict[str, Transaction] = field(init=False, default_factory=dict)

    # ---- interface for the runtime

    def replay(self, record: TransactionRecord, producer_id: int = -1) -> None:
        put_or_drop(self.journal, self.transactions, record.transactional_id, record.value)

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        """Do nothing: `__transaction_state` has no transactional records."""

    def on_loaded(self) -> list[Outcome]:
        return [
            Outcome(on_append=partial(self._on_decision, transactional_id, transaction))
            for transactional_id, transaction in self.transactions.items()
            if transaction.state in ENDING
        ]

    def on_unloaded(self, code: ErrorCode) -> None:
        self.transactions = {}

    # ---- producers

    def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None = None,
        new_producer_id: int | None = None,
    ) -> Outcome:
        """`expected` is the producer id and epoch of a producer that continues after an error.

        Raises CONCURRENT_TRANSACTIONS while a transaction is ending, and clients retry. An open
        transaction is aborted.
        """
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"A transaction's timeout must be from 1 to {self._config.max_timeout_ms} ms, not {timeout_ms}.",
            )
        current = self.transactions.get(transactional_id)
        now = self._clock.now_ms()
        if current is None:
            if new_producer_id is None:
                raise NeedsProducerId
            current = Transaction(new_producer_id, timeout_ms=timeout_ms)
        elif expected is not None and not _may_continue(current, *expected):
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"Transactional id {transactional_id} belongs to producer id {current.producer_id}.",
            )
        if current.state in ENDING:
            raise _concurrent(transactional_id)
        if current.state is ONGOING:
            fenced = state.fence(current, self._version(), now)
            response = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._decide(transactional_id, fenced, response)
        if current.is_exhausted and (expected is None or expected[1] == current.epoch):
            if new_producer_id is None:
                raise NeedsProducerId
            initialized = state.change_producer_id(current, new_producer_id, timeout_ms, now, expected is not None)
        else:
            initialized = state.raise_epoch(current, None if expected is None else expected[1], timeout_ms, now)
        return self._write(transactional_id, initialized, Producer(initialized.producer_id, initialized.epoch))

    # ---- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: int = 0,
    ) -> Outcome:
        current = self._of_producer(transactional_id, producer_id, epoch)
        if current.state in ENDING:
            raise _concurrent(transactional_id)
        added = frozenset(partitions)
        if current.state is ONGOING and added <= current.partitions:
            return NOTHING
        extended = state.add_partitions(current, added, client_version, self._clock.now_ms())
        return self._write(transactional_id, extended, None)

    def missing_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return the partitions that are not in the producer's open transaction."""
        current = self._of_producer(transactional_id, producer_id, epoch)
        if current.state in ENDING:
            raise _concurrent(transactional_id)
        return frozenset(partitions) - current.partitions

    def _of_producer(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        current = self.transactions.get(transactional_id)
        if current is None or current.producer_id != producer_id:
            raise _not_mapped(transactional_id, producer_id)
        if current.epoch != epoch:
            raise _fenced(transactional_id, current, epoch)
        return current

    # ---- the end of a transaction

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        client_version: int = 0,
        new_producer_id: int | None = None,
    ) -> Outcome:
        current = self.transactions.get(transactional_id)
        bumps = client_version >= EPOCH_BUMP_VERSION
        is_repeated = bumps and current is not None and _is_repeated_end(current, producer_id, epoch)
        if current is None or (current.producer_id != producer_id and not is_repeated):
            raise _not_mapped(transactional_id, producer_id)
        if not (_may_end_again(current) if is_repeated else _may_end(current, epoch, bumps)):
            raise _fenced(transactional_id, current, epoch)
        if current.state in ENDING:
            if (current.state is PREPARE_COMMIT) != commit:
                raise _wrong_state(transactional_id, current, commit)
            raise _concurrent(transactional_id)
        if current.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and (is_repeated or not bumps):
            if (current.state is COMPLETE_COMMIT) != commit:
                raise _wrong_state(transactional_id, current, commit)
            return Outcome(response=Producer(current.producer_id, current.epoch))
        if current.state is not ONGOING and (commit or not bumps):
            raise _wrong_state(transactional_id, current, commit)
        next_producer_id = NO_PRODUCER_ID
        if bumps and current.is_exhausted:
            if new_producer_id is None:
                raise NeedsProducerId
            next_producer_id = new_producer_id
        prepared = state.prepare(current, commit, client_version, self._clock.now_ms(), next_producer_id)
        response = Producer(*state.next_producer(prepared))
        return self._decide(transactional_id, prepared, response)

    def complete(self, transactional_id: str, prepared: Transaction, on_append: OnAppend | None = None) -> Outcome:
        """Complete a transaction whose partitions all have their markers."""
        if self.transactions.get(transactional_id) is not prepared:
            return NOTHING
        completed = state.complete(prepared, self._clock.now_ms())
        return self._write(transactional_id, completed, None, on_append)

    def abort_timed_out(self) -> list[Outcome]:
        """Return one outcome for each open transaction whose timeout has passed."""
        now = self._clock.now_ms()
        return [
            self._decide(transactional_id, state.fence(transaction, self._version(), now), None)
            for transactional_id, transaction in self.transactions.items()
            if transaction.is_timed_out(now)
        ]

    def expire(self) -> Outcome:
        """Remove ids that were unused for `transactional.id.expiration.ms`."""
        last_update_ms = self._clock.now_ms() - self._config.expiration_ms
        tombstones = [
            TransactionRecord(transactional_id, None)
            for transactional_id, transaction in self.transactions.items()
            if transaction.state in AT_REST and transaction.update_ms <= last_update_ms
        ]
        return Outcome(tombstones, atomic=False)

    # ---- queries

    def describe(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"Transactional id {transactional_id} does not exist."
            )
        return transaction

    def list(
        self,
        producer_ids: Sequence[int] = (),
        states: frozenset[state.State] | None = None,
        running_for_ms: int = -1,
        matches: Callable[[str], object] | None = None,
    ) -> Iterator[tuple[str, Transaction]]:
        """List the matching transactions. `states` None matches all states. `running_for_ms`
        matches transactions that have been open for longer."""
        now = self._clock.now_ms()
        producer_id_filter = frozenset(producer_ids)
        for transactional_id, transaction in self.transactions.items():
            if (
                transaction.state is not DEAD
                and (not producer_id_filter or transaction.producer_id in producer_id_filter)
                and (states is None or transaction.state in states)
                and (running_for_ms < 0 or now - transaction.start_ms > running_for_ms)
                and (matches is None or matches(transactional_id))
            ):
                yield transactional_id, transaction

    # ---- helpers

    def _write(
        self,
        transactional_id: str,
        transaction: Transaction,
        response: Producer | None,
        on_append: OnAppend | None = None,
    ) -> Outcome:
        version = FLEXIBLE_VALUE if self._version() >= EPOCH_BUMP_VERSION else OLD_VALUE
        return Outcome((TransactionRecord(transactional_id, transaction, version),), response, on_append)

    def _decide(self, transactional_id: str, prepared: Transaction, response: Producer | None) -> Outcome:
        """Write the decision to end a transaction."""
        on_append = partial(self._on_decision, transactional_id, prepared)
        return self._write(transactional_id, prepared, response, on_append)

    def _on_decision(self, transactional_id: str, prepared: Transaction, error: KafkaError | None) -> None:
        if self.transactions.get(transactional_id) is not prepared:
            return
        if error is None:
            self._on_prepared(transactional_id, prepared)
            return
        # The record was written but not committed in time. It may still be committed, so no other
        # decision is possible. The same decision is written again.
        retry = partial(self._retry_prepare, transactional_id, prepared)
        self._timers.schedule(("prepared", transactional_id), RETRY_MS, retry)

    def _retry_prepare(self, transactional_id: str, prepared: Transaction) -> Outcome:
        if self.transactions.get(transactional_id) is not prepared:
            return NOTHING
        return self._decide(transactional_id, prepared, None)


def _may_continue(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether a producer may continue: it has the current producer id (its epoch is checked
    later), or the previous producer id with its last epoch."""
    return (
        transaction.epoch == NO_PRODUCER_EPOCH
        or transaction.producer_id == producer_id
        or (transaction.previous_producer_id == producer_id and state.is_exhausted(epoch))
    )


def _is_repeated_end(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether the request repeats an end that bumped the epoch: it has the previous epoch or
    producer id.

    Only producers of transaction version 2 bump the epoch. In earlier versions the previous epoch
    belongs to a fenced producer. No end returns the maximum epoch to a producer, so at that epoch
    the request is a repeated end only if a new producer id follows.
    """
    if transaction.client_version < EPOCH_BUMP_VERSION:
        return False
    if transaction.producer_id == producer_id and transaction.epoch == epoch + 1:
        return transaction.epoch < MAX_EPOCH or transaction.next_producer_id != NO_PRODUCER_ID
    return transaction.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and transaction.epoch == 0


def _may_end_again(transaction: Transaction) -> bool:
    return transaction.state not in (EMPTY, ONGOING)


def _may_end(transaction: Transaction, epoch: int, bumps: bool) -> bool:
    """Return whether the producer has the current epoch. While a transaction is ending, a producer
    that bumps the epoch does not have it yet."""
    return epoch == transaction.epoch and not (bumps and transaction.state in ENDING)


def _concurrent(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS, f"The last transaction of {transactional_id} has not ended: retry."
    )


def _not_mapped(transactional_id: str, producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"Transactional id {transactional_id} does not belong to producer id {producer_id}.",
    )


def _fenced(transactional_id: str, transaction: Transaction, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"The producer of transactional id {transactional_id} has epoch {transaction.epoch}, not {epoch}.",
    )


def _wrong_state(transactional_id: str, transaction: Transaction, commit: bool) -> KafkaError:
    action = "commit" if commit else "abort"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"There is nothing to {action}: transactional id {transactional_id} is {transaction.state.value}.",
    )
