"""Logins with an identity provider: the flow, and hostile responses and tokens."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from kavka.console import auth as auth_module
from kavka.console import oidc
from kavka.console.auth import Auth, Role, User, UsersFile
from kavka.console.oidc import LoginFailed, read_oidc_settings
from kavka.console.settings import SettingsError
from tests.support.identity_provider import IdentityProvider

CALLBACK = "http://localhost:9080/login/callback"


@pytest.fixture(scope="module")
def shared_provider(tmp_path_factory) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture
def provider(shared_provider) -> Iterator[IdentityProvider]:
    shared_provider.login_claims = {"groups": ["staff", "sre"]}
    yield shared_provider
    shared_provider.login_claims, shared_provider.login_key, shared_provider.discovery = {}, None, {}


@pytest.fixture
def console(provider, tmp_path) -> oidc.IdentityProvider:
    return oidc.IdentityProvider(read_oidc_settings(provider.console_settings(tmp_path)))


async def log_in(console: oidc.IdentityProvider, provider: IdentityProvider, **changes: str) -> tuple[User, str]:
    """Log in as a browser does. `changes` replace parameters of the callback."""
    url, cookie = await console.begin(CALLBACK, "/c/default/topics")
    callback = provider.authorize(dict(parse_qsl(urlsplit(url).query)))
    return await console.finish({**dict(parse_qsl(urlsplit(callback).query)), **changes}, cookie, CALLBACK)


def test_login_returns_the_user_with_role_and_groups(console, provider):
    user, next_page = asyncio.run(log_in(console, provider))
    assert (user.name, user.role, user.groups) == ("anna@example.com", Role.ADMIN, ("sre", "staff"))
    assert next_page == "/c/default/topics"
    provider.login_claims = {"groups": "staff"}
    assert asyncio.run(log_in(console, provider))[0].role is Role.VIEW


@pytest.mark.parametrize(
    "groups",
    [None, 7, {"sre": 1}, ["other"], [7, None, ["sre"]], ["sre "], ["x" * 300], [f"g{n}" for n in range(5000)]],
)
def test_user_without_a_known_group_gets_no_role(console, provider, groups):
    provider.login_claims = {"groups": groups}
    user, _ = asyncio.run(log_in(console, provider))
    assert user.role is Role.NONE and len(user.groups) <= oidc.MAX_GROUPS


@pytest.mark.parametrize("name", [None, 7, "", "a b", "a\nb", "a:b", "x" * 65, "<script>", ["anna"]])
def test_hostile_user_name_is_rejected(console, provider, name):
    provider.login_claims["preferred_username"] = name
    with pytest.raises(LoginFailed, match="not a valid user name"):
        asyncio.run(log_in(console, provider))


NOW = int(time.time())


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audiences"),
        ({"aud": ["console", "other"]}, "another client"),
        ({"aud": ["console"], "azp": "other"}, "another client"),
        ({"aud": {"console": 1}}, "invalid"),
        ({"exp": NOW - 3600}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "(invalid|no valid)"),
        ({"iat": NOW + 3600}, "not valid yet"),
        ({"iat": None}, "iat"),
        ({"nonce": "other"}, "another login"),
        ({"nonce": None}, "another login"),
        ({"nonce": ["x"]}, "another login"),
        ({"sub": ""}, "sub"),
    ],
)
def test_hostile_claims_are_rejected(console, provider, claims, message):
    provider.login_claims.update(claims)
    with pytest.raises(LoginFailed, match=message):
        asyncio.run(log_in(console, provider))


def test_token_with_another_key_is_rejected(console, provider):
    provider.login_key = RSAKey.generate_key(2048, {"kid": "k1"})
    with pytest.raises(LoginFailed, match="no valid signature"):
        asyncio.run(log_in(console, provider))


def signed_with_public_key(provider: IdentityProvider, claims: dict[str, object]) -> str:
    """Return a token whose HMAC has the provider's public key as its secret."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "kid": "k1"}, claims)]
    text = ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    mac = hmac.digest(provider._key.as_pem(private=False), text.encode(), "sha256")
    return f"{text}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def test_unsigned_and_symmetric_tokens_are_rejected(console, provider, monkeypatch):
    claims = {"iss": provider.url, "aud": "console", "sub": "a", "exp": NOW + 600, "iat": NOW}
    symmetric = signed_with_public_key(provider, claims)
    unsigned = jwt.encode({"alg": "none"}, claims, OctKey.generate_key(), algorithms=["none"])
    for token in (symmetric, unsigned, "", "a.b.c", "." * 1000, "x" * 100_000):
        monkeypatch.setattr(provider, "_id_token", lambda *_, token=token: (200, {"id_token": token}))
        with pytest.raises(LoginFailed, match=r"no valid|invalid"):
            asyncio.run(log_in(console, provider))


def test_replaced_key_is_loaded_once_a_minute(console, provider, monkeypatch):
    async def body() -> None:
        await log_in(console, provider)
        provider.rotate_key("k2")
        with pytest.raises(LoginFailed, match="no valid signature"):
            await log_in(console, provider)
        monkeypatch.setattr(oidc, "KEYS_RETRY_INTERVAL_S", 0.0)
        assert await log_in(console, provider)

    asyncio.run(body())
    provider.rotate_key("k1")


def test_callback_must_belong_to_the_browser_that_began(console, provider):
    async def body() -> None:
        with pytest.raises(LoginFailed, match="another browser"):
            await log_in(console, provider, state="other")
        with pytest.raises(LoginFailed, match="another identity provider"):
            await log_in(console, provider, iss="https://evil.example")
        with pytest.raises(LoginFailed, match="refused the login: denied"):
            await log_in(console, provider, error="denied\n")
        with pytest.raises(LoginFailed, match="no code"):
            await log_in(console, provider, code="")
        with pytest.raises(LoginFailed, match="status 400"):
            await log_in(console, provider, code="code-of-an-attacker")
        url, cookie = await console.begin(CALLBACK, "/")
        query = dict(parse_qsl(urlsplit(provider.authorize(dict(parse_qsl(urlsplit(url).query)))).query))
        for forged in ("", "x", cookie + "0", "e30." + cookie.partition(".")[2], "\udcff.é"):
            with pytest.raises(LoginFailed, match="no login in this browser"):
                await console.finish(query, forged, CALLBACK)
        assert await console.finish(query, cookie, CALLBACK)
        with pytest.raises(LoginFailed, match="status 400"):
            await console.finish(query, cookie, CALLBACK)

    asyncio.run(body())


def test_login_expires(console, provider, monkeypatch):
    monkeypatch.setattr(oidc, "LOGIN_TIMEOUT_S", -1.0)
    with pytest.raises(LoginFailed, match="too long"):
        asyncio.run(log_in(console, provider))


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://10.0.0.1/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": 7},
        {"padding": "x" * (oidc.MAX_RESPONSE_BYTES + 1)},
    ],
)
def test_hostile_discovery_is_rejected(console, provider, document):
    provider.discovery = document
    with pytest.raises(LoginFailed) as failure:
        asyncio.run(console.begin(CALLBACK, "/"))
    assert failure.value.status == 502


def test_unreachable_provider_is_reported(console, monkeypatch):
    monkeypatch.setattr(console, "settings", replace(console.settings, issuer="http://127.0.0.1:1"))
    with pytest.raises(LoginFailed, match="does not respond"):
        asyncio.run(console.begin(CALLBACK, "/"))
    with pytest.raises(LoginFailed, match="try again in some seconds"):
        asyncio.run(console.begin(CALLBACK, "/"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"issuer": "http://idp.example"}, "https"),
        ({"scope": "email"}, "openid"),
        ({"role.king": "x"}, "unknown setting role.king"),
        ({"role.default": "king"}, "role.default"),
        ({"client.id": ""}, "client.id"),
    ],
)
def test_invalid_settings_are_reported(provider, tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        read_oidc_settings(provider.console_settings(tmp_path, **changes))


def test_session_of_a_provider_user_ends(tmp_path, monkeypatch):
    users = UsersFile(tmp_path / "users")
    user = User("anna", Role.OPERATE, groups=("sre",))
    for auth in (Auth(None, has_provider=True), Auth(users, has_provider=True)):
        assert auth.session_user("") is None and not auth.is_current(user)
        token = auth.begin_session(user)
        current: Any = auth.session_user(token)
        assert (current.name, current.role, current.groups) == ("anna", Role.OPERATE, ("sre",))
        assert auth.is_current(current)
        auth.end_session(token)
        assert auth.session_user(token) is None and not auth.is_current(current)
        token = auth.begin_session(user)
        current = auth.session_user(token)
        monkeypatch.setattr(auth_module, "MAX_PROVIDER_SESSION_S", -1.0)
        assert not auth.is_current(current) and auth.session_user(token) is None
        monkeypatch.undo()
        auth.close()
