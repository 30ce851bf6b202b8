"""DeleteRecords (key 21): move the beginning of partitions up to an offset. v2 is flexible.

Segments that are wholly before the new beginning go with the next round of retention. The answer waits until the
replicas that live have moved theirs too.
"""

from __future__ import annotations

import asyncio
from typing import Any

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
from kavka.replication.waiting import DeletionWaiter

NO_WATERMARK = -1


def _on_error(request: DeleteRecordsRequest, version: int, error: KafkaError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index, low_watermark=NO_WATERMARK, error_code=int(error.code)
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2), on_error=_on_error)
def handle(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse | asyncio.Future[Any]:
    response = DeleteRecordsResponse()
    waiter: DeletionWaiter | None = None
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=NO_WATERMARK)
            try:
                partition, start = _delete(ctx, topic.name, asked)
                answer.low_watermark = partition.low_watermark
                if answer.low_watermark < start:
                    waiter = waiter or DeletionWaiter(response)
                    waiter.add(partition, start, answer)
            except KafkaError as error:
                answer.error_code = int(error.code)
            except OSError as error:
                failure = ctx.broker.replica_manager.note_disk_failure(topic.name, asked.partition_index, error)
                answer.error_code = int(failure.code)
            answers.append(answer)
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=answers))
    return response if waiter is None else waiter.start(request.timeout_ms)


def _delete(ctx: RequestContext, topic: str, asked: DeleteRecordsPartition) -> tuple[Partition, int]:
    if is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Records of the internal topic {topic} cannot be deleted.")
    partition = ctx.broker.replica_manager.leader(topic, asked.partition_index)
    log = partition.log
    assert log is not None
    if not log.config.delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"The cleanup.policy of {topic} has no 'delete'.")
    start = log.delete_records_before(asked.offset)
    for waiting in list(partition.fetch_waiters):
        waiting.check()
    partition.abandon_follower_fetches()  # so that they hear of it now
    return partition, start
