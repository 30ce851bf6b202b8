"""DescribeDelegationToken (key 41): the tokens that the client may see.

v0-v1  filter by owners
v2     flexible
v3     the user who requested the token

The response contains the HMAC, with which a client can authenticate. A user sees the tokens that
they own, requested or may renew, and those that an ACL permits (Describe on the token, or
DescribeTokens on its owner).
"""

from __future__ import annotations

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.delegation_tokens import tokens_of
from kavka.api.registry import handles
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kavka.security.acls import Operation, ResourceType
from kavka.security.delegation_tokens import DelegationToken
from kavka.security.principal import Principal


@handles(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(0, 3))
def handle(ctx: RequestContext, request: DescribeDelegationTokenRequest) -> DescribeDelegationTokenResponse:
    tokens, principal = tokens_of(ctx)
    owners = None
    if request.owners is not None:
        owners = {Principal(owner.principal_type, owner.principal_name) for owner in request.owners}
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, tokens.hmac_of(token))
            for token in tokens.all()
            if (owners is None or token.owner in owners) and (token.belongs_to(principal) or _may_describe(ctx, token))
        ]
    )


def _may_describe(ctx: RequestContext, token: DelegationToken) -> bool:
    """Whether the client may describe a token of another user: the token, or all tokens of its
    owner. Without an authorizer, no client may."""
    if ctx.authorizer is None:
        return False
    return authorization.may(
        ctx, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.id, log_denied=False
    ) or authorization.may(ctx, Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner), log_denied=False)


def _described(token: DelegationToken, hmac: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_at_ms,
        expiry_timestamp=token.expires_at_ms,
        max_timestamp=token.max_at_ms,
        token_id=token.id,
        hmac=hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=renewer.type, principal_name=renewer.name)
            for renewer in token.renewers
        ],
    )
