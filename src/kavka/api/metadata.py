"""Metadata (key 3): the brokers, and the leaders of topic partitions.

v0     an empty list means all topics
v1     null means all topics, an empty list no topics; controller_id, racks, is_internal
v2     cluster_id
v3     throttle_time_ms
v4     allow_auto_topic_creation (before: always allowed)
v5     offline_replicas
v6     LISTENER_NOT_FOUND (before: LEADER_NOT_AVAILABLE)
v7     leader_epoch
v8     include_topic_authorized_operations, include_cluster_authorized_operations (removed in v11)
v9     flexible
v10    topic_id in the response
v12    topics by id
v13    a top-level error code

A missing topic is created if the request and this broker (`auto.create.topics.enable`) allow it.
The response then waits a short time for the topic's leaders. A connection that creates more than
`max.auto.create.topics.rate.per.connection` topics is throttled; the other topics of its request
are LEADER_NOT_AVAILABLE, so that the client retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from uuid import UUID

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.mutation_quota import MutationQuota
from kavka.api.registry import NEVER, handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import is_internal
from kavka.controller import topic_names
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.metadata_cache import PartitionInfo, TopicInfo
from kavka.security.acls import Operation, ResourceType

NO_LEADER = -1
MAX_AUTO_CREATION_WAIT_S = 5.0
MAX_FIRST_METADATA_WAIT_S = 5.0
# After these errors the topic may exist or still be created. The response is LEADER_NOT_AVAILABLE,
# so that the client retries.
_RETRIABLE = (
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
)


def _on_error(request: MetadataRequest, version: int, error: KafkaError) -> MetadataResponse:
    topics = [
        MetadataResponseTopic(error_code=int(error.code), name=topic.name, topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=int(error.code))


@handles(ApiKey.METADATA, versions=(0, 13), on_error=_on_error)
def handle(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse | Awaitable[MetadataResponse]:
    cache = ctx.broker.metadata_cache
    if not cache.initialized.is_set():
        return _respond_when_ready(ctx, request)
    if request.topics is None or (ctx.version == 0 and not request.topics):
        hidden = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, cache.topics, log_denied=False)
        topics = [_topic(ctx, request, topic) for topic in cache.topics.values() if topic.name not in hidden]
        return _respond(ctx, request, topics)
    topics_with_id = [topic for topic in request.topics if topic.topic_id != ZERO_UUID]
    if ctx.version < 12 and (topics_with_id or any(topic.name is None for topic in request.topics)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Topic ids require version 12.")
    names = (cache.topic_name(t.topic_id) if t.topic_id != ZERO_UUID else t.name for t in request.topics)
    # The errors of topics, by name, that are returned instead of their metadata.
    errors: dict[str, ErrorCode] = dict.fromkeys(
        authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, names),
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    missing = dict.fromkeys(t.name for t in request.topics if t.topic_id == ZERO_UUID and t.name not in cache.topics)
    creatable = [
        name for name in missing if name is not None and name not in errors and _may_be_created(ctx, request, name)
    ]
    if creatable and not authorization.may_on_cluster(ctx, Operation.CREATE, log_denied=False):
        denied = authorization.denied(ctx, Operation.CREATE, ResourceType.TOPIC, creatable)
        errors |= dict.fromkeys(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        creatable = [name for name in creatable if name not in denied]
    if creatable:
        return _create_and_respond(ctx, request, request.topics, creatable, errors)
    return _respond_for(ctx, request, request.topics, errors)


async def _respond_when_ready(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Wait for the first metadata, then respond: a broker that has just started would report an
    empty cluster. Raises LEADER_NOT_AVAILABLE if there is no metadata in time."""
    try:
        await asyncio.wait_for(ctx.broker.metadata_cache.initialized.wait(), MAX_FIRST_METADATA_WAIT_S)
    except TimeoutError:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE) from None
    response = handle(ctx, request)
    return response if isinstance(response, MetadataResponse) else await response


def _may_be_created(ctx: RequestContext, request: MetadataRequest, name: str) -> bool:
    if not ctx.broker.settings["auto.create.topics.enable"] or is_internal(name):
        return False
    if ctx.version >= 4 and not request.allow_auto_topic_creation:
        return False
    return missing_topic_code(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _create_and_respond(
    ctx: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    names: list[str],
    errors: dict[str, ErrorCode],
) -> MetadataResponse:
    settings = ctx.broker.settings
    allowed, throttle_ms = len(names), 0
    if ctx.quota is not None:
        rate = settings["max.auto.create.topics.rate.per.connection"]
        allowed, throttle_ms = ctx.quota.take_topics(len(names), rate, ctx.broker.now_ms())
    errors |= dict.fromkeys(names[allowed:], ErrorCode.LEADER_NOT_AVAILABLE)
    if allowed:
        MutationQuota(ctx, strict_from=NEVER).record(allowed * settings["num.partitions"])
        outcomes = await ctx.broker.topic_creation.auto_create(names[:allowed], MAX_AUTO_CREATION_WAIT_S)
        for name, error in outcomes.items():
            if name in ctx.broker.metadata_cache.topics:
                continue
            if error is None or error.code in _RETRIABLE:
                errors[name] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                errors[name] = error.code
    response = _respond_for(ctx, request, topics, errors)
    response.throttle_time_ms = throttle_ms
    return response


def _respond_for(
    ctx: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    errors: dict[str, ErrorCode],
) -> MetadataResponse:
    """Return the response for topics by name or id. The topics in `errors` get their error. A topic
    that the client may not describe looks the same whether it exists or not."""
    cache = ctx.broker.metadata_cache
    results: list[MetadataResponseTopic] = []
    unique_topics = {topic.name if topic.topic_id == ZERO_UUID else topic.topic_id: topic for topic in topics}
    for requested_topic in unique_topics.values():
        name = (
            cache.topic_name(requested_topic.topic_id)
            if requested_topic.topic_id != ZERO_UUID
            else requested_topic.name
        )
        info = cache.topics.get(name) if name is not None else None
        if name in errors:
            has_id = requested_topic.topic_id != ZERO_UUID
            missing_topic = _missing_topic(None if has_id else name, errors[name], requested_topic.topic_id)
            is_denied = errors[name] is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            results.append(missing_topic if is_denied else _with_operations(ctx, request, missing_topic))
        elif info is not None:
            results.append(_topic(ctx, request, info))
        elif requested_topic.topic_id != ZERO_UUID:
            results.append(_missing_topic(None, ErrorCode.UNKNOWN_TOPIC_ID, requested_topic.topic_id))
        else:
            assert requested_topic.name is not None
            results.append(
                _with_operations(
                    ctx, request, _missing_topic(requested_topic.name, missing_topic_code(requested_topic.name))
                )
            )
    return _respond(ctx, request, results)


def missing_topic_code(name: str) -> ErrorCode:
    """Return the error code for a topic that does not exist or has an invalid name."""
    try:
        topic_names.check(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _missing_topic(name: str | None, code: ErrorCode, topic_id: UUID = ZERO_UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=int(code), name=name, topic_id=topic_id, is_internal=name is not None and is_internal(name)
    )


def _respond(ctx: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    broker = ctx.broker
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=info.id, host=endpoint.host, port=endpoint.port, rack=info.rack)
            for info in broker.metadata_cache.brokers.values()
            if (endpoint := info.endpoints.get(ctx.listener)) is not None
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.metadata_cache.controller_id,
        topics=topics,
    )
    if 8 <= ctx.version <= 10 and request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorization.cluster_operations(ctx)
    return response


def _topic(ctx: RequestContext, request: MetadataRequest, topic: TopicInfo) -> MetadataResponseTopic:
    return _with_operations(
        ctx,
        request,
        MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal(topic.name),
            partitions=[_partition(ctx, state) for state in topic.partitions.values()],
        ),
    )


def _with_operations(
    ctx: RequestContext, request: MetadataRequest, result: MetadataResponseTopic
) -> MetadataResponseTopic:
    """Set the operations that the client may perform on the topic, if the client requests them. The
    topic need not exist."""
    if ctx.version >= 8 and request.include_topic_authorized_operations and result.name is not None:
        result.topic_authorized_operations = authorization.authorized_operations(ctx, ResourceType.TOPIC, result.name)
    return result


def _partition(ctx: RequestContext, state: PartitionInfo) -> MetadataResponsePartition:
    brokers = ctx.broker.metadata_cache.brokers
    leader = brokers.get(state.leader)
    result = MetadataResponsePartition(
        partition_index=state.partition_index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=state.offline_replicas,
    )
    if leader is None or ctx.listener not in leader.endpoints:
        has_no_listener = leader is not None and ctx.version >= 6
        result.error_code = int(ErrorCode.LISTENER_NOT_FOUND if has_no_listener else ErrorCode.LEADER_NOT_AVAILABLE)
        result.leader_id = NO_LEADER
    elif ctx.version == 0:
        # Clients of version 0 connect to every replica: omit unavailable replicas.
        result.replica_nodes = [b for b in state.replicas if b in brokers]
        result.isr_nodes = [b for b in state.isr if b in brokers]
        if len(result.replica_nodes) < len(state.replicas) or len(result.isr_nodes) < len(state.isr):
            result.error_code = int(ErrorCode.REPLICA_NOT_AVAILABLE)
    return result
