"""DescribeTopicPartitions (key 75, v0): the partitions of topics, by topic name, in pages.

A page has at most `response_partition_limit` partitions, and at most this broker's
`max.request.partition.size.limit`. `next_cursor` is the first partition of the next page. Eligible
leader replicas (ELR) exist only with KRaft, so both ELR fields are empty. They are not null,
because Java clients cannot parse null.
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.metadata import missing_topic_code
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import is_internal
from kavka.common.turns import over_turns
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kavka.replication.metadata_cache import PartitionInfo, TopicInfo
from kavka.security.acls import Operation, ResourceType


def _on_error(
    request: DescribeTopicPartitionsRequest, version: int, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=int(error.code), name=topic.name)
            for topic in request.topics
        ]
    )


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), on_error=_on_error)
async def handle(ctx: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    topics = ctx.broker.metadata_cache.topics
    first_topic, first_partition = "", 0
    if request.cursor is not None:
        first_topic, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A cursor cannot point at a negative partition.")
    names = {topic.name for topic in request.topics} or set(topics)
    denied = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, names, log_denied=bool(request.topics))
    names -= denied
    limit = ctx.broker.settings["max.request.partition.size.limit"]
    remaining = max(1, min(request.response_partition_limit, limit))
    response = DescribeTopicPartitionsResponse()
    async for name in over_turns(sorted(name for name in names if name >= first_topic)):
        if remaining == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = topics.get(name)
        if topic is None:
            # If the first topic of the page was deleted, the page starts at the next topic.
            if name != first_topic or request.cursor is None:
                response.topics.append(_missing_topic(name))
            continue
        start = first_partition if name == first_topic else 0
        states = [state for index, state in sorted(topic.partitions.items()) if index >= start]
        response.topics.append(_topic(ctx, topic, states[:remaining]))
        if len(states) > remaining:
            response.next_cursor = Cursor(topic_name=name, partition_index=states[remaining].partition_index)
            break
        remaining -= len(states)
    if request.topics:
        # As in Kafka, each page has the topics that the client may not describe, after the others.
        response.topics += [_denied_topic(name) for name in sorted(denied)]
    return response


def _denied_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=authorization.TOPIC_FAILURE, name=name)


def _missing_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=int(missing_topic_code(name)), name=name, is_internal=is_internal(name)
    )


def _topic(ctx: RequestContext, topic: TopicInfo, states: list[PartitionInfo]) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(ctx, state) for state in states],
        topic_authorized_operations=authorization.authorized_operations(ctx, ResourceType.TOPIC, topic.name),
    )


def _partition(ctx: RequestContext, state: PartitionInfo) -> DescribeTopicPartitionsResponsePartition:
    leader = ctx.broker.metadata_cache.brokers.get(state.leader)
    code = ErrorCode.NONE
    if leader is None:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    elif ctx.listener not in leader.endpoints:
        code = ErrorCode.LISTENER_NOT_FOUND
    return DescribeTopicPartitionsResponsePartition(
        error_code=int(code),
        partition_index=state.partition_index,
        leader_id=state.leader if code is ErrorCode.NONE else -1,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=state.offline_replicas,
    )
