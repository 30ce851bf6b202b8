"""RenewDelegationToken (key 39): moves the expiry of a token, within its maximum lifetime.

v0-v1  HMAC and period
v2     flexible
"""

from __future__ import annotations

from kavka.api.context import RequestContext
from kavka.api.delegation_tokens import check_expiry, token_of
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.metadata.store import StoreError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


@handles(ApiKey.RENEW_DELEGATION_TOKEN, versions=(0, 2))
async def handle(ctx: RequestContext, request: RenewDelegationTokenRequest) -> RenewDelegationTokenResponse:
    tokens, token = token_of(ctx, request.hmac)
    check_expiry(ctx, token)
    try:
        renewed = await tokens.renew(token, request.renew_period_ms)
    except StoreError as error:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, str(error)) from None
    return RenewDelegationTokenResponse(expiry_timestamp_ms=renewed.expires_at_ms)
