"""DeleteGroups (key 42): deletes empty groups with their offsets.

v2  flexible
"""

from __future__ import annotations

import asyncio
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kavka.security.acls import Operation, ResourceType


def _on_error(request: DeleteGroupsRequest, version: int, error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=int(error.code)) for name in request.groups_names]
    )


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2), on_error=_on_error)
async def handle(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    codes = await asyncio.gather(*(_delete(ctx, name) for name in names))
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=code) for name, code in zip(names, codes, strict=True)]
    )


async def _delete(ctx: RequestContext, group_id: str) -> int:
    try:
        authorization.require(ctx, Operation.DELETE, ResourceType.GROUP, group_id)
        deleted: Any = ctx.broker.groups.delete(group_id)
        if isinstance(deleted, asyncio.Future):
            await deleted
    except KafkaError as error:
        return int(error.code)
    return 0
