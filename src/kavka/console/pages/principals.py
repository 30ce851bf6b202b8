"""SCRAM users and client quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.types import ScramPassword
from kavka.common.errors import KafkaError
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation
from kavka.console.errors import Refused, reason
from kavka.console.registry import SECRET, Bounds, Done, action, query
from kavka.console.views import Pager, View, page
from kavka.security.quotas import CLIENT_QUOTAS, DEFAULT, IP_QUOTAS, QuotaEntity, levels_of

TIMEOUT_S = 10.0
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
"""The bounds of Kafka for the iterations of SCRAM."""
MAX_PASSWORD_LENGTH = 1024
MAX_NAME_LENGTH = 250
DEFAULT_NAME = "(default)"
"""The name of the default entity in requests. Kafka has no name for it."""


class Mechanism(Enum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


class QuotaKey(Enum):
    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


UNITS = {
    QuotaKey.PRODUCE.value: "B/s",
    QuotaKey.FETCH.value: "B/s",
    QuotaKey.REQUEST.value: "%",
    QuotaKey.MUTATION.value: "partitions/s",
    QuotaKey.CONNECTION.value: "connections/s",
}


# --- SCRAM users


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user with SCRAM credentials: the iterations by mechanism."""

    name: str
    mechanisms: dict[str, int]


@query("/scram-users", "List the users with SCRAM credentials", role=Role.ADMIN)
async def scram_users(context: Context) -> list[ScramUser]:
    users = await context.admin.describe_user_scram_credentials(timeout=TIMEOUT_S)
    return [ScramUser(name, mechanisms) for name, mechanisms in sorted(users.items())]


@action("/scram-users/set", "Create a SCRAM user, or change the password of a mechanism", role=Role.ADMIN)
async def set_scram_user(
    context: Context,
    name: Annotated[str, "The user", Bounds(1, MAX_NAME_LENGTH)],
    password: Annotated[str, "The password", SECRET, Bounds(1, MAX_PASSWORD_LENGTH)],
    mechanism: Annotated[Mechanism, "The mechanism"] = Mechanism.SHA_512,
    iterations: Annotated[int, "Iterations of the hash", Bounds(MIN_ITERATIONS, MAX_ITERATIONS)] = MIN_ITERATIONS,
) -> Done:
    """The password is not sent to the brokers, only its salted hash."""
    changes = {name: {mechanism.value: ScramPassword(password, iterations)}}
    await context.admin.alter_user_scram_credentials(changes, timeout=TIMEOUT_S)
    return Done(f"{name} has a password for {mechanism.value}", _path(context, "users"))


@action("/scram-users/delete", "Delete the SCRAM credential of a user", role=Role.ADMIN)
async def delete_scram_user(
    context: Context,
    name: Annotated[str, Bounds(1, MAX_NAME_LENGTH)],
    mechanism: Mechanism,
    confirm: Annotated[str, "The name, typed again"],
) -> Done:
    check_confirmation(typed=confirm, name=name)
    await context.admin.alter_user_scram_credentials({name: {mechanism.value: None}}, timeout=TIMEOUT_S)
    return Done(f"{name} has no credential for {mechanism.value} any more", _path(context, "users"))


@page("/security/users", "SCRAM users", nav="SCRAM users", icon="key-round", section="Security", role=Role.ADMIN)
async def scram_users_page(view: View) -> Response:
    error, users = "", []
    try:
        users = await scram_users(view.context)
    except KafkaError as failure:
        error = reason(failure)
    rows = [(user.name, mechanism, count) for user in users for mechanism, count in user.mechanisms.items()]
    return view.render(
        "scram_users.html", pager=Pager(view, rows), error=error, mechanisms=[m.value for m in reversed(Mechanism)]
    )


# --- quotas


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """The quotas of an entity. A part of the entity is None, or "(default)" for the default
    entity."""

    user: str | None
    client: str | None
    ip: str | None
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """The quota that applies to a client, and the entity that has it."""

    key: str
    value: float
    unit: str
    entity: str


@query("/quotas", "List the client quotas", role=Role.ADMIN)
async def list_quotas(context: Context) -> list[QuotaRow]:
    quotas = await context.admin.describe_client_quotas(timeout=TIMEOUT_S)
    ordered = sorted(quotas.items(), key=lambda item: tuple(part or "" for part in item[0]))
    return [QuotaRow(_shown(e.user), _shown(e.client_id), _shown(e.ip), values) for e, values in ordered]


def _shown(part: str | None) -> str | None:
    return DEFAULT_NAME if part == DEFAULT else part


@query("/quotas/effective", "Show which quotas apply to a client", role=Role.ADMIN)
async def effective_quotas(
    context: Context,
    user: Annotated[str, "The user, without User:", Bounds(0, MAX_NAME_LENGTH)] = "",
    client: Annotated[str, "The client id", Bounds(0, MAX_NAME_LENGTH)] = "",
    ip: Annotated[str, "The address", Bounds(0, 100)] = "",
) -> list[EffectiveQuota]:
    """For each quota the most specific entity decides: user and client, user and default client,
    user, then the same of the default user, then client, default client."""
    return effective(await context.admin.describe_client_quotas(timeout=TIMEOUT_S), user, client, ip)


def effective(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], user: str, client: str, ip: str
) -> list[EffectiveQuota]:
    client_entities = [QuotaEntity(*entity) for entity, _, _ in levels_of(user, client)]
    ip_entities = [QuotaEntity(ip=ip), QuotaEntity(ip=DEFAULT)]
    result = []
    for keys, entities in ((CLIENT_QUOTAS.keys, client_entities), (IP_QUOTAS.keys, ip_entities)):
        for key in keys:
            entity = next((entity for entity in entities if key in quotas.get(entity, {})), None)
            if entity is not None:
                result.append(EffectiveQuota(key, quotas[entity][key], UNITS[key], str(entity)))
    return result


@action("/quotas/set", "Set or remove a client quota", role=Role.ADMIN)
async def set_quota(
    context: Context,
    key: Annotated[QuotaKey, "The quota"],
    value: Annotated[float | None, "The bound. Without a value the quota is removed", Bounds(0, 2**53)] = None,
    user: Annotated[str, f"The user, without User:; {DEFAULT_NAME} for all others", Bounds(0, MAX_NAME_LENGTH)] = "",
    client: Annotated[str, f"The client id; {DEFAULT_NAME} for all others", Bounds(0, MAX_NAME_LENGTH)] = "",
    ip: Annotated[str, f"The address; {DEFAULT_NAME} for all others", Bounds(0, 100)] = "",
) -> Done:
    parts = [None if not part else DEFAULT if part == DEFAULT_NAME else part for part in (user, client, ip)]
    entity = QuotaEntity(*parts)
    is_of_ip = key is QuotaKey.CONNECTION
    if is_of_ip and (entity.ip is None or entity.user is not None or entity.client_id is not None):
        raise Refused(f"{key.value} belongs to an address alone", field="ip")
    if not is_of_ip and (entity.ip is not None or (entity.user is None and entity.client_id is None)):
        raise Refused(f"{key.value} belongs to a user, a client, or both", field="user")
    await context.admin.alter_client_quotas({entity: {key.value: value}}, timeout=TIMEOUT_S)
    outcome = "was removed" if value is None else f"is {value:g} {UNITS[key.value]}"
    return Done(f"{key.value} of {entity} {outcome}", _path(context, "quotas"))


@page("/security/quotas", "Quotas", nav="Quotas", icon="gauge", section="Security", role=Role.ADMIN)
async def quotas_page(view: View) -> Response:
    inputs = {name: view.text(name).strip() for name in ("user", "client", "ip")}
    error, rows, effective_rows = "", [], []
    try:
        rows = await list_quotas(view.context)
        if any(inputs.values()):
            effective_rows = await effective_quotas(view.context, **inputs)
    except KafkaError as failure:
        error = reason(failure)
    return view.render(
        "quotas.html",
        pager=Pager(view, [(row, key, value) for row in rows for key, value in row.values.items()]),
        effective=effective_rows,
        inputs=inputs,
        error=error,
        units=UNITS,
        keys=[key.value for key in QuotaKey],
        default_name=DEFAULT_NAME,
    )


def _path(context: Context, page_name: str) -> str:
    return f"/c/{context.cluster.name}/security/{page_name}"
