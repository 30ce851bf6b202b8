"""ConsumerGroupDescribe (key 69): epochs, members and assignments of consumer groups.

v0  the first stable version, of Kafka 4.0
v1  member_type: whether a member uses the classic or the consumer protocol
"""

from __future__ import annotations

import asyncio
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from kavka.security.acls import Operation, ResourceType
from kavka.security.authorizer import REPORTED, bits

ALL_GROUP_OPERATIONS = REPORTED[ResourceType.GROUP] | bits((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS))


def _error_result(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=int(error.code), error_message=error.message)


def _on_error(request: ConsumerGroupDescribeRequest, version: int, error: KafkaError) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_error_result(group_id, error) for group_id in request.group_ids])


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1), on_error=_on_error)
async def handle(ctx: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    groups = [await _describe(ctx, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                # DescribeGroups reports no operations on settings, as in Kafka 3.9.
                group.authorized_operations = authorization.authorized_operations(
                    ctx, ResourceType.GROUP, group.group_id, ALL_GROUP_OPERATIONS
                )
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(ctx: RequestContext, group_id: str) -> DescribedGroup:
    try:
        authorization.require(ctx, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group: Any = ctx.broker.groups.describe_consumer(group_id)
        described: DescribedGroup = await group if isinstance(group, asyncio.Future) else group
    except KafkaError as error:
        return _error_result(group_id, error)
    if ctx.authorizer is not None and _has_hidden_topics(ctx, described):
        return _error_result(
            group_id,
            KafkaError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The group uses topics that the client is not authorized to describe.",
            ),
        )
    return described


def _has_hidden_topics(ctx: RequestContext, group: DescribedGroup) -> bool:
    """Whether members subscribe to topics, or have partitions of topics, that the client may not
    describe."""
    names = {name for member in group.members for name in member.subscribed_topic_names}
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            names |= {partitions.topic_name for partitions in assignment.topic_partitions}
    return bool(authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, sorted(names)))
