"""DeleteRecords (key 21): advances the log start offset of partitions.

v2     flexible

The next retention check deletes segments that end before the new start offset. The response waits
until all live replicas have advanced their log start offsets, or until the request times out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import is_internal
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kavka.replication.partition import Partition
from kavka.replication.purgatory import DelayedDeleteRecords
from kavka.security.acls import Operation, ResourceType

NO_WATERMARK = -1


def _on_error(request: DeleteRecordsRequest, version: int, error: KafkaError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index,
                        low_watermark=NO_WATERMARK,
                        error_code=int(error.code),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2), on_error=_on_error)
def handle(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse | asyncio.Future[Any]:
    denied = authorization.denied(ctx, Operation.DELETE, ResourceType.TOPIC, (topic.name for topic in request.topics))
    response = DeleteRecordsResponse()
    delayed: DelayedDeleteRecords | None = None
    for topic in request.topics:
        results = []
        for requested_partition in topic.partitions:
            result = DeleteRecordsPartitionResult(
                partition_index=requested_partition.partition_index, low_watermark=NO_WATERMARK
            )
            try:
                if topic.name in denied:
                    raise authorization.failure(ResourceType.TOPIC)
                partition, start = _delete(ctx, topic.name, requested_partition)
                result.low_watermark = partition.low_watermark
                if result.low_watermark < start:
                    delayed = delayed or DelayedDeleteRecords(response, _set_error, _set_low_watermark)
                    delayed.add(partition, start, result)
            except KafkaError as error:
                result.error_code = int(error.code)
            except OSError as error:
                failure = ctx.broker.replica_manager.on_read_error(
                    topic.name, requested_partition.partition_index, error
                )
                result.error_code = int(failure.code)
            results.append(result)
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return response if delayed is None else delayed.start(request.timeout_ms)


def _set_error(result: DeleteRecordsPartitionResult, code: ErrorCode) -> None:
    result.error_code = int(code)
    # After a timeout the response keeps the low watermark.
    if code is not ErrorCode.REQUEST_TIMED_OUT:
        result.low_watermark = NO_WATERMARK


def _set_low_watermark(result: DeleteRecordsPartitionResult, low_watermark: int) -> None:
    result.low_watermark = low_watermark


def _delete(ctx: RequestContext, topic: str, requested_partition: DeleteRecordsPartition) -> tuple[Partition, int]:
    """Advance the log start offset on this broker. Return the partition and the new log start
    offset. Raises KafkaError."""
    if is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Records of the internal topic {topic} cannot be deleted.")
    partition = ctx.broker.replica_manager.leader(topic, requested_partition.partition_index)
    log = partition.log
    assert log is not None
    if not log.config.delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"The cleanup.policy of {topic} does not include 'delete'.")
    start = log.delete_records_before(requested_partition.offset)
    partition.on_start_offset_moved()
    return partition, start
