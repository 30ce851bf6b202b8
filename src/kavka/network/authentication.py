"""SASL on a connection: which requests are allowed before and after authentication.

    INITIAL        ApiVersions and SaslHandshake
    EXCHANGE       SaslAuthenticate (after SaslHandshake v1) and ApiVersions
    RAW_EXCHANGE   every frame is a token without a header (after SaslHandshake v0)
    AUTHENTICATED  all requests; SaslHandshake starts a re-authentication
    FAILED         nothing: the connection closes after the delayed error response

A re-authentication is an EXCHANGE of a connection that has a principal. A session ends at
`connections.max.reauth.ms` or when the credential expires, whichever is first. A later request
other than SaslHandshake and SaslAuthenticate closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import TimerHandle
from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any

from kavka.api import registry
from kavka.common.errors import ErrorCode, KafkaError
from kavka.network.listener_security import ListenerSecurity
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kavka.protocol.primitives import ProtocolError
from kavka.security.principal import USER, Principal
from kavka.security.sasl import Identity, SaslError, SaslServer

if TYPE_CHECKING:
    from kavka.network.connection import Connection

logger = logging.getLogger(__name__)

_KEY = Struct(">h")
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_SASL_HANDSHAKE = int(ApiKey.SASL_HANDSHAKE)
_SASL_AUTHENTICATE = int(ApiKey.SASL_AUTHENTICATE)
_SASL_KEYS = frozenset({_SASL_HANDSHAKE, _SASL_AUTHENTICATE})
# A client that authenticated with a delegation token may not create or extend tokens.
_TOKEN_KEYS = frozenset(
    {
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)

# A connection that is not authenticated after this time is closed.
TIMEOUT_S = 30.0
# A client that sends more messages in one exchange does not follow any mechanism.
MAX_MESSAGES = 8


class State(Enum):
    INITIAL = "initial"
    EXCHANGE = "exchange"
    RAW_EXCHANGE = "raw exchange"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


# The request keys that a state allows. AUTHENTICATED allows all, RAW_EXCHANGE has no keys.
ALLOWED = {
    State.INITIAL: frozenset({_API_VERSIONS, _SASL_HANDSHAKE}),
    State.EXCHANGE: frozenset({_API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE}),
    State.FAILED: frozenset(),
}


class Authenticator:
    """Owns the SASL state of one connection. Every frame of the connection passes `on_frame`."""

    __slots__ = (
        "_connection", "_exchange", "_expires_at", "_mechanism", "_messages", "_principal",
        "_security", "_timer", "state",
    )  # fmt: skip

    def __init__(self, connection: Connection, security: ListenerSecurity) -> None:
        self.state = State.INITIAL
        self._connection = connection
        self._security = security
        self._mechanism = ""
        self._exchange: SaslServer | None = None
        self._messages = 0
        self._principal: Principal | None = None
        # On the clock of the loop. None for a session without an end.
        self._expires_at: float | None = None
        self._timer: TimerHandle | None = connection.loop.call_later(TIMEOUT_S, self._on_timeout)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_authenticated(self) -> bool:
        return self._principal is not None

    def _on_timeout(self) -> None:
        self._timer = None
        logger.info(
            "Closing the connection from %s on listener %s: not authenticated within %g s",
            self._connection.address, self._security.name, TIMEOUT_S,
        )  # fmt: skip
        self._security.count_failure()
        self._connection.close()

    # ---- frames

    def on_frame(self, data: memoryview) -> None:
        """Handle one frame. Raises ProtocolError."""
        if self.state is State.RAW_EXCHANGE:
            self._on_raw_token(bytes(data))
            return
        if len(data) < 8:
            raise ProtocolError("the request is shorter than its header")
        (key,) = _KEY.unpack_from(data)
        if self.state is State.AUTHENTICATED:
            if key in _SASL_KEYS:
                self._handle(key, data)
                return
            if self._expires_at is not None and self._connection.loop.time() > self._expires_at:
                logger.info(
                    "Closing the connection of %s from %s: its session has expired",
                    self._principal, self._connection.address,
                )  # fmt: skip
                raise ProtocolError("the session has expired and the client did not authenticate again")
            if self._connection.is_token and key in _TOKEN_KEYS:
                self._connection.handle_with(data, lambda version, request: self._refuse(key, version, request))
                return
            self._connection.handle(data)
            return
        if key not in ALLOWED[self.state]:
            self._security.count_failure()
            raise ProtocolError(f"a request with API key {key} before authentication{_hint(data)}")
        if key == _API_VERSIONS:
            self._connection.handle(data)
        else:
            self._handle(key, data)

    def _refuse(self, key: int, version: int, request: Any) -> Any:
        error = KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        return registry.load()[key].on_error(request, version, error)

    def _handle(self, key: int, data: memoryview) -> None:
        self._connection.handle_with(data, self._on_handshake if key == _SASL_HANDSHAKE else self._on_authenticate)
        if self.state is State.FAILED:
            self._connection.end_input()

    # ---- requests

    def _on_handshake(self, version: int, request: SaslHandshakeRequest) -> Any:
        mechanisms = self._security.mechanisms
        mechanism = mechanisms.get(request.mechanism)
        if mechanism is None:
            response = SaslHandshakeResponse(
                error_code=int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), mechanisms=sorted(mechanisms)
            )
            return self._fail(response, f"the mechanism {request.mechanism[:64]!r} is not enabled")
        if self._principal is not None and request.mechanism != self._mechanism:
            response = SaslHandshakeResponse(
                error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=sorted(mechanisms)
            )
            return self._fail(response, f"re-authentication with {request.mechanism} instead of {self._mechanism}")
        self._mechanism = request.mechanism
        self._exchange = mechanism.new_exchange()
        self._messages = 0
        self.state = State.EXCHANGE if version > 0 else State.RAW_EXCHANGE
        return SaslHandshakeResponse(mechanisms=sorted(mechanisms))

    def _on_authenticate(self, version: int, request: SaslAuthenticateRequest) -> Any:
        if self.state is not State.EXCHANGE:
            response = SaslAuthenticateResponse(
                error_code=int(ErrorCode.ILLEGAL_SASL_STATE),
                error_message="SaslAuthenticate request received before SaslHandshake",
            )
            return self._fail(response, "SaslAuthenticate before SaslHandshake")
        try:
            token = self._respond(bytes(request.auth_bytes))
        except SaslError as error:
            response = SaslAuthenticateResponse(
                error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED), error_message=str(error)
            )
            return self._fail(response, error.detail)
        lifetime_ms = self._complete_if_done()
        return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)

    def _on_raw_token(self, message: bytes) -> None:
        try:
            token = self._respond(message)
        except SaslError as error:
            # A raw exchange has no message for errors: the end of the connection is the response.
            self._connection.end_after(self._fail(None, error.detail))
            return
        self._connection.send_raw(token)
        self._complete_if_done()

    def _respond(self, message: bytes) -> bytes:
        self._messages += 1
        if self._messages > MAX_MESSAGES or self._exchange is None:
            raise SaslError("Unexpected SASL message")
        token = self._exchange.respond(message)
        identity = self._exchange.identity
        if identity is not None and self._principal is not None and self._principal.name != identity.name:
            raise SaslError(
                f"Cannot change principals during re-authentication from {self._principal} to {USER}:{identity.name}"
            )
        return token

    # ---- results

    def _complete_if_done(self) -> int:
        """Complete a successful exchange. Returns the lifetime of the session in ms, 0 for no
        limit."""
        assert self._exchange is not None
        identity = self._exchange.identity
        if identity is None:
            return 0
        self.close()
        self._exchange = None
        self.state = State.AUTHENTICATED
        self._security.count_success()
        lifetime_ms = self._lifetime_ms(identity)
        loop = self._connection.loop
        self._expires_at = None if lifetime_ms is None else loop.time() + lifetime_ms / 1000
        if self._principal is None:
            self._principal = Principal(USER, identity.name)
            self._connection.on_authenticated(self._principal, identity.is_token)
        return lifetime_ms or 0

    def _lifetime_ms(self, identity: Identity) -> int | None:
        limits = []
        max_reauth_ms = self._security.mechanisms[self._mechanism].max_reauth_ms
        if max_reauth_ms > 0:
            limits.append(max_reauth_ms)
        if identity.expires_at_ms is not None:
            limits.append(max(0, identity.expires_at_ms - self._connection.now_ms()))
        return min(limits) if limits else None

    def _note_failure(self, detail: str) -> None:
        self.state = State.FAILED
        self._exchange = None
        self._security.count_failure()
        logger.info(
            "Failed authentication of %s on listener %s%s: %s",
            self._connection.address, self._security.name, f" ({self._mechanism})" if self._mechanism else "", detail,
        )  # fmt: skip

    def _fail(self, response: Any, detail: str) -> Any:
        """Return a coroutine of the delayed response, after which the connection closes."""
        self._note_failure(detail)

        async def delayed() -> Any:
            await asyncio.sleep(self._security.failure_delay_s)
            return response

        return delayed()


def _hint(data: memoryview) -> str:
    # A ClientHello, read as a request: 0x16 0x03 is the API key 5635.
    return "; the peer uses TLS" if data[0] == 0x16 and data[1] == 0x03 else ""
