"""CreatePartitions (key 37): adds partitions to topics.

v2     flexible
v3     a separate error code for throttling, which this broker never sends
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.controller.topics import MorePartitions
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


def _on_error(request: CreatePartitionsRequest, version: int, error: KafkaError) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(results=[_result(topic.name, error) for topic in request.topics])


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), on_error=_on_error)
async def handle(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    topics = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        for topic in request.topics
    ]
    outcomes = await ctx.broker.topics.create_partitions(
        topics, timeout_ms=request.timeout_ms, validate_only=request.validate_only
    )
    return CreatePartitionsResponse(results=[_result(outcome.name, outcome.error) for outcome in outcomes])


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(name=name, error_code=int(error.code), error_message=error.message)
