"""SyncGroup (key 14): the group's leader sends all assignments. Each member gets its assignment.

v1  throttle_time_ms in the response
v3  group_instance_id (static members)
v4  flexible
v5  protocol_type and protocol_name, which must match those of the group
"""

from __future__ import annotations

from typing import Any

from kavka.api.authorization import group
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.sync_group import SyncGroupRequest
from kavka.security.acls import Operation


@handles(ApiKey.SYNC_GROUP, versions=(0, 5), needs=group(Operation.READ))
def handle(ctx: RequestContext, request: SyncGroupRequest) -> Any:
    if ctx.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return ctx.broker.groups.sync(request, ctx.version)
