"""InitProducerId (key 22): a producer id and epoch, for idempotence and to fence older producers.

v2     flexible
v3     the current id and epoch of a producer that continues after an error
v4     PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v5     TRANSACTION_ABORTABLE

Without a transactional id, every producer gets a new id. With one, previous producers are fenced
and their open transaction is aborted; the client retries on CONCURRENT_TRANSACTIONS until that is
done.
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def _on_error(request: InitProducerIdRequest, version: int, error: KafkaError) -> InitProducerIdResponse:
    code = error.code
    if code is ErrorCode.PRODUCER_FENCED and version < 4:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=int(code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), on_error=_on_error)
async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != NO_PRODUCER_ID or request.producer_epoch != NO_PRODUCER_EPOCH:
        if request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_PRODUCER_EPOCH:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Producer id and epoch must both be set, or neither.")
        expected = (request.producer_id, request.producer_epoch)
    transactions = ctx.broker.transactions
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await transactions.new_producer_id(), producer_epoch=0)
    producer = await transactions.init_producer(request.transactional_id, request.transaction_timeout_ms, expected)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
