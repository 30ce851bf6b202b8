"""CreateDelegationToken (key 38): creates a token for the user of the connection.

v0-v1  renewers and maximum lifetime
v2     flexible
v3     an owner other than the user of the connection
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.delegation_tokens import tokens_of
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata.store import StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from kavka.security.acls import Operation, ResourceType
from kavka.security.principal import USER, Principal


@handles(ApiKey.CREATE_DELEGATION_TOKEN, versions=(0, 3))
async def handle(ctx: RequestContext, request: CreateDelegationTokenRequest) -> CreateDelegationTokenResponse:
    tokens, requester = tokens_of(ctx)
    owner = requester
    if ctx.version >= 3 and request.owner_principal_name:
        owner = Principal(request.owner_principal_type or USER, request.owner_principal_name)
    renewers = tuple(Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers)
    if any(principal.type != USER for principal in (owner, *renewers)):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if owner != requester and (
        # Without an authorizer, no client may create tokens of another user.
        ctx.authorizer is None or not authorization.may(ctx, Operation.CREATE_TOKENS, ResourceType.USER, str(owner))
    ):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    try:
        token = await tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except StoreError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    return CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=token.issued_at_ms,
        expiry_timestamp_ms=token.expires_at_ms,
        max_timestamp_ms=token.max_at_ms,
        token_id=token.id,
        hmac=tokens.hmac_of(token),
    )
