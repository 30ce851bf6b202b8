"""StopReplica (key 5): the controller stops replicas of this broker, and may delete them.

v1     broker_epoch; delete_partitions for the whole request, partitions by topic
v2     flexible
v3     delete_partition and leader_epoch of each partition
v4     is_kraft_controller
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.types import NO_LEADER_EPOCH
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from kavka.security.acls import Operation


@handles(ApiKey.STOP_REPLICA, versions=(0, 4), needs=cluster(Operation.CLUSTER_ACTION))
async def handle(ctx: RequestContext, request: StopReplicaRequest) -> StopReplicaResponse:
    if ctx.version < 3:
        request.topic_states = [
            StopReplicaTopicState(
                topic_name=name,
                partition_states=[
                    StopReplicaPartitionState(
                        partition_index=index,
                        leader_epoch=NO_LEADER_EPOCH,
                        delete_partition=request.delete_partitions,
                    )
                    for index in indexes
                ],
            )
            for name, indexes in _indexes_by_topic(request, ctx.version)
        ]
    return await ctx.broker.controller_requests.stop_replicas(request)


def _indexes_by_topic(request: StopReplicaRequest, version: int) -> list[tuple[str, list[int]]]:
    if version == 0:
        return [(p.topic_name, [p.partition_index]) for p in request.ungrouped_partitions]
    return [(topic.name, topic.partition_indexes) for topic in request.topics]
