"""Quotas of users, clients and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kavka.client.admin.base import AdminBase, Outcome, by_key
from kavka.client.errors import error_of
from kavka.protocol.messages import alter_client_quotas, describe_client_quotas
from kavka.security.quotas import DEFAULT, QuotaEntity

# The entity types of requests, with the attributes of QuotaEntity.
_TYPES = {"user": "user", "client-id": "client_id", "ip": "ip"}
_EXACT, _DEFAULT, _ANY = 0, 1, 2


class Quotas(AdminBase):
    async def describe_client_quotas(
        self, components: Mapping[str, str | None] | None = None, *, strict: bool = False, timeout: float | None = None
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match all components.

        A component has a type (`user`, `client-id` or `ip`) and a name: "" matches the default
        entity, None matches every entity of the type. With `strict`, entities with further parts do
        not match.
        """

        async def attempt() -> dict[QuotaEntity, dict[str, float]]:
            request = describe_client_quotas.DescribeClientQuotasRequest(
                components=[_component(entity_type, name) for entity_type, name in (components or {}).items()],
                strict=strict,
            )
            response = await self._request(None, request)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            return {_entity(entry): {item.key: item.value for item in entry.values} for entry in response.entries or ()}

        return await self._once("describe_client_quotas", attempt, timeout)

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set quotas of entities. None removes a quota; quotas that are not in `changes` stay."""

        async def attempt(keys: list[QuotaEntity]) -> Outcome[QuotaEntity, None]:
            request = alter_client_quotas.AlterClientQuotasRequest(
                entries=[
                    alter_client_quotas.AlterClientQuotasRequestEntryData(
                        entity=[
                            alter_client_quotas.EntityData(entity_type=entity_type, entity_name=name or None)
                            for entity_type, attribute in _TYPES.items()
                            if (name := getattr(entity, attribute)) is not None
                        ],
                        ops=[
                            alter_client_quotas.OpData(key=key, value=float(value or 0), remove=value is None)
                            for key, value in changes[entity].items()
                        ],
                    )
                    for entity in keys
                ],
                validate_only=validate_only,
            )
            response = await self._request(None, request)
            return by_key(response.entries, _entity, lambda entry: None)

        await self._each(changes, attempt, timeout)


def _component(entity_type: str, name: str | None) -> describe_client_quotas.ComponentData:
    match_type = _ANY if name is None else _DEFAULT if name == DEFAULT else _EXACT
    return describe_client_quotas.ComponentData(entity_type=entity_type, match_type=match_type, match=name or None)


def _entity(entry: Any) -> QuotaEntity:
    names = {part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in entry.entity}
    return QuotaEntity(**{attribute: names.get(entity_type) for entity_type, attribute in _TYPES.items()})
