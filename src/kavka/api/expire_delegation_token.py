"""ExpireDelegationToken (key 40): ends a token, at once with a negative period.

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
from kavka.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


@handles(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(0, 2))
async def handle(ctx: RequestContext, request: ExpireDelegationTokenRequest) -> ExpireDelegationTokenResponse:
    tokens, token = token_of(ctx, request.hmac)
    try:
        if request.expiry_time_period_ms < 0:
            await tokens.remove(token)
            return ExpireDelegationTokenResponse(expiry_timestamp_ms=ctx.broker.clock.now_ms())
        check_expiry(ctx, token)
        changed = await tokens.renew(token, request.expiry_time_period_ms)
    except StoreError as error:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, str(error)) from None
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=changed.expires_at_ms)
