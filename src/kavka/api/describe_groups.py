"""DescribeGroups (key 15): state, protocol and members of classic groups.

v1  throttle_time_ms in the response
v3  authorized operations on request
v4  group_instance_id of members
v5  flexible
v6  error_message; GROUP_ID_NOT_FOUND for an unknown group (before: described as Dead)
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.state import DEAD
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from kavka.security.acls import Operation, ResourceType


def _on_error(request: DescribeGroupsRequest, version: int, error: KafkaError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=int(error.code)) for group_id in request.groups]
    )


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), on_error=_on_error)
def handle(ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse(groups=[_describe(ctx, group_id) for group_id in request.groups])
    if request.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = authorization.authorized_operations(
                    ctx, ResourceType.GROUP, group.group_id
                )
    return response


def _describe(ctx: RequestContext, group_id: str) -> DescribedGroup:
    try:
        authorization.require(ctx, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        return ctx.broker.groups.describe(group_id)
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            return DescribedGroup(group_id=group_id, error_code=int(error.code))
        if ctx.version < 6:
            return DescribedGroup(group_id=group_id, group_state=DEAD.value)
        return DescribedGroup(
            group_id=group_id, error_code=int(error.code), error_message=error.message, group_state=DEAD.value
        )
