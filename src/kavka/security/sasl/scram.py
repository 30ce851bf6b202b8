"""[pure] The mechanisms SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802), without channel binding, as in
Kafka. The client's first message may have the extension `tokenauth=true`: the user name is then the
id of a delegation token, and the password its HMAC.

The library `scramp` does not fit: it rejects `tokenauth`, and it normalizes passwords, which Kafka
does not, so that the keys of some passwords would differ.

For an unknown user the server continues with a credential that no password matches, so that
neither the messages nor their time reveal which users exist.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kavka.security.credentials import HASHES, MIN_ITERATIONS, ScramCredential, derive_keys
from kavka.security.sasl import Identity, SaslError, check_authorization_id, invalid_credentials

# A server may request this many iterations from our clients. More would block the loop.
MAX_CLIENT_ITERATIONS = 1_000_000
_TOKEN_AUTH = "tokenauth"

_CLIENT_FIRST = re.compile(
    r"(?P<gs2>n,(?:a=(?P<authzid>[^,]*))?,)(?P<bare>(?:m=[^,]*,)?n=(?P<user>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,]*)*))"
)
_SERVER_FIRST = re.compile(
    r"(?:m=[^,]*,)?r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,[A-Za-z]+=[^,]*)*"
)
_CLIENT_FINAL = re.compile(
    r"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,(?!p=)[A-Za-z]+=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FINAL = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9+/=]+)|e=(?P<error>[^,]+))(?:,[A-Za-z]+=[^,]*)*")
_SASL_NAME = re.compile(r"=2C|=3D|=")

# Makes the credentials of unknown users the same at every attempt, but different in each process.
_PROCESS_KEY = secrets.token_bytes(32)


class TokenCredential(NamedTuple):
    """The credential of a delegation token and the name of its owner."""

    credential: ScramCredential
    owner: str
    expires_at_ms: int


Lookup = Callable[[str], ScramCredential | None]
TokenLookup = Callable[[str], TokenCredential | None]


def _no_tokens(token_id: str) -> TokenCredential | None:
    return None


class ScramServer:
    """`lookup` returns the credential of a user, `lookup_token` of a delegation token's id."""

    def __init__(self, mechanism: str, lookup: Lookup, lookup_token: TokenLookup = _no_tokens) -> None:
        self.mechanism = mechanism
        self.identity: Identity | None = None
        self._hash = HASHES[mechanism]
        self._lookup = lookup
        self._lookup_token = lookup_token
        self._proves: Callable[[bytes], bytes] | None = None
        self._is_finished = False

    def respond(self, message: bytes) -> bytes:
        if self._is_finished:
            raise SaslError("Unexpected SASL message: the authentication is complete")
        if self._proves is None:
            return self._start(message)
        self._is_finished = True
        return self._proves(message)

    def _start(self, message: bytes) -> bytes:
        match = _CLIENT_FIRST.fullmatch(_text(message))
        if match is None:
            raise SaslError("Invalid SCRAM client first message format")
        user = _SASL_NAME.sub(_decode_name, match["user"])
        extensions = dict(item.partition("=")[::2] for item in match["extensions"].split(",") if item)
        is_token = extensions.get(_TOKEN_AUTH, "").lower() == "true"
        check_authorization_id(match["authzid"] or "", user)
        credential, identity = self._find(user, is_token, extensions)
        is_known = credential is not None
        if credential is None:
            credential = self._unknown(user)
        nonce = match["nonce"] + secrets.token_urlsafe(24)
        server_first = f"r={nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        binding = b64encode(match["gs2"].encode()).decode()
        bare = match["bare"]

        def prove(final: bytes) -> bytes:
            signature = self._verify(final, nonce, binding, f"{bare},{server_first}", credential, is_known, user)
            self.identity = identity
            return signature

        self._proves = prove
        return server_first.encode()

    def _find(
        self, user: str, is_token: bool, extensions: Mapping[str, str]
    ) -> tuple[ScramCredential | None, Identity | None]:
        if not is_token:
            return self._lookup(user), Identity(user, extensions=extensions)
        token = self._lookup_token(user)
        if token is None:
            return None, None
        return token.credential, Identity(token.owner, token.expires_at_ms, is_token=True, extensions=extensions)

    def _unknown(self, user: str) -> ScramCredential:
        salt = hmac.digest(_PROCESS_KEY, user.encode(errors="surrogatepass"), hashlib.sha256)
        size = hashlib.new(self._hash).digest_size
        return ScramCredential(salt, bytes(size), bytes(size), MIN_ITERATIONS)

    def _verify(
        self,
        message: bytes,
        nonce: str,
        binding: str,
        exchanged: str,
        credential: ScramCredential,
        is_known: bool,
        user: str,
    ) -> bytes:
        match = _CLIENT_FINAL.fullmatch(_text(message))
        if match is None:
            raise SaslError("Invalid SCRAM client final message format")
        if not hmac.compare_digest(match["nonce"], nonce):
            raise SaslError("Invalid client nonce in the final client message")
        if match["binding"] != binding:
            raise SaslError("Invalid channel binding in the final client message")
        proof = _decode(match["proof"])
        auth_message = f"{exchanged},{match['unproven']}".encode()
        signature = hmac.digest(credential.stored_key, auth_message, self._hash)
        server_signature = hmac.digest(credential.server_key, auth_message, self._hash)
        is_valid = len(proof) == len(signature) and hmac.compare_digest(
            hashlib.new(self._hash, _xor(proof, signature)).digest(), credential.stored_key
        )
        if not is_valid or not is_known:
            raise invalid_credentials(self.mechanism, f"wrong user name or password of {user!r}")
        return b"v=" + b64encode(server_signature)


class ScramClient:
    """`extensions` are attributes of the first message, for example `{"tokenauth": "true"}`."""

    def __init__(self, mechanism: str, user: str, password: str, extensions: Mapping[str, str] | None = None) -> None:
        self.mechanism = mechanism
        self.is_complete = False
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = secrets.token_urlsafe(24)
        name = user.replace("=", "=3D").replace(",", "=2C")
        attributes = "".join(f",{key}={value}" for key, value in (extensions or {}).items())
        self._first_bare = f"n={name},r={self._nonce}{attributes}"
        self._server_signature: bytes | None = None

    def initial(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def respond(self, message: bytes) -> bytes | None:
        if self.is_complete:
            raise SaslError("unexpected SASL message: the authentication is complete")
        if self._server_signature is None:
            return self._prove(message)
        self._check(message)
        return None

    def _prove(self, message: bytes) -> bytes:
        text = _text(message)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            error = _SERVER_FINAL.fullmatch(text)
            reason = error["error"] if error is not None and error["error"] else "its first SCRAM message is invalid"
            raise SaslError(f"the broker rejected the authentication: {reason}")
        iterations = int(match["iterations"])
        if not match["nonce"].startswith(self._nonce) or len(match["nonce"]) == len(self._nonce):
            raise SaslError("the broker's SCRAM nonce does not begin with the client's nonce")
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            raise SaslError(
                f"the broker requires {iterations} SCRAM iterations; "
                f"{MIN_ITERATIONS} to {MAX_CLIENT_ITERATIONS} are allowed"
            )
        keys = derive_keys(self.mechanism, self._password, _decode(match["salt"]), iterations)
        final = f"c=biws,r={match['nonce']}"
        auth_message = f"{self._first_bare},{text},{final}".encode()
        stored_key = hashlib.new(self._hash, keys.client_key).digest()
        proof = _xor(keys.client_key, hmac.digest(stored_key, auth_message, self._hash))
        self._server_signature = hmac.digest(keys.server_key, auth_message, self._hash)
        return f"{final},p={b64encode(proof).decode()}".encode()

    def _check(self, message: bytes) -> None:
        match = _SERVER_FINAL.fullmatch(_text(message))
        if match is None:
            raise SaslError("the broker's final SCRAM message is invalid")
        if match["error"]:
            raise SaslError(f"the broker rejected the authentication: {match['error']}")
        assert self._server_signature is not None
        if not hmac.compare_digest(_decode(match["signature"]), self._server_signature):
            raise SaslError("the broker does not have the user's SCRAM credential: its signature is wrong")
        self.is_complete = True


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError("Invalid SCRAM message: expected UTF-8") from None


def _decode(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise SaslError("Invalid SCRAM message: expected base64") from None


def _decode_name(match: re.Match[str]) -> str:
    if match[0] == "=":
        raise SaslError("Invalid username: '=' must be written as =3D")
    return "," if match[0] == "=2C" else "="


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")
