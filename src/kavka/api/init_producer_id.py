"""InitProducerId (key 22): a producer's id and epoch, by which its retries are recognised.

v2     flexible
v3     a producer may name the id and epoch that it has
v4-v5  errors of fenced producers; nothing changes for producers without transactions
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def _on_error(request: InitProducerIdRequest, version: int, error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(error.code), producer_id=-1, producer_epoch=-1)


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), on_error=_on_error)
async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        # The coordinator of transactions is not here: what a broker says that does not find it.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if request.transactional_id else ErrorCode.INVALID_REQUEST
        raise KafkaError(code)
    return InitProducerIdResponse(producer_id=await ctx.broker.producer_ids.next(), producer_epoch=0)
