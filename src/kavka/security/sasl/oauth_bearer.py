"""[pure] The mechanism OAUTHBEARER (RFC 7628): the client sends a token, the server validates it.

On an invalid token the server responds with a JSON text, to which the client sends one byte 0x01,
before the server fails the exchange.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kavka.security.sasl import OAUTHBEARER, Identity, SaslError, check_authorization_id, invalid_credentials

_SEPARATOR = "\x01"
_INITIAL = re.compile(r"n,(?:a=(?P<authzid>[^,]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01")
_BEARER = re.compile(r"bearer +(?P<token>[-_.~+/A-Za-z0-9]+=*)", re.IGNORECASE)
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


class TokenError(Exception):
    """The token is invalid. `str()` is the reason, for the log."""


class Token(NamedTuple):
    """A validated token."""

    principal: str
    expires_at_ms: int
    scope: frozenset[str] = frozenset()


# Returns the validated token of a text. Raises TokenError.
Validate = Callable[[str], Token]


class OAuthBearerServer:
    """The authentication of one connection, on the side of the broker. After a rejected token the
    client sends one more message, and `respond` raises the reason."""

    mechanism = OAUTHBEARER

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._failure: str | None = None
        self.identity: Identity | None = None

    def respond(self, message: bytes) -> bytes:
        if self.identity is not None:
            raise SaslError("Unexpected SASL message: the authentication is complete")
        if self._failure is not None:
            raise invalid_credentials(self.mechanism, self._failure)
        authorization_id, text, extensions = _parse_initial(message)
        try:
            token = self._validate(text)
        except TokenError as error:
            self._failure = str(error)
            return b'{"status":"invalid_token"}'
        check_authorization_id(authorization_id, token.principal)
        self.identity = Identity(token.principal, token.expires_at_ms, extensions=extensions)
        return b""


def _parse_initial(message: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the authorization id, the token and the extensions."""
    try:
        match = _INITIAL.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise SaslError("Invalid OAUTHBEARER client first message")
    extensions = dict(pair.partition("=")[::2] for pair in match["pairs"].split(_SEPARATOR) if pair)
    bearer = _BEARER.fullmatch(extensions.pop("auth", ""))
    if bearer is None:
        raise SaslError("Invalid OAUTHBEARER client first message: 'auth' is not a bearer token")
    return match["authzid"] or "", bearer["token"], extensions


class OAuthBearerClient:
    """The authentication of one connection, on the side of the client. `extensions` are sent to the
    broker as they are."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self._token = token
        self._extensions = dict(extensions or {})
        self._failure: str | None = None
        self.is_complete = False
        for name, value in self._extensions.items():
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
                raise SaslError(f"the SASL extension {name!r} is not allowed")

    def initial(self) -> bytes:
        pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in self._extensions.items())
        return f"n,,{_SEPARATOR}auth=Bearer {self._token}{_SEPARATOR}{pairs}{_SEPARATOR}".encode()

    def respond(self, message: bytes) -> bytes | None:
        if not message:
            if self._failure is not None:
                raise SaslError(f"the broker rejected the token: {self._failure}")
            self.is_complete = True
            return None
        try:
            response = json.loads(message)
            self._failure = str(response["status"])
        except (ValueError, KeyError, TypeError):
            raise SaslError("the broker's response to the token is invalid") from None
        return _SEPARATOR.encode()
