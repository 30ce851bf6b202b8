"""JoinGroup (key 11): joins or rejoins a classic group. The response waits for the rebalance.

v1  rebalance_timeout_ms (v0: session timeout)
v2  throttle_time_ms in the response
v4  a new member gets its id with MEMBER_ID_REQUIRED, and rejoins with it
v5  group_instance_id (static members)
v6  flexible
v7  protocol_type in the response, protocol_name may be null
v8  reason
v9  skip_assignment in the response
"""

from __future__ import annotations

from typing import Any

from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.security.acls import Operation


def _on_error(request: JoinGroupRequest, version: int, error: KafkaError) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=int(error.code), member_id=request.member_id)


@handles(ApiKey.JOIN_GROUP, versions=(0, 9), on_error=_on_error, needs=group(Operation.READ))
def handle(ctx: RequestContext, request: JoinGroupRequest) -> Any:
    # Java formats an address without a host name as "/address", and tools print this text.
    return ctx.broker.groups.join(request, ctx.version, ctx.client_id or "", f"/{ctx.client_host}")
