"""SASL mechanisms, one class per mechanism and side. Bytes in and bytes out, no I/O, no settings.

The caller passes the client's messages to `respond` of the server until `identity` is set. It sends
`initial` of the client first, then passes the server's messages to `respond` of the client until
`is_complete`. An object serves one exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
SCRAM_MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512)
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class SaslError(Exception):
    """The exchange failed: wrong credentials or an invalid message. `str()` may be sent to the
    peer: it never reveals whether the user exists, and contains no secret. `detail` is for the
    log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


@dataclass(frozen=True)
class Identity:
    """The result of a successful exchange. `expires_at_ms` is the end of the credential's life, in
    milliseconds since the epoch, if it has one. `is_token` is set for delegation tokens, which may
    not create further tokens."""

    name: str
    expires_at_ms: int | None = None
    is_token: bool = False
    extensions: Mapping[str, str] = field(default_factory=dict)


class SaslServer(Protocol):
    mechanism: str
    identity: Identity | None

    def respond(self, message: bytes) -> bytes:
        """Return the response to the client's message. Raises SaslError."""
        ...


class SaslClient(Protocol):
    mechanism: str
    is_complete: bool

    def initial(self) -> bytes: ...

    def respond(self, message: bytes) -> bytes | None:
        """Return the next message, or None if there is none. Raises SaslError."""
        ...


def invalid_credentials(mechanism: str, detail: str) -> SaslError:
    """The error for every wrong user name, password, key or token, in Kafka's words."""
    return SaslError(
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}",
        detail,
    )


def check_authorization_id(authorization_id: str, name: str) -> None:
    if authorization_id and authorization_id != name:
        raise SaslError("Authentication failed: Client requested an authorization id that is different from username")
