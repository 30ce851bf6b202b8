"""AlterPartition (key 56): a leader requests a change of the ISR from the controller.

v1     leader_recovery_state
v2     topic ids; INELIGIBLE_REPLICA (before: OPERATION_NOT_ATTEMPTED)
v3     new_isr_with_epochs: a replica whose broker has restarted since it caught up is rejected

Only the controller serves this request; other brokers return NOT_CONTROLLER.
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kavka.security.acls import Operation


@handles(ApiKey.ALTER_PARTITION, versions=(0, 3), needs=cluster(Operation.CLUSTER_ACTION))
async def handle(ctx: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    return await ctx.broker.controller.alter_partition(request, ctx.version)
