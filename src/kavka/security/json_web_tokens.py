"""[pure] Validates the JSON Web Tokens of OAUTHBEARER, with Kafka's rules.

A signed token needs a key of the JSON Web Key Set, `exp`, `iat` and a subject; the expected issuer
and audience are checked if they are set. An unsecured token (`alg` none) has no signature: anyone
can create it, so a broker accepts it only if it is configured to.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kavka.security.sasl.oauth_bearer import Token, TokenError

# Signatures with a public key. A symmetric algorithm would accept the public key as its secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_TOKEN_LENGTH = 64 * 1024


@dataclass(frozen=True)
class TokenRules:
    """The required content of a token. Empty values are not checked."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: float = 30.0
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    required_scope: frozenset[str] = frozenset()


class SignedTokens:
    """Validates signed tokens. `keys` returns the current key set (a joserfc KeySet), or None if it
    was never loaded. `on_unknown_key` is called with the id of a key that is not in the set, so
    that the caller can refresh the set."""

    def __init__(
        self,
        keys: Callable[[], Any],
        rules: TokenRules,
        now_s: Callable[[], float],
        on_unknown_key: Callable[[str], None] = lambda key_id: None,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._now_s = now_s
        self._on_unknown_key = on_unknown_key

    def validate(self, text: str) -> Token:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        if len(text) > MAX_TOKEN_LENGTH:
            raise TokenError(f"the token has {len(text)} characters; the limit is {MAX_TOKEN_LENGTH}")
        keys = self._keys()
        if keys is None:
            raise TokenError("the JSON Web Key Set is not loaded yet")
        try:
            claims = jwt.decode(text, keys, algorithms=list(ALGORITHMS)).claims
        except InvalidKeyIdError:
            key_id = str(_json_part(text.partition(".")[0]).get("kid", ""))
            self._on_unknown_key(key_id)
            raise TokenError(f"the key {key_id!r} of the token is not in the JSON Web Key Set") from None
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise TokenError(f"the signature is not valid: {error}") from None
        return check_claims(claims, self._rules, self._now_s(), requires_issued_at=True)


class UnsecuredTokens:
    """Validates tokens without a signature. For tests and development only."""

    def __init__(self, rules: TokenRules, now_s: Callable[[], float]) -> None:
        self._rules = rules
        self._now_s = now_s

    def validate(self, text: str) -> Token:
        if len(text) > MAX_TOKEN_LENGTH:
            raise TokenError(f"the token has {len(text)} characters; the limit is {MAX_TOKEN_LENGTH}")
        parts = text.split(".")
        if len(parts) != 3 or parts[2]:
            raise TokenError("the token is not an unsecured JSON Web Token")
        if _json_part(parts[0]).get("alg") != "none":
            raise TokenError("the token is not an unsecured JSON Web Token: its 'alg' is not none")
        return check_claims(_json_part(parts[1]), self._rules, self._now_s(), requires_issued_at=False)


def unsecured_token(claims: Mapping[str, Any]) -> str:
    """Return the text of an unsecured token."""
    from base64 import urlsafe_b64encode

    def encode(part: Mapping[str, Any]) -> str:
        return urlsafe_b64encode(json.dumps(part, separators=(",", ":")).encode()).rstrip(b"=").decode()

    return f"{encode({'alg': 'none'})}.{encode(claims)}."


def check_claims(claims: Mapping[str, Any], rules: TokenRules, now_s: float, *, requires_issued_at: bool) -> Token:
    """Return the token of verified claims. Raises TokenError."""
    expires_at = _time(claims, "exp")
    if expires_at is None:
        raise TokenError("the token has no 'exp'")
    if now_s - rules.clock_skew_s >= expires_at:
        raise TokenError("the token has expired")
    issued_at, not_before = _time(claims, "iat"), _time(claims, "nbf")
    if requires_issued_at and issued_at is None:
        raise TokenError("the token has no 'iat'")
    for name, start in (("iat", issued_at), ("nbf", not_before)):
        if start is not None and start > now_s + rules.clock_skew_s:
            raise TokenError(f"the token is not valid yet: its '{name}' is in the future")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenError("the issuer of the token is not the expected issuer")
    if rules.audiences and not set(_texts(claims.get("aud"))) & set(rules.audiences):
        raise TokenError("the token has none of the expected audiences")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise TokenError(f"the token has no '{rules.subject_claim}'")
    scope = frozenset(item for text in _texts(claims.get(rules.scope_claim)) for item in text.split())
    if not rules.required_scope <= scope:
        raise TokenError("the token does not have the required scope")
    return Token(subject, int(expires_at * 1000), scope)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise TokenError(f"'{name}' of the token is not a time")
    return float(value)


def _texts(value: Any) -> Collection[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise TokenError("a claim of the token is neither a text nor a list of texts")


def _json_part(text: str) -> Mapping[str, Any]:
    try:
        part = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise TokenError("the token is not a JSON Web Token") from None
    if not isinstance(part, dict):
        raise TokenError("the token is not a JSON Web Token")
    return part
