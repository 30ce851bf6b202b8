"""AddPartitionsToTxn (key 24): adds partitions to a transaction.

v2     PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v3     flexible
v4     for brokers only; many transactions; verify_only checks that partitions were added before
v5     TRANSACTION_ABORTABLE for a partition that was not added (before: INVALID_TXN_STATE)

Either all partitions of a transaction are added or none. If one partition does not exist, the other
partitions get OPERATION_NOT_ATTEMPTED. A client (up to v3) that adds an internal topic gets
TOPIC_AUTHORIZATION_FAILED, as in Kafka. Brokers may add the partition of `__consumer_offsets` that
receives the offsets of a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import is_internal
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.state import EPOCH_BUMP_VERSION
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kavka.security.acls import CLUSTER_NAME, Operation, ResourceType

_NO_CODES: Mapping[TopicPartition, ErrorCode] = {}


def fenced_code(code: ErrorCode, version: int, first_version: int = 2) -> ErrorCode:
    """Return the code to send in this version. Before `first_version`, clients expect
    INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""
    is_old_client = version < first_version
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and is_old_client else code


def _on_error(request: AddPartitionsToTxnRequest, version: int, error: KafkaError) -> AddPartitionsToTxnResponse:
    if version >= 4:
        return AddPartitionsToTxnResponse(error_code=int(error.code))
    results = _results(request.v3_and_below_topics, fenced_code(error.code, version))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), on_error=_on_error)
def handle(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> Any:
    if ctx.version >= 4:
        authorization.require(ctx, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        return _add_many(ctx, request.transactions)
    authorization.require(ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
    topics = request.v3_and_below_topics
    errors = _check(ctx, topics, from_client=True)
    if errors is not None:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=errors)
    return ctx.broker.transactions.add_partitions(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _partitions(topics),
        client_transaction_version=0,
        response=AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, ErrorCode.NONE)),
    )


async def _add_many(
    ctx: RequestContext, transactions: Iterable[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse:
    missing_code = ErrorCode.TRANSACTION_ABORTABLE if ctx.version >= 5 else ErrorCode.INVALID_TXN_STATE
    started = [(transaction, _start(ctx, transaction)) for transaction in transactions]
    results = []
    for transaction, outcome in started:
        try:
            topic_results = await outcome if isinstance(outcome, asyncio.Future) else outcome
            if isinstance(topic_results, KafkaError):
                raise topic_results
            if isinstance(topic_results, frozenset):
                codes = dict.fromkeys(topic_results, missing_code)
                topic_results = _results(transaction.topics, ErrorCode.NONE, codes)
        except KafkaError as error:
            topic_results = _results(transaction.topics, error.code)
        results.append(
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topic_results)
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _start(ctx: RequestContext, transaction: AddPartitionsToTxnTransaction) -> Any:
    """Start to add or verify the partitions of one transaction.

    Return the results (add), the set of partitions that are not in the transaction (verify), a
    future of either, or a KafkaError for all partitions.
    """
    topics = transaction.topics
    errors = _check(ctx, topics, from_client=False)
    if errors is not None:
        return errors
    coordinator = ctx.broker.transactions
    producer = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    partitions = _partitions(topics)
    try:
        if transaction.verify_only:
            return coordinator.missing_partitions(*producer, partitions)
        return coordinator.add_partitions(*producer, partitions, EPOCH_BUMP_VERSION, _results(topics, ErrorCode.NONE))
    except KafkaError as error:
        return error


def _check(
    ctx: RequestContext, topics: list[AddPartitionsToTxnTopic], *, from_client: bool
) -> list[AddPartitionsToTxnTopicResult] | None:
    """Return the results with errors if a partition cannot be added, else None."""
    state_of = ctx.broker.metadata_cache.partition_state
    codes: dict[TopicPartition, ErrorCode] = {}
    denied = authorization.NOTHING
    if from_client:
        denied = authorization.denied(ctx, Operation.WRITE, ResourceType.TOPIC, (topic.name for topic in topics))
    for tp in _partitions(topics):
        if tp.topic in denied or (from_client and is_internal(tp.topic)):
            codes[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif state_of(*tp) is None:
            codes[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _results(topics, ErrorCode.OPERATION_NOT_ATTEMPTED, codes) if codes else None


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], default: ErrorCode, codes: Mapping[TopicPartition, ErrorCode] = _NO_CODES
) -> list[AddPartitionsToTxnTopicResult]:
    """Return the results of all partitions. A partition that is not in `codes` has the code
    `default`."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=partition,
                    partition_error_code=int(codes.get(TopicPartition(topic.name, partition), default)),
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
