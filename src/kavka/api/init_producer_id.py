"""InitProducerId (key 22): assigns a producer id and epoch, and fences earlier producers.

v2     flexible
v3     the current id and epoch of a producer that continues after an error
v4     PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v5     TRANSACTION_ABORTABLE

Without a transactional id, every producer gets a new id. With a transactional id, earlier producers
of that id are fenced, and an open transaction is aborted. The client retries on
CONCURRENT_TRANSACTIONS until the abort completes.

A connection that requests more than `max.producer.id.rate.per.connection` ids is throttled.
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.add_partitions_to_txn import fenced_code
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kavka.security.acls import Operation, ResourceType


def _on_error(request: InitProducerIdRequest, version: int, error: KafkaError) -> InitProducerIdResponse:
    code = fenced_code(error.code, version, first_version=4)
    return InitProducerIdResponse(error_code=int(code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), on_error=_on_error)
async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    _check_access(ctx, request.transactional_id)
    expected = None
    if request.producer_id != NO_PRODUCER_ID or request.producer_epoch != NO_PRODUCER_EPOCH:
        if request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_PRODUCER_EPOCH:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Either both or neither of producer id and epoch must be set.")
        expected = (request.producer_id, request.producer_epoch)
    throttle_ms = 0
    if ctx.quota is not None:
        rate = ctx.broker.settings["max.producer.id.rate.per.connection"]
        throttle_ms = ctx.quota.take_producer_id(rate, ctx.broker.now_ms())
    transactions = ctx.broker.transactions
    if request.transactional_id is None:
        producer_id, epoch = await transactions.new_producer_id(), 0
    else:
        producer = await transactions.init_producer(request.transactional_id, request.transaction_timeout_ms, expected)
        producer_id, epoch = producer.producer_id, producer.epoch
    return InitProducerIdResponse(throttle_time_ms=throttle_ms, producer_id=producer_id, producer_epoch=epoch)


def _check_access(ctx: RequestContext, transactional_id: str | None) -> None:
    """Raise KafkaError if the client may not use the transactional id. An idempotent producer needs
    IdempotentWrite, or a topic that it may write to."""
    if transactional_id is not None:
        authorization.require(ctx, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not authorization.may_on_cluster(ctx, Operation.IDEMPOTENT_WRITE) and not authorization.may_write_any_topic(
        ctx
    ):
        raise authorization.failure(ResourceType.CLUSTER)
