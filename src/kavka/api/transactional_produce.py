"""Produce in a transaction: the coordinator verifies or adds the partitions before the append.

A partition in which the producer's transaction is open was verified before. For every other
partition the coordinator verifies that it is in the transaction (below v12, unless
`transaction.partition.verification.enable` is off) or adds it (from v12 on). So a late batch of an
ended transaction cannot begin a hanging transaction.

If the coordinator responds at once, the records stay in the receive buffer. This is the normal case
on a single node. Otherwise the records are copied, and the connection's next request waits, because
it may be the producer's next batch. Below v12, a batch is rejected if the transaction ended in the
meantime (`_check_transaction`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from kavka.api import authorization, internal_topics
from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest
from kavka.records.batch import HEADER, HEADER_SIZE
from kavka.replication.partition import Partition
from kavka.security.acls import ResourceType
from kavka.storage.producer_state import NO_PRODUCER, ProducerEntry

# The first versions of Produce that add partitions, and that have the code TRANSACTION_ABORTABLE.
MIN_ADD_PARTITIONS_VERSION = 12
MIN_ABORTABLE_VERSION = 11

_TRANSACTIONAL = 0x10
# Errors that a client does not expect in a Produce response.
_COORDINATOR_UNAVAILABLE = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

FindLeader = Callable[[str, int], Partition]
Append = Callable[[RequestContext, ProduceRequest, FindLeader], Any]


def has_transactional_records(request: ProduceRequest) -> bool:
    return any(
        _is_transactional(data.records)
        for topic in request.topic_data
        for data in topic.partition_data
        if data.records is not None and len(data.records) >= HEADER_SIZE
    )


def _is_transactional(records: Any) -> bool:
    header = HEADER.unpack_from(records)
    return bool(header[3] == 2 and header[5] & _TRANSACTIONAL)


def produce(ctx: RequestContext, request: ProduceRequest, append: Append, denied: frozenset[str]) -> Any:
    """Verify the partitions, then append the records with `append`. Return the response, a future
    of the response, or a coroutine. The client may not write to the topics in `denied`."""
    batches = TransactionalBatches(ctx, request, denied)
    verification = batches.verify()
    if verification is None:
        return batches.append(append)
    if request.acks == 0:
        # Do not wait for the coordinator: the rejected batches close the connection.
        batches.reject(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
        verification.close()
        return batches.append(append)
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))
    return _append_later(batches, verification, append)


async def _append_later(batches: TransactionalBatches, verification: Awaitable[None], append: Append) -> Any:
    await verification
    response = batches.append(append)
    if asyncio.iscoroutine(response):
        response = await response
    return await response if isinstance(response, asyncio.Future) else response


class TransactionalBatches:
    """The transactional batches of one request. Verifies for each partition that the producer may
    write to it."""

    __slots__ = (
        "_adds_partitions",
        "_admitted",
        "_ctx",
        "_denied",
        "_epoch",
        "_errors",
        "_producer_id",
        "_request",
        "_unverified",
    )

    def __init__(self, ctx: RequestContext, request: ProduceRequest, denied: frozenset[str]) -> None:
        self._ctx = ctx
        self._request = request
        self._denied = denied
        self._adds_partitions = ctx.version >= MIN_ADD_PARTITIONS_VERSION
        self._producer_id = NO_PRODUCER
        self._epoch = -1
        # The partitions that may not be written.
        self._errors: dict[TopicPartition, KafkaError] = {}
        # The partitions to verify, with the producer's state in their logs before the verification.
        self._unverified: dict[TopicPartition, ProducerEntry | None] = {}
        # The partitions in which the producer may begin a transaction while `append` runs.
        self._admitted: list[Partition] = []

    def verify(self) -> Any | None:
        """Verify the partitions. Return None if the verification is complete, else a coroutine that
        completes it."""
        for tp, data in self._batches():
            self._check_batch(tp, data)
        if not self._unverified or not (
            self._adds_partitions or self._ctx.broker.settings.transaction_partition_verification_enable
        ):
            return None
        try:
            outcome = self._add_or_verify()
            if not isinstance(outcome, frozenset):
                return self._wait_for(outcome)
            self._reject_missing(outcome)
        except KafkaError as error:
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS and self._adds_partitions:
                return self._wait_for(None)
            self.reject(error)
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
            if name in self._denied or not internal_topics.may_produce(self._ctx, name):
                continue  # rejected without adding the partition to the transaction
            for data in topic.partition_data:
                if data.records is not None and len(data.records) >= HEADER_SIZE:
                    yield TopicPartition(name, data.index), data

    def _check_batch(self, tp: TopicPartition, data: PartitionProduceData) -> None:
        assert data.records is not None
        header = HEADER.unpack_from(data.records)
        magic, attributes, producer_id, epoch, sequence = header[3], header[5], header[9], header[10], header[11]
        if magic != 2 or not attributes & _TRANSACTIONAL:
            return
        if producer_id < 0 or self._producer_id not in (NO_PRODUCER, producer_id):
            self._errors[tp] = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "All batches of a transaction must have the same producer id."
            )
            return
        self._producer_id, self._epoch = producer_id, epoch
        try:
            partition = self._ctx.broker.replica_manager.leader(*tp)
        except KafkaError as error:
            self._errors[tp] = error
            return
        assert partition.log is not None
        states = partition.log.producer_states
        if states.has_open_transaction(producer_id, epoch):
            return
        entry = states.entries.get(producer_id)
        if self._adds_partitions and sequence and (entry is None or (not entry.batches and epoch >= entry.epoch)):
            # From v12 on, sequences start at 0 in every transaction: an earlier batch is missing.
            self._errors[tp] = KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"The first sequence of producer {producer_id} is {sequence} instead of 0.",
            )
            return
        self._unverified[tp] = entry

    def _add_or_verify(self) -> Any:
        assert self._request.transactional_id is not None
        return self._ctx.broker.transactions.add_or_verify(
            self._request.transactional_id,
            self._producer_id,
            self._epoch,
            list(self._unverified),
            add=self._adds_partitions,
        )

    async def _wait_for(self, verification: Awaitable[frozenset[TopicPartition]] | None) -> None:
        """Wait for `verification`. If it is None, the previous transaction is still ending: retry
        the verification until it succeeds or the configured time has passed."""
        settings = self._ctx.broker.settings
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            try:
                if verification is None:
                    await asyncio.sleep(settings.add_partitions_to_txn_retry_backoff_ms / 1000)
                    outcome = self._add_or_verify()
                    self._reject_missing(outcome if isinstance(outcome, frozenset) else await outcome)
                else:
                    pending, verification = verification, None
                    self._reject_missing(await pending)
                break
            except KafkaError as error:
                if (
                    error.code is not ErrorCode.CONCURRENT_TRANSACTIONS
                    or not self._adds_partitions
                    or loop.time() >= deadline
                ):
                    self.reject(error)
                    break

    def _reject_missing(self, missing: frozenset[TopicPartition]) -> None:
        code = (
            ErrorCode.TRANSACTION_ABORTABLE
            if self._ctx.version >= MIN_ABORTABLE_VERSION
            else ErrorCode.INVALID_TXN_STATE
        )
        for tp in missing:
            self._errors[tp] = KafkaError(code, f"{tp} was not added to the transaction.")

    def reject(self, error: KafkaError) -> None:
        """Set the error of all partitions that are not verified. Codes that the client does not
        expect are replaced."""
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED:
            error = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
        elif code in _COORDINATOR_UNAVAILABLE or (
            code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds_partitions
        ):
            # Clients of every version retry after this code.
            error = KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"The transaction coordinator is not available: {code.name}."
            )
        for tp in self._unverified:
            self._errors.setdefault(tp, error)

    def _check_transaction(self, tp: TopicPartition, partition: Partition) -> None:
        """Raise INVALID_TXN_STATE if the transaction ended during the verification or the
        decompression.

        From v12 on the check is not needed: the end of a transaction bumps the epoch, so the log
        fences late batches. The check would also be wrong, because a marker that arrived meanwhile
        may belong to the previous transaction.
        """
        if self._adds_partitions:
            return
        assert partition.log is not None
        states = partition.log.producer_states
        if states.entries.get(self._producer_id) is not self._unverified[tp] and not states.has_open_transaction(
            self._producer_id, self._epoch
        ):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"The transaction has ended in {tp}.")

    # ---- appending

    def append(self, append: Append) -> Any:
        try:
            return append(self._ctx, self._request, self._leader)
        finally:
            for partition in self._admitted:
                partition.revoke_admission()

    def _leader(self, topic: str, index: int) -> Partition:
        if topic in self._denied:
            raise authorization.failure(ResourceType.TOPIC)
        error = self._errors.get((topic, index))  # type: ignore[call-overload]
        if error is not None:
            raise error
        partition = self._ctx.broker.replica_manager.leader(topic, index)
        if (topic, index) in self._unverified:
            self._check_transaction(TopicPartition(topic, index), partition)
            partition.admit_producer(self._producer_id)
            self._admitted.append(partition)
        return partition
