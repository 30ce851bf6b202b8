"""DescribeConfigs (key 32): the settings of topics, brokers, groups and loggers with their sources.

v0     is_default
v1     config_source instead; synonyms on request
v3     config_type; documentation on request
v4     flexible

The broker with the empty name is the resource of the cluster-wide dynamic defaults.
"""

from __future__ import annotations

from kavka.api import broker_loggers
from kavka.api.config_resources import (
    BROKER,
    BROKER_LOGGER,
    GROUP,
    TOPIC,
    broker_id,
    check_group_name,
    check_logger_broker,
    require,
)
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.config_view import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.controller import topic_names
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kavka.security.acls import Operation

DYNAMIC_BROKER_LOGGER = 6


def _on_error(request: DescribeConfigsRequest, version: int, error: KafkaError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_error_result(resource, error) for resource in request.resources])


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4), on_error=_on_error)
async def handle(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    async for resource in over_turns(request.resources):
        try:
            result = DescribeConfigsResult(
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=_describe(ctx, request, resource),
            )
        except KafkaError as error:
            result = _error_result(resource, error)
        response.results.append(result)
    return response


def _describe(
    ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    name, keys = resource.resource_name, resource.configuration_keys
    configs, resource_type = ctx.broker.configs, resource.resource_type
    require(ctx, Operation.DESCRIBE_CONFIGS, resource_type, name)
    if resource_type == TOPIC:
        topic_names.check(name)
        if name not in ctx.broker.metadata_cache.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        entries = describe_topic(configs.broker, configs.topic_overrides(name), keys)
    elif resource_type == BROKER:
        describe = describe_broker_defaults if broker_id(ctx, name) is None else describe_broker
        entries = describe(configs.broker, keys)
    elif resource_type == GROUP:
        check_group_name(name)
        entries = describe_group(configs.broker, configs.group_overrides(name), keys)
    elif resource_type == BROKER_LOGGER:
        check_logger_broker(ctx, name)
        requested = set(keys or ())
        return [
            DescribeConfigsResourceResult(name=logger, value=level, config_source=DYNAMIC_BROKER_LOGGER)
            for logger, level in broker_loggers.levels().items()
            if not requested or logger in requested
        ]
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource_type} have no settings.")
    return [_entry(ctx, request, entry) for entry in entries]


def _entry(ctx: RequestContext, request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=ctx.version == 0 and entry.source is ConfigSource.DEFAULT,
        config_source=int(entry.source),
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=int(synonym.source))
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _error_result(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=int(error.code),
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
