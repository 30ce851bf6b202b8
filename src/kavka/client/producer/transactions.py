"""The state machine of a transactional producer. `TRANSITIONS` is its transition table,
`Transactions` runs it, and `transaction_requests.py` has the requests.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import IllegalState, KafkaTimeout
from kavka.client.producer._append import PartitionQueue
from kavka.client.producer.sequences import Sequences
from kavka.client.producer.transaction_requests import TransactionRequests
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from kavka.common.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class State(enum.Enum):
    """The value of a state completes the sentence 'the producer is …' in error messages."""

    UNINITIALIZED = "not initialised"
    READY = "outside of a transaction"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "in a prepared transaction, which can only be ended"
    COMMITTING = "committing a transaction"
    ABORTING = "aborting a transaction"
    ABORTABLE_ERROR = "in a transaction that has failed and must be aborted"
    FATAL_ERROR = "unusable after a fatal error"


TRANSITIONS: dict[State, dict[State, str]] = {
    State.UNINITIALIZED: {
        State.READY: "init_transactions got a producer id",
        State.FATAL_ERROR: "a fatal error",
    },
    State.READY: {
        State.IN_TRANSACTION: "begin_transaction",
        State.FATAL_ERROR: "a late send of the last transaction failed with a fatal error",
    },
    State.IN_TRANSACTION: {
        State.PREPARED: "prepare_transaction stored everything",
        State.COMMITTING: "commit_transaction",
        State.ABORTING: "abort_transaction",
        State.ABORTABLE_ERROR: "a record or an offset commit failed",
        State.FATAL_ERROR: "a fatal error, for example the producer was fenced",
    },
    State.PREPARED: {
        State.IN_TRANSACTION: "another thread sent a record before the transaction was prepared",
        State.COMMITTING: "commit_transaction",
        State.ABORTING: "abort_transaction",
        State.FATAL_ERROR: "a fatal error",
    },
    State.COMMITTING: {
        State.READY: "the coordinator committed the transaction",
        State.ABORTABLE_ERROR: "a record, an offset commit or EndTxn failed",
        State.FATAL_ERROR: "a fatal error",
    },
    State.ABORTING: {
        State.READY: "the coordinator aborted the transaction, or never learned of it",
        State.ABORTABLE_ERROR: "EndTxn failed",
        State.FATAL_ERROR: "a fatal error",
    },
    State.ABORTABLE_ERROR: {
        State.ABORTING: "abort_transaction",
        State.FATAL_ERROR: "a fatal error",
    },
    State.FATAL_ERROR: {},
}
"""The states that may follow each state, and the reason for each transition."""

ENDING = frozenset({State.COMMITTING, State.ABORTING})

_FATAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_NEEDS_NEW_EPOCH = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


class Transactions:
    """Owns the state of a producer's transaction, and the partitions in it.

    `state` changes only in `_transition`. All methods run on the event loop, except `check_open`
    and `add`, which any thread may call. `add` requires the accumulator's lock.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ClientConfig,
        sequences: Sequences,
        *,
        on_state: Callable[[], None],
        flush: Callable[[], Coroutine[Any, Any, None]],
        has_unsent: Callable[[], bool],
        drop_unsent: Callable[[KafkaError], None],
        wake: Callable[[], None],
    ) -> None:
        self.id: str = config["transactional.id"]
        self.state = State.UNINITIALIZED
        self.error: KafkaError | None = None
        """The cause of ABORTABLE_ERROR and FATAL_ERROR, or an error during COMMITTING or
        ABORTING."""
        self.number = 0
        """The number of the open transaction, or of the last transaction.
        `PartitionQueue.in_transaction` refers to it."""
        self.second_protocol = False
        """Whether `transaction.version` is at least 2: the first batch to a partition adds the
        partition to the transaction, and the end of a transaction increments the producer epoch."""
        self._sequences = sequences
        self._requests = TransactionRequests(cluster, config, sequences)
        self._on_state = on_state
        self._flush = flush
        self._has_unsent = has_unsent
        self._drop_unsent = drop_unsent
        self._wake = wake
        self._is_at_coordinator = False
        """Whether a broker may have state of the open transaction, so that EndTxn must end it."""
        self._needs_new_epoch = False
        self._to_add: set[PartitionQueue] = set()
        self._added: set[PartitionQueue] = set()
        self._init_task: asyncio.Task[None] | None = None
        self._add_task: asyncio.Task[None] | None = None
        self._offsets_task: asyncio.Task[None] | None = None
        self._end_task: asyncio.Task[None] | None = None
        self._unreported_call: str | None = None
        """The init, commit or abort call whose outcome the application has not received, because
        the call is still waiting or has timed out."""

    def _transition(self, target: State) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalState(f"the producer is {self.state.value}, and cannot be {target.value} next")
        self.state = target
        self._on_state()

    # --- the calls of the producer

    async def init(self, timeout: float) -> None:
        """Get the producer id. The coordinator aborts the open transaction of an earlier producer
        with the same transactional id."""
        if self.state is not State.UNINITIALIZED:
            self._check_not_fatal()
            if self._take_late_completion("init_transactions"):
                return
            raise IllegalState("init_transactions was already called")
        if self._init_task is None or (self._init_task.done() and self._init_task.exception() is not None):
            self._init_task = asyncio.ensure_future(self._init())
        await self._report(self._init_task, timeout, "init_transactions")

    async def _init(self) -> None:
        await self._requests.init_producer_id()
        self._transition(State.READY)

    def begin(self) -> None:
        self._check_not_fatal()
        if self.state is not State.READY:
            raise IllegalState(
                f"begin_transaction requires a producer outside of a transaction; it is {self.state.value}"
            )
        self._is_at_coordinator = False
        self._needs_new_epoch = False
        self._to_add.clear()
        self._added.clear()
        self._offsets_task = self._unreported_call = None
        self.number += 1
        self.error = None
        self.second_protocol = self._requests.second_protocol(self.second_protocol)
        self._transition(State.IN_TRANSACTION)

    async def end(self, commit: bool, timeout: float) -> None:
        """Commit or abort. After KafkaTimeout the caller must repeat the same call, which waits for
        the same task. After a commit that timed out, the coordinator may have committed the
        transaction, so an abort raises IllegalState."""
        self._check_not_fatal()
        call = "commit_transaction" if commit else "abort_transaction"
        if self._take_late_completion(call):
            return
        target = State.COMMITTING if commit else State.ABORTING
        if self.state is not target:
            self._check_may_end(target)
            if self.state is not State.ABORTABLE_ERROR:
                self.error = None
            self._end_task = asyncio.ensure_future(self._end(commit))
            # From here on no record can be added, so `_end` drops or flushes all records.
            self._transition(target)
        assert self._end_task is not None
        await self._report(self._end_task, timeout, call)

    def _check_may_end(self, target: State) -> None:
        if self.state in ENDING:
            raise IllegalState(self._ending_message())
        if target is State.COMMITTING and self.state is State.ABORTABLE_ERROR:
            raise self._abortable_error()
        if target not in TRANSITIONS[self.state]:
            call = self._unreported_call
            completed = f"; {call} timed out and has completed since" if call is not None else ""
            raise IllegalState(f"there is no transaction to end: the producer is {self.state.value}{completed}")

    async def _end(self, commit: bool) -> None:
        if not commit:
            self._to_add.clear()
            self._drop_unsent(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"))
        await self._flush()
        await self._wait_for_requests()
        self._check_not_fatal()
        if commit and self.error is not None:
            # A record failed during the flush: nothing was committed, and the program must abort.
            self._transition(State.ABORTABLE_ERROR)
            raise self._abortable_error()
        try:
            if self._is_at_coordinator and not (self.error is not None and self.error.code in _NEEDS_NEW_EPOCH):
                await self._requests.end_transaction(commit, self.second_protocol)
            if not self.second_protocol and self._needs_new_epoch:
                await self._requests.init_producer_id()
        except KafkaError as error:
            if self.state is not State.FATAL_ERROR:
                self.error = error
                self._transition(State.FATAL_ERROR if error.code in _FATAL else State.ABORTABLE_ERROR)
            raise
        if self.state is not State.FATAL_ERROR:
            self.error = None
            self._transition(State.READY)

    async def finish(self, timeout: float) -> None:
        """Wait for a commit or abort in progress, or abort an open transaction. Called by
        `close`."""
        if self._end_task is not None and not self._end_task.done():
            await self._wait(self._end_task, timeout, "the end of a transaction")
        elif self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            await self.end(False, timeout)

    async def prepare(self, timeout: float) -> PreparedTransaction | None:
        """Flush all records, and return a handle with which any process can end the transaction.
        Returns None if nothing was written. Afterwards the producer accepts no records until the
        transaction ends, and `close` leaves the transaction open."""
        number = self.number
        self.check_open(number)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._flush()
                    await self._wait_for_requests()
                    self.check_open(number)
                    # From here on no record can be added.
                    self._transition(State.PREPARED)
                    if not self._has_unsent() and not self._pending_requests():
                        break
                    # Another thread sent a record after the flush.
                    self._transition(State.IN_TRANSACTION)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise KafkaTimeout(f"prepare_transaction did not complete within {timeout:g} s{self._cause()}") from None
        if not self._is_at_coordinator:
            return None
        return PreparedTransaction(
            self.id, self._sequences.producer_id, self._sequences.producer_epoch, self.second_protocol
        )

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: ConsumerGroupMetadata | str,
        timeout: float,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction."""
        self.check_open(self.number)
        if not offsets:
            return
        member = ConsumerGroupMetadata(group) if isinstance(group, str) else group
        self._offsets_task = asyncio.ensure_future(self._send_offsets(dict(offsets), member, self._offsets_task))
        await self._wait(self._offsets_task, timeout, "send_offsets_to_transaction")

    async def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        member: ConsumerGroupMetadata,
        previous: asyncio.Task[None] | None,
    ) -> None:
        """Send the offsets after the task `previous` has completed. This task continues if the
        caller times out: a request that was sent cannot be cancelled, and the end of the
        transaction waits for the response."""
        try:
            if previous is not None:
                await asyncio.wait({previous})
            if not self.second_protocol:
                await self._requests.add_group(member.group_id)
            self._is_at_coordinator = True
            await self._requests.commit_offsets(offsets, member, self.second_protocol)
        except KafkaError as error:
            self.fail(error)
            raise

    async def _wait_for_requests(self) -> None:
        """Wait for the pending requests of this transaction. If a coordinator received such a
        request after EndTxn, it would apply the request to the next transaction."""
        tasks = self._pending_requests()
        if tasks:
            await asyncio.wait(tasks)

    def _pending_requests(self) -> set[asyncio.Task[None]]:
        return {task for task in (self._add_task, self._offsets_task) if task is not None and not task.done()}

    # --- the calls of the send path and the sender

    def check_open(self, number: int) -> None:
        """Raise an error unless records and offsets can be added to transaction `number` now. Any
        thread may call it."""
        self._check_not_fatal()
        if 0 < number < self.number:
            raise IllegalState(
                "nothing was sent: the transaction in which the call was made was committed or aborted during the call"
            )
        if self.state is State.ABORTABLE_ERROR and self.error is not None:
            raise self._abortable_error()
        if self.state in ENDING:
            raise IllegalState(self._ending_message())
        if self.state is not State.IN_TRANSACTION:
            hint = "init_transactions" if self.state is State.UNINITIALIZED else "begin_transaction"
            raise IllegalState(f"the producer is {self.state.value}; call {hint} first")
        if number != self.number:
            raise IllegalState("nothing was sent: the call was made before begin_transaction")

    def add(self, queue: PartitionQueue) -> None:
        """Add a partition before the first append to it. Any thread may call it under the
        accumulator's lock."""
        queue.in_transaction = self.number
        if queue not in self._added:
            self._to_add.add(queue)

    def may_send(self, queue: PartitionQueue) -> bool:
        """Return whether the partition is in the transaction. If it is not, start a task that adds
        it and then calls `wake`."""
        if self.second_protocol or queue in self._added:
            self._is_at_coordinator = True
            return True
        if self._add_task is None or self._add_task.done():
            self._add_task = asyncio.ensure_future(self._add_partitions())
        return False

    async def _add_partitions(self) -> None:
        while self._to_add and (self.state is State.IN_TRANSACTION or self.state in ENDING):
            queues = set(self._to_add)
            try:
                await self._requests.add_partitions(queues)
            except KafkaError as error:
                self.fail(error)
                self._drop_unsent(error)
                return
            self._is_at_coordinator = True
            self._to_add -= queues
            self._added |= queues
        self._wake()

    def fail(self, error: KafkaError, number: int | None = None) -> None:
        """Fail the open transaction. Has no effect if `number` is the number of another
        transaction."""
        if self.state is State.FATAL_ERROR or number not in (None, self.number):
            return
        # INVALID_PRODUCER_EPOCH from the leader of a partition is not fatal, as in Kafka. The
        # coordinator decides whether the producer is fenced, when the transaction is aborted.
        if error.code in _FATAL and error.code != ErrorCode.INVALID_PRODUCER_EPOCH:
            self.error = error
            self._transition(State.FATAL_ERROR)
        elif self.state is State.IN_TRANSACTION:
            self._needs_new_epoch = True
            self.error = error
            self._transition(State.ABORTABLE_ERROR)
        elif self.state in ENDING and self.error is None:
            self._needs_new_epoch = True
            self.error = error

    def fail_in_doubt(self) -> None:
        """Fail the open transaction because an abandoned batch may or may not be in the log."""
        message = "it is unknown whether records that timed out were stored; the transaction must be aborted"
        self.fail(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, message))

    # --- waiting and errors

    async def _report(self, task: asyncio.Task[None], timeout: float, call: str) -> None:
        """Wait for the task, and remember the call until the application has received its
        outcome."""
        self._unreported_call = call
        await self._wait(task, timeout, call)

    async def _wait(self, task: asyncio.Task[None], timeout: float, call: str) -> None:
        # Retrieve the exception: after a timeout no caller may do so, and asyncio would log it.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise KafkaTimeout(f"{call} did not complete within {timeout:g} s{self._cause()}; it may be called again")
        if self._unreported_call == call:
            self._unreported_call = None
        task.result()

    def _take_late_completion(self, call: str) -> bool:
        """Return whether this call timed out and has completed since. If so, its outcome counts as
        received."""
        if self.state is not State.READY or self._unreported_call != call:
            return False
        self._unreported_call = None
        return True

    def _check_not_fatal(self) -> None:
        if self.state is State.FATAL_ERROR:
            assert self.error is not None
            raise KafkaError(self.error.code, f"the producer cannot continue: {self.error}")

    def _abortable_error(self) -> KafkaError:
        assert self.error is not None
        return KafkaError(self.error.code, f"the transaction has failed and must be aborted: {self.error}")

    def _ending_message(self) -> str:
        if self.state is State.COMMITTING:
            result, call = "committed", "commit_transaction"
        else:
            result, call = "aborted", "abort_transaction"
        return f"the transaction is being {result} or was {result}: call {call} again until it returns"

    def _cause(self) -> str:
        return f": {self._requests.last_error}" if self._requests.last_error is not None else ""
