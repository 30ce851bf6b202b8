"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch, to find where two logs diverge.

v1  leader_epoch in the response
v2  current_leader_epoch (fencing), throttle_time_ms
v3  replica_id
v4  flexible
"""

from __future__ import annotations

from collections.abc import Callable

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kavka.security.acls import Operation, ResourceType


def _on_error(request: OffsetForLeaderEpochRequest, version: int, error: KafkaError) -> OffsetForLeaderEpochResponse:
    return _respond(
        request,
        lambda topic, requested_partition: EpochEndOffset(
            partition=requested_partition.partition, error_code=int(error.code)
        ),
    )


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(0, 4), on_error=_on_error)
def handle(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    denied = authorization.NOTHING
    if not authorization.may_on_cluster(ctx, Operation.CLUSTER_ACTION, log_denied=False):
        names = (topic.topic for topic in request.topics)
        denied = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, names)

    def find(topic: str, requested_partition: OffsetForLeaderPartition) -> EpochEndOffset:
        if topic in denied:
            return EpochEndOffset(partition=requested_partition.partition, error_code=authorization.TOPIC_FAILURE)
        return _find(ctx, topic, requested_partition)

    return _respond(request, find)


def _respond(
    request: OffsetForLeaderEpochRequest, find: Callable[[str, OffsetForLeaderPartition], EpochEndOffset]
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[find(topic.topic, requested_partition) for requested_partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _find(ctx: RequestContext, topic: str, requested_partition: OffsetForLeaderPartition) -> EpochEndOffset:
    result = EpochEndOffset(partition=requested_partition.partition)
    try:
        partition = ctx.broker.replica_manager.leader(topic, requested_partition.partition)
        partition.check_epoch(requested_partition.current_leader_epoch)
        assert partition.log is not None
        result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(requested_partition.leader_epoch)
    except KafkaError as error:
        result.error_code = int(error.code)
    return result
