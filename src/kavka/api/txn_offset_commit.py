"""TxnOffsetCommit (key 28): commits offsets of a group as part of a transaction.

v2  leader epochs
v3  flexible; the member and its generation, which are checked as in OffsetCommit
v4  TRANSACTION_ABORTABLE
v5  adds_partition the group's partition of `__consumer_offsets` (before: AddOffsetsToTxn)

The offsets take effect when the transaction commits. The group coordinator serves this request.
Before it writes the offsets, it verifies with the transaction coordinator that the group's
partition is in the transaction, as for records (`transactional_produce.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kavka.api import authorization
from kavka.api.authorization import group, transactional_id
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
from kavka.security.acls import Operation, ResourceType

# The first versions that add the partition, and that have the code TRANSACTION_ABORTABLE.
MIN_ADD_PARTITION_VERSION = 5
MIN_ABORTABLE_VERSION = 4

NEEDS = (transactional_id(Operation.WRITE), group(Operation.READ))
_UNKNOWN_PARTITION = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
# The codes to send instead of those of the transaction coordinator, so that clients retry with the
# group coordinator.
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


@handles(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), on_error=_on_error, needs=NEEDS)
def handle(ctx: RequestContext, request: TxnOffsetCommitRequest) -> Any:
    check_group_id(request.group_id)
    cache = ctx.broker.metadata_cache
    denied = authorization.denied(ctx, Operation.READ, ResourceType.TOPIC, (topic.name for topic in request.topics))
    items = []
    topics = []
    for topic in request.topics:
        info = cache.topics.get(topic.name)
        results: list[TxnOffsetCommitResponsePartition] = []
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=results))
        for partition in topic.partitions:
            result = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            results.append(result)
            if topic.name in denied:
                result.error_code = authorization.TOPIC_FAILURE
            elif info is not None and partition.partition_index in info.partitions:
                items.append((info.name, info.topic_id, partition, result))
            else:
                result.error_code = _UNKNOWN_PARTITION
    response = TxnOffsetCommitResponse(topics=topics)
    if not items:
        return response
    if denied:
        return _commit_permitted(ctx, request, items, response)
    return _commit(ctx, request, items, response)


def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, items: list[Any], response: TxnOffsetCommitResponse
) -> Any:
    verification = _add_or_verify(ctx, request)
    if verification is None:
        return ctx.broker.groups.commit_in_transaction(request, items, response)
    return _commit_later(ctx, request, items, response, verification)


async def _commit_permitted(
    ctx: RequestContext, request: TxnOffsetCommitRequest, items: list[Any], response: TxnOffsetCommitResponse
) -> TxnOffsetCommitResponse:
    """Commit the items. A failure does not change the errors of topics that the client may not
    read."""
    try:
        result = _commit(ctx, request, items, response)
        if isinstance(result, Awaitable):
            await result
    except KafkaError as error:
        for *_, partition_result in items:
            partition_result.error_code = int(error.code)
    return response


def _add_or_verify(ctx: RequestContext, request: TxnOffsetCommitRequest) -> Awaitable[frozenset[TopicPartition]] | None:
    """Verify that the group's partition is in the transaction, or add it. Return None if this is
    complete, else an awaitable of the partitions that are not in the transaction. Raises
    KafkaError."""
    broker = ctx.broker
    host = broker.groups.host(request.group_id)
    adds_partition = ctx.version >= MIN_ADD_PARTITION_VERSION
    log = host.partition.log
    if log is None or log.producer_states.has_open_transaction(request.producer_id, request.producer_epoch):
        return None
    if not adds_partition and not broker.settings.transaction_partition_verification_enable:
        return None
    partition = host.partition.topic_partition
    try:
        result = broker.transactions.add_or_verify(
            request.transactional_id, request.producer_id, request.producer_epoch, [partition], add=adds_partition
        )
    except KafkaError as error:
        raise _group_coordinator_error(error) from error
    if not isinstance(result, frozenset):
        return result
    _check(ctx, result)
    return None


def _check(ctx: RequestContext, missing: frozenset[TopicPartition]) -> None:
    if missing:
        raise KafkaError(
            ErrorCode.TRANSACTION_ABORTABLE if ctx.version >= MIN_ABORTABLE_VERSION else ErrorCode.INVALID_TXN_STATE,
            "The group was not added to the transaction.",
        )


def _group_coordinator_error(error: KafkaError) -> KafkaError:
    return KafkaError(_GROUP_COORDINATOR_ERRORS.get(error.code, error.code), error.message)


async def _commit_later(
    ctx: RequestContext,
    request: TxnOffsetCommitRequest,
    items: list[Any],
    response: TxnOffsetCommitResponse,
    verification: Awaitable[frozenset[TopicPartition]],
) -> TxnOffsetCommitResponse:
    groups = ctx.broker.groups
    producer_state = groups.producer_entry(request.group_id, request.producer_id)
    try:
        _check(ctx, await verification)
    except KafkaError as error:
        raise _group_coordinator_error(error) from error
    # From v5 on, the check is not needed: the end of a transaction bumps the epoch, so the log
    # fences late offsets. A marker written meanwhile may belong to the previous transaction.
    has_changed = groups.producer_entry(request.group_id, request.producer_id) is not producer_state
    if has_changed and ctx.version < MIN_ADD_PARTITION_VERSION:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "The transaction has ended.")
    result = groups.commit_in_transaction(request, items, response)
    completed_response: TxnOffsetCommitResponse = await result if isinstance(result, Awaitable) else result
    return completed_response
