"""Rules that the four requests for delegation tokens share.

A request is allowed only on a connection with a principal, and not on a connection that
authenticated with a token (`network/authentication.py` refuses these).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kavka.api.context import RequestContext
from kavka.common.errors import ErrorCode, KafkaError
from kavka.security.delegation_tokens import DelegationToken, parse_principal
from kavka.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kavka.metadata.delegation_tokens import DelegationTokens


def tokens_of(ctx: RequestContext) -> tuple[DelegationTokens, Principal]:
    """Return the tokens and the principal of the request. Raises KafkaError."""
    tokens = ctx.broker.delegation_tokens
    if tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    principal = parse_principal(ctx.principal)
    if principal == ANONYMOUS:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    return tokens, principal


def token_of(ctx: RequestContext, code: bytes) -> tuple[DelegationTokens, DelegationToken]:
    """Return the token with this HMAC, which the principal may change. Raises KafkaError."""
    tokens, principal = tokens_of(ctx)
    token = tokens.by_hmac(bytes(code))
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if not token.belongs_to(principal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    return tokens, token


def check_expiry(ctx: RequestContext, token: DelegationToken) -> None:
    if token.is_expired(ctx.broker.clock.now_ms()):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
