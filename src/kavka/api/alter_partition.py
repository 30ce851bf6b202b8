"""AlterPartition (key 56): a leader asks the controller to change who is in sync.

v1     leader_recovery_state
v2     topics are named by id; INELIGIBLE_REPLICA for a replica that may not join (before: OPERATION_NOT_ATTEMPTED)
v3     new_isr_with_epochs: a broker that has started anew since it caught up is not taken

Only the controller answers; others say NOT_CONTROLLER.
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


@handles(ApiKey.ALTER_PARTITION, versions=(0, 3))
async def handle(ctx: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    return await ctx.broker.controller.alter_partition(request, ctx.version)
