"""DeleteTopics (key 20): deletes topics by name or id.

v1     throttle_time_ms
v3     TOPIC_DELETION_DISABLED with `delete.topic.enable=false` (before: INVALID_REQUEST)
v4     flexible
v5     error_message in the response; THROTTLING_QUOTA_EXCEEDED (before: only throttled)
v6     topics by name or by id

The response waits until the topics are deleted, or until the request times out. The deletion
continues in either case.
"""

from __future__ import annotations

from uuid import UUID

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.mutation_quota import MutationQuota
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kavka.protocol.primitives import ZERO_UUID
from kavka.security.acls import Operation, ResourceType


def _requested_topics(request: DeleteTopicsRequest, version: int) -> list[DeleteTopicState]:
    return request.topics if version >= 6 else [DeleteTopicState(name=name) for name in request.topic_names]


def _on_error(request: DeleteTopicsRequest, version: int, error: KafkaError) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[_result(topic.name, topic.topic_id, error) for topic in _requested_topics(request, version)]
    )


@handles(ApiKey.DELETE_TOPICS, versions=(0, 6), on_error=_on_error)
async def handle(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if not ctx.broker.settings["delete.topic.enable"]:
        code = ErrorCode.INVALID_REQUEST if ctx.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        raise KafkaError(code, "Topics cannot be deleted: delete.topic.enable is false.")
    names: list[str | None] = []
    results: list[DeletableTopicResult] = []
    async for topic in over_turns(_requested_topics(request, ctx.version)):
        name, error = _resolve(ctx, topic)
        if error is None and name is not None:
            name, error = _check_access(ctx, topic, name)
        names.append(None if error is not None else name)
        results.append(_result(name, topic.topic_id, error))
    quota = MutationQuota(ctx, strict_from=5)
    outcomes = await ctx.broker.topics.delete_topics(
        list(dict.fromkeys(name for name in names if name is not None)),
        timeout_ms=request.timeout_ms,
        record=quota.record,
    )
    by_name = {outcome.name: outcome for outcome in outcomes}
    async for index, name in over_turns(enumerate(names)):
        if name is not None:
            outcome = by_name[name]
            results[index] = _result(name, outcome.topic_id or ZERO_UUID, outcome.error)
    return DeleteTopicsResponse(throttle_time_ms=quota.throttle_ms, responses=results)


def _resolve(ctx: RequestContext, topic: DeleteTopicState) -> tuple[str | None, KafkaError | None]:
    """Return the topic's name, and the error if the request does not identify the topic by exactly
    one of name and id, or if the id is unknown."""
    if topic.topic_id == ZERO_UUID:
        if topic.name is None:
            return None, KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        return topic.name, None
    if topic.name is not None:
        return topic.name, KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    name = ctx.broker.metadata_cache.topic_name(topic.topic_id)
    if name is None:
        return None, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return name, None


def _check_access(ctx: RequestContext, topic: DeleteTopicState, name: str) -> tuple[str | None, KafkaError | None]:
    """Return the name, and the error if the client may not delete the topic. The response has no
    name if the client may not describe a topic that it has identified by id."""
    if topic.name is None and not authorization.may(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name):
        return None, authorization.failure(ResourceType.TOPIC)
    if not authorization.may(ctx, Operation.DELETE, ResourceType.TOPIC, name):
        return name, authorization.failure(ResourceType.TOPIC)
    return name, None


def _result(name: str | None, topic_id: UUID, error: KafkaError | None) -> DeletableTopicResult:
    result = DeletableTopicResult(name=name, topic_id=topic_id)
    if error is not None:
        result.error_code, result.error_message = int(error.code), error.message
    return result
