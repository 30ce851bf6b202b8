"""ListConfigResources (key 74): the resources that DescribeConfigs can describe.

v0     only client metrics, which this broker does not support: the list is empty
v1     resource_types; an empty list means all types
"""

from __future__ import annotations

from kavka.api.authorization import cluster
from kavka.api.config_resources import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kavka.security.acls import Operation

# In the order of the response.
RESOURCE_TYPES = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), needs=cluster(Operation.DESCRIBE_CONFIGS))
def handle(ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    requested_types = (request.resource_types or RESOURCE_TYPES) if ctx.version else (CLIENT_METRICS,)
    unknown_types = [resource_type for resource_type in requested_types if resource_type not in RESOURCE_TYPES]
    if unknown_types:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {unknown_types[0]}.")
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in RESOURCE_TYPES
            if resource_type in requested_types
            for name in _names(ctx, resource_type)
        ]
    )


def _names(ctx: RequestContext, resource_type: int) -> list[str]:
    """Return the names of the resources of one type. Groups without overrides are omitted."""
    cache = ctx.broker.metadata_cache
    if resource_type == TOPIC:
        return sorted(cache.topics)
    if resource_type in (BROKER, BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(cache.brokers)]
    return ctx.broker.configs.groups if resource_type == GROUP else []
