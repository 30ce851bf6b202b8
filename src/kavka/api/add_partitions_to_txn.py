"""AddPartitionsToTxn (key 24): adds partitions to a transaction.

v2     PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v3     flexible
v4     for brokers: many transactions; verify_only checks whether the partitions are in them
v5     TRANSACTION_ABORTABLE if they are not (before: INVALID_TXN_STATE)

All partitions of a transaction are added, or none: if one does not exist, the others get
OPERATION_NOT_ATTEMPTED. Clients (up to v3) cannot add internal topics and get
TOPIC_AUTHORIZATION_FAILED, as in Kafka. Brokers add the partition of `__consumer_offsets` that a
transaction commits offsets to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

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

_NONE = int(ErrorCode.NONE)
_UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_NOT_AUTHORIZED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_NOT_ATTEMPTED = int(ErrorCode.OPERATION_NOT_ATTEMPTED)


def fenced_code(code: ErrorCode, version: int) -> ErrorCode:
    """Older clients expect another code for a fenced producer."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and version < 2 else code


def _on_error(request: AddPartitionsToTxnRequest, version: int, error: KafkaError) -> AddPartitionsToTxnResponse:
    if version >= 4:
        return AddPartitionsToTxnResponse(error_code=int(error.code))
    code = int(fenced_code(error.code, version))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_all(request.v3_and_below_topics, code))


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), on_error=_on_error)
def handle(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> Any:
    if ctx.version >= 4:
        return _add_many(ctx, request.transactions)
    topics = request.v3_and_below_topics
    refused = _refuse(ctx, topics, from_client=True)
    if refused is not None:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=refused)
    return ctx.broker.transactions.add_partitions(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _partitions(topics),
        0,
        AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_all(topics, _NONE)),
    )


async def _add_many(
    ctx: RequestContext, transactions: Iterable[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse:
    results_by_transaction = [(transaction, _start(ctx, transaction)) for transaction in transactions]
    results = []
    for transaction, result in results_by_transaction:
        try:
            topics = await result if isinstance(result, asyncio.Future) else result
            if isinstance(topics, KafkaError):
                raise topics
            if isinstance(topics, frozenset):
                topics = _verified(ctx, transaction.topics, topics)
        except KafkaError as error:
            topics = _all(transaction.topics, int(error.code))
        results.append(AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topics))
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _start(ctx: RequestContext, transaction: AddPartitionsToTxnTransaction) -> Any:
    """The results, the partitions that are not in the transaction, the error of all partitions, or
    a future of one of these."""
    topics = transaction.topics
    refused = _refuse(ctx, topics, from_client=False)
    if refused is not None:
        return refused
    coordinator = ctx.broker.transactions
    who = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    partitions = _partitions(topics)
    try:
        if transaction.verify_only:
            return coordinator.missing_partitions(*who, partitions)
        return coordinator.add_partitions(*who, partitions, EPOCH_BUMP_VERSION, _all(topics, _NONE))
    except KafkaError as error:
        return error


def _verified(
    ctx: RequestContext, topics: Iterable[AddPartitionsToTxnTopic], missing: frozenset[TopicPartition]
) -> list[AddPartitionsToTxnTopicResult]:
    not_in_it = int(ErrorCode.TRANSACTION_ABORTABLE if ctx.version >= 5 else ErrorCode.INVALID_TXN_STATE)
    return _results(topics, dict.fromkeys(missing, not_in_it), _NONE)


def _refuse(
    ctx: RequestContext, topics: list[AddPartitionsToTxnTopic], *, from_client: bool
) -> list[AddPartitionsToTxnTopicResult] | None:
    """The results if not every partition can be added, else None."""
    state_of = ctx.broker.metadata_cache.partition_state
    codes: dict[TopicPartition, int] = {}
    for tp in _partitions(topics):
        if from_client and is_internal(tp.topic):
            codes[tp] = _NOT_AUTHORIZED
        elif state_of(*tp) is None:
            codes[tp] = _UNKNOWN
    return _results(topics, codes, _NOT_ATTEMPTED) if codes else None


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _all(topics: Iterable[AddPartitionsToTxnTopic], code: int) -> list[AddPartitionsToTxnTopicResult]:
    return _results(topics, {}, code)


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, int], rest: int
) -> list[AddPartitionsToTxnTopicResult]:
    """The results with these codes for some partitions, and `rest` for the others."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=partition,
                    partition_error_code=codes.get(TopicPartition(topic.name, partition), rest),
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
