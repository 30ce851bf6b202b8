"""ListGroups (key 16): the groups that this broker coordinates.

v1  throttle_time_ms in the answer
v3  flexible
v4  states_filter, group_state in the answer
v5  types_filter, group_type in the answer
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    groups = ctx.broker.groups
    # While some are being loaded the list is not whole, and says so.
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if groups.runtime.is_loading else ErrorCode.NONE
    return ListGroupsResponse(
        error_code=int(code), groups=groups.list_groups(request.states_filter, request.types_filter)
    )
