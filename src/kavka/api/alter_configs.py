"""AlterConfigs (key 33): replaces all overrides of a topic, a broker or a group.

v2     flexible

Overrides that are not in the request are removed. IncrementalAlterConfigs changes individual
settings.
"""

from __future__ import annotations

from kavka.api import config_resources
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def _on_error(request: AlterConfigsRequest, version: int, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            config_resources.result(AlterConfigsResourceResponse, resource, error) for resource in request.resources
        ]
    )


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), on_error=_on_error)
async def handle(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    async def replace_overrides(resource: AlterConfigsResource) -> None:
        values: dict[str, str] = {}
        for config in resource.configs:
            if config.value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request has no value for {config.name}.")
            values[config.name] = config.value
        if len(values) < len(resource.configs):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A setting can be in a request only once.")
        key = resource.resource_type, resource.resource_name
        await config_resources.change(ctx, *key, lambda _: values, validate_only=request.validate_only)

    outcomes = await config_resources.change_each(ctx, request.resources, replace_overrides)
    return AlterConfigsResponse(
        responses=[
            config_resources.result(AlterConfigsResourceResponse, *outcome) async for outcome in over_turns(outcomes)
        ]
    )
