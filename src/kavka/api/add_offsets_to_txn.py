"""AddOffsetsToTxn (key 25): adds a group's offsets to a transaction.

v2  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
v3  flexible
v4  TRANSACTION_ABORTABLE

The coordinator adds the group's partition of `__consumer_offsets` to the transaction. The offsets
take effect when a commit marker is written to that partition.
"""

from __future__ import annotations

from typing import Any

from kavka.api.add_partitions_to_txn import fenced_code
from kavka.api.authorization import group, transactional_id
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kavka.security.acls import Operation

NEEDS = (transactional_id(Operation.WRITE), group(Operation.READ))


def _on_error(request: AddOffsetsToTxnRequest, version: int, error: KafkaError) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=int(fenced_code(error.code, version)))


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), on_error=_on_error, needs=NEEDS)
def handle(ctx: RequestContext, request: AddOffsetsToTxnRequest) -> Any:
    offsets = ctx.broker.groups.topic
    return ctx.broker.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [TopicPartition(offsets.name, offsets.partition_of(request.group_id))],
        0,
        AddOffsetsToTxnResponse(),
    )
