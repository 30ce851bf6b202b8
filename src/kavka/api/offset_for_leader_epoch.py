"""OffsetForLeaderEpoch (key 23): where a leader epoch ends, so that a replica or a consumer finds where logs part.

v1  leader_epoch in the answer
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
                    EpochEndOffset(partition=asked.partition, error_code=int(error.code)) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(0, 4), on_error=_on_error)
def handle(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = EpochEndOffset(partition=asked.partition)
            try:
                partition = ctx.broker.replica_manager.leader(topic.topic, asked.partition)
                partition.check_epoch(asked.current_leader_epoch)
                assert partition.log is not None
                answer.leader_epoch, answer.end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
            except KafkaError as error:
                answer.error_code = int(error.code)
            answers.append(answer)
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return response
