"""DescribeAcls (key 29): lists ACLs. There is no authorizer, so the request is rejected.

v1     pattern types
v2     flexible
v3     user resource type
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


@handles(ApiKey.DESCRIBE_ACLS, versions=(0, 3))
def handle(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=int(ErrorCode.SECURITY_DISABLED), error_message="No Authorizer is configured on the broker"
    )
