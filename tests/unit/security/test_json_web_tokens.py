from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from kavka.security.json_web_tokens import SignedTokens, TokenRules, UnsecuredTokens, unsecured_token
from kavka.security.key_sets import KeySetError, load_key_set
from kavka.security.sasl.oauth_bearer import TokenError

NOW = 1_700_000_000.0
KEY = ECKey.generate_key("P-256", {"kid": "k1", "alg": "ES256", "use": "sig"})
CLAIMS: dict[str, Any] = {"sub": "alice", "iat": NOW, "exp": NOW + 60, "iss": "https://issuer", "aud": ["kafka", "x"],
                          "scope": "read write"}  # fmt: skip
RULES = TokenRules(issuer="https://issuer", audiences=("kafka",), clock_skew_s=5)


def sign(claims: dict[str, Any], key: Any = KEY, algorithm: str = "ES256", key_id: str | None = "k1") -> str:
    header = {"alg": algorithm} if key_id is None else {"alg": algorithm, "kid": key_id}
    return jwt.encode(header, claims, key, algorithms=[algorithm])


def validator(rules: TokenRules = RULES, now: float = NOW) -> SignedTokens:
    keys = KeySet.import_key_set(KeySet([KEY]).as_dict(private=False))
    return SignedTokens(lambda: keys, rules, lambda: now)


def test_a_signed_token() -> None:
    token = validator().validate(sign(CLAIMS))
    assert token == ("alice", int((NOW + 60) * 1000), frozenset({"read", "write"}))
    assert validator().validate(sign(CLAIMS, key_id=None)).principal == "alice"
    assert validator(TokenRules(subject_claim="iss")).validate(sign(CLAIMS)).principal == "https://issuer"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - 6}, "expired"), ({"exp": None}, "exp"), ({"exp": "soon"}, "exp"), ({"iat": None}, "iat"),
        ({"nbf": NOW + 60}, "not valid yet"), ({"iss": "other"}, "issuer"), ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"), ({"sub": " "}, "sub"), ({"sub": 3}, "sub"), ({"scope": {}}, "claim"),
    ],
)  # fmt: skip
def test_invalid_claims(changes: dict[str, Any], reason: str) -> None:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    with pytest.raises(TokenError, match=reason):
        validator().validate(sign(claims))


def test_required_scope() -> None:
    validator(TokenRules(required_scope=frozenset({"read"}))).validate(sign(CLAIMS))
    with pytest.raises(TokenError, match="scope"):
        validator(TokenRules(required_scope=frozenset({"admin"}))).validate(sign(CLAIMS))


def test_forged_tokens() -> None:
    stranger = ECKey.generate_key("P-256", {"kid": "k1"})
    public = json.dumps(KEY.as_dict(private=False)).encode()
    for forged in (
        sign(CLAIMS, stranger),
        sign(CLAIMS, OctKey.import_key(public), "HS256"),
        unsecured_token(CLAIMS),
        sign(CLAIMS)[:-4] + "AAAA",
        "", "a.b.c", "x" * 100_000,
    ):  # fmt: skip
        with pytest.raises(TokenError):
            validator().validate(forged)


def test_an_unknown_key_is_reported() -> None:
    unknown: list[str] = []
    keys = KeySet([KEY])
    tokens = SignedTokens(lambda: keys, RULES, lambda: NOW, unknown.append)
    with pytest.raises(TokenError, match="k2"):
        tokens.validate(sign(CLAIMS, ECKey.generate_key("P-256"), key_id="k2"))
    assert unknown == ["k2"]


def test_unsecured_tokens() -> None:
    tokens = UnsecuredTokens(TokenRules(clock_skew_s=0), lambda: NOW)
    assert tokens.validate(unsecured_token(CLAIMS)).principal == "alice"
    for text in (sign(CLAIMS), unsecured_token({"sub": "alice"}), unsecured_token({**CLAIMS, "exp": NOW}), "a.b."):
        with pytest.raises(TokenError):
            tokens.validate(text)


def test_key_sets(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    rsa = RSAKey.generate_key(2048, {"kid": "r1"})
    path.write_text(json.dumps(KeySet([KEY, rsa]).as_dict(private=False)))
    keys = load_key_set(path.as_uri())
    tokens = SignedTokens(lambda: keys, RULES, lambda: NOW)
    assert tokens.validate(sign(CLAIMS, rsa, "RS256", "r1")).principal == "alice"
    for text in ("[" * 100_000, "[]", '{"keys": [1]}', '{"keys": [{"kty": "RSA", "n": "!!", "e": "AQAB"}]}', "{}"):
        path.write_text(text)
        with pytest.raises(KeySetError):
            load_key_set(path.as_uri())
    for url in (path.as_uri(), "ftp://localhost/x", (tmp_path / "missing").as_uri(), "http://127.0.0.1:1/x"):
        with pytest.raises(KeySetError):
            load_key_set(url, timeout_s=1)
