"""DeleteAcls (key 31): removes the ACLs that match filters.

v1     pattern types
v2     flexible
v3     user resource type

The response has the removed ACLs of each filter. An ACL that several filters match is in the result
of the first of them.
"""

from __future__ import annotations

from kavka.api.acl_filters import acl_filter, security_disabled
from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata.store import StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kavka.security.acls import AclBinding, Operation


def _on_error(request: DeleteAclsRequest, version: int, error: KafkaError) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[_error_result(error) for _ in request.filters])


@handles(ApiKey.DELETE_ACLS, versions=(0, 3), on_error=_on_error, needs=cluster(Operation.ALTER))
async def handle(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    if ctx.broker.acls is None:
        raise security_disabled("No Authorizer is configured.")
    filters = [acl_filter(message, ctx.version) for message in request.filters]
    results = await ctx.broker.acls.delete(filters)
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_message=None, matching_acls=[_matching_acl(*match) for match in matches])
            for matches in results
        ]
    )


def _matching_acl(binding: AclBinding, error: StoreError | None) -> DeleteAclsMatchingAcl:
    pattern, acl = binding
    return DeleteAclsMatchingAcl(
        error_code=0 if error is None else int(ErrorCode.UNKNOWN_SERVER_ERROR),
        error_message=None if error is None else str(error),
        resource_type=int(pattern.resource_type),
        resource_name=pattern.name,
        pattern_type=int(pattern.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _error_result(error: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=int(error.code), error_message=error.message)
