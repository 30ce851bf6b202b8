"""TxnOffsetCommit (key 28): offsets of a group that take effect when the transaction commits.

v2  leader epochs
v3  flexible; the member and its generation, which are checked as in OffsetCommit
v4  TRANSACTION_ABORTABLE
v5  adds the group's partition of `__consumer_offsets`, which needed AddOffsetsToTxn before

The group's coordinator serves it. Before it writes the offsets, it asks the transaction coordinator
whether the partition is in the transaction, as for records (`transactional_produce.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.group.shard import check_group_id
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ADDS_PARTITION = 5
KNOWS_ABORTABLE = 4

_UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
# Errors of the transaction coordinator as errors of the group coordinator, so that clients retry.
_GROUP_COORDINATOR_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}


def _on_error(request: TxnOffsetCommitRequest, version: int, error: KafkaError) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=int(error.code))
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), on_error=_on_error)
def handle(ctx: RequestContext, request: TxnOffsetCommitRequest) -> Any:
    check_group_id(request.group_id)
    cache = ctx.broker.metadata_cache
    items = []
    topics = []
    for topic in request.topics:
        info = cache.topics.get(topic.name)
        results: list[TxnOffsetCommitResponsePartition] = []
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=results))
        for partition in topic.partitions:
            result = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            results.append(result)
            if info is not None and partition.partition_index in info.partitions:
                items.append((info.name, info.topic_id, partition, result))
            else:
                result.error_code = _UNKNOWN
    response = TxnOffsetCommitResponse(topics=topics)
    if not items:
        return response
    waiting = _admit(ctx, request)
    if waiting is None:
        return ctx.broker.groups.commit_in_transaction(request, items, response)
    return _commit_later(ctx, request, items, response, waiting)


def _admit(ctx: RequestContext, request: TxnOffsetCommitRequest) -> Awaitable[frozenset[TopicPartition]] | None:
    """None if the transaction coordinator has admitted the partition, else an awaitable of its
    result."""
    broker = ctx.broker
    host = broker.groups.host(request.group_id)
    adds = ctx.version >= ADDS_PARTITION
    log = host.partition.log
    if log is None or log.producer_states.has_open(request.producer_id, request.producer_epoch):
        return None
    if not adds and not broker.settings.transaction_partition_verification_enable:
        return None
    partition = host.partition.topic_partition
    try:
        result = broker.transactions.admit(
            request.transactional_id, request.producer_id, request.producer_epoch, [partition], add=adds
        )
    except KafkaError as error:
        raise _refusal(error) from error
    if not isinstance(result, frozenset):
        return result
    _check(ctx, result)
    return None


def _check(ctx: RequestContext, missing: frozenset[TopicPartition]) -> None:
    if missing:
        raise KafkaError(
            ErrorCode.TRANSACTION_ABORTABLE if ctx.version >= KNOWS_ABORTABLE else ErrorCode.INVALID_TXN_STATE,
            "The group was not added to the transaction.",
        )


def _refusal(error: KafkaError) -> KafkaError:
    return KafkaError(_GROUP_COORDINATOR_ERRORS.get(error.code, error.code), error.message)


async def _commit_later(
    ctx: RequestContext,
    request: TxnOffsetCommitRequest,
    items: list[Any],
    response: TxnOffsetCommitResponse,
    waiting: Awaitable[frozenset[TopicPartition]],
) -> TxnOffsetCommitResponse:
    before = _entry(ctx, request)
    try:
        _check(ctx, await waiting)
    except KafkaError as error:
        raise _refusal(error) from error
    # If this request added the partition, a marker written meanwhile may belong to the previous
    # transaction. As every end bumps the epoch, the log itself refuses late records.
    if ctx.version < ADDS_PARTITION and _entry(ctx, request) is not before:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "The transaction has ended meanwhile.")
    result = ctx.broker.groups.commit_in_transaction(request, items, response)
    done: TxnOffsetCommitResponse = await result if isinstance(result, Awaitable) else result
    return done


def _entry(ctx: RequestContext, request: TxnOffsetCommitRequest) -> Any:
    return ctx.broker.groups.producer_entry(request.group_id, request.producer_id)
