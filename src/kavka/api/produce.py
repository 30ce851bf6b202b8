"""Produce (key 0): append record batches to partitions.

v0-v1  message sets of magic 0; v1 adds throttle_time_ms to the answer
v2     magic 1, log_append_time_ms in the answer
v3     record batches (magic 2), transactional_id
v5     log_start_offset in the answer
v7     zstd
v8     record_errors and error_message in the answer
v9     flexible
v10    the current leader in the answer
v11    TRANSACTION_ABORTABLE may be answered
v12    partitions are added to the transaction by producing to them (transactional_produce.py)
v13    topics by id

The batch is not opened here: `Log.stage_as_leader` checks its header and CRC and assigns offsets in the receive
buffer itself; the bytes are written when all requests of this turn of the loop have been looked at
(`ReplicaManager.write_staged`), before any of them is answered.

A batch that the topic's rules require to be opened, and that is not small, is copied, opened in a worker thread and
staged after that. The connection's next request waits meanwhile, so that a producer's batches keep their order.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

from kavka.api import internal_topics, transactional_produce
from kavka.api.context import RequestContext
from kavka.api.registry import as_kafka_error, handles
from kavka.api.transactional_produce import Leader
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kavka.records.limits import LOOP_S, OPENING_S
from kavka.records.validate import InvalidRecordError, TooLargeToOpenHere, ValidatedBatch, validate_produce
from kavka.replication.partition import Partition
from kavka.replication.replica_manager import ReplicaManager
from kavka.replication.waiting import ProduceWaiter
from kavka.storage.log_append import AppendInfo
from kavka.storage.producer_state import NOBODY

log = logging.getLogger(__name__)

# What a producer and a log disagree about: rare, and worth a line.
_OF_PRODUCER_STATE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})

VALID_ACKS = (-1, 0, 1)


class ConnectionMustClose(Exception):
    """A produce with acks=0 failed: with no answer to put the error in, Kafka closes the connection."""


def _on_error(request: ProduceRequest, version: int, error: KafkaError) -> ProduceResponse:
    if request.acks == 0:
        raise ConnectionMustClose
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index, error_code=int(error.code), error_message=error.message, base_offset=-1
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


@handles(ApiKey.PRODUCE, versions=(0, 13), on_error=_on_error)
def handle(ctx: RequestContext, request: ProduceRequest) -> Any:
    if request.transactional_id is not None:
        return transactional_produce.produce(ctx, request, _append)
    return _append(ctx, request, ctx.broker.replica_manager.leader)


def _append(ctx: RequestContext, request: ProduceRequest, leader: Leader) -> Any:
    acks = request.acks
    version = ctx.version
    replicas = ctx.broker.replica_manager
    response = ProduceResponse()
    waits: list[Any] = []
    unopened: list[Unopened] = []
    postponed: set[tuple[str, int]] = set()
    deadline = monotonic() + LOOP_S
    for topic in request.topic_data:
        name = topic.name
        answers: list[PartitionProduceResponse] = []
        response.responses.append(TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=answers))
        for data in topic.partition_data:
            answer = PartitionProduceResponse(index=data.index)
            answers.append(answer)
            try:
                if acks not in VALID_ACKS:
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}.")
                if version >= 13:
                    name = replicas.topic_name(topic.topic_id)
                if data.records is None:
                    raise KafkaError(ErrorCode.INVALID_RECORD, "The request has no records for this partition.")
                if not internal_topics.may_produce(ctx, name):
                    raise internal_topics.refusal(ctx, name, data.index)
                partition = leader(name, data.index)
                if (name, data.index) in postponed or monotonic() > deadline:
                    raise TooLargeToOpenHere
                info = partition.stage(data.records, acks, version)
            except TooLargeToOpenHere:
                unopened.append(Unopened(name, data, answer, partition))
                postponed.add((name, data.index))
                continue
            except Exception as error:
                # One partition's trouble is not the others': they may have been staged already.
                _refuse(ctx, response, answer, name, error)
                continue
            _note_staged(replicas, partition, info, answer, acks, waits)
    if unopened:
        return _append_opened(ctx, request, leader, response, waits, unopened)
    return _finish(ctx, request, response, waits)


def _note_staged(
    replicas: ReplicaManager,
    partition: Partition,
    info: AppendInfo,
    answer: PartitionProduceResponse,
    acks: int,
    waits: list[Any],
) -> None:
    answer.base_offset = info.first_offset
    answer.log_append_time_ms = info.append_time
    answer.log_start_offset = info.log_start_offset
    if not info.duplicate:
        metrics = partition.metrics
        metrics.messages_in.value += info.count
        metrics.bytes_in.value += info.size
    replicas.note_staged(partition, answer)
    if acks == -1 or partition.log.config.flush_messages == 1:  # type: ignore[union-attr]
        waits.append((partition, info.last_offset + 1, answer))


def _finish(ctx: RequestContext, request: ProduceRequest, response: ProduceResponse, waits: list[Any]) -> Any:
    """The response, a future of it, or None with acks=0."""
    if request.acks == 0:
        ctx.broker.replica_manager.write_staged()
        if any(a.error_code for t in response.responses for a in t.partition_responses):
            raise ConnectionMustClose
        return None
    return _wait(ctx, request, response, waits) if waits else response


class Unopened:
    """A batch to be opened in a worker thread. Its bytes are copied: the receive buffer does not wait."""

    __slots__ = ("_partition", "answer", "data", "records", "topic")

    def __init__(
        self, topic: str, data: PartitionProduceData, answer: PartitionProduceResponse, partition: Partition
    ) -> None:
        self.topic = topic
        self.data = data
        self.answer = answer
        self._partition = partition
        self.records = memoryview(bytearray(data.records or b""))
        data.records = None  # as long as the request exists, so would its bytes

    def check_partition(self, replicas: ReplicaManager) -> Partition:
        """The partition, if this broker still leads it. A new topic of the same name is another one: its id, and what
        it requires of a batch, may differ."""
        if replicas.leader(self.topic, self.data.index) is not self._partition:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted meanwhile.")
        return self._partition

    async def open(self, ctx: RequestContext) -> ValidatedBatch:
        replicas = ctx.broker.replica_manager
        async with replicas.opening:
            log = self.check_partition(replicas).log
            assert log is not None
            now = ctx.broker.clock.now_ms()
            batch: ValidatedBatch = await ctx.broker.run_in_worker(
                validate_produce, self.records, log.rules, now, ctx.version
            )
        return batch


async def _append_opened(
    ctx: RequestContext,
    request: ProduceRequest,
    leader: Leader,
    response: ProduceResponse,
    waits: list[Any],
    unopened: list[Unopened],
) -> Any:
    replicas = ctx.broker.replica_manager
    deadline = monotonic() + OPENING_S
    for item in unopened:
        try:
            if monotonic() > deadline:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The request has too many large compressed batches.")
            batch = await item.open(ctx)
            item.check_partition(replicas)
            partition = leader(item.topic, item.data.index)
            assert partition.log is not None
            try:
                info = partition.stage(batch, request.acks, ctx.version)
            finally:
                # `leader` admits the producer of a transaction for this append alone.
                partition.log.producer_states.admitted = NOBODY
        except Exception as error:
            _refuse(ctx, response, item.answer, item.topic, error)
            continue
        _note_staged(replicas, partition, info, item.answer, request.acks, waits)
        replicas.write_staged()
    return _finish(ctx, request, response, waits)


def _wait(ctx: RequestContext, request: ProduceRequest, response: ProduceResponse, waits: list[Any]) -> Any:
    """The answer, or a future of it where replicas or a flush have to be waited for."""
    ctx.broker.replica_manager.write_staged()
    waiter: ProduceWaiter | None = None
    for partition, end_offset, answer in waits:
        if answer.error_code == 0 and partition.must_wait(end_offset, request.acks):
            waiter = waiter or ProduceWaiter(response)
            waiter.add(partition, end_offset, request.acks == -1, answer)
    if waiter is None:
        return response
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None  # they are written; whoever keeps the request must not keep the bytes
    return waiter.start(request.timeout_ms)


def _refuse(
    ctx: RequestContext,
    response: ProduceResponse,
    answer: PartitionProduceResponse,
    topic: str,
    cause: Exception,
) -> None:
    if not isinstance(cause, KafkaError):
        log.error("An append to %s-%d failed", topic, answer.index, exc_info=cause)
    error = as_kafka_error(cause)
    answer.error_code = int(error.code)
    answer.error_message = error.message
    answer.base_offset = -1
    if isinstance(error, InvalidRecordError):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]
    broker = ctx.broker
    partition = broker.replica_manager.partitions.get((topic, answer.index))
    if partition is not None:
        partition.metrics.failed_produces.value += 1
    if error.code in _OF_PRODUCER_STATE:
        log.info("%s-%d: a batch is refused: %s", topic, answer.index, error)
    if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and ctx.version >= 10:
        state = broker.metadata_cache.partition_state(topic, answer.index)
        endpoint = broker.metadata_cache.endpoint(state.leader, ctx.listener) if state else None
        if state is not None and endpoint is not None:
            answer.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
            if all(node.node_id != state.leader for node in response.node_endpoints):
                rack = broker.metadata_cache.brokers[state.leader].rack
                response.node_endpoints.append(
                    NodeEndpoint(node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=rack)
                )
