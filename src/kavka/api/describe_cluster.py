"""DescribeCluster (key 60): the cluster's id, its controller and its brokers.

v1     endpoint_type; a broker accepts only the endpoint type of brokers
v2     include_fenced_brokers; brokers are never fenced here
"""

from __future__ import annotations

from kavka.api.authorization import cluster_operations
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
def handle(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if ctx.version >= 1 and request.endpoint_type != BROKERS:
        if request.endpoint_type == CONTROLLERS:
            raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "This is a broker, not a controller.")
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unknown endpoint type {request.endpoint_type}.")
    cache = ctx.broker.metadata_cache
    response = DescribeClusterResponse(
        cluster_id=ctx.broker.cluster_id,
        controller_id=cache.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=info.id, host=endpoint.host, port=endpoint.port, rack=info.rack)
            for info in cache.brokers.values()
            if (endpoint := info.endpoints.get(ctx.listener)) is not None
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(ctx)
    return response
