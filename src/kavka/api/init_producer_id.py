"""InitProducerId (key 22): assigns a producer id and epoch, and fences earlier producers.

v2     flexible
v3     the current id and epoch of a producer that continues after an error
v4     PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v5     TRANSACTION_ABORTABLE

Without a transactional id, every producer gets a new id. With a transactional id, earlier producers
of that id are fenced, and an open transaction is aborted. The client retries on
CONCURRENT_TRANSACTIONS until the abort completes.
"""

from __future__ import annotations

from kavka.api.add_partitions_to_txn import fenced_code
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def _on_error(request: InitProducerIdRequest, version: int, error: KafkaError) -> InitProducerIdResponse:
    code = fenced_code(error.code, version, first_version=4)
    return InitProducerIdResponse(error_code=int(code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5), on_error=_on_error)
async def handle(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != NO_PRODUCER_ID or request.producer_epoch != NO_PRODUCER_EPOCH:
        if request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_PRODUCER_EPOCH:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Either both or neither of producer id and epoch must be set.")
        expected = (request.producer_id, request.producer_epoch)
    transactions = ctx.broker.transactions
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await transactions.new_producer_id(), producer_epoch=0)
    producer = await transactions.init_producer(request.transactional_id, request.transaction_timeout_ms, expected)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
