"""IncrementalAlterConfigs (key 44): sets, deletes, appends to and subtracts from single settings.

v1     flexible

The changes of a resource are atomic, take effect before the response, and survive a restart (except
those of loggers).
"""

from __future__ import annotations

from kavka.api import broker_loggers, config_resources
from kavka.api.config_resources import BROKER_LOGGER
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.config import ConfigType
from kavka.common.errors import ErrorCode, KafkaError
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
    return IncrementalAlterConfigsResponse(responses=[_result(resource, error) for resource in request.resources])


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), on_error=_on_error)
async def handle(ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    changed = await config_resources.each_once(
        request.resources, lambda resource: _alter(ctx, resource, request.validate_only)
    )
    return IncrementalAlterConfigsResponse(responses=[_result(*outcome) for outcome in changed])


async def _alter(ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    type_, name = resource.resource_type, resource.resource_name
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A setting can be in a request only once.")
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no operation {config.config_operation}.")
        if config.value is None and config.config_operation != DELETE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no value for {config.name}.")
    if type_ == BROKER_LOGGER:
        if config_resources.broker_id(ctx, name) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Loggers belong to one broker: name the broker.")
        changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
        broker_loggers.alter(changes, validate_only=validate_only)
        return

    def changed(before: dict[str, str]) -> dict[str, str]:
        values = dict(before)
        for config in resource.configs:
            if config.config_operation == DELETE:
                values.pop(config.name, None)
            elif config.config_operation == SET:
                values[config.name] = config.value or ""
            else:
                values[config.name] = _changed_list(type_, config, values.get(config.name))
        return values

    await config_resources.change(ctx, type_, name, changed, validate_only=validate_only)


def _changed_list(resource_type: int, config: AlterableConfig, before: str | None) -> str:
    key = config_resources.table_of(resource_type).get(config.name)
    if key is None or key.type is not ConfigType.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} is not a list: it can only be set.")
    text = before if before is not None else key.format(key.default) or ""
    items = [item.strip() for item in text.split(",") if item.strip()]
    named = [item.strip() for item in (config.value or "").split(",") if item.strip()]
    if config.config_operation == APPEND:
        present = set(items)
        items += [item for item in dict.fromkeys(named) if item not in present]
    else:
        dropped = set(named)
        items = [item for item in items if item not in dropped]
    value = ",".join(items)
    if len(value.encode()) > MAX_STRING_LENGTH:
        # It could not be described: the response would not fit.
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} would be longer than {MAX_STRING_LENGTH} bytes.")
    return value


def _result(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else int(error.code),
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
