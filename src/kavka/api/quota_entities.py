"""The entities of quotas in requests: their types, and their matching by the filters of
DescribeClientQuotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kavka.common.errors import ErrorCode, KafkaError
from kavka.security.quotas import DEFAULT, QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"
# The entity types of requests, with the attributes of QuotaEntity.
ATTRIBUTES = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}

EXACT, MATCH_DEFAULT, ANY = 0, 1, 2


class Component(NamedTuple):
    """One component of a filter. A null name matches every entity of the type."""

    entity_type: str
    name: str | None

    def matches(self, name: str) -> bool:
        return self.name is None or self.name == name


class Filter(NamedTuple):
    """Selects the entities that have all components. A strict filter selects only entities without
    other parts."""

    components: Mapping[str, Component]
    strict: bool

    def matches(self, entity: QuotaEntity) -> bool:
        for entity_type, attribute in ATTRIBUTES.items():
            name: str | None = getattr(entity, attribute)
            component = self.components.get(entity_type)
            if component is None:
                if name is not None and self.strict:
                    return False
            elif name is None or not component.matches(name):
                return False
        return True


def parse_component(entity_type: str, match_type: int, name: str | None) -> Component:
    if not entity_type:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
    if entity_type not in ATTRIBUTES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{entity_type}' not supported")
    if match_type == EXACT:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request has no name of the {entity_type} to match.")
        return Component(entity_type, name)
    if match_type not in (MATCH_DEFAULT, ANY):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected match type: {match_type}")
    return Component(entity_type, DEFAULT if match_type == MATCH_DEFAULT else None)


def parse_filter(components: list[Component], strict: bool) -> Filter:
    """Return the filter. Raises KafkaError for components that no entity can have together."""
    by_type: dict[str, Component] = {}
    for component in components:
        if component.entity_type in by_type:
            name = component.entity_type.removesuffix("-id")
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate {name} filter component entity type")
        by_type[component.entity_type] = component
    if IP in by_type and len(by_type) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be used with user or "
            "clientId filter component.",
        )
    return Filter(by_type, strict)


def parse_entity(parts: list[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of (type, name) pairs. A null name is the default entity. Raises
    KafkaError."""
    names: dict[str, str] = {}
    if not parts:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for entity_type, name in parts:
        if entity_type not in ATTRIBUTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {entity_type} not supported")
        names[ATTRIBUTES[entity_type]] = DEFAULT if name is None else name
    if "ip" in names and len(names) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        )
    return QuotaEntity(**names)


def entity_parts(entity: QuotaEntity) -> list[tuple[str, str | None]]:
    """Return the (type, name) pairs of an entity for a response."""
    parts: list[tuple[str, str | None]] = []
    for entity_type, attribute in ATTRIBUTES.items():
        name: str | None = getattr(entity, attribute)
        if name is not None:
            parts.append((entity_type, None if name == DEFAULT else name))
    return parts
