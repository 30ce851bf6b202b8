"""`kavka configs` for users, clients and addresses: their quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kavka.cli.java_text import double_text
from kavka.cli.options import UsageError
from kavka.cli.output import at_terminal, style
from kavka.cli.tool import ToolError

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.security.quotas import QuotaEntity

ENTITY_TYPES = ("users", "clients", "ips")
# The types of requests, and the words of the output.
_REQUEST_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
_WORDS = {"user": "user-principal", "client_id": "client-id", "ip": "ip"}
# In the order in which Apache's tool prints them: that of a Java HashMap of three or four entries.
_CLIENT_QUOTAS = ("consumer_byte_rate", "request_percentage", "producer_byte_rate", "controller_mutation_rate")
_IP_QUOTAS = ("connection_creation_rate",)


def check_entities(types: Sequence[str], names: Sequence[str], altering: bool) -> None:
    """Raise UsageError, with Apache's messages, if there are no quotas of these entities."""
    duplicates = [entity_type for entity_type in dict.fromkeys(types) if types.count(entity_type) > 1]
    if duplicates:
        raise UsageError(f"Duplicate entity type(s) specified: {','.join(duplicates)}")
    if len(types) > 1 and set(types) != {"users", "clients"}:
        raise UsageError("Only 'users' and 'clients' entity types may be specified together")
    if altering and not names:
        raise UsageError(
            "an entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
        )
    if len(names) > len(types) or (altering and len(names) < len(types)):
        raise UsageError("An entity name must be specified for every entity type")


def alter(
    admin: Admin, types: Sequence[str], names: Sequence[str], added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    from kavka.security.quotas import QuotaEntity

    _check_names(types, added, "added")
    _check_names(types, deleted, "deleted")
    attributes = {"users": "user", "clients": "client_id", "ips": "ip"}
    entity = QuotaEntity(**{attributes[kind]: name for kind, name in zip(types, names, strict=True)})
    if deleted:
        existing = _describe(admin, types, names).get(entity, {})
        missing = [key for key in deleted if key not in existing]
        if missing:
            raise ToolError(f"Invalid config(s): {','.join(missing)}")
    changes: dict[str, float | None] = {key: _number(key, text) for key, text in added.items()}
    changes |= dict.fromkeys(deleted)
    admin.alter_client_quotas({entity: changes})
    if names[0]:
        print(f"Completed updating config for {types[0].removesuffix('s')} {names[0]}.")
    else:
        print(f"Completed updating default config for {types[0]} in the cluster.")


def _check_names(types: Sequence[str], keys: Iterable[str], verb: str) -> None:
    if "ips" in types:
        unknown = [key for key in keys if key not in _IP_QUOTAS]
        if unknown:
            raise ToolError(
                f"Only connection quota configs can be added for 'ips' using --bootstrap-server. "
                f"Unexpected config names: {','.join(unknown)}"
            )
        return
    unknown = [key for key in keys if key not in _CLIENT_QUOTAS]
    if unknown:
        raise ToolError(
            f"Only quota configs can be {verb} for '{'clients' if 'clients' in types else 'users'}' using "
            f"--bootstrap-server. Unexpected config names: Set({', '.join(unknown)})"
        )


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ToolError(f"Cannot parse quota configuration value for {key}: {text}") from None


def _describe(admin: Admin, types: Sequence[str], names: Sequence[str]) -> dict[QuotaEntity, dict[str, float]]:
    components: dict[str, str | None] = {
        _REQUEST_TYPES[entity_type]: names[index] if index < len(names) else None
        for index, entity_type in enumerate(types)
    }
    return admin.describe_client_quotas(components, strict=True)


def described(admin: Admin, types: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    return [_as_json(entity, values) for entity, values in _describe(admin, types, names).items()]


def describe(admin: Admin, types: Sequence[str], names: Sequence[str]) -> None:
    for entity, values in _describe(admin, types, names).items():
        parts = [
            f"{word} '{name}'" if name else f"the default {word}"
            for attribute, word in _WORDS.items()
            if (name := getattr(entity, attribute)) is not None
        ]
        ordered = sorted(values, key=lambda key: (*_CLIENT_QUOTAS, *_IP_QUOTAS).index(key))
        texts = [f"{key}={double_text(values[key])}" for key in ordered]
        if at_terminal():
            texts = [style(text, "cyan") for text in texts]
        print(f"Quota configs for {', '.join(parts)} are {', '.join(texts)}")


def _as_json(entity: QuotaEntity, values: Mapping[str, float]) -> dict[str, Any]:
    names = {word: getattr(entity, attribute) for attribute, word in _WORDS.items()}
    return {
        "entity": {word: name or None for word, name in names.items() if name is not None},
        "quotas": dict(values),
    }
