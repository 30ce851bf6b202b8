"""CreateTopics (key 19): creates topics, with partition counts or replica assignments, and
settings.

v1     validate_only; error_message in the response
v2     throttle_time_ms
v4     -1 for the broker's default number of partitions and replication factor
v5     flexible; the topic's counts and settings in the response
v6     THROTTLING_QUOTA_EXCEEDED (before: only throttled)
v7     topic_id in the response

Only the controller creates topics. The response waits until every partition has a leader, or until
the request times out.
"""

from __future__ import annotations

from collections import Counter

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.mutation_quota import MutationQuota
from kavka.api.registry import handles
from kavka.common.config_view import describe_topic
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.controller.topics import NewTopic, TopicOutcome
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kavka.security.acls import Operation, ResourceType


def _on_error(request: CreateTopicsRequest, version: int, error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_error_result(topic.name, error) for topic in request.topics])


@handles(ApiKey.CREATE_TOPICS, versions=(0, 7), on_error=_on_error)
async def handle(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    denied = _denied_topics(ctx, request)
    topics = [
        NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments},
            {config.name: config.value for config in topic.configs},
        )
        async for topic in over_turns(request.topics)
        if topic.name not in denied
    ]
    quota = MutationQuota(ctx, strict_from=6)
    outcomes = await ctx.broker.topics.create_topics(
        topics,
        timeout_ms=request.timeout_ms,
        validate_only=ctx.version >= 1 and request.validate_only,
        record=quota.record,
    )
    may_not_describe = authorization.denied(
        ctx, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, (t.name for t in request.topics), log_denied=False
    )
    created = iter(outcomes)
    return CreateTopicsResponse(
        throttle_time_ms=quota.throttle_ms,
        topics=[
            _denied_result(topic.name, topic.name not in may_not_describe)
            if topic.name in denied
            else _result(ctx, next(created), topic.name not in may_not_describe)
            async for topic in over_turns(request.topics)
        ],
    )


def _denied_topics(ctx: RequestContext, request: CreateTopicsRequest) -> frozenset[str]:
    """Return the topics that the client may not create. A name that is in the request more than
    once is rejected for that reason."""
    if authorization.may_on_cluster(ctx, Operation.CREATE, log_denied=False):
        return authorization.NOTHING
    counts = Counter(topic.name for topic in request.topics)
    names = [name for name, count in counts.items() if count == 1]
    return authorization.denied(ctx, Operation.CREATE, ResourceType.TOPIC, names)


def _result(ctx: RequestContext, outcome: TopicOutcome, may_describe: bool) -> CreatableTopicResult:
    if outcome.error is None and not may_describe:
        return CreatableTopicResult(
            name=outcome.name, error_message=None, topic_config_error_code=authorization.TOPIC_FAILURE
        )
    if outcome.error is not None:
        result = _error_result(outcome.name, outcome.error)
    else:
        result = CreatableTopicResult(
            name=outcome.name,
            error_message=None,
            num_partitions=outcome.partitions,
            replication_factor=outcome.replication_factor,
            configs=[
                CreatableTopicConfigs(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=int(entry.source),
                    is_sensitive=entry.is_sensitive,
                )
                for entry in describe_topic(ctx.broker.configs.broker, outcome.configs)
            ],
        )
    if outcome.topic_id is not None:
        result.topic_id = outcome.topic_id
    return result


def _denied_result(name: str, may_describe: bool) -> CreatableTopicResult:
    result = _error_result(name, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."))
    if not may_describe:
        result.topic_config_error_code = authorization.TOPIC_FAILURE
    return result


def _error_result(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=int(error.code), error_message=error.message)
