"""DeleteAcls (key 31): removes ACLs. There is no authorizer, so all filters are rejected.

v1     pattern types
v2     flexible
v3     user resource type
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def _on_error(request: DeleteAclsRequest, version: int, error: KafkaError) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=int(error.code), error_message=error.message) for _ in request.filters
        ]
    )


@handles(ApiKey.DELETE_ACLS, versions=(0, 3), on_error=_on_error)
def handle(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
