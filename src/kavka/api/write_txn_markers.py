"""WriteTxnMarkers (key 27): writes the end markers of transactions to partitions that this broker
leads.

v1  flexible
v2  transaction_version: from 2 on, the marker's epoch must be higher than that of the records

Transaction coordinators send this request, and so does the tool that aborts hanging transactions.
A broker needs ClusterAction, the tool needs Alter on the cluster (KIP-1037).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from kavka.api import authorization
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
from kavka.security.acls import CLUSTER_NAME, Operation, ResourceType


def _on_error(request: WriteTxnMarkersRequest, version: int, error: KafkaError) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[_result(marker, dict.fromkeys(_partitions(marker), error.code)) for marker in request.markers]
    )


@handles(ApiKey.WRITE_TXN_MARKERS, versions=(0, 2), on_error=_on_error)
def handle(ctx: RequestContext, request: WriteTxnMarkersRequest) -> Any:
    if not authorization.may_on_cluster(ctx, Operation.ALTER, log_denied=False):
        authorization.require(ctx, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    transactions = ctx.broker.transactions
    future: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
    response = WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult() for _ in request.markers])
    pending = len(request.markers) + 1

    def on_written(position: int, requested_marker: WritableTxnMarker, results: Results) -> None:
        response.markers[position] = _result(requested_marker, results)
        complete()

    def complete() -> None:
        nonlocal pending
        pending -= 1
        if not pending and not future.done():
            future.set_result(response)

    for position, requested_marker in enumerate(request.markers):
        marker = Marker(
            requested_marker.producer_id,
            requested_marker.producer_epoch,
            requested_marker.transaction_result,
            requested_marker.coordinator_epoch,
            requested_marker.transaction_version,
        )
        transactions.write_markers(
            marker, _partitions(requested_marker), partial(on_written, position, requested_marker)
        )
    complete()
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
