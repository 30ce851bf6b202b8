"""ListGroups (key 16): the groups that this broker coordinates.

v1  throttle_time_ms in the response
v3  flexible
v4  states_filter, group_state in the response
v5  types_filter, group_type in the response
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kavka.security.acls import Operation, ResourceType


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    groups = ctx.broker.groups
    # The list is incomplete while shards are loading.
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if groups.is_loading else ErrorCode.NONE
    listed = groups.list_groups(request.states_filter, request.types_filter)
    if not authorization.may_on_cluster(ctx, Operation.DESCRIBE, log_denied=False):
        names = [group.group_id for group in listed]
        hidden = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.GROUP, names, log_denied=False)
        listed = [group for group in listed if group.group_id not in hidden]
    return ListGroupsResponse(error_code=int(code), groups=listed)
