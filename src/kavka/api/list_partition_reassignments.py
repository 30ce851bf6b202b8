"""ListPartitionReassignments (key 46): the reassignments in progress. Null topics mean all
partitions."""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.types import TopicPartition
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from kavka.security.acls import Operation


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), needs=cluster(Operation.DESCRIBE))
async def handle(ctx: RequestContext, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    requested_partitions = None
    if request.topics is not None:
        requested_partitions = [TopicPartition(t.name, p) for t in request.topics for p in t.partition_indexes]
    topics: dict[str, OngoingTopicReassignment] = {}
    for tp, assignment in (await ctx.broker.controller.list_reassignments(requested_partitions)).items():
        topics.setdefault(tp.topic, OngoingTopicReassignment(name=tp.topic)).partitions.append(
            OngoingPartitionReassignment(
                partition_index=tp.partition,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
            )
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))
