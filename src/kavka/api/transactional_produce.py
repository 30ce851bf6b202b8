"""Produce inside a transaction: whether the partitions are in it is asked before anything is appended.

A partition in which the producer's transaction is open already needs no asking: it was asked before, and the marker
that ends the transaction ends that too. For others the coordinator is asked whether they are in the transaction (below
v12, unless `transaction.partition.verification.enable` is off), or to add them (from v12 on). So a late batch, of a
transaction that is over, cannot begin one that nobody would ever end.

On one node the coordinator answers at once, and the records stay where they were received. Where it has to be waited
for, they are copied, and the connection's next request waits (it may be the producer's next batch). What an answer was
worth is checked before the append: if the log has heard of the producer meanwhile (a marker, perhaps), it is worth
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from kavka.api import internal_topics
from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest
from kavka.records.batch import HEADER, HEADER_SIZE
from kavka.replication.partition import Partition
from kavka.storage.producer_state import NOBODY, ProducerEntry

ADDS_PARTITIONS = 12
KNOWS_ABORTABLE = 11

_TRANSACTIONAL = 0x10
_ASK_AGAIN = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

Leader = Callable[[str, int], Partition]
Append = Callable[[RequestContext, ProduceRequest, Leader], Any]


def produce(ctx: RequestContext, request: ProduceRequest, append: Append) -> Any:
    """`append` appends the records to the partitions that the function it is given finds for it."""
    admission = Admission(ctx, request)
    waiting = admission.ask()
    if waiting is None:
        return admission.append(append)
    if request.acks == 0:
        admission.refuse(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
        waiting.close()
        return admission.append(append)
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))
    return _append_later(admission, waiting, append)


async def _append_later(admission: Admission, waiting: Awaitable[None], append: Append) -> Any:
    await waiting
    answer = admission.append(append)
    if asyncio.iscoroutine(answer):
        answer = await answer
    return await answer if isinstance(answer, asyncio.Future) else answer


class Admission:
    """Which partitions of one request may be written to."""

    __slots__ = ("_adds", "_asked", "_ctx", "_epoch", "_open", "_producer_id", "_refused", "_request")

    def __init__(self, ctx: RequestContext, request: ProduceRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._adds = ctx.version >= ADDS_PARTITIONS
        self._producer_id = NOBODY
        self._epoch = -1
        self._refused: dict[TopicPartition, KafkaError] = {}
        # What the coordinator is asked about, with what the log knew of the producer then.
        self._asked: dict[TopicPartition, ProducerEntry | None] = {}
        # Whom a transaction may be begun by, as long as `append` runs.
        self._open: list[Partition] = []

    def ask(self) -> Any | None:
        """None when it is known who may write where, else a coroutine that sees to it."""
        for tp, data in self._batches():
            self._look_at(tp, data)
        if not self._asked or not (self._adds or self._ctx.broker.settings.transaction_partition_verification_enable):
            return None
        try:
            answer = self._ask_coordinator()
            if not isinstance(answer, frozenset):
                return self._wait_for(answer)
            self._take(answer)
        except KafkaError as error:
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS and self._adds:
                return self._wait_for(None)
            self.refuse(error)
        return None

    def _batches(self) -> Iterator[tuple[TopicPartition, PartitionProduceData]]:
        replicas = self._ctx.broker.replica_manager
        for topic in self._request.topic_data:
            name = topic.name
            if self._ctx.version >= 13:
                try:
                    name = replicas.topic_name(topic.topic_id)
                except KafkaError:
                    continue
            if not internal_topics.may_produce(self._ctx, name):
                continue  # refused without adding the partition to the transaction
            for data in topic.partition_data:
                if data.records is not None and len(data.records) >= HEADER_SIZE:
                    yield TopicPartition(name, data.index), data

    def _look_at(self, tp: TopicPartition, data: PartitionProduceData) -> None:
        assert data.records is not None
        header = HEADER.unpack_from(data.records)
        magic, attributes, producer_id, epoch, sequence = header[3], header[5], header[9], header[10], header[11]
        if magic != 2 or not attributes & _TRANSACTIONAL:
            return
        if producer_id < 0 or self._producer_id not in (NOBODY, producer_id):
            self._refused[tp] = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "A transaction has one producer id, and so must its batches."
            )
            return
        self._producer_id, self._epoch = producer_id, epoch
        try:
            partition = self._ctx.broker.replica_manager.leader(*tp)
        except KafkaError as error:
            self._refused[tp] = error
            return
        assert partition.log is not None
        states = partition.log.producer_states
        if states.has_open(producer_id, epoch):
            return
        entry = states.entries.get(producer_id)
        if self._adds and sequence and (entry is None or (not entry.batches and epoch >= entry.epoch)):
            # The newer protocol begins at 0 with every transaction: what comes first here was not sent first.
            self._refused[tp] = KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {producer_id} is not known here, and began with sequence {sequence} instead of 0.",
            )
            return
        self._asked[tp] = entry

    def _ask_coordinator(self) -> Any:
        assert self._request.transactional_id is not None
        return self._ctx.broker.transactions.admit(
            self._request.transactional_id, self._producer_id, self._epoch, list(self._asked), add=self._adds
        )

    async def _wait_for(self, answer: Awaitable[frozenset[TopicPartition]] | None) -> None:
        """With no `answer` the last transaction is not over yet: ask again for as long as the settings allow."""
        settings = self._ctx.broker.settings
        loop = asyncio.get_running_loop()
        until = loop.time() + settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            try:
                if answer is None:
                    await asyncio.sleep(settings.add_partitions_to_txn_retry_backoff_ms / 1000)
                    found = self._ask_coordinator()
                    answer = None
                    self._take(found if isinstance(found, frozenset) else await found)
                else:
                    waited_for, answer = answer, None
                    self._take(await waited_for)
                break
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not self._adds or loop.time() >= until:
                    self.refuse(error)
                    break

    def _take(self, missing: frozenset[TopicPartition]) -> None:
        code = ErrorCode.TRANSACTION_ABORTABLE if self._ctx.version >= KNOWS_ABORTABLE else ErrorCode.INVALID_TXN_STATE
        for tp in missing:
            self._refused[tp] = KafkaError(code, f"{tp} was not added to the transaction.")

    def refuse(self, error: KafkaError) -> None:
        """For all that was asked about."""
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED:
            error = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
        elif code in _ASK_AGAIN or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds):
            # A code that makes clients of any age send the batch again.
            error = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"The coordinator of the transaction cannot be asked now: {code.name}."
            )
        for tp in self._asked:
            self._refused.setdefault(tp, error)

    def _check_transaction(self, tp: TopicPartition, partition: Partition) -> None:
        """Refuse what was admitted into a transaction that has ended while the answer, or the opening of the batch, was
        on its way.

        Where partitions are added by producing, this need not be looked at: every end raises the epoch, so the log
        refuses what is late; and the marker that came meanwhile may be that of the transaction before.
        """
        if self._adds:
            return
        assert partition.log is not None
        states = partition.log.producer_states
        if states.entries.get(self._producer_id) is not self._asked[tp] and not states.has_open(
            self._producer_id, self._epoch
        ):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"The transaction has ended in {tp} meanwhile.")

    # ---- appending

    def append(self, append: Append) -> Any:
        try:
            return append(self._ctx, self._request, self._leader)
        finally:
            for partition in self._open:
                if partition.log is not None:
                    partition.log.producer_states.admitted = NOBODY

    def _leader(self, topic: str, index: int) -> Partition:
        refused = self._refused.get((topic, index))  # type: ignore[call-overload]
        if refused is not None:
            raise refused
        partition = self._ctx.broker.replica_manager.leader(topic, index)
        if (topic, index) in self._asked:
            self._check_transaction(TopicPartition(topic, index), partition)
            assert partition.log is not None
            partition.log.producer_states.admitted = self._producer_id
            self._open.append(partition)
        return partition
