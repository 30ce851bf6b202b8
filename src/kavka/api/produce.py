"""Produce (key 0): appends record batches to partitions.

v0-v1  message sets of magic 0; v1 adds throttle_time_ms to the response
v2     magic 1, log_append_time_ms in the response
v3     record batches (magic 2), transactional_id
v5     log_start_offset in the response
v7     zstd
v8     record_errors and error_message in the response
v9     flexible
v10    the current leader in the response
v11    the response may contain TRANSACTION_ABORTABLE
v12    producing to a partition adds it to the transaction (transactional_produce.py)
v13    topics by id

`Log.stage_as_leader` checks a batch's header and CRC without decompressing the batch, and assigns
offsets in the receive buffer. `StagedAppends` writes the bytes after all requests of this
iteration of the event loop are handled, before any response is sent.

If the topic's settings require a batch to be decompressed, a large batch is copied, decompressed in
a worker thread and then staged. The connection's next request waits meanwhile, so that a producer's
batches keep their order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from kavka.api import authorization, internal_topics, transactional_produce
from kavka.api.context import RequestContext
from kavka.api.registry import as_kafka_error, handles
from kavka.api.transactional_produce import FindLeader
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
from kavka.records.limits import MAX_DECOMPRESSION_IN_WORKERS_S, MAX_DECOMPRESSION_ON_LOOP_S
from kavka.records.rules import InvalidRecordError, MustDecompressInWorker, ValidatedBatch
from kavka.records.validate import validate_produce
from kavka.replication.partition import Partition
from kavka.replication.purgatory import DelayedProduce
from kavka.replication.replica_manager import ReplicaManager
from kavka.security.acls import Operation, ResourceType
from kavka.storage.log_append import AppendInfo

logger = logging.getLogger(__name__)

# Errors of a producer's sequence or epoch are rare and are logged.
_PRODUCER_STATE_ERRORS = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})

VALID_ACKS = (-1, 0, 1)

# An append that may have to wait for replicas or a flush: (partition, end offset, result).
UnacknowledgedAppend = tuple[Partition, int, PartitionProduceResponse]


class ConnectionMustClose(Exception):
    """A Produce request with acks=0 failed. There is no response that could contain the error, so
    the connection is closed, as in Kafka."""


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
    denied = authorization.NOTHING if ctx.authorizer is None else _denied_topics(ctx, request)
    if request.transactional_id is not None:
        return transactional_produce.produce(ctx, request, _append, denied)
    leader = ctx.broker.replica_manager.leader
    return _append(ctx, request, _find_permitted(leader, denied) if denied else leader)


def _denied_topics(ctx: RequestContext, request: ProduceRequest) -> frozenset[str]:
    """Return the topics that the client may not write to. Raises KafkaError if the client may not
    use the transactional id."""
    if request.transactional_id is not None and transactional_produce.has_transactional_records(request):
        authorization.require(ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    name_of = ctx.broker.metadata_cache.topic_name
    names = (name_of(topic.topic_id) if ctx.version >= 13 else topic.name for topic in request.topic_data)
    return authorization.denied(ctx, Operation.WRITE, ResourceType.TOPIC, names)


def _find_permitted(find_leader: FindLeader, denied: frozenset[str]) -> FindLeader:
    def find(topic: str, index: int) -> Partition:
        if topic in denied:
            raise authorization.failure(ResourceType.TOPIC)
        return find_leader(topic, index)

    return find


def _append(ctx: RequestContext, request: ProduceRequest, find_leader: FindLeader) -> Any:
    acks = request.acks
    version = ctx.version
    replicas = ctx.broker.replica_manager
    response = ProduceResponse()
    unacknowledged: list[UnacknowledgedAppend] = []
    postponed: list[PostponedBatch] = []
    postponed_partitions: set[tuple[str, int]] = set()
    deadline = monotonic() + MAX_DECOMPRESSION_ON_LOOP_S
    for topic in request.topic_data:
        name = topic.name
        results: list[PartitionProduceResponse] = []
        response.responses.append(TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=results))
        for data in topic.partition_data:
            result = PartitionProduceResponse(index=data.index)
            results.append(result)
            try:
                if acks not in VALID_ACKS:
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}.")
                if version >= 13:
                    name = replicas.topic_name(topic.topic_id)
                if data.records is None:
                    raise KafkaError(ErrorCode.INVALID_RECORD, "The request has no records for this partition.")
                if not internal_topics.may_produce(ctx, name):
                    raise internal_topics.rejection(ctx, name, data.index)
                partition = find_leader(name, data.index)
                if (name, data.index) in postponed_partitions or monotonic() > deadline:
                    raise MustDecompressInWorker
                info = partition.stage(data.records, acks, version)
            except MustDecompressInWorker:
                postponed.append(PostponedBatch(name, data, result, partition))
                postponed_partitions.add((name, data.index))
                continue
            except Exception as error:
                # Other partitions of the request may be staged already.
                _set_failure(ctx, response, result, name, error)
                continue
            _record_append(replicas, partition, info, result, acks, unacknowledged)
    if postponed:
        return _append_postponed(ctx, request, find_leader, response, unacknowledged, postponed)
    return _finish(ctx, request, response, unacknowledged)


def _record_append(
    replicas: ReplicaManager,
    partition: Partition,
    info: AppendInfo,
    result: PartitionProduceResponse,
    acks: int,
    unacknowledged: list[UnacknowledgedAppend],
) -> None:
    """Queue a staged batch for the next write, set its result and count its records. If its
    acknowledgement may depend on replicas or a flush, add it to `unacknowledged`."""
    result.base_offset = info.first_offset
    result.log_append_time_ms = info.append_time
    result.log_start_offset = info.log_start_offset
    if not info.duplicate:
        metrics = partition.metrics
        metrics.messages_in.value += info.count
        metrics.bytes_in.value += info.size
    replicas.staged_appends.add(partition, result, set_write_error)
    if acks == -1 or partition.waits_for_flush:
        unacknowledged.append((partition, info.last_offset + 1, result))


def _finish(
    ctx: RequestContext, request: ProduceRequest, response: ProduceResponse, unacknowledged: list[UnacknowledgedAppend]
) -> Any:
    """Return the response, a future of the response, or None with acks=0. Raises
    ConnectionMustClose if a batch with acks=0 failed."""
    if request.acks == 0:
        ctx.broker.replica_manager.staged_appends.write()
        if any(result.error_code for topic in response.responses for result in topic.partition_responses):
            raise ConnectionMustClose
        return None
    return _wait(ctx, request, response, unacknowledged) if unacknowledged else response


@dataclass(slots=True, eq=False, repr=False)
class PostponedBatch:
    """A batch that a worker thread decompresses. Owns a copy of the bytes in the receive buffer."""

    topic: str
    data: PartitionProduceData
    result: PartitionProduceResponse
    _partition: Partition
    records: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.records = memoryview(bytearray(self.data.records or b""))
        self.data.records = None  # the request must not keep its bytes alive

    def check_partition(self, replicas: ReplicaManager) -> Partition:
        """Return the partition if this broker still leads it. If the topic was recreated, its
        partition is a different object, which may have other settings. Raises KafkaError."""
        if replicas.leader(self.topic, self.data.index) is not self._partition:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted while the batch was decompressed."
            )
        return self._partition

    async def validate(self, ctx: RequestContext) -> ValidatedBatch:
        replicas = ctx.broker.replica_manager
        async with replicas.decompressions:
            log = self.check_partition(replicas).log
            assert log is not None
            now = ctx.broker.clock.now_ms()
            batch: ValidatedBatch = await ctx.broker.run_in_worker(
                validate_produce, self.records, log.rules, now, ctx.version
            )
        return batch


async def _append_postponed(
    ctx: RequestContext,
    request: ProduceRequest,
    find_leader: FindLeader,
    response: ProduceResponse,
    unacknowledged: list[UnacknowledgedAppend],
    postponed: list[PostponedBatch],
) -> Any:
    replicas = ctx.broker.replica_manager
    deadline = monotonic() + MAX_DECOMPRESSION_IN_WORKERS_S
    for batch in postponed:
        try:
            if monotonic() > deadline:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The request has too many large compressed batches.")
            validated = await batch.validate(ctx)
            batch.check_partition(replicas)
            partition = find_leader(batch.topic, batch.data.index)
            try:
                info = partition.stage(validated, request.acks, ctx.version)
            finally:
                # `find_leader` allows the producer to begin a transaction on this partition, for
                # this append only.
                partition.revoke_admission()
        except Exception as error:
            _set_failure(ctx, response, batch.result, batch.topic, error)
            continue
        _record_append(replicas, partition, info, batch.result, request.acks, unacknowledged)
        replicas.staged_appends.write()
    return _finish(ctx, request, response, unacknowledged)


def _wait(
    ctx: RequestContext, request: ProduceRequest, response: ProduceResponse, unacknowledged: list[UnacknowledgedAppend]
) -> Any:
    """Return the response, or a future of the response if replicas or a flush are pending."""
    ctx.broker.replica_manager.staged_appends.write()
    delayed: DelayedProduce | None = None
    for partition, end_offset, result in unacknowledged:
        if result.error_code == 0 and partition.must_wait(end_offset, request.acks):
            delayed = delayed or DelayedProduce(response, _set_code)
            delayed.add(partition, end_offset, request.acks == -1, result)
    if delayed is None:
        return response
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None  # written; the pending request must not keep the bytes alive
    return delayed.start(request.timeout_ms)


def _set_code(result: PartitionProduceResponse, code: ErrorCode) -> None:
    result.error_code = int(code)
    result.base_offset = result.log_append_time_ms = result.log_start_offset = -1


def set_write_error(result: PartitionProduceResponse, error: KafkaError) -> None:
    _set_code(result, error.code)
    result.error_message = error.message


def _set_failure(
    ctx: RequestContext, response: ProduceResponse, result: PartitionProduceResponse, topic: str, cause: Exception
) -> None:
    if not isinstance(cause, KafkaError):
        logger.error("Cannot append to %s-%d", topic, result.index, exc_info=cause)
    error = as_kafka_error(cause)
    result.error_code = int(error.code)
    result.error_message = error.message
    result.base_offset = -1
    if isinstance(error, InvalidRecordError):
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]
    ctx.broker.replica_manager.count_failed_produce(topic, result.index)
    if error.code in _PRODUCER_STATE_ERRORS:
        logger.info("Rejected a batch for %s-%d: %s", topic, result.index, error)
    if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and ctx.version >= 10:
        _add_leader(ctx, response, result, topic)


def _add_leader(ctx: RequestContext, response: ProduceResponse, result: PartitionProduceResponse, topic: str) -> None:
    """Set the current leader, so that the client needs no Metadata request."""
    cache = ctx.broker.metadata_cache
    state = cache.partition_state(topic, result.index)
    endpoint = cache.endpoint(state.leader, ctx.listener) if state else None
    if state is not None and endpoint is not None:
        result.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        if all(node.node_id != state.leader for node in response.node_endpoints):
            response.node_endpoints.append(
                NodeEndpoint(
                    node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=cache.rack(state.leader)
                )
            )
