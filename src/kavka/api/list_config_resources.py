"""ListConfigResources (key 74): the resources that DescribeConfigs can describe.

v0     client metrics only, of which there are none here
v1     of the types in the request, or of all
"""

from __future__ import annotations

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

TYPES = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
"""In the order of the response."""


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1))
def handle(ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    requested = (request.resource_types or TYPES) if ctx.version else (CLIENT_METRICS,)
    unknown = [number for number in requested if number not in TYPES]
    if unknown:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"There are no resources of type {unknown[0]}.")
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=number)
            for number in TYPES
            if number in requested
            for name in _names(ctx, number)
        ]
    )


def _names(ctx: RequestContext, resource_type: int) -> list[str]:
    """Only groups with overrides are listed; there are no client metrics."""
    cache = ctx.broker.metadata_cache
    if resource_type == TOPIC:
        return sorted(cache.topics)
    if resource_type in (BROKER, BROKER_LOGGER):
        return [str(number) for number in sorted(cache.brokers)]
    return ctx.broker.configs.groups if resource_type == GROUP else []
