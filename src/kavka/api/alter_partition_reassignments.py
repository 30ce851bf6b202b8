"""AlterPartitionReassignments (key 45): reassigns partitions to other brokers. A null replica list
cancels a reassignment.

v1     allow_replication_factor_change (before: always allowed)

The response reports that the reassignments have started. ListPartitionReassignments shows their
progress.
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kavka.security.acls import Operation


def _on_error(
    request: AlterPartitionReassignmentsRequest, version: int, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    code, message = int(error.code), error.message
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index, error_code=code, error_message=message
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), on_error=_on_error, needs=cluster(Operation.ALTER))
async def handle(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    targets = {TopicPartition(t.name, p.partition_index): p.replicas for t in request.topics for p in t.partitions}
    may_change_factor = request.allow_replication_factor_change if ctx.version >= 1 else True
    results = await ctx.broker.controller.alter_reassignments(targets, same_factor=not may_change_factor)
    topics: dict[str, ReassignableTopicResponse] = {}
    async for tp, error in over_turns(results.items()):
        partition = ReassignablePartitionResponse(partition_index=tp.partition, error_message=None)
        if error is not None:
            partition.error_code, partition.error_message = int(error.code), error.message
        topics.setdefault(tp.topic, ReassignableTopicResponse(name=tp.topic)).partitions.append(partition)
    return AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=may_change_factor, responses=list(topics.values())
    )
