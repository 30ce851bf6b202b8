"""OffsetCommit (key 8): commits offsets of a group.

v0    offsets are stored in the znode tree under /consumers, without a coordinator
v1    offsets are stored by the coordinator; generation_id, member_id, commit_timestamp (v1 only)
v2-4  retention_time_ms; v3 adds throttle_time_ms to the response
v6    committed_leader_epoch
v7    group_instance_id (static members)
v8    flexible
v9    member epochs of consumer groups
v10   topics by id

A partition that cannot be committed (unknown topic, metadata too long) gets an error. The offsets
of the other partitions are committed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kavka.api import authorization
from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.metadata import paths
from kavka.metadata.store import StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kavka.security.acls import Operation, ResourceType

_UNKNOWN_PARTITION = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_ID = int(ErrorCode.UNKNOWN_TOPIC_ID)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)


def _partition_code(error: KafkaError) -> int:
    return int(ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error.code in _TOO_LARGE else error.code)


def _on_error(request: OffsetCommitRequest, version: int, error: KafkaError) -> OffsetCommitResponse:
    code = _partition_code(error)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.OFFSET_COMMIT, versions=(0, 10), on_error=_on_error, needs=group(Operation.READ))
def handle(ctx: RequestContext, request: OffsetCommitRequest) -> Any:
    version = ctx.version
    cache = ctx.broker.metadata_cache
    uses_topic_ids = version >= 10
    names = (cache.topic_name(topic.topic_id) if uses_topic_ids else topic.name for topic in request.topics)
    denied = authorization.denied(ctx, Operation.READ, ResourceType.TOPIC, names)
    items = []
    topics = []
    for topic in request.topics:
        name: str | None = cache.topic_name(topic.topic_id) if uses_topic_ids else topic.name
        info = cache.topics.get(name) if name is not None else None
        results: list[OffsetCommitResponsePartition] = []
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        for partition in topic.partitions:
            result = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            results.append(result)
            if name in denied:
                result.error_code = authorization.TOPIC_FAILURE
            elif info is not None and partition.partition_index in info.partitions:
                items.append((info.name, info.topic_id, partition, result))
            else:
                result.error_code = _UNKNOWN_ID if uses_topic_ids and info is None else _UNKNOWN_PARTITION
    response = OffsetCommitResponse(topics=topics)
    if version == 0:
        return _commit_to_znodes(ctx, request.group_id, items, response)
    if not items:
        return response
    if denied:
        return _commit_permitted(ctx, request, items, response)
    return ctx.broker.groups.commit_offsets(request, version, items, response)


async def _commit_permitted(
    ctx: RequestContext, request: OffsetCommitRequest, items: list[Any], response: OffsetCommitResponse
) -> OffsetCommitResponse:
    """Commit the items. A failure does not change the errors of topics that the client may not
    read."""
    try:
        result = ctx.broker.groups.commit_offsets(request, ctx.version, items, response)
        if isinstance(result, Awaitable):
            await result
    except KafkaError as error:
        for *_, partition_result in items:
            partition_result.error_code = _partition_code(error)
    return response


async def _commit_to_znodes(
    ctx: RequestContext, group: str, items: list[Any], response: OffsetCommitResponse
) -> OffsetCommitResponse:
    store = ctx.broker.store
    for topic, _, partition, result in items:
        metadata = partition.committed_metadata
        if metadata is not None and len(metadata) > ctx.broker.settings.offset_metadata_max_bytes:
            result.error_code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        try:
            path = paths.consumer_offset(group, TopicPartition(topic, partition.partition_index))
            await store.ensure(path)
            await store.set(path, paths.encode_offset(partition.committed_offset))
        except (StoreError, ValueError):
            result.error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
    return response
