"""[pure] All transactional ids of one partition of `__transaction_state`.

Only the replay of records changes a shard. An operation returns the next record of a transactional
id. The runtime replays the record at once and responds when the record is committed. When the
prepare record of a transaction is committed, `_on_prepared` is called. It writes the markers and
then calls `complete`.
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
from kavka.coordinator.transaction.records import FLEXIBLE_VALUE_VERSION, OLD_VALUE_VERSION, TransactionRecord
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

# Delay before a prepare record that was not committed in time is written again.
PREPARE_RETRY_DELAY_MS = 1000

# Called with the transactional id and the transaction when its prepare record is committed.
OnPrepared = Callable[[str, Transaction], None]


class ProducerIdAndEpoch(NamedTuple):
    """The producer id and epoch for the producer to use. If `error` is set, the producer must
    retry."""

    producer_id: int
    epoch: int
    error: ErrorCode = ErrorCode.NONE


class NeedsProducerId(Exception):
    """The operation needs a new producer id. The caller must allocate one and repeat the
    operation."""


@dataclass(eq=False, repr=False)
class TransactionShard:
    """Owns the transactions of one partition. A worker thread loads the shard; afterwards only the
    event loop may call it. `_transaction_version` returns the current transaction version of the
    cluster."""

    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    _clock: Clock
    _timers: Timers
    _config: TransactionConfig
    _on_prepared: OnPrepared
    _transaction_version: Callable[[], int] = lambda: EPOCH_BUMP_VERSION
    journal: Journal = field(init=False, default_factory=Journal)
    transactions: dict[str, Transaction] = field(init=False, default_factory=dict)

    # ---- interface for the runtime

    def replay(self, record: TransactionRecord, producer_id: int = -1) -> None:
        put_or_drop(self.journal, self.transactions, record.transactional_id, record.value)

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        """Do nothing: `__transaction_state` has no transactional records."""

    def on_loaded(self) -> Iterator[Outcome]:
        for transactional_id, transaction in list(self.transactions.items()):
            if transaction.state in ENDING:
                yield Outcome(on_append=partial(self._on_prepare_appended, transactional_id, transaction))

    def on_unloaded(self, code: ErrorCode) -> Iterator[None]:
        transactions, self.transactions = self.transactions, {}
        while transactions:
            transactions.popitem()
            yield

    # ---- producers

    def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None = None,
        new_producer_id: int | None = None,
    ) -> Outcome:
        """Return the outcome of InitProducerId. Its response is a `ProducerIdAndEpoch`.

        `expected` is the producer id and epoch of a producer that continues after an error. An open
        transaction is aborted, and the response then has the error CONCURRENT_TRANSACTIONS, so that
        the client retries. Raises CONCURRENT_TRANSACTIONS while a transaction is ending,
        PRODUCER_FENCED if `expected` is not current, and NeedsProducerId.
        """
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"The transaction timeout must be from 1 to {self._config.max_timeout_ms} ms, not {timeout_ms}.",
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
            fenced = state.fence(current, self._transaction_version(), now)
            response = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._write_prepared(transactional_id, fenced, response)
        if current.is_exhausted and (expected is None or expected[1] == current.epoch):
            if new_producer_id is None:
                raise NeedsProducerId
            initialized = state.change_producer_id(current, new_producer_id, timeout_ms, now, expected is not None)
        else:
            initialized = state.raise_epoch(current, None if expected is None else expected[1], timeout_ms, now)
        return self._write(
            transactional_id, initialized, ProducerIdAndEpoch(initialized.producer_id, initialized.epoch)
        )

    # ---- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        client_transaction_version: int = 0,
    ) -> Outcome:
        current = self._checked_transaction(transactional_id, producer_id, epoch)
        if current.state in ENDING:
            raise _concurrent(transactional_id)
        added = frozenset(partitions)
        if current.state is ONGOING and added <= current.partitions:
            return NOTHING
        extended = state.add_partitions(current, added, client_transaction_version, self._clock.now_ms())
        return self._write(transactional_id, extended, None)

    def missing_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return the partitions that are not in the producer's open transaction. Raises the errors
        of `add_partitions`."""
        current = self._checked_transaction(transactional_id, producer_id, epoch)
        if current.state in ENDING:
            raise _concurrent(transactional_id)
        return frozenset(partitions) - current.partitions

    def _checked_transaction(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        """Return the transaction of the id. Raises INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED
        if another producer id or epoch is current."""
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
        client_transaction_version: int = 0,
        new_producer_id: int | None = None,
    ) -> Outcome:
        current = self.transactions.get(transactional_id)
        bumps_epoch = client_transaction_version >= EPOCH_BUMP_VERSION
        is_retry = bumps_epoch and current is not None and _is_end_retry(current, producer_id, epoch)
        if current is None or (current.producer_id != producer_id and not is_retry):
            raise _not_mapped(transactional_id, producer_id)
        if not (_may_retry_end(current) if is_retry else _may_end(current, epoch, bumps_epoch)):
            raise _fenced(transactional_id, current, epoch)
        if current.state in ENDING:
            if (current.state is PREPARE_COMMIT) != commit:
                raise _wrong_state(transactional_id, current, commit)
            raise _concurrent(transactional_id)
        if current.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and (is_retry or not bumps_epoch):
            if (current.state is COMPLETE_COMMIT) != commit:
                raise _wrong_state(transactional_id, current, commit)
            return Outcome(response=ProducerIdAndEpoch(current.producer_id, current.epoch))
        if current.state is not ONGOING and (commit or not bumps_epoch):
            raise _wrong_state(transactional_id, current, commit)
        next_producer_id = NO_PRODUCER_ID
        if bumps_epoch and current.is_exhausted:
            if new_producer_id is None:
                raise NeedsProducerId
            next_producer_id = new_producer_id
        prepared = state.prepare(current, commit, client_transaction_version, self._clock.now_ms(), next_producer_id)
        response = ProducerIdAndEpoch(*state.next_producer(prepared))
        return self._write_prepared(transactional_id, prepared, response)

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
            self._write_prepared(transactional_id, state.fence(transaction, self._transaction_version(), now), None)
            for transactional_id, transaction in self.transactions.items()
            if transaction.is_timed_out(now)
        ]

    def expire(self) -> Outcome:
        """Return tombstones of the ids that were unused for `transactional.id.expiration.ms`."""
        cutoff_ms = self._clock.now_ms() - self._config.expiration_ms
        tombstones = [
            TransactionRecord(transactional_id, None)
            for transactional_id, transaction in self.transactions.items()
            if transaction.state in AT_REST and transaction.update_ms <= cutoff_ms
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
        """Yield the matching transactions with their ids. If `states` is None, all states match.
        `running_for_ms` matches transactions that started more than that long ago."""
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
        response: ProducerIdAndEpoch | None,
        on_append: OnAppend | None = None,
    ) -> Outcome:
        value_version = FLEXIBLE_VALUE_VERSION if self._transaction_version() > 0 else OLD_VALUE_VERSION
        return Outcome((TransactionRecord(transactional_id, transaction, value_version),), response, on_append)

    def _write_prepared(
        self, transactional_id: str, prepared: Transaction, response: ProducerIdAndEpoch | None
    ) -> Outcome:
        """Return the outcome that writes the prepare record of a transaction."""
        on_append = partial(self._on_prepare_appended, transactional_id, prepared)
        return self._write(transactional_id, prepared, response, on_append)

    def _on_prepare_appended(self, transactional_id: str, prepared: Transaction, error: KafkaError | None) -> None:
        if self.transactions.get(transactional_id) is not prepared:
            return
        if error is None:
            self._on_prepared(transactional_id, prepared)
            return
        # The prepare record was written but not committed in time. It may still be committed, so
        # the transaction cannot end differently. The same record is written again.
        retry = partial(self._retry_prepare, transactional_id, prepared)
        self._timers.schedule(("prepared", transactional_id), PREPARE_RETRY_DELAY_MS, retry)

    def _retry_prepare(self, transactional_id: str, prepared: Transaction) -> Outcome:
        if self.transactions.get(transactional_id) is not prepared:
            return NOTHING
        return self._write_prepared(transactional_id, prepared, None)


def _may_continue(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether a producer may continue: the transactional id has no epoch yet, or the
    producer has the current producer id (its epoch is checked later), or the previous producer id
    with its last epoch."""
    return (
        transaction.epoch == NO_PRODUCER_EPOCH
        or transaction.producer_id == producer_id
        or (transaction.previous_producer_id == producer_id and state.is_exhausted(epoch))
    )


def _is_end_retry(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether the request is a retry of an EndTxn that bumped the epoch: it has the previous
    epoch or producer id.

    EndTxn bumps the epoch only in transaction version 2. In earlier versions the previous epoch
    belongs to a fenced producer. A producer never receives the maximum epoch. At that epoch, the
    request is a retry only if the transaction has a next producer id.
    """
    if transaction.client_transaction_version < EPOCH_BUMP_VERSION:
        return False
    if transaction.producer_id == producer_id and transaction.epoch == epoch + 1:
        return transaction.epoch < MAX_EPOCH or transaction.next_producer_id != NO_PRODUCER_ID
    return transaction.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and transaction.epoch == 0


def _may_retry_end(transaction: Transaction) -> bool:
    return transaction.state not in (EMPTY, ONGOING)


def _may_end(transaction: Transaction, epoch: int, bumps_epoch: bool) -> bool:
    """Return whether a request with this epoch may end the transaction. In transaction version 2,
    the coordinator has already bumped the epoch of a transaction that is ending, and the producer
    does not have the new epoch yet."""
    return epoch == transaction.epoch and not (bumps_epoch and transaction.state in ENDING)


def _concurrent(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"The previous transaction of transactional id {transactional_id} has not ended. Retry.",
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
        f"Cannot {action}: transactional id {transactional_id} is in state {transaction.state.value}.",
    )
