"""EndTxn (key 26): commits or aborts a transaction.

v2  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v3  flexible
v4  TRANSACTION_ABORTABLE
v5  EndTxn bumps the producer epoch: the response has the producer id and epoch to use next

The response is sent when the prepare record is committed to the coordinator's log. Then the markers
are written, by another coordinator if this broker fails.
"""

from __future__ import annotations

from typing import Any

from kavka.api.add_partitions_to_txn import fenced_code
from kavka.api.authorization import transactional_id
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
from kavka.coordinator.transaction.state import EPOCH_BUMP_VERSION
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kavka.security.acls import Operation


def _on_error(request: EndTxnRequest, version: int, error: KafkaError) -> EndTxnResponse:
    return EndTxnResponse(error_code=int(fenced_code(error.code, version)))


@handles(ApiKey.END_TXN, versions=(0, 5), on_error=_on_error, needs=transactional_id(Operation.WRITE))
def handle(ctx: RequestContext, request: EndTxnRequest) -> Any:
    return ctx.broker.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        EPOCH_BUMP_VERSION if ctx.version >= 5 else 0,
        _respond,
    )


def _respond(producer: ProducerIdAndEpoch) -> EndTxnResponse:
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
