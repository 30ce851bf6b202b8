"""CreateAcls (key 30): adds ACLs.

v1     pattern types
v2     flexible
v3     user resource type

An ACL that exists already is not an error. The response is sent when the ACLs are stored and in
effect on this broker.
"""

from __future__ import annotations

from kavka.api.acl_filters import MIN_PATTERN_TYPES_VERSION, security_disabled
from kavka.api.authorization import cluster
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata.store import StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
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


def _on_error(request: CreateAclsRequest, version: int, error: KafkaError) -> CreateAclsResponse:
    return CreateAclsResponse(results=[_result(error) for _ in request.creations])


@handles(ApiKey.CREATE_ACLS, versions=(0, 3), on_error=_on_error, needs=cluster(Operation.ALTER))
async def handle(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    if ctx.broker.acls is None:
        raise security_disabled("No Authorizer is configured.")
    bindings: list[AclBinding] = []
    outcomes: list[KafkaError | None] = []
    for creation in request.creations:
        try:
            bindings.append(_binding(creation, ctx.version))
            outcomes.append(None)
        except KafkaError as error:
            outcomes.append(error)
    errors = iter(await ctx.broker.acls.create(bindings))
    return CreateAclsResponse(
        results=[_result(outcome or _as_kafka_error(next(errors))) for outcome in outcomes],
    )


def _binding(creation: AclCreation, version: int) -> AclBinding:
    """Return the binding to create. Raises INVALID_REQUEST."""
    pattern_type = creation.resource_pattern_type if version >= MIN_PATTERN_TYPES_VERSION else PatternType.LITERAL
    pattern = ResourcePattern(
        ResourceType.of(creation.resource_type), creation.resource_name, PatternType.of(pattern_type)
    )
    acl = Acl(
        creation.principal,
        creation.host,
        Operation.of(creation.operation),
        Permission.of(creation.permission_type),
    )
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not pattern.name:
        raise _invalid("Invalid empty resource name")
    if (
        pattern.resource_type <= ResourceType.ANY
        or pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED)
        or acl.operation <= Operation.ANY
        or acl.permission <= Permission.ANY
    ):
        raise _invalid("The ACL has unknown elements, or ANY or MATCH, which only filters can have")
    principal_type, _, name = acl.principal.partition(":")
    if not principal_type or not name:
        raise _invalid(f"expected a string in format principalType:principalName but got {acl.principal}")
    if "/" in pattern.name:
        raise _invalid("A resource name of an ACL cannot contain a slash")
    return AclBinding(pattern, acl)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _as_kafka_error(error: StoreError | ValueError | None) -> KafkaError | None:
    if isinstance(error, ValueError):
        return _invalid(f"The ACL cannot be stored: {error}")
    return None if error is None else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _result(error: KafkaError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_message=None)
    return AclCreationResult(error_code=int(error.code), error_message=error.message)
