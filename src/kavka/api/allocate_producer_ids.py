"""AllocateProducerIds (key 67): the controller allocates a block of producer ids to a broker."""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kavka.security.acls import Operation


@handles(ApiKey.ALLOCATE_PRODUCER_IDS, versions=(0, 0), needs=cluster(Operation.CLUSTER_ACTION))
async def handle(ctx: RequestContext, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
    block = await ctx.broker.controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.last - block.first + 1)
