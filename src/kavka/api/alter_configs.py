"""AlterConfigs (key 33): replaces all overrides of a topic, a broker or a group.

v2     flexible

Overrides that are not in the request are removed. IncrementalAlterConfigs changes single settings.
"""

from __future__ import annotations

from kavka.api import config_resources
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def _on_error(request: AlterConfigsRequest, version: int, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_result(resource, error) for resource in request.resources])


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), on_error=_on_error)
async def handle(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    async def change(resource: AlterConfigsResource) -> None:
        values: dict[str, str] = {}
        for config in resource.configs:
            if config.value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no value for {config.name}.")
            values[config.name] = config.value
        if len(values) < len(resource.configs):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A setting can be in a request only once.")
        key = resource.resource_type, resource.resource_name
        await config_resources.change(ctx, *key, lambda _: values, validate_only=request.validate_only)

    changed = await config_resources.each_once(request.resources, change)
    return AlterConfigsResponse(responses=[_result(*outcome) for outcome in changed])


def _result(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else int(error.code),
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
