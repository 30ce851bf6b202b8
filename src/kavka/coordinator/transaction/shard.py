"""[pure] All transactional ids of one partition of `__transaction_state`.

A shard is changed by replaying records alone: an operation decides, by what the records before it left, which record
follows; the runtime replays that at once and answers when it is committed. What ends a transaction is called from
there (`OnPrepared`): with the decision in the log, the markers are written, and `complete` is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from kavka.coordinator.operations import NOTHING, Journal, OnAppend, Outcome, Timers
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

# When a decision that was not committed in time is written again.
RETRY_MS = 1000

# The decision to end a transaction is in the log: (transactional id, the transaction as it was decided).
OnPrepared = Callable[[str, Transaction], None]


class Producer(NamedTuple):
    """What a producer is told to go on with. With an `error` it has to ask again."""

    producer_id: int
    epoch: int
    error: ErrorCode = ErrorCode.NONE


class NeedsProducerId(Exception):
    """The operation moves on to another producer id, and has to be called again with one."""


class TransactionShard:
    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        config: TransactionConfig,
        on_prepared: OnPrepared,
        version: Callable[[], int] = lambda: EPOCH_BUMP_VERSION,
    ) -> None:
        """`version` is that of transactions in the whole cluster, now."""
        self._clock = clock
        self._timers = timers
        self._config = config
        self._on_prepared = on_prepared
        self._version = version
        self.journal = Journal()
        self.transactions: dict[str, Transaction] = {}

    # ---- as the runtime has it

    def replay(self, record: TransactionRecord, producer_id: int = -1) -> None:
        if record.value is None:
            self.journal.drop(self.transactions, record.transactional_id)
        else:
            self.journal.put(self.transactions, record.transactional_id, record.value)

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        """There are no transactions about this topic itself."""

    def on_loaded(self) -> list[Outcome]:
        return [
            Outcome(on_append=self._then_end(transactional_id, transaction))
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
        """`expected` is the producer id and epoch that a producer which goes on after an error says that it has.

        CONCURRENT_TRANSACTIONS (which makes the client ask again) while a transaction ends; one that is open is
        ended by this.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"A transaction's timeout must be from 1 to {self._config.max_timeout_ms} ms, not {timeout_ms}.",
            )
        found = self.transactions.get(transactional_id)
        now = self._clock.now_ms()
        if found is None:
            if new_producer_id is None:
                raise NeedsProducerId
            found = Transaction(new_producer_id, timeout_ms=timeout_ms)
        elif expected is not None and not _may_continue(found, *expected):
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"Transactional id {transactional_id} belongs to producer id {found.producer_id} by now.",
            )
        if found.state in ENDING:
            raise _concurrent(transactional_id)
        if found.state is ONGOING:
            fenced = state.fence(found, self._version(), now)
            answer = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._write(transactional_id, fenced, answer, self._then_end(transactional_id, fenced))
        if found.is_exhausted and (expected is None or expected[1] == found.epoch):
            if new_producer_id is None:
                raise NeedsProducerId
            fresh = state.change_producer_id(found, new_producer_id, timeout_ms, now, expected is not None)
        else:
            fresh = state.raise_epoch(found, None if expected is None else expected[1], timeout_ms, now)
        return self._write(transactional_id, fresh, Producer(fresh.producer_id, fresh.epoch))

    # ---- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: int = 0,
    ) -> Outcome:
        found = self._of_producer(transactional_id, producer_id, epoch)
        if found.state in ENDING:
            raise _concurrent(transactional_id)
        wanted = frozenset(partitions)
        if found.state is ONGOING and wanted <= found.partitions:
            return NOTHING
        grown = state.add_partitions(found, wanted, client_version, self._clock.now_ms())
        return self._write(transactional_id, grown, None)

    def missing_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Which of the partitions are not in the producer's open transaction."""
        found = self._of_producer(transactional_id, producer_id, epoch)
        if found.state in ENDING:
            raise _concurrent(transactional_id)
        return frozenset(partitions) - found.partitions

    def _of_producer(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        found = self.transactions.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            raise _not_mapped(transactional_id, producer_id)
        if found.epoch != epoch:
            raise _fenced(transactional_id, found, epoch)
        return found

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
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        found = self.transactions.get(transactional_id)
        bumps = client_version >= EPOCH_BUMP_VERSION
        is_repeated = bumps and found is not None and _is_repeated_end(found, producer_id, epoch)
        if found is None or (found.producer_id != producer_id and not is_repeated):
            raise _not_mapped(transactional_id, producer_id)
        if not (_may_end_again(found) if is_repeated else _may_end(found, epoch, bumps)):
            raise _fenced(transactional_id, found, epoch)
        if found.state in ENDING:
            if (found.state is PREPARE_COMMIT) != commit:
                raise _wrong_state(transactional_id, found, commit)
            raise _concurrent(transactional_id)
        if found.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and (is_repeated or not bumps):
            if (found.state is COMPLETE_COMMIT) != commit:
                raise _wrong_state(transactional_id, found, commit)
            return Outcome(response=Producer(found.producer_id, found.epoch))
        if found.state is not ONGOING and (commit or not bumps):
            raise _wrong_state(transactional_id, found, commit)
        following = NO_PRODUCER_ID
        if bumps and found.is_exhausted:
            if new_producer_id is None:
                raise NeedsProducerId
            following = new_producer_id
        prepared = state.prepare(found, commit, client_version, self._clock.now_ms(), following)
        answer = Producer(*state.next_producer(prepared))
        return self._write(transactional_id, prepared, answer, self._then_end(transactional_id, prepared))

    def complete(self, transactional_id: str, prepared: Transaction, on_append: OnAppend | None = None) -> Outcome:
        """Every partition of a transaction has its marker."""
        if self.transactions.get(transactional_id) is not prepared:
            return NOTHING
        completed = state.complete(prepared, self._clock.now_ms())
        return self._write(transactional_id, completed, None, on_append)

    def abort_timed_out(self) -> list[Outcome]:
        """One for each transaction that is open for too long."""
        now = self._clock.now_ms()
        outcomes = []
        for transactional_id, found in list(self.transactions.items()):
            if found.is_timed_out(now):
                fenced = state.fence(found, self._version(), now)
                outcomes.append(self._write(transactional_id, fenced, None, self._then_end(transactional_id, fenced)))
        return outcomes

    def expire(self) -> list[Outcome]:
        """Forget ids that did nothing for `transactional.id.expiration.ms`."""
        before = self._clock.now_ms() - self._config.expiration_ms
        gone = [
            TransactionRecord(transactional_id, None)
            for transactional_id, found in self.transactions.items()
            if found.state in AT_REST and found.update_ms <= before
        ]
        return [Outcome(gone, atomic=False)] if gone else []

    # ---- what there is

    def describe(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        found = self.transactions.get(transactional_id)
        if found is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"There is no transactional id {transactional_id} here."
            )
        return found

    def list(
        self,
        producer_ids: Sequence[int] = (),
        states: frozenset[state.State] | None = None,
        running_for_ms: int = -1,
        matches: Callable[[str], object] | None = None,
    ) -> Iterator[tuple[str, Transaction]]:
        """`states` None lets all pass; `running_for_ms` only what was open for longer than that."""
        now = self._clock.now_ms()
        wanted = frozenset(producer_ids)
        for transactional_id, found in self.transactions.items():
            if (
                found.state is not DEAD
                and (not wanted or found.producer_id in wanted)
                and (states is None or found.state in states)
                and (running_for_ms < 0 or now - found.start_ms > running_for_ms)
                and (matches is None or matches(transactional_id))
            ):
                yield transactional_id, found

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

    def _then_end(self, transactional_id: str, prepared: Transaction) -> OnAppend:
        return partial(self._prepared, transactional_id, prepared)

    def _prepared(self, transactional_id: str, prepared: Transaction, error: KafkaError | None) -> None:
        if self.transactions.get(transactional_id) is not prepared:
            return
        if error is None:
            self._on_prepared(transactional_id, prepared)
            return
        # Written, but not committed in time. It may be yet, so that nothing else can be decided; and nothing may
        # be made of it before. When the same is committed once more, it is.
        again = partial(self._prepare_again, transactional_id, prepared)
        self._timers.schedule(("prepared", transactional_id), RETRY_MS, again)

    def _prepare_again(self, transactional_id: str, prepared: Transaction) -> Outcome:
        if self.transactions.get(transactional_id) is not prepared:
            return NOTHING
        return self._write(transactional_id, prepared, None, self._then_end(transactional_id, prepared))


def _may_continue(found: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a producer that says it is this one may go on: it has the current id (its epoch is looked at when it is
    raised), or had the one before it up to its last epoch."""
    return (
        found.epoch == NO_PRODUCER_EPOCH
        or found.producer_id == producer_id
        or (found.previous_producer_id == producer_id and state.is_exhausted(epoch))
    )


def _is_repeated_end(found: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether the end that raised the epoch is asked for again: with the epoch before, or the producer id before.

    Only what ended by raising it can be: after a producer of the older protocol, the epoch before is that of somebody
    whom it has fenced. So it is at the last epoch, unless a new producer id follows it: no end gives that epoch out.
    """
    if found.client_version < EPOCH_BUMP_VERSION:
        return False
    if found.producer_id == producer_id and found.epoch == epoch + 1:
        return found.epoch < MAX_EPOCH or found.next_producer_id != NO_PRODUCER_ID
    return found.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and found.epoch == 0


def _may_end_again(found: Transaction) -> bool:
    return found.state not in (EMPTY, ONGOING)


def _may_end(found: Transaction, epoch: int, bumps: bool) -> bool:
    """Whether the producer has the current epoch. What ends by raising it has left the current one behind already."""
    return epoch == found.epoch and not (bumps and found.state in ENDING)


def _concurrent(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS, f"The last transaction of {transactional_id} is not over: try again."
    )


def _not_mapped(transactional_id: str, producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"Transactional id {transactional_id} does not belong to producer id {producer_id}.",
    )


def _fenced(transactional_id: str, found: Transaction, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"The producer of transactional id {transactional_id} has epoch {found.epoch} by now, not {epoch}.",
    )


def _wrong_state(transactional_id: str, found: Transaction, commit: bool) -> KafkaError:
    what = "commit" if commit else "abort"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"There is nothing to {what}: transactional id {transactional_id} is {found.state.value}.",
    )
