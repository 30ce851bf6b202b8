"""CreatePartitions (key 37): adds partitions to topics.

v2     flexible
v3     THROTTLING_QUOTA_EXCEEDED (before: only throttled)
"""

from __future__ import annotations

from collections import Counter

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.mutation_quota import MutationQuota
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.controller.topics import MorePartitions
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kavka.security.acls import Operation, ResourceType


def _on_error(request: CreatePartitionsRequest, version: int, error: KafkaError) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(results=[_result(topic.name, error) for topic in request.topics])


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), on_error=_on_error)
async def handle(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    unique_names = [name for name, count in counts.items() if count == 1]
    denied = authorization.denied(ctx, Operation.ALTER, ResourceType.TOPIC, unique_names)
    topics = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        async for topic in over_turns(request.topics)
        if topic.name not in denied
    ]
    quota = MutationQuota(ctx, strict_from=3)
    outcomes = await ctx.broker.topics.create_partitions(
        topics, timeout_ms=request.timeout_ms, validate_only=request.validate_only, record=quota.record
    )
    failure = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The topic authorization is failed.")
    pending = iter(outcomes)
    return CreatePartitionsResponse(
        throttle_time_ms=quota.throttle_ms,
        results=[
            _result(topic.name, failure if topic.name in denied else next(pending).error)
            async for topic in over_turns(request.topics)
        ],
    )


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=int(error.code), error_message=error.message)
