"""ControlledShutdown (key 7): the controller moves the leaderships of a broker that is about to
stop.

v1     the request header has a client id
v2     broker_epoch
v3     flexible

The response lists the partitions that the broker still leads, because no other replica can. The
broker may retry.
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kavka.security.acls import Operation

UNKNOWN_EPOCH = -1


@handles(ApiKey.CONTROLLED_SHUTDOWN, versions=(0, 3), needs=cluster(Operation.CLUSTER_ACTION))
async def handle(ctx: RequestContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    epoch = request.broker_epoch if ctx.version >= 2 else UNKNOWN_EPOCH
    remaining = await ctx.broker.controller.controlled_shutdown(request.broker_id, epoch)
    return ControlledShutdownResponse(
        remaining_partitions=[RemainingPartition(topic_name=t, partition_index=p) for t, p in remaining]
    )
