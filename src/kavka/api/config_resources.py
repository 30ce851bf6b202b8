"""The resources with settings: topics, brokers, groups, and the loggers of this broker.

As in Kafka, invalid values of a topic or a group are INVALID_CONFIG, those of a broker
INVALID_REQUEST.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from kavka.api.context import RequestContext
from kavka.common.broker_config import BROKER_CONFIGS
from kavka.common.config import ConfigError, ConfigTable
from kavka.common.config_view import check_dynamic
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.group_config import SINGLE_GROUP_CONFIGS
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.metadata.store import StoreUnavailable

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
# A request may name tens of thousands of resources: yield to the loop after this many.
RESOURCES_PER_TURN = 200


class Named(Protocol):
    """A resource in a request."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Named)


def table_of(resource_type: int) -> ConfigTable:
    return {TOPIC: TOPIC_CONFIGS, GROUP: SINGLE_GROUP_CONFIGS}.get(resource_type, BROKER_CONFIGS)


async def change(
    ctx: RequestContext,
    resource_type: int,
    name: str,
    changed: Callable[[dict[str, str]], Mapping[str, str]],
    *,
    validate_only: bool,
) -> None:
    """Replace the overrides of the resource with `changed(overrides)`, persistently.

    `changed` may be called more than once. Raises KafkaError, and changes nothing, if the resource
    does not exist, cannot be altered here, or gets invalid values.
    """
    configs = ctx.broker.configs
    try:
        if resource_type == TOPIC:
            if name not in ctx.broker.metadata_cache.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
            await configs.change_topic(name, _checked(changed, configs.broker.check_topic, validate_only))
        elif resource_type == GROUP:
            check_group_name(name)
            await configs.change_group(name, _checked(changed, configs.broker.check_group, validate_only))
        elif resource_type == BROKER:
            target = broker_id(ctx, name)

            def change_broker(before: dict[str, str]) -> Mapping[str, str] | None:
                values = changed(before)
                _check_broker(ctx, target, before, values)
                return None if validate_only else values

            await configs.change_broker(target, change_broker)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource_type} cannot be altered.")
    except StoreUnavailable as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def _checked(
    changed: Callable[[dict[str, str]], Mapping[str, str]],
    check: Callable[[Mapping[str, str]], None],
    validate_only: bool,
) -> Callable[[dict[str, str]], Mapping[str, str] | None]:
    def change_checked(before: dict[str, str]) -> Mapping[str, str] | None:
        values = changed(before)
        try:
            check(values)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return None if validate_only else values

    return change_checked


def check_group_name(name: str) -> None:
    """The group need not exist."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group settings have no cluster-wide default: name a group.")


async def each_once(
    resources: Sequence[R], change: Callable[[R], Awaitable[None]]
) -> list[tuple[R, KafkaError | None]]:
    """Change the resources one by one. A resource that is named twice is not changed."""
    keys = [(resource.resource_type, resource.resource_name) for resource in resources]
    counts = Counter(keys)
    results: list[tuple[R, KafkaError | None]] = []
    for resource, key in zip(resources, keys, strict=True):
        if len(results) % RESOURCES_PER_TURN == RESOURCES_PER_TURN - 1:
            await asyncio.sleep(0)
        try:
            if counts[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A resource can be in a request only once.")
            await change(resource)
        except KafkaError as error:
            results.append((resource, error))
        else:
            results.append((resource, None))
    return results


def _check_broker(
    ctx: RequestContext, target: int | None, before: Mapping[str, str], values: Mapping[str, str]
) -> None:
    changes = {name: text for name, text in values.items() if before.get(name) != text}
    try:
        check_dynamic(changes, per_broker=target is not None)
        if target is None:
            ctx.broker.configs.broker.with_dynamic(default=values)
        else:
            ctx.broker.configs.broker.with_dynamic(broker=values)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def broker_id(ctx: RequestContext, name: str) -> int | None:
    """The broker id of a resource name: this broker, or None for the cluster-wide default (empty
    name)."""
    if not name:
        return None
    try:
        named = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is not a broker id.")
    if named != ctx.broker.broker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"This is broker {ctx.broker.broker_id}; send the request to broker {named}."
        )
    return named
