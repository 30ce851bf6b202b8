"""DescribeClientQuotas (key 48): the quotas of users, clients and addresses that match a filter.

v1     flexible
"""

from __future__ import annotations

from kavka.api import quota_entities
from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import KafkaError
from kavka.metadata import paths
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kavka.security.acls import Operation
from kavka.security.quotas import CLIENT_QUOTAS, IP_QUOTAS, QuotaEntity, parse_bounds


def _on_error(request: DescribeClientQuotasRequest, version: int, error: KafkaError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=int(error.code), error_message=error.message, entries=None)


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), on_error=_on_error, needs=cluster(Operation.DESCRIBE_CONFIGS))
async def handle(ctx: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    selection = quota_entities.parse_filter(
        [quota_entities.parse_component(c.entity_type, c.match_type, c.match) for c in request.components],
        request.strict,
    )
    configs = ctx.broker.configs
    # The client may have changed a quota through another broker.
    await configs.catch_up()
    entries = []
    for entity_path, values in sorted(configs.entities.items()):
        try:
            entity = paths.quota_entity(entity_path)
        except paths.MalformedNode:
            continue
        bounds, _ = parse_bounds(IP_QUOTAS if entity.ip is not None else CLIENT_QUOTAS, values)
        if bounds and selection.matches(entity):
            entries.append(_entry(entity, bounds))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _entry(entity: QuotaEntity, bounds: dict[str, float]) -> EntryData:
    return EntryData(
        entity=[
            EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in quota_entities.entity_parts(entity)
        ],
        values=[ValueData(key=key, value=bound) for key, bound in bounds.items()],
    )
