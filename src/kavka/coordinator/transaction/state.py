"""[pure] A producer's transactions, one after the other: the states of one transactional id.

The rules
- A transactional id has one producer id and epoch at a time. Whoever initialises it again gets a higher epoch, and
  fences those that had it before; a transaction that they left open is aborted first.
- A transaction opens with its first partition (ONGOING). A partition is in the log of the coordinator before the
  first record is in the partition's.
- It ends in two steps. PREPARE_COMMIT or PREPARE_ABORT in the log is the decision, which nothing can change any more.
  Then every partition gets a marker, and COMPLETE_COMMIT or COMPLETE_ABORT says that all have it. A coordinator that
  finds the first without the second writes the markers again.
- A transaction that is open for longer than its timeout is aborted, and its producer fenced.
- Version 2 of transactions: every end raises the epoch, so that what was sent before it cannot reach the next
  transaction. Aborting one that never got a partition is allowed: it may have had some that nobody told of.
- An epoch of 32767 is never given out: it is what the last producer can be fenced with. At 32766 the next
  initialisation, or the next end, moves on to another producer id.

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

(x): version 2. FENCE and DEAD are never in the log: the first is on the way to an abort that the coordinator began, the
second is a tombstone.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH = 32767
EPOCH_BUMP_VERSION = 2
"""The version of transactions in which every end raises the epoch."""


class State(Enum):
    """With the name that users see; NUMBERS has the number in the log."""

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

BY_NUMBER: tuple[State, ...] = tuple(State)
NUMBERS: dict[State, int] = {state: number for number, state in enumerate(BY_NUMBER)}
BY_NAME: dict[str, State] = {state.value: state for state in State}

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
    """What is known of a transactional id. Never changed: a transition is a new one.

    `previous_producer_id` is the one before the last transition: with it a repeated request is known for what it is
    after the id has changed. `next_producer_id` is the one that a transaction which is ending moves on to. `last_epoch`
    is the epoch before the last one that its own producer asked for; it is not in the log.
    `client_version` is the version of transactions that the producer spoke when the state was last changed.
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
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.epoch)

    @property
    def is_ending(self) -> bool:
        return self.state in ENDING

    def is_timed_out(self, now_ms: int) -> bool:
        return self.state is ONGOING and self.start_ms + self.timeout_ms < now_ms


def is_exhausted(epoch: int) -> bool:
    """Whether no further epoch may be given out under the same producer id."""
    return epoch >= MAX_EPOCH - 1


def move(transaction: Transaction, to: State, now_ms: int, **changes: object) -> Transaction:
    if to not in TRANSITIONS[transaction.state]:
        raise ValueError(f"a transaction cannot go from {transaction.state.value} to {to.value}")
    return transaction._replace(
        state=to,
        update_ms=now_ms,
        previous_producer_id=transaction.producer_id,
        **changes,  # type: ignore[arg-type]
    )


def raise_epoch(transaction: Transaction, expected_epoch: int | None, timeout_ms: int, now_ms: int) -> Transaction:
    """Initialised (again). `expected_epoch` is what a producer that goes on after an error says that it has."""
    current, last = transaction.epoch, transaction.last_epoch
    if expected_epoch is None:
        epoch, last = current + 1, NO_PRODUCER_EPOCH
    elif current in (NO_PRODUCER_EPOCH, expected_epoch):
        epoch, last = current + 1, current
    elif expected_epoch == last:
        # The request is repeated: it got this epoch the first time, and nobody has initialised the id since.
        epoch = current
    else:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED, f"The producer's epoch is {current} by now, it came with {expected_epoch}."
        )
    return move(
        transaction,
        EMPTY,
        now_ms,
        epoch=epoch,
        last_epoch=last,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def change_producer_id(
    transaction: Transaction, producer_id: int, timeout_ms: int, now_ms: int, keep_last_epoch: bool
) -> Transaction:
    """Initialised again when no epoch is left."""
    return move(
        transaction,
        EMPTY,
        now_ms,
        producer_id=producer_id,
        epoch=0,
        last_epoch=transaction.epoch if keep_last_epoch else NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def add_partitions(
    transaction: Transaction, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    opens = transaction.state is not ONGOING
    return move(
        transaction,
        ONGOING,
        now_ms,
        partitions=transaction.partitions | partitions,
        start_ms=now_ms if opens else transaction.start_ms,
        client_version=client_version,
    )


def prepare(
    transaction: Transaction, commit: bool, client_version: int, now_ms: int, next_producer_id: int = NO_PRODUCER_ID
) -> Transaction:
    """The producer ends its transaction."""
    epoch, last = transaction.epoch, transaction.last_epoch
    if client_version >= EPOCH_BUMP_VERSION:
        epoch, last = min(epoch + 1, MAX_EPOCH), epoch
    return move(
        transaction,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        now_ms,
        epoch=epoch,
        last_epoch=last,
        start_ms=transaction.start_ms if transaction.state is ONGOING else now_ms,
        next_producer_id=next_producer_id,
        client_version=client_version,
    )


def fence(transaction: Transaction, client_version: int, now_ms: int) -> Transaction:
    """The coordinator ends the transaction of a producer that may write no more: the epoch goes up, the abort follows
    at once."""
    fenced = move(
        transaction,
        PREPARE_EPOCH_FENCE,
        now_ms,
        epoch=min(transaction.epoch + 1, MAX_EPOCH),
        last_epoch=NO_PRODUCER_EPOCH,
        client_version=client_version,
    )
    return move(fenced, PREPARE_ABORT, now_ms)


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """All partitions have their markers."""
    to = COMPLETE_COMMIT if transaction.state is PREPARE_COMMIT else COMPLETE_ABORT
    producer_id, epoch = next_producer(transaction)
    return move(
        transaction,
        to,
        now_ms,
        producer_id=producer_id,
        epoch=epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


def next_producer(transaction: Transaction) -> tuple[int, int]:
    """The producer id and epoch with which the producer of a transaction that is ending goes on."""
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return transaction.next_producer_id, 0
    return transaction.producer_id, transaction.epoch
