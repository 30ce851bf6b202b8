"""Brokers with an authorizer, and ACLs for them.

Clients of a PLAINTEXT listener are `User:ANONYMOUS`. Kavka handles requests to itself without the
authorizer, so the ACLs of that user apply to clients only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kavka.metadata import paths
from kavka.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kavka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kavka.protocol.messages.describe_acls import DescribeAclsRequest
from kavka.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.support.kavka_process import KavkaProcess, create_znodes
from tests.support.messages import Messages

ANONYMOUS = "User:ANONYMOUS"
# The fields of a filter that matches every ACL.
EVERYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
AUTHORIZER = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}


def acl(
    operation: Operation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
    pattern_type: PatternType = PatternType.LITERAL,
    *,
    principal: str = ANONYMOUS,
    host: str = "*",
    permission: Permission = Permission.ALLOW,
) -> AclBinding:
    return AclBinding(ResourcePattern(resource_type, name, pattern_type), Acl(principal, host, operation, permission))


def start_with_acls(folder: Path, *bindings: AclBinding, overrides: Mapping[str, object] | None = None) -> KavkaProcess:
    """Start a broker with an authorizer and these ACLs."""
    broker = KavkaProcess(folder, overrides=AUTHORIZER | dict(overrides or {}), start=False)
    broker.log_dirs[0].mkdir(parents=True, exist_ok=True)
    nodes = {
        paths.acls(pattern): paths.encode_acls(frozenset(b.acl for b in bindings if b.pattern == pattern))
        for pattern in {b.pattern for b in bindings}
    }
    create_znodes(broker.log_dirs[0], nodes)
    broker.start()
    return broker


def create_acls(client: Messages, bindings: Iterable[AclBinding]) -> None:
    """Add ACLs through the broker of this connection."""
    creations = [
        AclCreation(
            resource_type=int(pattern.resource_type),
            resource_name=pattern.name,
            resource_pattern_type=int(pattern.pattern_type),
            principal=entry.principal,
            host=entry.host,
            operation=int(entry.operation),
            permission_type=int(entry.permission),
        )
        for pattern, entry in bindings
    ]
    if creations:
        results = client.call(CreateAclsRequest(creations=creations), 2).results
        assert not any(result.error_code for result in results), results


def describe_acls(client: Messages) -> list[AclBinding]:
    """Return all ACLs that the broker of this connection applies, sorted."""
    response = client.call(DescribeAclsRequest(**EVERYTHING), 2)
    assert not response.error_code
    return sorted(
        acl(
            Operation(entry.operation),
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            principal=entry.principal,
            host=entry.host,
            permission=Permission(entry.permission_type),
        )
        for resource in response.resources
        for entry in resource.acls
    )


def delete_acls(client: Messages, **fields: Any) -> None:
    """Remove the ACLs that match the fields of a filter, through the broker of this connection."""
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING | fields)])
    (result,) = client.call(request, 2).filter_results
    assert not result.error_code and not any(match.error_code for match in result.matching_acls)
