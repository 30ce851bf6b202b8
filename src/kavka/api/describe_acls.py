"""DescribeAcls (key 29): lists the ACLs that match a filter.

v1     pattern types
v2     flexible
v3     user resource type
"""

from __future__ import annotations

from kavka.api.acl_filters import acl_filter, security_disabled
from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kavka.security.acls import Acl, Operation, ResourcePattern


@handles(ApiKey.DESCRIBE_ACLS, versions=(0, 3), needs=cluster(Operation.DESCRIBE))
def handle(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    if ctx.broker.acls is None:
        raise security_disabled("No Authorizer is configured on the broker")
    by_pattern: dict[ResourcePattern, list[Acl]] = {}
    for pattern, acl in ctx.broker.acls.table.bindings(acl_filter(request, ctx.version)):
        by_pattern.setdefault(pattern, []).append(acl)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=int(pattern.resource_type),
                resource_name=pattern.name,
                pattern_type=int(pattern.pattern_type),
                acls=[
                    AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=int(acl.operation),
                        permission_type=int(acl.permission),
                    )
                    for acl in acls
                ],
            )
            for pattern, acls in by_pattern.items()
        ],
    )
