"""AlterPartition (key 56): a leader asks the controller to change an ISR.

v1     leader_recovery_state
v2     topic ids; INELIGIBLE_REPLICA (before: OPERATION_NOT_ATTEMPTED)
v3     new_isr_with_epochs: a broker that was restarted since it caught up is refused

Only the controller serves it; other brokers return NOT_CONTROLLER.
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


@handles(ApiKey.ALTER_PARTITION, versions=(0, 3))
async def handle(ctx: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    return await ctx.broker.controller.alter_partition(request, ctx.version)
