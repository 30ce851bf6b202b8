"""Explains authorization decisions. No I/O.

`Authorizer` decides, as in a broker. The explanation names the deciding ACLs: the ACLs that deny
the operation, otherwise the ACLs that allow it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kavka.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from kavka.security.authorizer import AclTable, Authorizer, bit, subjects_of

# Operations that an allowed operation includes.
INCLUDED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


@dataclass(frozen=True, slots=True)
class AclRow:
    """An ACL. `pattern` is literal or prefixed; the other values are in Kafka's spelling."""

    principal: str
    host: str
    permission: str
    operation: str
    resource_type: str
    name: str
    pattern: str


def acl_row(binding: AclBinding) -> AclRow:
    pattern, acl = binding
    return AclRow(
        acl.principal,
        acl.host,
        acl.permission.text,
        acl.operation.text,
        pattern.resource_type.text,
        pattern.name,
        pattern.pattern_type.text,
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision and its reason. `rule` is "super user", "default" or "acl". `acls` are the
    deciding ACLs."""

    allowed: bool
    rule: str
    reason: str
    acls: list[AclRow]


def table_of(bindings: Iterable[AclBinding]) -> AclTable:
    by_pattern: dict[ResourcePattern, set[Acl]] = {}
    for pattern, acl in bindings:
        by_pattern.setdefault(pattern, set()).add(acl)
    table = AclTable()
    for pattern, acls in by_pattern.items():
        table.replace(pattern, frozenset(acls))
    return table


def explain_access(
    bindings: Collection[AclBinding],
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    super_users: Collection[str] = (),
    allow_without_acls: bool = False,
) -> Decision:
    """Decide whether the principal may perform the operation on the resource, and explain why."""
    authorizer = Authorizer(table_of(bindings), super_users, allow_without_acls)
    allowed = bool(authorizer.operations(principal, host, resource_type, name) & bit(operation))
    if principal in super_users:
        return Decision(allowed, "super user", f"{principal} is a super user", [])
    resource = f"{resource_type.text} {name}"
    applicable = PatternFilter(resource_type, name, PatternType.MATCH)
    matching = [binding for binding in bindings if applicable.matches(binding.pattern)]
    if not matching:
        reason = (
            f"no ACL applies to {resource}, and allow.everyone.if.no.acl.found is {str(allow_without_acls).lower()}"
        )
        return Decision(allowed, "default", reason, [])
    subjects = subjects_of(principal, host)
    of_principal = [binding for binding in matching if (binding.acl.principal, binding.acl.host) in subjects]
    denying = _with(of_principal, Permission.DENY, (operation, Operation.ALL))
    if denying:
        return Decision(allowed, "acl", f"an ACL denies {operation.text}", [acl_row(b) for b in denying])
    allowing = _with(of_principal, Permission.ALLOW, (operation, Operation.ALL, *INCLUDED_BY.get(operation, ())))
    if allowing:
        return Decision(allowed, "acl", f"an ACL allows {operation.text}", [acl_row(b) for b in allowing])
    reason = f"ACLs apply to {resource}, and none allows {operation.text} for {principal} from {host}"
    return Decision(allowed, "default", reason, [])


def _with(
    bindings: Iterable[AclBinding], permission: Permission, operations: Collection[Operation]
) -> list[AclBinding]:
    return [b for b in bindings if b.acl.permission is permission and b.acl.operation in operations]


def filter_of(binding: AclBinding) -> AclFilter:
    """Return the filter that matches only this binding."""
    pattern, acl = binding
    return AclFilter(PatternFilter(*pattern), acl.principal, acl.host, acl.operation, acl.permission)
