"""AlterClientQuotas (key 49): sets and removes quotas of users, clients and addresses.

v1     flexible

The changes of an entity are atomic. Settings of the entity that are not quotas stay.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence

from kavka.api import quota_entities
from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import as_kafka_error, handles
from kavka.common.config import ConfigError, ConfigTable, ConfigType
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata import paths
from kavka.metadata.store import StoreUnavailable
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    OpData,
)
from kavka.security.acls import Operation
from kavka.security.quotas import CLIENT_QUOTAS, DEFAULT, IP_QUOTAS, QuotaEntity

# A whole number may differ from its text by this much.
EPSILON = 1e-6


def _on_error(request: AlterClientQuotasRequest, version: int, error: KafkaError) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_result(entry, error) for entry in request.entries])


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), on_error=_on_error, needs=cluster(Operation.ALTER_CONFIGS))
async def handle(ctx: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    results = []
    for entry in request.entries:
        try:
            await _alter(ctx, entry, request.validate_only)
            results.append(_result(entry, None))
        except (KafkaError, StoreUnavailable) as error:
            results.append(_result(entry, as_kafka_error(error)))
    return AlterClientQuotasResponse(entries=results)


async def _alter(ctx: RequestContext, entry: AlterClientQuotasRequestEntryData, validate_only: bool) -> None:
    entity = quota_entities.parse_entity([(part.entity_type, part.entity_name) for part in entry.entity])
    await _check_address(ctx, entity)
    changes = _changes(IP_QUOTAS if entity.ip is not None else CLIENT_QUOTAS, entry.ops)
    if validate_only:
        return

    def change(current: dict[str, str]) -> dict[str, str]:
        values = {**current, **changes}
        return {name: text for name, text in values.items() if text is not None}

    await ctx.broker.configs.change_entity(paths.quota_entity_path(entity), change)


def _changes(table: ConfigTable, ops: Sequence[OpData]) -> dict[str, str | None]:
    """Return the texts by quota, None for a quota to remove. Raises KafkaError."""
    changes: dict[str, str | None] = {}
    for op in ops:
        if op.remove:
            # Kafka permits the removal of names that do not exist. Names of other settings, such as
            # credentials, are not removed here.
            if op.key in table:
                changes[op.key] = None
            continue
        key = table.get(op.key)
        if key is None:
            raise _invalid(f"Invalid configuration key {op.key}")
        value: float | int = op.value
        if not math.isfinite(op.value):
            raise _invalid(f"Configuration {op.key} must be a number")
        if key.type is not ConfigType.DOUBLE:
            value = math.trunc(op.value + EPSILON)
            if abs(value - op.value) > EPSILON:
                raise _invalid(f"Configuration {op.key} must be a {key.type.name} value")
        try:
            key.check(value)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        changes[op.key] = key.format(value)
    return changes


async def _check_address(ctx: RequestContext, entity: QuotaEntity) -> None:
    """Raise INVALID_REQUEST unless the address of an entity is an IP address or a host name that
    resolves."""
    if entity.ip is None or entity.ip == DEFAULT:
        return
    try:
        await ctx.broker.run_in_worker(socket.getaddrinfo, entity.ip, None)
    except (OSError, UnicodeError) as error:
        raise _invalid(f"{entity.ip} is not a valid IP or resolvable host.") from error


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _result(entry: AlterClientQuotasRequestEntryData, error: KafkaError | None) -> AlterClientQuotasResponseEntryData:
    return AlterClientQuotasResponseEntryData(
        error_code=int(error.code) if error is not None else 0,
        error_message=error.message if error is not None else None,
        entity=entry.entity,
    )
