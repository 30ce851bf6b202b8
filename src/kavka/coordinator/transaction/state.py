"""[pure] The transaction state of one transactional id.

Rules:
- A transactional id has one producer id and epoch at a time. A producer that initializes the id
  again gets a higher epoch and fences earlier producers. Their open transaction is aborted first.
- A transaction starts with its first partition (ONGOING). A partition is in the coordinator's log
  before the first record is in the partition's log.
- A transaction ends in two steps. PREPARE_COMMIT or PREPARE_ABORT in the log is final. Then every
  partition gets a marker. When all partitions have their markers, COMPLETE_COMMIT or COMPLETE_ABORT
  is written. A coordinator that loads a prepared transaction writes the markers again.
- A transaction that is open for longer than its timeout is aborted, and its producer is fenced.
- In transaction version 2, every end bumps the epoch, so that delayed records cannot become part of
  the next transaction. A producer may abort a transaction without partitions, because the
  first request to add a partition may have failed.
- No producer gets epoch 32767: it is reserved to fence the last producer. At epoch 32766 the next
  initialization or end changes the producer id.

    from \\ to          empty  ongoing  prepare  prepare  complete complete  fence  dead
                                        commit   abort    commit   abort
    empty                x       x        .       (x)       .        .        .      x
    ongoing              .       x        x        x        .        .        x      .
    prepare commit       .       .        .        .        x        .        .      .
    prepare abort        .       .        .        .        .        x        .      .
    complete commit      x       x        .       (x)       .        .        .      x
    complete abort       x       x        .       (x)       .        .        .      x
    fence                .       .        .        x        .        .        .      .
    dead                 .       .        .        .        .        .        .      .

(x): transaction version 2. FENCE and DEAD are never in the log: FENCE precedes an abort by the
coordinator, DEAD is a tombstone.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH = 32767
# The transaction version from which on every end bumps the epoch.
EPOCH_BUMP_VERSION = 2


class State(Enum):
    """The value is the name in responses. `STATE_NUMBERS` has the numbers in the log."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


EMPTY = State.EMPTY
ONGOING = State.ONGOING
PREPARE_COMMIT = State.PREPARE_COMMIT
PREPARE_ABORT = State.PREPARE_ABORT
COMPLETE_COMMIT = State.COMPLETE_COMMIT
COMPLETE_ABORT = State.COMPLETE_ABORT
DEAD = State.DEAD
PREPARE_EPOCH_FENCE = State.PREPARE_EPOCH_FENCE

STATES_BY_NUMBER: tuple[State, ...] = tuple(State)
STATE_NUMBERS: dict[State, int] = {state: number for number, state in enumerate(STATES_BY_NUMBER)}
STATES_BY_NAME: dict[str, State] = {state.value: state for state in State}

AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
ENDING = frozenset({PREPARE_COMMIT, PREPARE_ABORT})

TRANSITIONS: dict[State, frozenset[State]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    PREPARE_EPOCH_FENCE: frozenset({PREPARE_ABORT}),
    DEAD: frozenset(),
}


class Transaction(NamedTuple):
    """The state of a transactional id. It is immutable: a transition creates a new object.

    `previous_producer_id` is the producer id before the last transition. It identifies a retried
    request after the producer id has changed. `next_producer_id` is the producer id after the end
    of the transaction, if the end changes it. `last_epoch` is the epoch before the producer itself
    requested the current epoch. It is not in the log. `client_transaction_version` is the
    transaction version of the producer at the last change of the state.
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: State = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    update_ms: int = NO_TIMESTAMP
    last_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.epoch)

    def is_timed_out(self, now_ms: int) -> bool:
        return self.state is ONGOING and self.start_ms + self.timeout_ms < now_ms


def is_exhausted(epoch: int) -> bool:
    """Return whether a producer with this epoch needs a new producer id for the next epoch."""
    return epoch >= MAX_EPOCH - 1


def move(transaction: Transaction, new_state: State, now_ms: int, **changes: object) -> Transaction:
    """Return the transaction in the new state. Raises ValueError if the transition is not
    allowed."""
    if new_state not in TRANSITIONS[transaction.state]:
        raise ValueError(f"a transaction cannot change from {transaction.state.value} to {new_state.value}")
    return transaction._replace(
        state=new_state,
        update_ms=now_ms,
        previous_producer_id=transaction.producer_id,
        **changes,  # type: ignore[arg-type]
    )


def raise_epoch(transaction: Transaction, expected_epoch: int | None, timeout_ms: int, now_ms: int) -> Transaction:
    """Handle InitProducerId with the same producer id. `expected_epoch` is the epoch of a producer
    that continues after an error. Raises PRODUCER_FENCED if it is neither the current epoch nor the
    last epoch."""
    current_epoch, last_epoch = transaction.epoch, transaction.last_epoch
    if expected_epoch is None:
        epoch, last_epoch = current_epoch + 1, NO_PRODUCER_EPOCH
    elif current_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
        epoch, last_epoch = current_epoch + 1, current_epoch
    elif expected_epoch == last_epoch:
        # The request is a retry. The first attempt got this epoch, and no other producer has
        # initialized the id since then.
        epoch = current_epoch
    else:
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f"The producer's epoch is {current_epoch}, not {expected_epoch}.")
    return _initialize(transaction, transaction.producer_id, epoch, last_epoch, timeout_ms, now_ms)


def change_producer_id(
    transaction: Transaction, producer_id: int, timeout_ms: int, now_ms: int, keep_last_epoch: bool
) -> Transaction:
    """Handle InitProducerId when the current epoch is exhausted."""
    last_epoch = transaction.epoch if keep_last_epoch else NO_PRODUCER_EPOCH
    return _initialize(transaction, producer_id, 0, last_epoch, timeout_ms, now_ms)


def _initialize(
    transaction: Transaction, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> Transaction:
    return move(
        transaction,
        EMPTY,
        now_ms,
        producer_id=producer_id,
        epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def add_partitions(
    transaction: Transaction, partitions: frozenset[TopicPartition], client_transaction_version: int, now_ms: int
) -> Transaction:
    return move(
        transaction,
        ONGOING,
        now_ms,
        partitions=transaction.partitions | partitions,
        start_ms=transaction.start_ms if transaction.state is ONGOING else now_ms,
        client_transaction_version=client_transaction_version,
    )


def prepare(
    transaction: Transaction,
    commit: bool,
    client_transaction_version: int,
    now_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> Transaction:
    """Return the transaction in PREPARE_COMMIT or PREPARE_ABORT, as the producer requested."""
    epoch, last_epoch = transaction.epoch, transaction.last_epoch
    if client_transaction_version >= EPOCH_BUMP_VERSION:
        epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
    return move(
        transaction,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        now_ms,
        epoch=epoch,
        last_epoch=last_epoch,
        start_ms=transaction.start_ms if transaction.state is ONGOING else now_ms,
        next_producer_id=next_producer_id,
        client_transaction_version=client_transaction_version,
    )


def fence(transaction: Transaction, client_transaction_version: int, now_ms: int) -> Transaction:
    """Abort the transaction of a producer, and fence the producer with a higher epoch."""
    fenced = move(
        transaction,
        PREPARE_EPOCH_FENCE,
        now_ms,
        epoch=min(transaction.epoch + 1, MAX_EPOCH),
        last_epoch=NO_PRODUCER_EPOCH,
        client_transaction_version=client_transaction_version,
    )
    return move(fenced, PREPARE_ABORT, now_ms)


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """Complete a transaction whose partitions all have their markers."""
    new_state = COMPLETE_COMMIT if transaction.state is PREPARE_COMMIT else COMPLETE_ABORT
    producer_id, epoch = next_producer(transaction)
    return move(
        transaction,
        new_state,
        now_ms,
        producer_id=producer_id,
        epoch=epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


def next_producer(transaction: Transaction) -> tuple[int, int]:
    """Return the producer id and epoch for the producer of an ending transaction to use next."""
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return transaction.next_producer_id, 0
    return transaction.producer_id, transaction.epoch
