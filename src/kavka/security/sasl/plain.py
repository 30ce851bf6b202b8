"""[pure] The mechanism PLAIN (RFC 4616): `authorization id NUL user name NUL password`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping

from kavka.security.sasl import PLAIN, Identity, SaslError, check_authorization_id

# Returns whether a password is a user's password.
Verify = Callable[[str, str], bool]


class PlainPasswords:
    """Verifies passwords of a fixed table, in a time that depends neither on the password nor on
    whether the user exists. `options` are a JAAS entry's: `user_alice=secret`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._digests = {
            name.removeprefix("user_"): self._digest(password)
            for name, password in options.items()
            if name.startswith("user_")
        }
        self._no_user = secrets.token_bytes(32)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(errors="surrogatepass"), hashlib.sha256)

    def verify(self, user: str, password: str) -> bool:
        return hmac.compare_digest(self._digests.get(user, self._no_user), self._digest(password))


class PlainServer:
    """The authentication of one connection, on the side of the broker."""

    mechanism = PLAIN

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self.identity: Identity | None = None

    def respond(self, message: bytes) -> bytes:
        try:
            fields = message.decode().split("\x00")
        except UnicodeDecodeError:
            raise SaslError("Invalid SASL/PLAIN response: expected UTF-8") from None
        if len(fields) != 3:
            raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(fields)}")
        authorization_id, user, password = fields
        if not user:
            raise SaslError("Authentication failed: username not specified")
        if not password:
            raise SaslError("Authentication failed: password not specified")
        if not self._verify(user, password):
            raise SaslError(
                "Authentication failed: Invalid username or password", f"wrong user name or password of {user!r}"
            )
        check_authorization_id(authorization_id, user)
        self.identity = Identity(user)
        return b""


class PlainClient:
    """The authentication of one connection, on the side of the client."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password
        self.is_complete = False

    def initial(self) -> bytes:
        return f"\x00{self._user}\x00{self._password}".encode()

    def respond(self, message: bytes) -> bytes | None:
        self.is_complete = True
        return None
