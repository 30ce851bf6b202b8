"""WriteTxnMarkers (key 27): a transaction coordinator ends transactions in partitions that this broker leads.

v1  flexible
v2  transaction_version: from 2 on the marker's epoch must be above that of the records which it ends

Sent by other brokers, and by the tool that ends a transaction which nobody remembers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.markers import Marker, Results
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


def _on_error(request: WriteTxnMarkersRequest, version: int, error: KafkaError) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[_result(marker, dict.fromkeys(_partitions(marker), error.code)) for marker in request.markers]
    )


@handles(ApiKey.WRITE_TXN_MARKERS, versions=(0, 2), on_error=_on_error)
def handle(ctx: RequestContext, request: WriteTxnMarkersRequest) -> Any:
    local = ctx.broker.transactions.markers.local
    future: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
    response = WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult() for _ in request.markers])
    left = len(request.markers) + 1

    def done(position: int, marker: WritableTxnMarker, results: Results) -> None:
        response.markers[position] = _result(marker, results)
        finish()

    def finish() -> None:
        nonlocal left
        left -= 1
        if not left and not future.done():
            future.set_result(response)

    for position, asked in enumerate(request.markers):
        marker = Marker(
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            asked.transaction_version,
        )
        local.write(marker, _partitions(asked), partial(done, position, asked))
    finish()
    return response if future.done() else future


def _partitions(marker: WritableTxnMarker) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]


def _result(marker: WritableTxnMarker, results: Results) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=int(results[TopicPartition(topic.name, index)])
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ],
    )
