"""OffsetDelete (key 47, v0): deletes committed offsets of a group, unless the group subscribes to
the topic."""

from __future__ import annotations

from typing import Any

from kavka.api import authorization
from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.coordinator.group.shard import GroupShard, check_group_id
from kavka.coordinator.operations import Outcome
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kavka.security.acls import Operation, ResourceType


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0), needs=group(Operation.DELETE))
def handle(ctx: RequestContext, request: OffsetDeleteRequest) -> Any:
    check_group_id(request.group_id)
    return ctx.broker.groups.run(request.group_id, _delete, ctx, request)


def _delete(shard: GroupShard, ctx: RequestContext, request: OffsetDeleteRequest) -> Outcome:
    cache = ctx.broker.metadata_cache
    denied = authorization.denied(ctx, Operation.READ, ResourceType.TOPIC, (topic.name for topic in request.topics))
    existing_partitions = [
        (topic.name, partition.partition_index)
        for topic in request.topics
        if topic.name not in denied
        for partition in topic.partitions
        if cache.partition_state(topic.name, partition.partition_index) is not None
    ]
    records, subscribed = shard.delete_offsets(request.group_id, existing_partitions)
    deletable = set(existing_partitions)

    def code(topic: str, index: int) -> int:
        if topic in denied:
            return authorization.TOPIC_FAILURE
        if (topic, index) not in deletable:
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE)

    response = OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=p.partition_index, error_code=code(topic.name, p.partition_index)
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    return Outcome(records, response)
