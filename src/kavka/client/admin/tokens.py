"""Delegation tokens."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable
from typing import Any

from kavka.client.admin.base import AdminBase
from kavka.client.admin.types import DelegationToken
from kavka.client.errors import error_of
from kavka.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from kavka.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from kavka.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kavka.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from kavka.security.delegation_tokens import parse_principal
from kavka.security.principal import Principal


class Tokens(AdminBase):
    async def create_delegation_token(
        self,
        *,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
        owner: str | None = None,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Create a token of the client's user, or of another `owner` if ACLs permit it. Principals
        have the form `User:alice`. The renewers may renew and expire the token. Without
        `max_lifetime_ms`, the broker's `delegation.token.max.lifetime.ms` applies."""
        principals = [parse_principal(renewer) for renewer in renewers]
        request = CreateDelegationTokenRequest(
            renewers=[CreatableRenewers(principal_type=type_, principal_name=name) for type_, name in principals],
            max_lifetime_ms=max_lifetime_ms,
        )
        if owner is not None:
            request.owner_principal_type, request.owner_principal_name = parse_principal(owner)

        async def attempt() -> DelegationToken:
            response = await self._request(None, request)
            if response.error_code:
                raise error_of(response.error_code)
            return _token(
                response,
                tuple(map(str, principals)),
                response.issue_timestamp_ms,
                response.expiry_timestamp_ms,
                response.max_timestamp_ms,
            )

        return await self._once("create_delegation_token", attempt, timeout)

    async def renew_delegation_token(
        self, hmac: bytes | str, *, renew_period_ms: int = -1, timeout: float | None = None
    ) -> int:
        """Renew the token with this HMAC (bytes, or base64 text) for a period from now, but not
        beyond its maximum lifetime. Without a period, the broker's
        `delegation.token.expiry.time.ms` applies. Returns the new expiry in milliseconds."""
        request = RenewDelegationTokenRequest(hmac=_hmac(hmac), renew_period_ms=renew_period_ms)
        return await self._once("renew_delegation_token", lambda: self._expiry(request), timeout)

    async def expire_delegation_token(
        self, hmac: bytes | str, *, expiry_period_ms: int = -1, timeout: float | None = None
    ) -> int:
        """End the token with this HMAC (bytes, or base64 text) after a period from now; at once if
        the period is negative. Returns the new expiry in milliseconds."""
        request = ExpireDelegationTokenRequest(hmac=_hmac(hmac), expiry_time_period_ms=expiry_period_ms)
        return await self._once("expire_delegation_token", lambda: self._expiry(request), timeout)

    async def describe_delegation_token(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """Return the tokens of these owners, by default of all owners, that the client's user may
        describe: as owner, requester or renewer, or because ACLs permit it."""
        principals = None if owners is None else [parse_principal(owner) for owner in owners]
        request = DescribeDelegationTokenRequest(
            owners=None
            if principals is None
            else [DescribeDelegationTokenOwner(principal_type=type_, principal_name=name) for type_, name in principals]
        )

        async def attempt() -> list[DelegationToken]:
            response = await self._request(None, request)
            if response.error_code:
                raise error_of(response.error_code)
            return [
                _token(
                    token,
                    tuple(str(Principal(item.principal_type, item.principal_name)) for item in token.renewers),
                    token.issue_timestamp,
                    token.expiry_timestamp,
                    token.max_timestamp,
                )
                for token in response.tokens
            ]

        return await self._once("describe_delegation_token", attempt, timeout)

    async def _expiry(self, request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest) -> int:
        response = await self._request(None, request)
        if response.error_code:
            raise error_of(response.error_code)
        expiry: int = response.expiry_timestamp_ms
        return expiry


def _hmac(hmac: bytes | str) -> bytes:
    return b64decode(hmac, validate=True) if isinstance(hmac, str) else hmac


def _token(
    message: Any, renewers: tuple[str, ...], issued_at_ms: int, expires_at_ms: int, max_at_ms: int
) -> DelegationToken:
    owner = str(Principal(message.principal_type, message.principal_name))
    # Versions before 3 have no requester: it is the owner.
    requester = (
        str(Principal(message.token_requester_principal_type, message.token_requester_principal_name))
        if message.token_requester_principal_name
        else owner
    )
    return DelegationToken(
        message.token_id, bytes(message.hmac), owner, requester, renewers, issued_at_ms, expires_at_ms, max_at_ms
    )
