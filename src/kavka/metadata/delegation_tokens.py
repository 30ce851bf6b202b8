"""The delegation tokens of a cluster: the znodes under /delegation_token/tokens, cached.

A change writes the znode and a notification in one transaction. Every broker watches the
notifications and reads the changed token. Expired tokens are ignored at once. Every broker removes
them from the tree, every `delegation.token.expiry.check.interval.ms`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import replace
from uuid import uuid4

from kavka.common.clock import Clock
from kavka.common.types import uuid_text
from kavka.metadata import paths
from kavka.metadata.notifications import NotificationFollower
from kavka.metadata.store import Create, Delete, MetadataStore, NodeExists, NoNode, Op, SetData, StoreError
from kavka.security.credentials import new_credential
from kavka.security.delegation_tokens import (
    DelegationToken,
    TokenFormatError,
    format_token,
    parse_token,
    token_hmac,
    token_password,
)
from kavka.security.principal import Principal
from kavka.security.sasl.scram import TokenCredential, TokenLookup

logger = logging.getLogger(__name__)

TOKENS = "/delegation_token/tokens"
CHANGES = "/delegation_token/token_changes"
CHANGE_PREFIX = "token_change_"
# The maximum number of tokens of a cluster. Without it a user could fill the memory of all brokers.
MAX_TOKENS = 100_000


class TooManyTokens(StoreError):
    """The cluster has the maximum number of tokens."""


class DelegationTokens:
    """Owns the tokens by id. Only the event loop may call the methods. `secret` is
    `delegation.token.secret.key`."""

    def __init__(
        self, store: MetadataStore, secret: str, clock: Clock, max_lifetime_ms: int, expiry_ms: int, check_s: float
    ) -> None:
        self._store = store
        self._secret = secret
        self._clock = clock
        self._max_lifetime_ms = max_lifetime_ms
        self._expiry_ms = expiry_ms
        self._check_s = check_s
        self._tokens: dict[str, DelegationToken] = {}
        self._ids_by_hmac: dict[bytes, str] = {}
        # By mechanism and id. Derived at the first use, because that takes milliseconds.
        self._credentials: dict[tuple[str, str], TokenCredential] = {}
        self._follower = NotificationFollower(store, CHANGES, CHANGE_PREFIX, self._on_notification, clock)
        self._removing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all tokens, and watch for changes. Raises StoreError."""
        await self._store.ensure(TOKENS)
        await self._store.ensure(CHANGES)
        await self._follower.start()
        for token_id in await self._store.children(TOKENS):
            await self._read(token_id)
        self._removing = asyncio.create_task(self._remove_expired())

    async def stop(self) -> None:
        if self._removing is not None:
            self._removing.cancel()
            await asyncio.gather(self._removing, return_exceptions=True)
        await self._follower.stop()

    # ---- reading

    def all(self) -> list[DelegationToken]:
        """The tokens that have not expired."""
        now_ms = self._clock.now_ms()
        return [token for token in self._tokens.values() if not token.is_expired(now_ms)]

    def hmac_of(self, token: DelegationToken) -> bytes:
        return token_hmac(self._secret, token.id)

    def by_hmac(self, code: bytes) -> DelegationToken | None:
        """The token with this HMAC, also if it has expired."""
        token_id = self._ids_by_hmac.get(code)
        token = None if token_id is None else self._tokens.get(token_id)
        return token if token is not None and hmac.compare_digest(self.hmac_of(token), code) else None

    def lookup(self, mechanism: str) -> TokenLookup:
        """Return the function from a token's id to its SCRAM credential."""

        def credential_of(token_id: str) -> TokenCredential | None:
            token = self._tokens.get(token_id)
            if token is None or token.is_expired(self._clock.now_ms()):
                return None
            cached = self._credentials.get((mechanism, token_id))
            if cached is None:
                credential = new_credential(mechanism, token_password(self._secret, token_id))
                cached = TokenCredential(credential, token.owner.name, token.expires_at_ms)
                self._credentials[mechanism, token_id] = cached
            return cached._replace(expires_at_ms=token.expires_at_ms)

        return credential_of

    # ---- changes

    async def create(
        self, owner: Principal, requester: Principal, renewers: tuple[Principal, ...], max_lifetime_ms: int
    ) -> DelegationToken:
        """Create a token. If `max_lifetime_ms` is not positive, the maximum lifetime is
        `delegation.token.max.lifetime.ms`. Raises StoreError."""
        if len(self._tokens) >= MAX_TOKENS:
            raise TooManyTokens(TOKENS, f"the cluster has {MAX_TOKENS} delegation tokens")
        now_ms = self._clock.now_ms()
        lifetime_ms = self._max_lifetime_ms if max_lifetime_ms <= 0 else min(max_lifetime_ms, self._max_lifetime_ms)
        max_at_ms = now_ms + lifetime_ms
        expires_at_ms = min(max_at_ms, now_ms + self._expiry_ms)
        token = DelegationToken(uuid_text(uuid4()), owner, requester, renewers, now_ms, max_at_ms, expires_at_ms)
        await self._write(token.id, Create(f"{TOKENS}/{token.id}", format_token(token)))
        self._apply(token)
        return token

    async def renew(self, token: DelegationToken, period_ms: int) -> DelegationToken:
        """Set the expiry to `period_ms` from now, within the token's maximum lifetime. If it is
        negative, `delegation.token.expiry.time.ms` is used. Raises StoreError."""
        period_ms = self._expiry_ms if period_ms < 0 else period_ms
        renewed = replace(token, expires_at_ms=min(token.max_at_ms, self._clock.now_ms() + period_ms))
        await self._write(token.id, SetData(f"{TOKENS}/{token.id}", format_token(renewed)))
        self._apply(renewed)
        return renewed

    async def remove(self, token: DelegationToken) -> None:
        """Remove a token. Raises StoreError; NoNode if another broker has removed it."""
        await self._write(token.id, Delete(f"{TOKENS}/{token.id}"))
        self._forget(token.id)

    async def _write(self, token_id: str, op: Op) -> None:
        notification = Create(f"{CHANGES}/{CHANGE_PREFIX}", token_id.encode(), sequential=True)
        await self._store.multi([op, notification])

    def _apply(self, token: DelegationToken) -> None:
        self._tokens[token.id] = token
        self._ids_by_hmac[self.hmac_of(token)] = token.id

    def _forget(self, token_id: str) -> None:
        if self._tokens.pop(token_id, None) is not None:
            self._ids_by_hmac.pop(token_hmac(self._secret, token_id), None)
        for key in [key for key in self._credentials if key[1] == token_id]:
            del self._credentials[key]

    async def _on_notification(self, data: bytes | None) -> None:
        try:
            token_id = (data or b"").decode()
        except UnicodeDecodeError:
            raise paths.MalformedNode("the notification of a delegation token is not text") from None
        if not token_id or "/" in token_id:
            raise paths.MalformedNode("the notification of a delegation token has no id")
        await self._read(token_id)

    async def _read(self, token_id: str) -> None:
        try:
            data, _ = await self._store.get(f"{TOKENS}/{token_id}")
        except NoNode:
            self._forget(token_id)
            return
        try:
            token = parse_token(data)
        except TokenFormatError as error:
            logger.error("Ignoring the delegation token %s: %s", token_id, error)
            self._forget(token_id)
            return
        if token.id == token_id:
            self._apply(token)

    async def _remove_expired(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            for token in [token for token in self._tokens.values() if token.is_expired(now_ms)]:
                try:
                    await self.remove(token)
                except (NoNode, NodeExists):
                    self._forget(token.id)
                except StoreError as error:
                    logger.warning("Cannot remove an expired delegation token: %s", error)
                    break
            await asyncio.sleep(self._check_s)
