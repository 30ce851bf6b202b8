"""DescribeConfigs (key 32): the settings of topics, brokers, groups and loggers with their sources.

v0     is_default
v1     config_source instead; synonyms on request
v3     config_type; documentation on request
v4     flexible

The broker with the empty name is the cluster-wide default of dynamic settings.
"""

from __future__ import annotations

from kavka.api import broker_loggers
from kavka.api.config_resources import BROKER, BROKER_LOGGER, GROUP, TOPIC, broker_id, check_group_name
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

DYNAMIC_BROKER_LOGGER = 6


def _on_error(request: DescribeConfigsRequest, version: int, error: KafkaError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_refusal(resource, error) for resource in request.resources])


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4), on_error=_on_error)
def handle(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    for resource in request.resources:
        try:
            result = DescribeConfigsResult(
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=_describe(ctx, request, resource),
            )
        except KafkaError as error:
            result = _refusal(resource, error)
        response.results.append(result)
    return response


def _describe(
    ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    name, keys = resource.resource_name, resource.configuration_keys
    configs = ctx.broker.configs
    match resource.resource_type:
        case type_ if type_ == TOPIC:
            topic_names.check(name)
            if name not in ctx.broker.metadata_cache.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
            entries = describe_topic(configs.broker, configs.topic_overrides(name), keys)
        case type_ if type_ == BROKER:
            all_brokers = broker_id(ctx, name) is None
            entries = (
                describe_broker_defaults(configs.broker, keys) if all_brokers else describe_broker(configs.broker, keys)
            )
        case type_ if type_ == GROUP:
            check_group_name(name)
            entries = describe_group(configs.broker, configs.group_overrides(name), keys)
        case type_ if type_ == BROKER_LOGGER:
            if broker_id(ctx, name) is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Loggers belong to one broker: name the broker.")
            return [
                _logger(ctx, logger, level)
                for logger, level in broker_loggers.levels().items()
                if not keys or logger in keys
            ]
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resources of type {other} have no settings here.")
    return [_entry(ctx, request, entry) for entry in entries]


def _entry(ctx: RequestContext, request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(
        name=entry.name, value=entry.value, read_only=entry.read_only, is_sensitive=entry.is_sensitive
    )
    if ctx.version == 0:
        result.is_default = entry.source is ConfigSource.DEFAULT
        return result
    result.config_source = int(entry.source)
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=int(synonym.source))
            for synonym in entry.synonyms
        ]
    if ctx.version >= 3:
        result.config_type = entry.type
        result.documentation = entry.documentation if request.include_documentation else None
    return result


def _logger(ctx: RequestContext, name: str, level: str) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(name=name, value=level)
    if ctx.version > 0:
        result.config_source = DYNAMIC_BROKER_LOGGER
    return result


def _refusal(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=int(error.code),
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
