"""ConsumerGroupDescribe (key 69): epochs, members and assignments of consumer groups.

v0  the first stable version, of Kafka 4.0
v1  member_type: whether a member uses the classic or the consumer protocol
"""

from __future__ import annotations

import asyncio
from typing import Any

from kavka.api.authorized_operations import GROUP_OPERATIONS
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


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
                group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(ctx: RequestContext, group_id: str) -> DescribedGroup:
    try:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group: Any = ctx.broker.groups.describe_consumer(group_id)
        described: DescribedGroup = await group if isinstance(group, asyncio.Future) else group
    except KafkaError as error:
        return _error_result(group_id, error)
    return described
