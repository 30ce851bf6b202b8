"""LeaveGroup (key 13): members leave a classic group.

v1  throttle_time_ms in the response
v3  many members, each with an error code; static members by group_instance_id
v4  flexible
v5  reason
"""

from __future__ import annotations

from typing import Any

from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.leave_group import LeaveGroupRequest
from kavka.security.acls import Operation


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5), needs=group(Operation.READ))
def handle(ctx: RequestContext, request: LeaveGroupRequest) -> Any:
    return ctx.broker.groups.leave(request, ctx.version)
