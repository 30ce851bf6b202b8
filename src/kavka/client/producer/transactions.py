"""Transactions: all records and committed offsets between `begin` and `commit` count, or none of them.

On the loop, except `add`, which user threads call under the accumulator's lock. There are two protocols. In the first
(`transaction.version` below 2) the producer tells the coordinator of each partition and group before it writes there,
and its epoch changes only after trouble. In the second the brokers do the telling, and the epoch rises with every
transaction: the answer to EndTxn has the new one.

States: UNINITIALIZED, READY, IN_TRANSACTION, PREPARED (everything is stored, only the end is missing, which may come
from elsewhere), ENDING, FAILED (only abort leads out of it), FATAL (nothing does).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from kavka.client.backoff import Backoff
from kavka.client.cluster import GROUP, TRANSACTION, Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import IllegalState, KafkaTimeout, error_of
from kavka.client.producer._append import PartitionQueue
from kavka.client.producer.sequences import Sequences
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kavka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kavka.protocol.messages.end_txn import EndTxnRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kavka.protocol.primitives import TopMessage

log = logging.getLogger(__name__)

CHANNEL = "coordinator"
CLIENT_ADD_PARTITIONS = 3
"""Later versions of AddPartitionsToTxn are for brokers."""
FIRST_END_TXN = FIRST_OFFSET_COMMIT = 4

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
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION})
_NEEDS_NEW_EPOCH = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


class State(enum.Enum):
    UNINITIALIZED = "not initialised"
    READY = "outside of a transaction"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "in a transaction that was prepared, and has only to be ended"
    ENDING = "ending a transaction"
    FAILED = "in a transaction that has failed and must be aborted"
    FATAL = "of no use any more"


class Transactions:
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
        self.number = 0
        """Of the transaction that is open, or was last; queues are marked with it."""
        self.second_protocol = False
        self._cluster = cluster
        self._sequences = sequences
        self._timeout_ms: int = config["transaction.timeout.ms"]
        self._request_timeout = config.seconds("request.timeout.ms")
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._on_state = on_state
        self._flush = flush
        self._has_unsent = has_unsent
        self._drop_unsent = drop_unsent
        self._wake = wake
        self._coordinators: dict[tuple[str, int], int] = {}
        self._started = False
        self._problem: KafkaError | None = None
        self._new_epoch_needed = False
        self._to_add: set[PartitionQueue] = set()
        self._adding: asyncio.Task[None] | None = None
        self._ending: tuple[bool, asyncio.Task[None]] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._added: set[PartitionQueue] = set()
        self._offsets: asyncio.Task[None] | None = None
        self._unheard: str | None = None
        """The init, commit or abort that waits for its outcome, or did not wait long enough to learn it."""

    # --- the calls of the producer

    async def init(self, timeout: float) -> None:
        """Get the producer id; ends what an earlier producer of the same transactional id has left open."""
        if self.state is not State.UNINITIALIZED:
            self._check_not_fatal()
            if self._done_unheard("init_transactions"):
                return
            raise IllegalState("init_transactions was called before")
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.ensure_future(self._start())
        self._unheard = "init_transactions"
        await self._wait(self._starting, timeout, "init_transactions")

    async def _start(self) -> None:
        await self._init_producer_id()
        self._go(State.READY)

    def begin(self) -> None:
        self._check_not_fatal()
        if self.state is not State.READY:
            raise IllegalState(f"begin_transaction needs a producer outside of a transaction; it is {self.state.value}")
        self._started = False
        self._new_epoch_needed = False
        self._to_add.clear()
        self._added.clear()
        self._ending = self._offsets = self._unheard = None
        self.number += 1
        self.error = None
        self.second_protocol = self._speaks_second_protocol()
        self._go(State.IN_TRANSACTION)

    async def end(self, commit: bool, timeout: float) -> None:
        """Commit or abort. After KafkaTimeout the same call has to be repeated: it goes on waiting. A commit that timed
        out may have been done, so that an abort after it is refused."""
        self._check_not_fatal()
        what = "commit_transaction" if commit else "abort_transaction"
        if self._ending is None and self._done_unheard(what):
            return
        if self._ending is not None:
            if self._ending[0] != commit:
                raise IllegalState(self._still_ending())
        elif commit and self.state is State.FAILED:
            assert self.error is not None
            raise KafkaError(self.error.code, f"the transaction has failed and must be aborted: {self.error}")
        elif self.state not in (State.IN_TRANSACTION, State.PREPARED, State.FAILED):
            done = f"; {self._unheard}, which timed out, is done since" if self._unheard is not None else ""
            raise IllegalState(f"there is no transaction to end: the producer is {self.state.value}{done}")
        if self._ending is None:
            self._ending = commit, asyncio.ensure_future(self._end(commit))
        self._unheard = what
        await self._wait(self._ending[1], timeout, what)

    async def finish(self, timeout: float) -> None:
        """For who closes: wait for the end that is under way, or abort what is open."""
        if self._ending is not None and not self._ending[1].done():
            await self._wait(self._ending[1], timeout, "the end of a transaction")
        elif self.open:
            await self.end(False, timeout)

    async def prepare(self, timeout: float) -> PreparedTransaction | None:
        """Have everything stored, and leave the end to whoever is given the result; None where nothing was written.
        The producer sends nothing more before the end; closed, it leaves the transaction open."""
        number = self.number
        self.check_open(number)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._flush()
                    await self._all_told()
                    self.check_open(number)
                    # From here on no record gets into the transaction.
                    self._go(State.PREPARED)
                    if not self._has_unsent() and not self._under_way():
                        break
                    # Another thread sent more meanwhile.
                    self._go(State.IN_TRANSACTION)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise KafkaTimeout(f"prepare_transaction took longer than {timeout:g} s{self._reason()}") from None
        if not self._started:
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
        self._offsets = asyncio.ensure_future(self._send_offsets(dict(offsets), member, self._offsets))
        await self._wait(self._offsets, timeout, "send_offsets_to_transaction")

    async def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        member: ConsumerGroupMetadata,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Goes on though the program waits no more: what is on its way cannot be called back, and the end of the
        transaction waits for it. After those that were sent `before`."""
        try:
            if before is not None:
                await asyncio.wait({before})
            if not self.second_protocol:
                await self._add_group(member.group_id)
            self._started = True
            await self._commit_offsets(offsets, member)
        except KafkaError as error:
            self.failed(error)
            raise

    async def _all_told(self) -> None:
        """Until nothing is on its way to a coordinator that belongs to this transaction: after its end, it would be
        taken for part of the next one."""
        under_way = self._under_way()
        if under_way:
            await asyncio.wait(under_way)

    def _under_way(self) -> set[asyncio.Task[None]]:
        return {task for task in (self._adding, self._offsets) if task is not None and not task.done()}

    # --- from the send path and the sender

    def check_open(self, number: int) -> None:
        """Records and offsets of transaction `number` may be sent now; raises otherwise. From any thread."""
        self._check_not_fatal()
        if 0 < number < self.number:
            raise IllegalState(
                "the transaction that the call was made in was committed or aborted meanwhile; nothing was sent"
            )
        if self.state is State.FAILED and self.error is not None:
            raise KafkaError(self.error.code, f"the transaction has failed and must be aborted: {self.error}")
        if self.state is State.ENDING:
            raise IllegalState(self._still_ending())
        if self.state is not State.IN_TRANSACTION:
            hint = "init_transactions" if self.state is State.UNINITIALIZED else "begin_transaction"
            raise IllegalState(f"the producer is {self.state.value}; {hint} comes first")
        if number != self.number:
            raise IllegalState("the call was made before begin_transaction; nothing was sent")

    def add(self, queue: PartitionQueue) -> None:
        """A record for this partition is about to be appended. Under the accumulator's lock, from any thread."""
        queue.in_transaction = self.number
        if queue not in self._added:
            self._to_add.add(queue)

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the coordinator knows that the transaction has this partition."""
        if self.second_protocol or queue in self._added:
            self._started = True
            return True
        if self._adding is None or self._adding.done():
            self._adding = asyncio.ensure_future(self._add_partitions())
        return False

    def failed(self, error: KafkaError, number: int | None = None) -> None:
        """Something in the transaction went wrong for good; in that one of `number`, where it may be over by now."""
        if self.state is State.FATAL or number not in (None, self.number):
            return
        if error.code in _FATAL and error.code != ErrorCode.INVALID_PRODUCER_EPOCH:
            self.error = error
            self._go(State.FATAL)
        elif self.state is State.IN_TRANSACTION:
            self._new_epoch_needed = True
            self.error = error
            self._go(State.FAILED)
        elif self.state is State.ENDING and self.error is None:
            self._new_epoch_needed = True
            self.error = error

    def in_doubt(self) -> None:
        """A batch was given up, and whether the broker has it is not known."""
        self.failed(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "records ran out of time; the transaction is in doubt"))

    @property
    def open(self) -> bool:
        return self.state in (State.IN_TRANSACTION, State.FAILED)

    # --- requests

    async def _init_producer_id(self) -> None:
        known = self._sequences.known
        request = InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=self._sequences.producer_id if known else -1,
            producer_epoch=self._sequences.producer_epoch if known else -1,
        )
        response = await self._ask(lambda: request, self.id, TRANSACTION, lambda r: r.error_code)
        self._sequences.set(response.producer_id, response.producer_epoch)

    async def _add_partitions(self) -> None:
        while self._to_add and self.state in (State.IN_TRANSACTION, State.ENDING):
            queues = set(self._to_add)
            topics: dict[str, AddPartitionsToTxnTopic] = {}
            for queue in queues:
                topic = topics.setdefault(queue.topic, AddPartitionsToTxnTopic(name=queue.topic))
                topic.partitions.append(queue.partition)
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self._sequences.producer_id,
                v3_and_below_producer_epoch=self._sequences.producer_epoch,
                v3_and_below_topics=list(topics.values()),
            )
            try:
                await self._ask(
                    lambda request=request: request,  # type: ignore[misc]
                    self.id,
                    TRANSACTION,
                    _worst_of_partitions,
                    CLIENT_ADD_PARTITIONS,
                )
            except KafkaError as error:
                self.failed(error)
                self._drop_unsent(error)
                return
            self._started = True
            self._to_add -= queues
            self._added |= queues
        self._wake()

    async def _add_group(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.id,
            producer_id=self._sequences.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            group_id=group,
        )
        await self._ask(lambda: request, self.id, TRANSACTION, lambda r: r.error_code)

    async def _commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], member: ConsumerGroupMetadata
    ) -> None:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, partition), given in offsets.items():
            offset = OffsetAndMetadata(given) if isinstance(given, int) else given
            topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name))
            topic.partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=member.group_id,
            producer_id=self._sequences.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=list(topics.values()),
        )
        highest = None if self.second_protocol else FIRST_OFFSET_COMMIT
        await self._ask(lambda: request, member.group_id, GROUP, _worst_of_offsets, highest)

    async def _end(self, commit: bool) -> None:
        if not commit and self.state is not State.FAILED:
            self.error = None
        # From here on no record gets into the transaction: what is dropped, or flushed, is all of it.
        self._go(State.ENDING)
        if not commit:
            self._to_add.clear()
            self._drop_unsent(KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"))
        await self._flush()
        await self._all_told()
        self._check_not_fatal()
        if commit and self.error is not None:
            # A record failed on the way: nothing was committed, and the user has to abort.
            self._ending = None
            self._go(State.FAILED)
            raise KafkaError(self.error.code, f"the transaction has failed and must be aborted: {self.error}")
        try:
            if self._started and not (self.error is not None and self.error.code in _NEEDS_NEW_EPOCH):
                await self._end_txn(commit)
            if not self.second_protocol and self._new_epoch_needed:
                await self._init_producer_id()
        except KafkaError as error:
            if error.code in _FATAL:
                self.error = error
                self._go(State.FATAL)
            else:
                self.error = error
                self._ending = None
                self._go(State.FAILED)
            raise
        self.error = None
        self._ending = None
        self._go(State.READY)

    async def _end_txn(self, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=self._sequences.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            committed=commit,
        )
        highest = None if self.second_protocol else FIRST_END_TXN
        response = await self._ask(lambda: request, self.id, TRANSACTION, lambda r: r.error_code, highest)
        if response.producer_id >= 0 and response.producer_epoch >= 0:
            self._sequences.set(response.producer_id, response.producer_epoch)

    async def _ask(
        self,
        make: Callable[[], TopMessage],
        key: str,
        key_type: int,
        code_of: Callable[[Any], int],
        max_version: int | None = None,
    ) -> Any:
        """Ask the coordinator, again and again while it is an error that may pass."""
        failures = 0
        while True:
            try:
                node_id = self._coordinators.get((key, key_type))
                if node_id is None:
                    node_id = (await self._cluster.find_coordinator(key, key_type)).id
                    self._coordinators[key, key_type] = node_id
                response = await self._cluster.request(
                    node_id, make(), max_version=max_version, timeout=self._request_timeout, channel=CHANNEL
                )
                code = code_of(response)
                if not code:
                    self._problem = None
                    return response
                raise error_of(code)
            except KafkaError as error:
                if error.code in _MOVED or isinstance(error, KafkaTimeout):
                    self._coordinators.pop((key, key_type), None)
                if not error.retriable or self._cluster.closed:
                    raise
                self._problem = error
                failures += 1
                # The end of the transaction before takes the coordinator only a moment.
                brief = error.code == ErrorCode.CONCURRENT_TRANSACTIONS and failures <= 10
                await asyncio.sleep(0.01 if brief else self._backoff.delay(failures))

    def _speaks_second_protocol(self) -> bool:
        node_id = self._coordinators.get((self.id, TRANSACTION))
        # While all brokers are away, and the client begins anew with `bootstrap.servers`, it knows none by its id.
        if node_id is None or node_id not in self._cluster.nodes:
            return self.second_protocol
        connection = self._cluster.ready_connection(node_id, CHANNEL)
        if connection is None:
            return self.second_protocol
        return connection.features.get("transaction.version", 0) >= 2

    # --- small things

    def _still_ending(self) -> str:
        done, call = ("aborted", "abort_transaction")
        if self._ending is not None and self._ending[0]:
            done, call = ("committed", "commit_transaction")
        return f"the transaction is being {done}, and may have been: call {call} again until it returns"

    def _reason(self) -> str:
        return f": {self._problem}" if self._problem is not None else ""

    def _go(self, state: State) -> None:
        self.state = state
        self._on_state()

    def _done_unheard(self, what: str) -> bool:
        """Whether this call ran out of time, and what it wanted was done since."""
        if self.state is not State.READY or self._unheard != what:
            return False
        self._unheard = None
        return True

    def _check_not_fatal(self) -> None:
        if self.state is State.FATAL:
            assert self.error is not None
            raise KafkaError(self.error.code, f"the producer cannot go on: {self.error}")

    async def _wait(self, task: asyncio.Task[None], timeout: float, what: str) -> None:
        # Whoever does not wait long enough, does not call again, and closes, need not hear how it ended.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise KafkaTimeout(f"{what} took longer than {timeout:g} s{self._reason()}; it may be called again")
        if self._unheard == what:
            self._unheard = None
        task.result()


def _worst_of_partitions(response: Any) -> int:
    codes = [p.partition_error_code for t in response.results_by_topic_v3_and_below for p in t.results_by_partition]
    return _worst(codes)


def _worst_of_offsets(response: Any) -> int:
    return _worst([p.error_code for t in response.topics for p in t.partitions])


def _worst(codes: list[int]) -> int:
    """The one that decides: an error that does not pass, if there is any; OPERATION_NOT_ATTEMPTED only follows
    others."""
    errors = [code for code in codes if code]
    hopeless = [code for code in errors if not error_of(code).retriable]
    real = [code for code in hopeless if code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return (real or [c for c in errors if c != ErrorCode.OPERATION_NOT_ATTEMPTED] or errors or [0])[0]
