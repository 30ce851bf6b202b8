"""Metadata (key 3): the brokers, and who leads the partitions of topics.

v0     no topics named means all of them
v1     null means all, an empty list none; controller_id, racks, is_internal
v2     cluster_id; v3 throttle_time_ms
v4     allow_auto_topic_creation (before: always allowed)
v5     offline_replicas; v7 leader_epoch
v8     authorized operations on request (the cluster's only until v10)
v9     flexible
v10    topic_id in the answer; v12 topics can be asked for by id
v13    a top-level error code

A topic that is not there is made when both sides allow it (`auto.create.topics.enable`); the answer then waits until
it has leaders, for a short while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from uuid import UUID

from kavka.api.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from kavka.api.context import RequestContext
from kavka.api.registry import handles
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
from kavka.protocol.messages.update_metadata import UpdateMetadataPartitionState
from kavka.replication.metadata_cache import TopicInfo

NO_ID = UUID(int=0)
NO_LEADER = -1
AUTO_CREATION_WAIT_S = 5.0
HEAR_OF_CLUSTER_S = 5.0
# The topic is there or will soon be: the client asks again.
_ASK_AGAIN = (
    ErrorCode.NONE,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NETWORK_EXCEPTION,
)


def _on_error(request: MetadataRequest, version: int, error: KafkaError) -> MetadataResponse:
    response = MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=int(error.code), name=topic.name, topic_id=topic.topic_id)
            for topic in request.topics or ()
        ]
    )
    if version >= 13:
        response.error_code = int(error.code)
    return response


@handles(ApiKey.METADATA, versions=(0, 13), on_error=_on_error)
def handle(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse | Awaitable[MetadataResponse]:
    cache = ctx.broker.metadata_cache
    if not cache.heard.is_set():
        return _answer_when_heard(ctx, request)
    if request.topics is None or (ctx.version == 0 and not request.topics):
        return _respond(ctx, request, [_topic(ctx, request, topic) for topic in cache.topics.values()])
    by_id = [topic for topic in request.topics if topic.topic_id != NO_ID]
    if ctx.version < 12 and (by_id or any(topic.name is None for topic in request.topics)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Topics can be asked for by their id from version 12 on.")
    missing = [t.name for t in request.topics if t.topic_id == NO_ID and t.name not in cache.topics]
    wanted = [name for name in dict.fromkeys(missing) if name is not None and _may_be_made(ctx, request, name)]
    if wanted:
        return _make_and_answer(ctx, request, request.topics, wanted)
    return _answer(ctx, request, request.topics, {})


async def _answer_when_heard(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """A broker that has just started knows of nothing yet: whoever asked first would take the cluster for empty."""
    try:
        await asyncio.wait_for(ctx.broker.metadata_cache.heard.wait(), HEAR_OF_CLUSTER_S)
    except TimeoutError:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE) from None
    answer = handle(ctx, request)
    return answer if isinstance(answer, MetadataResponse) else await answer


def _may_be_made(ctx: RequestContext, request: MetadataRequest, name: str) -> bool:
    if not ctx.broker.settings["auto.create.topics.enable"] or is_internal(name):
        return False
    if ctx.version >= 4 and not request.allow_auto_topic_creation:
        return False
    try:
        topic_names.check(name)
    except KafkaError:
        return False
    return True


async def _make_and_answer(
    ctx: RequestContext, request: MetadataRequest, topics: list[MetadataRequestTopic], names: list[str]
) -> MetadataResponse:
    outcomes = await ctx.broker.topic_creation.create_asked_for(names, AUTO_CREATION_WAIT_S)
    errors: dict[str, ErrorCode] = {}
    for name, error in outcomes.items():
        code = error.code if error is not None else ErrorCode.NONE
        errors[name] = ErrorCode.LEADER_NOT_AVAILABLE if code in _ASK_AGAIN else code
    return _answer(ctx, request, topics, errors)


def _answer(
    ctx: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataRequestTopic],
    creation_errors: dict[str, ErrorCode],
) -> MetadataResponse:
    cache = ctx.broker.metadata_cache
    answers: list[MetadataResponseTopic] = []
    seen: set[object] = set()
    for asked in topics:
        key = asked.topic_id if asked.topic_id != NO_ID else asked.name
        if key in seen:
            continue
        seen.add(key)
        name = cache.topic_name(asked.topic_id) if asked.topic_id != NO_ID else asked.name
        found = cache.topics.get(name) if name is not None else None
        if found is not None:
            answers.append(_topic(ctx, request, found))
        elif asked.topic_id != NO_ID:
            answers.append(_missing(None, ErrorCode.UNKNOWN_TOPIC_ID, asked.topic_id))
        else:
            assert asked.name is not None
            answers.append(_missing(asked.name, creation_errors.get(asked.name) or _why_missing(asked.name)))
    return _respond(ctx, request, answers)


def _why_missing(name: str) -> ErrorCode:
    try:
        topic_names.check(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _missing(name: str | None, code: ErrorCode, topic_id: UUID = NO_ID) -> MetadataResponseTopic:
    internal = name is not None and is_internal(name)
    return MetadataResponseTopic(error_code=int(code), name=name, topic_id=topic_id, is_internal=internal)


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
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _topic(ctx: RequestContext, request: MetadataRequest, topic: TopicInfo) -> MetadataResponseTopic:
    answer = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(ctx, state) for state in topic.partitions.values()],
    )
    if ctx.version >= 8 and request.include_topic_authorized_operations:
        answer.topic_authorized_operations = TOPIC_OPERATIONS
    return answer


def _partition(ctx: RequestContext, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
    brokers = ctx.broker.metadata_cache.brokers
    leader = brokers.get(state.leader)
    answer = MetadataResponsePartition(
        partition_index=state.partition_index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=state.offline_replicas,
    )
    if leader is None or ctx.listener not in leader.endpoints:
        no_listener = leader is not None and ctx.version >= 6
        answer.error_code = int(ErrorCode.LISTENER_NOT_FOUND if no_listener else ErrorCode.LEADER_NOT_AVAILABLE)
        answer.leader_id = NO_LEADER
    elif ctx.version == 0:
        # The oldest clients connect to every replica that is named, so those that are not there are left out.
        answer.replica_nodes = [b for b in state.replicas if b in brokers]
        answer.isr_nodes = [b for b in state.isr if b in brokers]
        if len(answer.replica_nodes) < len(state.replicas) or len(answer.isr_nodes) < len(state.isr):
            answer.error_code = int(ErrorCode.REPLICA_NOT_AVAILABLE)
    return answer
