"""ListTransactions (key 66): the transactional ids that this broker coordinates, with their states.

v0  filters by state and producer id
v1  duration_filter: only transactions that started more than this many milliseconds ago
v2  transactional_id_pattern: only ids that match the regular expression
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.regex import PatternError, compile_pattern
from kavka.coordinator.transaction.state import STATES_BY_NAME
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from kavka.security.acls import Operation, ResourceType


@handles(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
def handle(ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    names = request.state_filters
    states = frozenset(STATES_BY_NAME[name] for name in names if name in STATES_BY_NAME) if names else None
    pattern = request.transactional_id_pattern
    try:
        matches = compile_pattern(pattern).matches if pattern else None
        transactions = ctx.broker.transactions.list(
            request.producer_id_filters, states, request.duration_filter, matches
        )
    except PatternError as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    ids = [transactional_id for transactional_id, _ in transactions]
    hidden = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids, log_denied=False)
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in names if name not in STATES_BY_NAME],
        transaction_states=[
            TransactionState(
                transactional_id=transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.value,
            )
            for transactional_id, transaction in transactions
            if transactional_id not in hidden
        ],
    )
