"""CreateAcls (key 30): adds ACLs. There is no authorizer, so all ACLs are rejected, as in Kafka.

v1     pattern types
v2     flexible
v3     user resource type
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


def _on_error(request: CreateAclsRequest, version: int, error: KafkaError) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=int(error.code), error_message=error.message) for _ in request.creations]
    )


@handles(ApiKey.CREATE_ACLS, versions=(0, 3), on_error=_on_error)
def handle(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
