"""IncrementalAlterConfigs (key 44): sets, deletes, appends to and subtracts from settings.

v1     flexible

The changes of a resource are atomic and take effect before the response. Changes of log levels are
lost when the broker restarts; all other changes are persistent.
"""

from __future__ import annotations

from kavka.api import broker_loggers, config_resources
from kavka.api.config_resources import BROKER_LOGGER
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.config import ConfigType
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kavka.protocol.primitives import MAX_STRING_LENGTH

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def _on_error(
    request: IncrementalAlterConfigsRequest, version: int, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            config_resources.result(AlterConfigsResourceResponse, resource, error) for resource in request.resources
        ]
    )


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), on_error=_on_error)
async def handle(ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    outcomes = await config_resources.change_each(
        ctx, request.resources, lambda resource: _alter(ctx, resource, request.validate_only)
    )
    return IncrementalAlterConfigsResponse(
        responses=[
            config_resources.result(AlterConfigsResourceResponse, *outcome) async for outcome in over_turns(outcomes)
        ]
    )


async def _alter(ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    resource_type, name = resource.resource_type, resource.resource_name
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A setting can be in a request only once.")
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation}.")
        if config.value is None and config.config_operation != DELETE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request has no value for {config.name}.")
    if resource_type == BROKER_LOGGER:
        config_resources.check_logger_broker(ctx, name)
        changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
        broker_loggers.alter(changes, validate_only=validate_only)
        return

    def update(overrides: dict[str, str]) -> dict[str, str]:
        values = dict(overrides)
        for config in resource.configs:
            if config.config_operation == DELETE:
                values.pop(config.name, None)
            elif config.config_operation == SET:
                values[config.name] = config.value or ""
            else:
                values[config.name] = _updated_list(resource_type, config, values.get(config.name))
        return values

    await config_resources.change(ctx, resource_type, name, update, validate_only=validate_only)


def _updated_list(resource_type: int, config: AlterableConfig, override: str | None) -> str:
    """Return the list after APPEND or SUBTRACT. Without an override, the operation applies to the
    default. Raises INVALID_CONFIG if the setting is not a list or becomes too long."""
    key = config_resources.table_of(resource_type).get(config.name)
    if key is None or key.type is not ConfigType.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} is not a list and can only be set.")
    text = override if override is not None else key.format(key.default) or ""
    items = [item.strip() for item in text.split(",") if item.strip()]
    operands = dict.fromkeys(item.strip() for item in (config.value or "").split(",") if item.strip())
    if config.config_operation == APPEND:
        current_items = set(items)
        items += [item for item in operands if item not in current_items]
    else:
        items = [item for item in items if item not in operands]
    value = ",".join(items)
    if len(value.encode()) > MAX_STRING_LENGTH:
        # DescribeConfigs could not encode a longer value.
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} would be longer than {MAX_STRING_LENGTH} bytes.")
    return value
