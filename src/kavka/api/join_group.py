"""JoinGroup (key 11): become, or stay, a member of a classic group; answered when the rebalance has all its members.

v1  rebalance_timeout_ms beside the session timeout (in v0 one stands for both)
v2  throttle_time_ms in the answer
v4  a new member is given its id with MEMBER_ID_REQUIRED, and joins with it
v5  group_instance_id (static members)
v6  flexible
v7  protocol_type in the answer, protocol_name may be null
v8  reason
v9  skip_assignment in the answer
"""

from __future__ import annotations

from typing import Any

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


def _on_error(request: JoinGroupRequest, version: int, error: KafkaError) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=int(error.code), member_id=request.member_id)


@handles(ApiKey.JOIN_GROUP, versions=(0, 9), on_error=_on_error)
def handle(ctx: RequestContext, request: JoinGroupRequest) -> Any:
    # Java writes an address without a name as "/address"; tools show it as it is kept.
    return ctx.broker.groups.join(request, ctx.version, ctx.client_id or "", f"/{ctx.client_host}")
