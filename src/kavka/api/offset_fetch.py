"""OffsetFetch (key 9): the committed offsets of groups.

v0    offsets are read from the znode tree under /consumers, without a coordinator
v1    offsets are read from the coordinator
v2    null topics mean all topics with offsets of the group; a group-level error code
v3    throttle_time_ms in the response
v5    committed_leader_epoch in the response
v6    flexible
v7    require_stable: UNSTABLE_OFFSET_COMMIT for an offset that an open transaction may change
v8    many groups
v9    member_id and member_epoch (consumer groups)
v10   topics by id
"""

from __future__ import annotations

import asyncio
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition, by_topic
from kavka.coordinator.group.shard import GroupShard
from kavka.metadata import paths
from kavka.metadata.store import NoNode, StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kavka.security.acls import Operation, ResourceType

NO_OFFSET = -1


def _on_error(request: OffsetFetchRequest, version: int, error: KafkaError) -> OffsetFetchResponse:
    code = int(error.code)
    if version >= 8:
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups]
        )
    if version >= 2:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name, partitions=[_single_group_partition(index, code) for index in topic.partition_indexes]
            )
            for topic in request.topics or ()
        ]
    )


@handles(ApiKey.OFFSET_FETCH, versions=(0, 10), on_error=_on_error)
def handle(ctx: RequestContext, request: OffsetFetchRequest) -> Any:
    if ctx.version < 8:
        authorization.require(ctx, Operation.DESCRIBE, ResourceType.GROUP, request.group_id)
    if ctx.version == 0:
        return _fetch_from_znodes(ctx, request)
    if ctx.version < 8:
        topics = request.topics
        group = OffsetFetchRequestGroup(
            group_id=request.group_id,
            topics=None
            if topics is None
            else [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
        )
        result = ctx.broker.groups.read(request.group_id, _fetch, ctx, group, request.require_stable)
        return _await_single(result) if isinstance(result, asyncio.Future) else _single_group(result)
    results = [_fetch_group(ctx, group, request.require_stable) for group in request.groups]
    if any(isinstance(result, asyncio.Future) for result in results):
        return _gather(request, results)
    return OffsetFetchResponse(groups=results)


def _fetch_group(ctx: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool) -> Any:
    try:
        authorization.require(ctx, Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
        return ctx.broker.groups.read(group.group_id, _fetch, ctx, group, require_stable)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=int(error.code))


async def _await_single(future: asyncio.Future[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    return _single_group(await future)


async def _gather(request: OffsetFetchRequest, results: list[Any]) -> OffsetFetchResponse:
    groups = []
    for group, result in zip(request.groups, results, strict=True):
        try:
            groups.append(await result if isinstance(result, asyncio.Future) else result)
        except KafkaError as error:
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=int(error.code)))
    return OffsetFetchResponse(groups=groups)


def _single_group(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """Return the response up to v7, which has the fields of one group at the top level."""
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=p.partition_index,
                        committed_offset=p.committed_offset,
                        committed_leader_epoch=p.committed_leader_epoch,
                        metadata=p.metadata,
                        error_code=p.error_code,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


# ---- a query on the group's shard


def _fetch(
    shard: GroupShard, ctx: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    cache = ctx.broker.metadata_cache
    uses_topic_ids = ctx.version >= 10
    result = OffsetFetchResponseGroup(group_id=group.group_id)
    shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
    topics = group.topics if group.topics is not None else _all_topics(shard, ctx, group.group_id)
    names = [cache.topic_name(topic.topic_id) if uses_topic_ids else topic.name for topic in topics]
    denied = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, names)
    for topic, name in zip(topics, names, strict=True):
        if name in denied and group.topics is None:
            continue
        partitions = [
            _denied_partition(index)
            if name in denied
            else _partition(shard, group.group_id, name, topic.topic_id, index, require_stable)
            for index in topic.partition_indexes
        ]
        result.topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return result


def _all_topics(shard: GroupShard, ctx: RequestContext, group_id: str) -> list[OffsetFetchRequestTopics]:
    """Return all topics with committed offsets of the group. From v10 on, deleted topics are
    omitted, because they have no id."""
    topics = []
    for name, indexes in by_topic(shard.partitions_with_offsets(group_id)).items():
        topic = OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
        if ctx.version >= 10:
            info = ctx.broker.metadata_cache.topics.get(name)
            if info is None:
                continue
            topic.topic_id = info.topic_id
        topics.append(topic)
    return topics


def _partition(
    shard: GroupShard, group_id: str, topic: str | None, topic_id: Any, index: int, require_stable: bool
) -> OffsetFetchResponsePartitions:
    result = OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, metadata="")
    if topic is None:
        result.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID)
        return result
    try:
        offset = shard.fetch_offset(group_id, topic, index, require_stable, topic_id)
    except KafkaError as error:
        result.error_code = int(error.code)
        return result
    if offset is not None:
        result.committed_offset = offset.offset
        result.committed_leader_epoch = offset.leader_epoch
        result.metadata = offset.metadata
    return result


def _denied_partition(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=authorization.TOPIC_FAILURE
    )


# ---- version 0: offsets in the znode tree


async def _fetch_from_znodes(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    response = OffsetFetchResponse()
    topics = request.topics or []
    denied = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, (topic.name for topic in topics))
    for topic in topics:
        partitions = [
            _single_group_partition(index, authorization.TOPIC_FAILURE)
            if topic.name in denied
            else await _fetch_from_znode(ctx, request.group_id, topic.name, index)
            for index in topic.partition_indexes
        ]
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return response


async def _fetch_from_znode(ctx: RequestContext, group: str, topic: str, index: int) -> OffsetFetchResponsePartition:
    broker = ctx.broker
    unknown = _single_group_partition(index, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if broker.metadata_cache.partition_state(topic, index) is None:
        return unknown
    try:
        data, _ = await broker.store.get(paths.consumer_offset(group, TopicPartition(topic, index)))
        result = _single_group_partition(index, 0)
        result.committed_offset = paths.decode_offset(data)
    except NoNode:
        return unknown
    except (StoreError, ValueError):
        return _single_group_partition(index, int(ErrorCode.UNKNOWN_SERVER_ERROR))
    return result


def _single_group_partition(index: int, code: int) -> OffsetFetchResponsePartition:
    """Return the result of a partition without an offset, up to v7."""
    return OffsetFetchResponsePartition(partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code)
