"""ACLs: by principal and by resource, create, delete, and an explanation of decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, TypeVar

from starlette.responses import Response

from kavka.client.admin.types import ConfigResource
from kavka.common.broker_config_security import parse_principals
from kavka.common.errors import ErrorCode, KafkaError
from kavka.console.access import AclRow, Decision, acl_row, explain_access, filter_of
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation
from kavka.console.errors import Refused
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.views import Pager, View, page
from kavka.security.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    OPERATIONS,
    RESOURCE_TYPES,
    Acl,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

T = TypeVar("T")

TIMEOUT_S = 10.0
AUTHORIZER_SETTINGS = ("super.users", "allow.everyone.if.no.acl.found")
NO_AUTHORIZER = (
    "the brokers have no authorizer, so every client may do everything: set authorizer.class.name="
    "kafka.security.authorizer.AclAuthorizer (on KRaft org.apache.kafka.metadata.authorizer.StandardAuthorizer) and "
    "super.users, and restart the brokers"
)

# Choices of forms and of the API, in Kafka's spelling.
ResourceChoice = Enum("ResourceChoice", {t.name: t.text for t in RESOURCE_TYPES})  # type: ignore[misc]
OperationChoice = Enum("OperationChoice", {o.name: o.text for o in tuple(Operation)[2:]})  # type: ignore[misc]


class PatternChoice(Enum):
    LITERAL = "Literal"
    PREFIXED = "Prefixed"


class PermissionChoice(Enum):
    ALLOW = "Allow"
    DENY = "Deny"


@dataclass(frozen=True, slots=True)
class AclPrincipal:
    """A principal with the number of its ACLs."""

    principal: str
    allow: int
    deny: int


async def of_authorizer(request: Awaitable[T]) -> T:
    """Return the result of a request about ACLs. Raises Refused if the brokers have no
    authorizer."""
    try:
        return await request
    except KafkaError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            raise Refused(NO_AUTHORIZER, 409) from None
        raise


@query("/acls", "List the ACLs", role=Role.ADMIN)
async def list_acls(
    context: Context,
    principal: Annotated[str, "Only ACLs of this principal", Bounds(0, 1000)] = "",
    resource_type: Annotated[ResourceChoice | None, "Only ACLs of this type of resource"] = None,
    name: Annotated[str, "Only ACLs that apply to the resource with this name", Bounds(0, 1000)] = "",
) -> list[AclRow]:
    bindings = await of_authorizer(context.admin.describe_acls(timeout=TIMEOUT_S))
    kind = None if resource_type is None else ResourceType[resource_type.name]
    return [
        acl_row(binding)
        for binding in bindings
        if principal in ("", binding.acl.principal)
        and kind in (None, binding.pattern.resource_type)
        and (not name or _applies(binding.pattern, name))
    ]


def _applies(pattern: ResourcePattern, name: str) -> bool:
    if pattern.pattern_type is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, "*")


@query("/acls/principals", "List the principals with ACLs", role=Role.ADMIN)
async def acl_principals(context: Context) -> list[AclPrincipal]:
    principals: dict[str, AclPrincipal] = {}
    for binding in await of_authorizer(context.admin.describe_acls(timeout=TIMEOUT_S)):
        row = principals.get(binding.acl.principal, AclPrincipal(binding.acl.principal, 0, 0))
        is_allow = binding.acl.permission is Permission.ALLOW
        principals[row.principal] = replace(row, allow=row.allow + is_allow, deny=row.deny + (not is_allow))
    return sorted(principals.values(), key=lambda row: row.principal)


@query("/acls/explain", "Explain why a request would be allowed or denied", role=Role.ADMIN)
async def explain_acl(
    context: Context,
    principal: Annotated[str, "For example User:alice", Bounds(1, 1000)],
    operation: Annotated[OperationChoice, "The operation"],
    resource_type: Annotated[ResourceChoice, "The type of the resource"],
    name: Annotated[str, "The name of the resource", Bounds(0, 1000)] = CLUSTER_NAME,
    host: Annotated[str, "The address of the client", Bounds(0, 100)] = ANY_HOST,
) -> Decision:
    """Decides by the rules of Kafka's authorizer, with the cluster's ACLs and super users."""
    acl = _acl(principal, host, PermissionChoice.ALLOW, operation)
    pattern = _pattern(resource_type, name, PatternChoice.LITERAL)
    check_operation(acl.operation, pattern.resource_type, may_be_all=False)
    bindings, (super_users, allow_without_acls, note) = await asyncio.gather(
        of_authorizer(context.admin.describe_acls(timeout=TIMEOUT_S)), authorizer_settings(context)
    )
    decision = explain_access(
        bindings, acl.principal, acl.host, acl.operation, pattern.resource_type, pattern.name,
        super_users=super_users, allow_without_acls=allow_without_acls,
    )  # fmt: skip
    if not note or (decision.allowed and decision.rule == "acl"):
        return decision
    return replace(decision, reason=f"{decision.reason}. {note}")


async def authorizer_settings(context: Context) -> tuple[tuple[str, ...], bool, str]:
    """Return the super users and `allow.everyone.if.no.acl.found` of a broker, and a note if the
    broker does not return them, as Apache Kafka."""
    broker = next(iter((await context.cluster.state()).nodes), None)
    if broker is None:
        raise Refused("no broker is available", 503)
    resource = ConfigResource.broker(broker)
    entries = (await context.admin.describe_configs(resource, timeout=TIMEOUT_S))[resource]
    values = {name: entries[name].value for name in AUTHORIZER_SETTINGS if name in entries}
    hidden = [name for name, value in values.items() if value is None]
    note = f"The brokers do not return {' and '.join(hidden)}: the decision assumes the default." if hidden else ""
    try:
        super_users = parse_principals(values.get("super.users") or "")
    except ValueError:
        super_users = ()
    return super_users, values.get("allow.everyone.if.no.acl.found") == "true", note


def check_operation(operation: Operation, resource_type: ResourceType, may_be_all: bool = True) -> None:
    """Raise Refused if resources of the type do not support the operation."""
    operations = OPERATIONS[resource_type] + ((Operation.ALL,) if may_be_all else ())
    if operation not in operations:
        names = ", ".join(o.text for o in operations)
        raise Refused(f"a resource of the type {resource_type.text} supports {names}", field="operation")


@action("/acls/create", "Create an ACL", role=Role.ADMIN)
async def create_acl(
    context: Context,
    principal: Annotated[str, "For example User:alice, or User:* for every user", Bounds(1, 1000)],
    operation: Annotated[OperationChoice, "The operation"],
    resource_type: Annotated[ResourceChoice, "The type of the resource"],
    name: Annotated[str, "The name or prefix of the resource, * for all. Default: the cluster", Bounds(0, 1000)] = "",
    pattern: Annotated[PatternChoice, "Whether the name is a prefix"] = PatternChoice.LITERAL,
    permission: Annotated[PermissionChoice, "Allow or deny"] = PermissionChoice.ALLOW,
    host: Annotated[str, "The address of the client, * for every address", Bounds(0, 100)] = ANY_HOST,
) -> Done:
    binding = _binding(principal, operation, resource_type, name, pattern, permission, host)
    check_operation(binding.acl.operation, binding.pattern.resource_type)
    await of_authorizer(context.admin.create_acls(binding, timeout=TIMEOUT_S))
    return Done(f"the ACL of {binding.acl.principal} was created", f"/c/{context.cluster.name}/security")


@action("/acls/delete", "Delete an ACL", role=Role.ADMIN)
async def delete_acl(
    context: Context,
    principal: Annotated[str, Bounds(1, 1000)],
    operation: OperationChoice,
    resource_type: ResourceChoice,
    confirm: Annotated[str, "The principal, typed again"],
    name: Annotated[str, Bounds(0, 1000)] = "",
    pattern: PatternChoice = PatternChoice.LITERAL,
    permission: PermissionChoice = PermissionChoice.ALLOW,
    host: Annotated[str, Bounds(0, 100)] = ANY_HOST,
) -> Done:
    binding = _binding(principal, operation, resource_type, name, pattern, permission, host)
    check_confirmation(typed=confirm, name=principal)
    acl_filter = filter_of(binding)
    removed = await of_authorizer(context.admin.delete_acls(acl_filter, timeout=TIMEOUT_S))
    if not removed[acl_filter]:
        raise Refused("there is no such ACL: it was deleted meanwhile", 404)
    return Done(f"the ACL of {binding.acl.principal} was deleted", f"/c/{context.cluster.name}/security")


def _binding(
    principal: str,
    operation: OperationChoice,
    resource_type: ResourceChoice,
    name: str,
    pattern: PatternChoice,
    permission: PermissionChoice,
    host: str,
) -> AclBinding:
    return AclBinding(_pattern(resource_type, name, pattern), _acl(principal, host, permission, operation))


def _acl(principal: str, host: str, permission: PermissionChoice, operation: OperationChoice) -> Acl:
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise Refused("a principal has the form User:name", field="principal")
    return Acl(principal, host.strip() or ANY_HOST, Operation[operation.name], Permission[permission.name])


def _pattern(resource_type: ResourceChoice, name: str, pattern: PatternChoice) -> ResourcePattern:
    kind = ResourceType[resource_type.name]
    if kind is ResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME) or pattern is not PatternChoice.LITERAL:
            raise Refused(f"the name of the cluster is {CLUSTER_NAME}", field="name")
        name = CLUSTER_NAME
    if not name:
        raise Refused("the name of the resource is missing", field="name")
    return ResourcePattern(kind, name, PatternType[pattern.name])


@page("/security", "ACLs", nav="ACLs", icon="lock", section="Security", role=Role.ADMIN)
async def acls_page(view: View) -> Response:
    context = view.context
    principals: list[AclPrincipal] = []
    rows: list[AclRow] = []
    error, decision = "", None
    inputs = {name: view.text(name).strip() for name in ("principal", "name", "host", "operation", "resource_type")}
    kind = next((choice for choice in ResourceChoice if choice.value == inputs["resource_type"]), None)
    try:
        rows = await list_acls(context, inputs["principal"], kind, inputs["name"])
        principals = await acl_principals(context)
        if view.flag("explain"):
            operation = next((choice for choice in OperationChoice if choice.value == inputs["operation"]), None)
            if kind is None or operation is None:
                raise Refused("select an operation and a type of resource")
            decision = await explain_acl(
                context, inputs["principal"], operation, kind, inputs["name"], inputs["host"] or ANY_HOST
            )
    except Refused as refusal:
        error = str(refusal)
    return view.render(
        "security.html",
        pager=Pager(view, rows),
        principals=principals,
        inputs=inputs,
        error=error,
        decision=decision,
        explains=view.flag("explain"),
        resource_types=[choice.value for choice in ResourceChoice],
        operations=[choice.value for choice in OperationChoice],
    )
