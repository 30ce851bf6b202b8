"""Heartbeat (key 12): keeps a member of a classic group alive, and reports a rebalance to it.

v1  throttle_time_ms in the response
v3  group_instance_id (static members)
v4  flexible
"""

from __future__ import annotations

from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kavka.security.acls import Operation


@handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=group(Operation.READ))
def handle(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    ctx.broker.groups.heartbeat(request)
    return HeartbeatResponse()
