"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch, to find where two logs diverge.

v1  leader_epoch in the response
v2  current_leader_epoch (fencing), throttle_time_ms
v3  replica_id
v4  flexible
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


def _on_error(request: OffsetForLeaderEpochRequest, version: int, error: KafkaError) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=partition.partition, error_code=int(error.code))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(0, 4), on_error=_on_error)
def handle(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        results = []
        for requested in topic.partitions:
            result = EpochEndOffset(partition=requested.partition)
            try:
                partition = ctx.broker.replica_manager.leader(topic.topic, requested.partition)
                partition.check_epoch(requested.current_leader_epoch)
                assert partition.log is not None
                result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
            except KafkaError as error:
                result.error_code = int(error.code)
            results.append(result)
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return response
