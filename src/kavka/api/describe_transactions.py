"""DescribeTransactions (key 65): the state of transactional ids that this broker coordinates."""

from __future__ import annotations

import asyncio
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.common.types import by_topic
from kavka.coordinator.transaction.state import Transaction
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kavka.security.acls import Operation, ResourceType


def _on_error(request: DescribeTransactionsRequest, version: int, error: KafkaError) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(transactional_id=transactional_id, error_code=int(error.code))
            for transactional_id in request.transactional_ids
        ]
    )


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), on_error=_on_error)
async def handle(ctx: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[await _describe(ctx, transactional_id) for transactional_id in request.transactional_ids]
    )


async def _describe(ctx: RequestContext, transactional_id: str) -> TransactionState:
    try:
        authorization.require(ctx, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        described: Any = ctx.broker.transactions.describe(transactional_id)
        transaction: Transaction = await described if isinstance(described, asyncio.Future) else described
    except KafkaError as error:
        return TransactionState(transactional_id=transactional_id, error_code=int(error.code))
    partitions = by_topic(sorted(transaction.partitions))
    hidden = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, partitions, log_denied=False)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes) for topic, indexes in partitions.items() if topic not in hidden
        ],
    )
