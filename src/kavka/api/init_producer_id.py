"""InitProducerId (key 22): a producer's id and epoch, by which its retries are recognised and its forerunners fenced.

v2     flexible
v3     a producer may name the id and epoch that it has, to go on after an error
v4     PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v5     TRANSACTION_ABORTABLE may be answered

Without a transactional id any producer gets a new id. With one, whoever had it before is fenced, and a transaction that
it left open is aborted: CONCURRENT_TRANSACTIONS makes the client ask again when that is done.
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
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A producer id needs its epoch, and an epoch its producer id.")
        expected = (request.producer_id, request.producer_epoch)
    transactions = ctx.broker.transactions
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await transactions.new_producer_id(), producer_epoch=0)
    producer = await transactions.init_producer(request.transactional_id, request.transaction_timeout_ms, expected)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
