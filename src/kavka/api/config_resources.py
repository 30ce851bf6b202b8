"""The resources that have settings: topics, brokers, groups, and the loggers of this broker.

As in Kafka, the error for an invalid value is INVALID_CONFIG for a topic or a group, and
INVALID_REQUEST for a broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.common.broker_config import BROKER_CONFIGS
from kavka.common.config import ConfigError, ConfigTable
from kavka.common.config_view import check_dynamic
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.group_config import SINGLE_GROUP_CONFIGS
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.common.turns import over_turns
from kavka.metadata.store import StoreUnavailable
from kavka.security.acls import CLUSTER_NAME, Operation, ResourceType

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

# Returns the overrides of a resource after a change.
Update = Callable[[dict[str, str]], Mapping[str, str]]


class Resource(Protocol):
    """A resource in a request."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


def table_of(resource_type: int) -> ConfigTable:
    return {TOPIC: TOPIC_CONFIGS, GROUP: SINGLE_GROUP_CONFIGS}.get(resource_type, BROKER_CONFIGS)


def require(ctx: RequestContext, operation: Operation, resource_type: int, name: str) -> None:
    """Raise KafkaError unless the client may perform the operation on the settings. The settings
    of brokers, loggers and client metrics require the operation on the cluster."""
    if resource_type == TOPIC:
        authorization.require(ctx, operation, ResourceType.TOPIC, name)
    elif resource_type == GROUP:
        authorization.require(ctx, operation, ResourceType.GROUP, name)
    elif resource_type in (BROKER, BROKER_LOGGER, CLIENT_METRICS):
        authorization.require(ctx, operation, ResourceType.CLUSTER, CLUSTER_NAME)


async def change(
    ctx: RequestContext,
    resource_type: int,
    name: str,
    update: Update,
    *,
    validate_only: bool,
) -> None:
    """Replace the overrides of the resource with `update(overrides)`. With `validate_only`, check
    the new overrides but do not store them.

    `update` may be called more than once. Raises KafkaError and changes nothing if the resource
    does not exist, if this broker cannot alter it, or if a value is invalid.
    """
    configs = ctx.broker.configs
    try:
        if resource_type == TOPIC:
            if name not in ctx.broker.metadata_cache.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
            await configs.change_topic(name, _checked(update, configs.broker.check_topic, validate_only))
        elif resource_type == GROUP:
            check_group_name(name)
            await configs.change_group(name, _checked(update, configs.broker.check_group, validate_only))
        elif resource_type == BROKER:
            target = broker_id(ctx, name)

            def update_broker(overrides: dict[str, str]) -> Mapping[str, str] | None:
                values = update(overrides)
                _check_broker(ctx, target, overrides, values)
                return None if validate_only else values

            await _check_security(ctx, target, update)
            try:
                await configs.change_broker(target, update_broker)
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource_type} cannot be altered.")
    except StoreUnavailable as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def _checked(
    update: Update, check: Callable[[Mapping[str, str]], None], validate_only: bool
) -> Callable[[dict[str, str]], Mapping[str, str] | None]:
    """Return a function that calls `update` and checks the result. With `validate_only` it returns
    None, so that nothing is stored."""

    def checked_update(overrides: dict[str, str]) -> Mapping[str, str] | None:
        values = update(overrides)
        try:
            check(values)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return None if validate_only else values

    return checked_update


def check_group_name(name: str) -> None:
    """Raise INVALID_REQUEST if the name is empty. The group need not exist."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group settings have no cluster-wide default; a name is required.")


def check_logger_broker(ctx: RequestContext, name: str) -> None:
    """Raise INVALID_REQUEST unless `name` is the id of this broker."""
    if broker_id(ctx, name) is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Loggers have no cluster-wide default; a broker id is required.")


async def change_each(
    ctx: RequestContext, resources: Sequence[R], change: Callable[[R], Awaitable[None]]
) -> list[tuple[R, KafkaError | None]]:
    """Change the resources one by one. Return each resource with its error, or None. A resource
    that appears twice in the request, or that the client may not alter, is not changed."""
    keys = [(resource.resource_type, resource.resource_name) for resource in resources]
    counts = Counter(keys)
    results: list[tuple[R, KafkaError | None]] = []
    async for resource, key in over_turns(zip(resources, keys, strict=True)):
        try:
            if counts[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A resource can be in a request only once.")
            require(ctx, Operation.ALTER_CONFIGS, *key)
            await change(resource)
        except KafkaError as error:
            results.append((resource, error.with_traceback(None)))
        else:
            results.append((resource, None))
    return results


def result(response_class: type[Any], resource: Resource, error: KafkaError | None) -> Any:
    """Return the result of one resource. `response_class` is the AlterConfigsResourceResponse of
    the API."""
    return response_class(
        error_code=0 if error is None else int(error.code),
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _check_broker(
    ctx: RequestContext, target: int | None, overrides: Mapping[str, str], values: Mapping[str, str]
) -> None:
    changes = {name: text for name, text in values.items() if overrides.get(name) != text}
    try:
        check_dynamic(changes, per_broker=target is not None)
        if target is None:
            ctx.broker.configs.broker.with_dynamic(default=values)
        else:
            ctx.broker.configs.broker.with_dynamic(broker=values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


async def _check_security(ctx: RequestContext, target: int | None, update: Update) -> None:
    """Raise INVALID_REQUEST if the listeners could not use the changed TLS settings, for example
    because a key store cannot be opened."""
    current = ctx.broker.configs.broker
    overrides = current.dynamic_default if target is None else current.dynamic_broker
    values = update(dict(overrides))
    if not any("ssl." in name for name in {*values, *overrides}):
        return
    try:
        changed = current.with_dynamic(default=values) if target is None else current.with_dynamic(broker=values)
        await ctx.broker.check_security(changed.values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def broker_id(ctx: RequestContext, name: str) -> int | None:
    """Return the broker id in a resource name, or None for the empty name, which is the
    cluster-wide default. Raises INVALID_REQUEST for an invalid id and for the id of another
    broker."""
    if not name:
        return None
    try:
        requested_id = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is not a broker id.")
    if requested_id != ctx.broker.broker_id:
        message = f"This is broker {ctx.broker.broker_id}; send the request to broker {requested_id}."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return requested_id
